#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/nccl.sh [BUILD] [PART...]: real NCCL over the plugin, the ranks sharing one GPU. Parts (none: right):
#   right    self plugin coll lives abort list again, everything that must be right
#   short    the same with small sizes and few communicators, in about a minute
#   times    paced sockets
#   self     the checks can fail: wrong words are found
#   coll     all collectives, 8 bytes to MOST (256M), ring and tree, LL, LL128 and Simple
#   lives    LIVES (200) communicators in one process, each destroyed before the next one is made; a tenth of that with
#            every other network and NCCL than the first
#   abort    ncclCommAbort with traffic in flight
#   list     NCCL_NET_PLUGIN=mkernel,other finds the plugin
#   again    without NCCL_NET_PLUGIN_REF_COUNT, which NCCL before 2.30.3 needs to find a plugin again after the last
#            communicator: the plugin as libnccl-net.so in LD_LIBRARY_PATH
#   plugin   the plugin without NCCL: every kind of memory, and messages too large for what was posted
#   paced    times of all-reduce over loop, its link at GBPS (80) Gbit/s, beside what 8 bytes take mkbench plugin
#   sockets  all-reduce over libfabric and over NCCL's sockets in turn, PAIRS (31) pairs, for NCCL_SOCKET_NTHREADS and
#            NCCL_NSOCKS_PERTHREAD of SWEEP (1 2 4) each
# NETS (loop ofi), RANKS (2 4), LIBNCCL (PyTorch's and the system's libnccl.so.2): what the first parts are run with; the
# times take two ranks and the first NCCL. loop moves GPU pointers through mknic, ofi host memory over libfabric. Every
# program has a time limit, and after TOTAL (1000) seconds no more are started. Exit 0, 1, or 77 where there is no GPU.
# LOGS: a directory that keeps NCCL's own logs.
set -u
build=$(cd "${1:-build}" && pwd) || exit 2
[ $# -gt 0 ] && shift
parts=${*:-right} failed=0 ran=0
program=$build/tests/test_gpu_nccl so=$build/lib/libnccl-net-mkernel.so
most=${MOST:-256M} lives=${LIVES:-200} all_ranks=${RANKS:-2 4}
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])' 2>/dev/null)
libs=${LIBNCCL:-${torch:+$torch/lib/libnccl.so.2} libnccl.so.2}
logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"
case " $parts " in
*" short "*) most=1M lives=10 all_ranks=${RANKS:-2} ;;
esac
parts=$(echo "$parts" | sed -E 's/\b(right|short)\b/self plugin coll lives abort list again/g; s/\btimes\b/paced sockets/g')

usable=""
for lib in $libs; do # what can be used here: no rank's environment yet, so nothing runs
    "$program" "$lib" self >"$logs/alone" 2>&1
    case $? in
    2) usable="$usable $lib" ;;
    *) cat "$logs/alone" ;;
    esac
done
[ -n "$usable" ] || exit 77
first=${usable# } && first=${first%% *}

export NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_COLLNET_ENABLE=0 NCCL_IB_DISABLE=1
export NCCL_PXN_DISABLE=1 NCCL_NET_PLUGIN_REF_COUNT=1 NCCL_NET_GDR_LEVEL=SYS NCCL_NET=mKernel NCCL_NET_PLUGIN=$so NCCL_DEBUG=INFO
export NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,TUNING MK_TIMEOUT=${MK_TIMEOUT:-20}

wrong() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}
job() { # name seconds ranks command...
    local name=$1 begin=$SECONDS status
    [ "$SECONDS" -lt "${TOTAL:-1000}" ] || { wrong "$name: not run, the time is over" && return 1; }
    echo "== $name"
    NCCL_DEBUG_FILE=$logs/$name.%p timeout -k 5 "$2" "$build/bin/mkrun" --gpus-shared --nodes "$3" -- "${@:4}"
    status=$?
    ran=$((ran + 1))
    [ $status = 0 ] && echo "$name: passed, $((SECONDS - begin)) s" && return 0
    wrong "$name: status $status, $((SECONDS - begin)) s"
    cat "$logs/$name".* 2>/dev/null | grep WARN | sed -E 's/^[^]]*\]//' | sort | uniq -c | sort -rn | head -8
    return 1
}
# What NCCL itself says: our network was used, and over loop with GPU memory.
seen() { # name pattern
    cat "$logs/$1".* 2>/dev/null | grep -qE "$2" || wrong "$1: NCCL's log has no '$2'"
}
ours="(Using network|Assigned NET plugin) mKernel|via NET/mKernel"
evidence() { # name
    seen "$1" "$ours"
    [ "$MK_NET" != loop ] || seen "$1" "NET/mKernel/[0-9]+/GDRDMA"
}
# Each algorithm and protocol was used, if this NCCL says which it uses.
choices() { # name
    local said choice
    said=$(cat "$logs/$1".* 2>/dev/null | grep -oiE 'Algo [A-Z0-9_]+ proto [A-Z0-9]+' | tr '[:lower:]' '[:upper:]' | sort | uniq -c)
    [ -n "$said" ] || { echo "$1: this NCCL does not say its choices" && return; }
    echo "$said"
    for choice in RING.PROTO.{LL,LL128,SIMPLE} TREE.PROTO.{LL,LL128,SIMPLE}; do
        echo "$said" | grep -qE "$choice\$" || wrong "$1: $choice was not used"
    done
}

right() { # part library ranks
    local name n=$lives
    name="$1.$MK_NET.$3.$(echo "$2" | cksum | cut -c1-4)"
    case $1 in
    self) [ "$3 $2" != "${all_ranks%% *} $first" ] || job "$name" 60 "$3" "$program" "$2" self ;;
    coll) job "$name" "${LIMIT:-150}" "$3" "$program" "$2" coll "$most" && evidence "$name" && choices "$name" ;;
    lives)
        [ "$MK_NET $2" = "${nets%% *} $first" ] || n=$(((lives + 9) / 10))
        [ "$3" != "${all_ranks%% *}" ] || job "$name" "${LIMIT:-150}" "$3" "$program" "$2" lives "$n"
        ;;
    plugin) [ "$2" != "$first" ] || job "$name" 90 "$3" "$program" "$2" plugin ;;
    abort) MK_LOOP_GBPS=8 job "$name" 90 "$3" "$program" "$2" abort ;;
    list)
        [ "$3 $2" = "${all_ranks%% *} $first" ] || return 0
        NCCL_NET_PLUGIN=mkernel,other LD_LIBRARY_PATH=$build/lib:${LD_LIBRARY_PATH:-} \
            job "$name" 60 "$3" "$program" "$2" coll 1M && seen "$name" "$ours"
        ;;
    again)
        mkdir -p "$logs/lib" && ln -sf "$so" "$logs/lib/libnccl-net.so"
        [ "$3" != "${all_ranks%% *}" ] || NCCL_NET_PLUGIN_REF_COUNT=0 LD_LIBRARY_PATH=$logs/lib:${LD_LIBRARY_PATH:-} \
            job "$name" 60 "$3" "$program" "$2" lives 3
        ;;
    esac
}

paced() {
    local ns
    export MK_NET=loop MK_LOOP_GBPS=${GBPS:-80}
    env -u NCCL_NET -u NCCL_NET_PLUGIN timeout 60 "$build/bin/mkbench" plugin "$so" --no-raw --sizes 8 --only latency \
        --json "$logs/plugin.json" || wrong "mkbench plugin"
    ns=$(grep -o '"median": [0-9.]*' "$logs/plugin.json" | awk '{ print int($2 * 1000); exit }')
    job "paced.$MK_LOOP_GBPS" 120 2 "$program" "$first" rate ${ns:+"$ns"} && evidence "paced.$MK_LOOP_GBPS"
    MK_LOOP_GBPS=0 job "unpaced" 120 2 "$program" "$first" rate ${ns:+"$ns"}
    unset MK_LOOP_GBPS
}
# Each size's least favourable setting of the sockets.
verdict() {
    awk '$1 == "pairs" {
        size = $5; median = $(NF - 2); high = $NF
        if (!(size in least) || median < least[size]) { least[size] = median; with[size] = $2 "x" $4; text[size] = $0 }
        if (high < 1) slower[size] = slower[size] " " $2 "x" $4
    } END {
        for (size in least) {
            printf "%10d bytes: at least %.3f times the sockets (%s)", size, least[size], with[size]
            if (size + 0 >= 33554432) printf ", >= 1.05: %s", (least[size] >= 1.05) ? "met" : "NOT met"
            if (size + 0 < 65536) printf ", nowhere slower: %s", (size in slower) ? "NOT met:" slower[size] : "met"
            printf "\n"
        }
    }' "$logs/pairs" | sort -n
}
sockets() {
    local threads socks
    export MK_NET=ofi
    : >"$logs/pairs"
    for threads in ${SWEEP:-1 2 4}; do
        for socks in ${SWEEP:-1 2 4}; do
            NCCL_SOCKET_NTHREADS=$threads NCCL_NSOCKS_PERTHREAD=$socks job "sockets.${threads}x$socks" 90 2 "$program" \
                "$first" pairs "${PAIRS:-31}" | tee "$logs/now"
            grep -q ": passed" "$logs/now" || failed=$((failed + 1))
            sed -n 's/.*\(pairs [0-9]* x [0-9]*:.*\)/\1/p' "$logs/now" | sed 's/:/ /' >>"$logs/pairs"
        done
    done
    verdict
}

nets=${NETS:-loop ofi}
quiet=INIT,NET,GRAPH # no line for every call
for part in $parts; do
    case $part in
    self | plugin | coll | lives | abort | list | again)
        for lib in $usable; do
            for MK_NET in $nets; do
                export MK_NET
                for ranks in $all_ranks; do right "$part" "$lib" "$ranks"; done
            done
        done
        ;;
    paced) NCCL_DEBUG_SUBSYS=$quiet paced ;;
    sockets) NCCL_DEBUG_SUBSYS=$quiet sockets ;;
    *) echo "no part $part" && exit 2 ;;
    esac
done
echo "$ran jobs, $failed failures, $SECONDS s; NCCL's logs: $logs"
[ $failed = 0 ]
