#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/torch.sh [BUILD] [PART...]: PyTorch over the plugin with interception, the ranks sharing one GPU or with one each. Parts:
#   right   linear layers and their all-reduce, eager and in graphs, with MK_FUSE=on: right, the same bits on all ranks, and
#           at least OVERLAPS (5) of the captured pairs overlapped on each rank, by the library's own count
#   hostile programs around a pair in which a careless interception would go wrong (CASES: which; all)
#   eager   eager pairs with the file in LD_PRELOAD: those with nothing between overlap, in a loop and in programs that put something
#           between; `hostile` once more so; what was counted of the driver's functions (LOGS)
#   groups  the same with groups of operations, threads and more communicators (CASES)
#   verify  the hostile programs with MK_VERIFY=1, that must see nothing; then some with MK_VERIFY=2, that must see what they do
#   random  SEED (1): random programs for SECONDS_EACH (20) seconds, of one communicator, then of two
#   tuned   the same programs with MK_TUNER=on: K and NCCL in turns, and whichever was faster
#   train   STEPS (200) of training, SEEDS (3): with MK_FUSE=off, on, and with MK_DETERMINISTIC=1 plain against overlapped
#   tp      PyTorch's tensor-parallel API, eager and compiled (WAYS: eager default reduce-overhead), with MK_FUSE as in FUSES (on)
#   compile torch.compile of a linear layer and its all-reduce
#   ends    two graphs replayed in another order on one rank: an error, no hang; an abort with a sum under way; a sum by a
#           pointer that nobody saw (CASES: mismatch abort pointer); a rank that calls by a
#           pointer from before: an error, too
#   jobs    CASES (hundred pointer absent sleeps): COMMUNICATORS (100) at once, with MK_FUSE=FUSE (on); a rank that calls by a pointer from the first call on; a
#           rank without the plugin, NCCL over its own sockets; a rank that comes SLEEP (90) seconds late
#   times   the pairs at SIZES, ROUNDS (15) rounds, with MK_FUSE=on and off in turn, over links of GBPS (0: not paced) Gbit/s
#   steps   a training step and a round of the tensor-parallel API (WAYS), with MK_FUSE=off, on, and on by LD_PRELOAD in turns,
#           REPEATS (3) jobs each of PROGRAMS (train tp): milliseconds of each, and the median of the ratios off / on
#   host    microseconds that an eager call takes of the host, with MK_FUSE=off, on, and on by LD_PRELOAD in turns, REPEATS (3) jobs each
#   unchanged  programs that there is nothing in for the library, without ranks (CASES): output and exit code as without LD_PRELOAD
#   llama   tokens a second of eight layers of Llama-3.1-8B's shapes, with MK_FUSE=on and off in turn
# TOPOLOGY (2x1): NODESxRANKS, over loop. The ranks share the GPUs if there are fewer. PRELOAD=1: the file in LD_PRELOAD too. Every program has a time limit. Exit 77
# where there is no PyTorch or no GPU. PIN=1: each rank on cores of its own, the emulated NIC on the last four. LOGS: a directory that keeps the library's logs.
set -u
build=$(cd "${1:-build}" && pwd) || exit 2
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- right hostile eager groups verify random tuned train tp compile ends jobs unchanged times steps
command -v nvidia-cuda-mps-control >/dev/null || { echo "skip: gpu.torch: no nvidia-cuda-mps-control"; exit 77; }
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { echo "skip: gpu.torch: no PyTorch with a GPU"; exit 77; }
here=$(dirname "$0") so=$build/lib/libnccl-net-mkernel.so t=${TOPOLOGY:-2x1} failed=0 sms=${SMS:-132}
logs=${LOGS:-$(mktemp -d)}
cores=$(nproc) ranks=$((${t%x*} * ${t#*x})) gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
# Where ranks share a GPU, each leaves room for the others' kernels, and NCCL must take it for a node of its own.
if [ "$ranks" -gt "$gpus" ]; then
    export MK_BLOCKS=${MK_BLOCKS:-$((sms * 15 * (gpus ? gpus : 1) / ranks / 16))} PER_NODE=1
else
    export PER_NODE=${t#*x}
fi
mkdir -p "$logs"
export NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_IB_DISABLE=1 NCCL_PXN_DISABLE=1 NCCL_NET_GDR_LEVEL=SYS
export NCCL_NET_PLUGIN=$so NCCL_NET=mKernel NCCL_PROFILER_PLUGIN=$so NCCL_TUNER_PLUGIN=$so NCCL_NET_PLUGIN_REF_COUNT=1
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,TUNING MK_NET=loop MK_TIMEOUT=${MK_TIMEOUT:-20} MK_PEER_TIMEOUT=${MK_PEER_TIMEOUT:-20}
export MK_LOG=info MASTER_ADDR=127.0.0.1 GLOO_SOCKET_IFNAME=lo
# What the parts expect of the library's counts is for a library that does not leave to NCCL what NCCL does faster; `tuned`, `times`
# and `llama` let it.
export MK_TUNER=${MK_TUNER:-off}
[ "${GBPS:-0}" = 0 ] || export MK_LOOP_GBPS=$GBPS
job() { # name MK_FUSE program arguments...
    local name=$1
    export EACH=$(((cores - 4) / ranks)) MK_FUSE=$2 NCCL_DEBUG_FILE=$logs/$name.%p LOG=$logs/$name PRELOAD=${PRELOAD:-} SO=$so PROGRAM=$here/torch_$3.py
    export MASTER_PORT=$((20000 + RANDOM % 10000))
    # shellcheck disable=SC2016
    ${PIN:+taskset -c "$((cores - 4))-$((cores - 1))"} timeout -k 5 "${LIMIT:-90}" "$build/bin/mkrun" --gpus-shared --quiet --nodes "${t%x*}" --ranks-per-node "${t#*x}" -- sh -c '
export RANK=$MK_RANK WORLD_SIZE=$MK_NRANKS NCCL_HOSTID=h$((MK_RANK / PER_NODE))
[ -z "${PIN:-}" ] || taskset -pc "$((RANK * EACH))-$((RANK * EACH + EACH - 1))" $$ >/dev/null
[ -z "$PRELOAD" ] || export LD_PRELOAD=$SO
[ "${WITHOUT:-}" != "$RANK" ] || unset NCCL_NET_PLUGIN NCCL_PROFILER_PLUGIN NCCL_TUNER_PLUGIN LD_PRELOAD
exec python3 "$PROGRAM" "$@" 2>"$LOG.$RANK.err"' sh "${@:4}"
    local status=$?
    [ $status = 0 ] || { echo "FAILED ($status): $name ${*:2}"; ended "$name"; failed=1; }
}
ended() { # name: the last things that each rank said, without the library's lines of the end
    local log
    for log in "$logs/$1".*.err; do
        echo "$log:"
        grep -v 'fuse total\|HOOK' "$log" | tail -n "${TAIL:-12}"
    done
}
total() { # name act: least of the ranks
    local rank n least=
    for ((rank = 0; rank < ranks; rank++)); do
        n=$(sed -nE "s/.*fuse total $2: ([0-9]+).*/\1/p" "$logs/$1.$rank.err" | tail -1)
        [ -n "$least" ] && [ "$least" -le "${n:-0}" ] || least=${n:-0}
    done
    echo "$least"
}
counted() { # name: what each rank said that it expects ('expect WHAT N') against the library's own counts
    local rank what want have any
    for ((rank = 0; rank < ranks; rank++)); do
        any=0
        while read -r what want; do
            any=1
            have=$(sed -nE "s/.*fuse total $what: ([0-9]+).*/\1/p" "$logs/$1.$rank.err" | tail -1)
            [ "${have:-0}" -ge "$want" ] || { echo "FAILED: $1: rank $rank: $what: ${have:-0}, not $want"; failed=1; }
        done < <(sed -nE 's/^expect ([^ ]+ [0-9]+)$/\1/p' "$logs/$1.$rank.err")
        [ $any = 1 ] || { echo "FAILED: $1: rank $rank expects nothing"; failed=1; }
    done
    echo "$1: $(total "$1" OVERLAP) overlapped, $(total "$1" PLAIN) plain, $(total "$1" G) by G, $(total "$1" NCCL) NCCL's"
}
reasons() { # name: why, and how often on a rank
    cat "$logs/$1".*.err | sed -nE 's/.*fuse total reason=([a-z-]+): ([0-9]+).*/\2 \1/p' | sort -k 2,2 -k 1,1rn | sort -s -u -k 2,2 | sort -rn |
        head -"${REASONS:-20}" | awk '{line = line ", " $2 " " $1} END {print "reasons: " substr(line, 3)}'
}
for part in "$@"; do
    case $part in
    right)
        job right on pairs right
        echo "right: $(total right OVERLAP) overlapped, $(total right PLAIN) plain, $(total right G) by G, $(total right NCCL) NCCL's"
        reasons right
        [ "$(total right OVERLAP)" -ge "${OVERLAPS:-5}" ] || { echo "FAILED: too few pairs overlapped"; failed=1; }
        ;;
    hostile | groups)
        # shellcheck disable=SC2086
        LIMIT=${LIMIT:-150} job "$part" on "$part" ${CASES:-}
        counted "$part"
        reasons "$part"
        ;;
    eager)
        # shellcheck disable=SC2086
        PRELOAD=1 MK_LOG=trace LIMIT=${LIMIT:-150} job eager on eager ${CASES:-}
        cat "$logs"/eager.*.err | grep -o 'eager pairs .*\|between the GEMM and .*' | sort | uniq -c | sort -rn | head -8
        sed -nE 's/.*counted ([^:]+): ([0-9]+)$/\2 \1/p' "$logs/eager.0.err" | sort -rn | head -"${COUNTED:-24}" |
            awk '{line = line ", " $2 " " $3 " " $1} END {print "counted on rank 0: " substr(line, 3)}'
        [ "$(cat "$logs"/eager.[0-9]* | grep -c 'eager pairs can overlap')" -ge "$ranks" ] || { echo "FAILED: a rank has no proof"; failed=1; }
        counted eager
        reasons eager
        [ -n "${CASES:-}" ] || {
            PRELOAD=1 LIMIT=${LIMIT:-150} job eager.hostile on hostile
            counted eager.hostile
            reasons eager.hostile
        }
        ;;
    verify)
        # shellcheck disable=SC2086
        MK_VERIFY=1 LIMIT=${LIMIT:-150} job verify on hostile ${CASES:-}
        counted verify
        [ "$(total verify checked)" -ge "${CHECKED:-10}" ] || { echo "FAILED: only $(total verify checked) pairs were looked at"; failed=1; }
        grep -h 'fuse total differed: [1-9]\|fuse check ' "$logs"/verify.* && { echo "FAILED: a proof was wrong"; failed=1; }
        MK_VERIFY=2 job seen on verify
        counted seen
        grep -q 'fuse check .*DIFFERS proof=assumed' "$logs"/seen.* || { echo "FAILED: nobody says what was seen"; failed=1; }
        echo "verify: $(total verify checked) pairs looked at; then $(total seen checked), $(total seen differed) of them different"
        ;;
    random)
        for groups in ${GROUPS_EACH:-1 2}; do
            job "random.$groups" on random "${SEED:-1}" "${SECONDS_EACH:-20}" "$groups" ${ONLY:+"$ONLY"}
            counted "random.$groups"
        done
        ;;
    tuned)
        MK_TUNER=on job tuned on random "${SEED:-1}" "${SECONDS_EACH:-20}" 2
        echo "tuned: $(total tuned OVERLAP) overlapped, $(total tuned PLAIN) plain, $(total tuned NCCL) NCCL's"
        reasons tuned
        ;;
    train)
        for fuse in off on; do
            job "train.$fuse" $fuse train "${STEPS:-200}" "${SEEDS:-3}" "$logs/train.losses"
        done
        counted train.on
        reasons train.on
        export MK_DETERMINISTIC=1
        job train.same on train "${STEPS:-200}" 1 "$logs/train.losses"
        unset MK_DETERMINISTIC
        counted train.same
        ;;
    tp)
        for fuse in ${FUSES:-on}; do
            # shellcheck disable=SC2086
            LIMIT=${LIMIT:-150} job "tp.$fuse" "$fuse" tp "${ROUNDS:-6}" ${WAYS:-}
            [ "$fuse" = off ] || { counted "tp.$fuse" && reasons "tp.$fuse"; }
        done
        ;;
    compile)
        LIMIT=${LIMIT:-150} job compile on compile "${CALLS:-8}"
        counted compile
        reasons compile
        ;;
    ends)
        for which in ${CASES:-mismatch abort pointer}; do
            job "$which" on ends "$which"
            case $which in
            mismatch) cat "$logs/$which".* | grep -q 'make different calls' || { echo "FAILED: nobody says what was wrong"; failed=1; } ;;
            pointer)
                [ -n "${PRELOAD:-}" ] || cat "$logs/$which".* | grep -q 'reason=unhooked-call' ||
                    { echo "FAILED: nobody says who called by a pointer"; failed=1; }
                ;;
            esac
        done
        ;;
    jobs)
        for which in ${CASES:-hundred pointer absent sleeps}; do
            case $which in
            hundred)
                LIMIT=${LIMIT:-280} job jobs.hundred "${FUSE:-on}" jobs hundred
                [ "${FUSE:-on}" = off ] || { counted jobs.hundred && reasons jobs.hundred; }
                ;;
            pointer) job jobs.pointer on jobs pointer && counted jobs.pointer ;;
            absent)
                export WITHOUT
                for WITHOUT in 0 $((ranks - 1)); do
                    NCCL_NET=Socket MK_TIMEOUT=5 job "jobs.absent.$WITHOUT" on jobs absent && counted "jobs.absent.$WITHOUT"
                    cat "$logs/jobs.absent.$WITHOUT".* | grep -q 'fuse setup .* OFF reason=' || { echo "FAILED: set-up did not end off"; failed=1; }
                done
                unset WITHOUT
                ;;
            sleeps) MK_PEER_TIMEOUT=0 LIMIT=${LIMIT:-240} job jobs.sleeps on jobs sleeps && counted jobs.sleeps ;;
            *) echo "no case $which" && exit 2 ;;
            esac
        done
        ;;
    times)
        for size in ${SIZES:-8192x8192x3584 4096x8192x3584}; do
            for fuse in on off; do
                echo "== MK_FUSE=$fuse"
                # shellcheck disable=SC2086
                MK_TUNER=on job "times.$size.$fuse" $fuse pairs times ${size//x/ } "${ROUNDS:-15}"
            done
        done
        ;;
    unchanged)
        for which in ${CASES:-loader fork elementwise gemm error nvidia-smi python}; do
            case $which in
            nvidia-smi) words="nvidia-smi -L" ;;
            python) words="python3 -c 1" ;;
            *) words="python3 $here/torch_unchanged.py $which" ;;
            esac
            for preload in "" "$so"; do
                # shellcheck disable=SC2086
                env -u NCCL_NET_PLUGIN MK_LOG=warn MK_FUSE=on ${preload:+LD_PRELOAD=$preload} timeout -k 5 "${LIMIT:-90}" $words \
                    >"$logs/unchanged.$which.${preload:+with}" 2>"$logs/unchanged.$which.${preload:+with}.err" </dev/null
                echo "exit code $?" >>"$logs/unchanged.$which.${preload:+with}"
            done
            grep -q 'exit code 12[4-9]\|exit code 13' "$logs/unchanged.$which." && { echo "FAILED: unchanged $which does not work without"; failed=1; }
            if cmp "$logs/unchanged.$which." "$logs/unchanged.$which.with"; then
                echo "unchanged: $which: $(tail -1 "$logs/unchanged.$which."), the same"
            else
                echo "FAILED: unchanged $which:"
                tail -n 5 "$logs/unchanged.$which.with" "$logs/unchanged.$which.with.err"
                failed=1
            fi
        done
        ;;
    steps)
        for ((r = 1; r <= ${REPEATS:-3}; r++)); do
            for fuse in off on preload; do
                with=
                [ $fuse = off ] || [ $fuse = on ] || with=1
                for program in ${PROGRAMS:-train tp}; do
                    words="${ROUNDS:-21} ${WAYS:-}"
                    [ "$program" = tp ] || words="${STEPS:-200} 1 $logs/steps.losses"
                    # shellcheck disable=SC2086
                    PRELOAD=$with MK_TUNER=on LIMIT=${LIMIT:-150} job "steps.$program.$fuse.$r" "${fuse/preload/on}" $program $words >"$logs/steps.$program.$fuse.$r"
                    [ $fuse = off ] || echo "$program, $fuse: $(total "steps.$program.$fuse.$r" OVERLAP) overlapped, $(total "steps.$program.$fuse.$r" PLAIN) plain, $(total "steps.$program.$fuse.$r" NCCL) NCCL's"
                done
            done
        done
        # A program's line: '[0] train eager, seed 1: ... step 5.02 ms (...)'. With MK_FUSE=on train's last lines compare; the first counts.
        for fuse in off on preload; do
            for ((r = 1; r <= ${REPEATS:-3}; r++)); do
                sed -nE "s/^\[0\] ((train|tp) [^:]*): .*(step|a round) ([0-9.]+) ms( .*|,.*|)$/$fuse|$r|\1|\4/p" "$logs"/steps.*."$fuse.$r" |
                    sort -s -t'|' -u -k 3,3
            done
        done | awk -F'|' '{ms[$1, $3, $2] = $4; what[$3] = 1; if ($2 > repeats) repeats = $2}
            function median(v, k,  i, j, t) {
                for (i = 2; i <= k; i++) for (j = i; j > 1 && v[j] < v[j - 1]; j--) {t = v[j]; v[j] = v[j - 1]; v[j - 1] = t}
                return k % 2 ? v[(k + 1) / 2] : (v[k / 2] + v[k / 2 + 1]) / 2
            }
            END {
                for (w in what) for (f = 1; f <= 2; f++) {
                    way = f == 1 ? "on" : "preload"; line = ""; k = 0
                    for (i = 1; i <= repeats; i++) if (("off", w, i) in ms && (way, w, i) in ms) {
                        ratio[++k] = ms["off", w, i] / ms[way, w, i]
                        line = line sprintf(" %s/%s", ms["off", w, i], ms[way, w, i])
                    }
                    if (k) printf "steps: %s, %s: ms off/on%s, ratio %.3f\n", w, way, line, median(ratio, k)
                }
            }' | sort
        ;;
    host)
        for ((r = 1; r <= ${REPEATS:-3}; r++)); do
            for fuse in off on preload; do
                with=
                [ $fuse != preload ] || with=1
                PRELOAD=$with job "host.$fuse.$r" "${fuse/preload/on}" host >"$logs/host.$fuse.$r"
            done
        done
        for fuse in off on preload; do
            sed -nE "s/^\[0\] host, ([^:]*): ([0-9.]+) us.*/\1|$fuse|\2/p" "$logs"/host."$fuse".*
        done | awk -F'|' '{what[$1] = 1; us[$1, $2] = us[$1, $2] " " $3}
            END {for (w in what) printf "host: %s: us off%s, on%s, preload%s\n", w, us[w, "off"], us[w, "on"], us[w, "preload"]}' | sort
        ;;
    llama)
        for fuse in on off; do
            echo "== MK_FUSE=$fuse"
            MK_TUNER=on job "llama.$fuse" $fuse llama "${ROUNDS:-11}"
        done
        ;;
    *) echo "no part $part" && exit 2 ;;
    esac
done
exit $failed
