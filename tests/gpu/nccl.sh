#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/nccl.sh [BUILD] [PART...]: real NCCL over the plugin, the ranks sharing one GPU. Parts (none: right):
#   right   self coll lives abort list, everything that must be right
#   short   the same with small sizes and few communicators, in under two minutes
#   self    the checks can fail: wrong words are found
#   coll    all collectives, 8 bytes to MOST (256M), ring and tree, LL, LL128 and Simple
#   lives   LIVES (200) communicators in one process, each destroyed before the next one is made
#   abort   ncclCommAbort with traffic in flight
#   list    NCCL_NET_PLUGIN=mkernel,other finds the plugin
# NETS (loop ofi), RANKS (2 4), LIBNCCL (PyTorch's and the system's libnccl.so.2): what each part is run with. loop moves
# GPU pointers through mknic, ofi host memory over libfabric. Every program has a time limit; exit 0, 1, or 77 where there
# is no GPU. LOGS: a directory that keeps NCCL's own logs.
set -u
build=$(cd "${1:-build}" && pwd) || exit 2
[ $# -gt 0 ] && shift
parts=" ${*:-right} " failed=0 ran=0
program=$build/tests/test_gpu_nccl so=$build/lib/libnccl-net-mkernel.so
most=${MOST:-256M} lives=${LIVES:-200}
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])' 2>/dev/null)
libs=${LIBNCCL:-${torch:+$torch/lib/libnccl.so.2} libnccl.so.2}
logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"
case $parts in
*" right "*) parts="$parts self coll lives abort list " ;;
*" short "*) parts="$parts self coll lives abort list " most=1M lives=10 RANKS=${RANKS:-2} ;;
esac
usable=""
for lib in $libs; do # what can be used here: no rank's environment yet, so nothing runs
    "$program" "$lib" self >"$logs/alone" 2>&1
    case $? in
    2) usable="$usable $lib" ;;
    *) cat "$logs/alone" ;;
    esac
done
[ -n "$usable" ] || exit 77

export NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_COLLNET_ENABLE=0 NCCL_IB_DISABLE=1
export NCCL_PXN_DISABLE=1 NCCL_NET_GDR_LEVEL=SYS NCCL_NET=mKernel NCCL_NET_PLUGIN=$so NCCL_DEBUG=INFO
export NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,TUNING MK_TIMEOUT=${MK_TIMEOUT:-20}

job() { # name seconds ranks command...
    local name=$1 begin=$SECONDS status
    NCCL_DEBUG_FILE=$logs/$name.%p timeout -k 5 "$2" "$build/bin/mkrun" --gpus-shared --nodes "$3" -- "${@:4}"
    status=$?
    ran=$((ran + 1))
    [ $status = 0 ] && echo "$name: passed, $((SECONDS - begin)) s"
    [ $status = 0 ] || { echo "FAILED ($status): $name, $((SECONDS - begin)) s"; failed=$((failed + 1)); grep -h WARN "$logs/$name".* 2>/dev/null | sort | uniq -c | head -8; }
}
# What NCCL itself says: our network was used, and over loop with GPU memory.
seen() { # name pattern
    grep -qs "$2" "$logs/$1".* || { echo "FAILED: $1: NCCL's log has no '$2'"; failed=$((failed + 1)); }
}
evidence() { # name
    seen "$1" "Using network mKernel"
    [ "$MK_NET" != loop ] || seen "$1" GDRDMA
    grep -ho 'Algo [A-Za-z0-9_]* proto [A-Za-z0-9]*' "$logs/$1".* | sort | uniq -c
}

for lib in $usable; do
    for MK_NET in ${NETS:-loop ofi}; do
        export MK_NET
        for ranks in ${RANKS:-2 4}; do
            with="$MK_NET.$ranks.$(echo "$lib" | cksum | cut -c1-4)"
            for part in $parts; do
                echo "== $part, $MK_NET, $ranks ranks, $lib"
                case $part in
                self) job "self.$with" 60 "$ranks" "$program" "$lib" self ;;
                coll)
                    job "coll.$with" "${LIMIT:-150}" "$ranks" "$program" "$lib" coll "$most"
                    evidence "coll.$with"
                    ;;
                lives) [ "$ranks" = 2 ] && job "lives.$with" "${LIMIT:-150}" "$ranks" "$program" "$lib" lives "$lives" ;;
                abort) MK_LOOP_GBPS=8 job "abort.$with" 90 "$ranks" "$program" "$lib" abort ;;
                list)
                    [ "$ranks" = 2 ] && NCCL_NET_PLUGIN=mkernel,other LD_LIBRARY_PATH=$build/lib:${LD_LIBRARY_PATH:-} \
                        job "list.$with" 60 "$ranks" "$program" "$lib" coll 1M && seen "list.$with" "Using network mKernel"
                    ;;
                right | short) ;;
                *) echo "no part $part" && exit 2 ;;
                esac
            done
        done
    done
done
echo "$ran jobs, $failed failures; NCCL's logs: $logs"
[ $failed = 0 ]
