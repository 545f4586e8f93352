#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/pair.sh [BUILD] [SHAPES] [CALLS] [PART...]: a GEMM and the AllReduce of its output as two kernels, the ranks of a
# topology sharing one GPU. Parts:
#   right   SHAPES (20) random shapes, then CALLS (200) replays of a graph of three pairs
#   times   of the pair beside its parts, at SIZES, ROUNDS (31) rounds in turn; over links of GBPS (0: not paced) Gbit/s
# TOPOLOGIES (1x2 2x1 2x2 3x1): NODESxRANKS. Every program has a time limit. Exit 77 where nothing could be run.
set -u
build=${1:-build} shapes=${2:-20} calls=${3:-200} failed=0 ran=0
command -v nvidia-cuda-mps-control >/dev/null || { echo "skip: gpu.pair: no nvidia-cuda-mps-control"; exit 77; }
shift $(($# < 3 ? $# : 3))
[ $# -gt 0 ] || set -- right times
sms=${SMS:-132}
export MK_TIMEOUT=10 MK_PEER_TIMEOUT=15 MK_NET=${MK_NET:-loop}
[ "${GBPS:-0}" = 0 ] || export MK_LOOP_GBPS=$GBPS
ranks() { # TOPOLOGY seconds command...
    timeout -k 5 "$2" "$build/bin/mkrun" --gpus-shared --nodes "${1%x*}" --ranks-per-node "${1#*x}" -- "${@:3}"
    local status=$?
    [ $status = 77 ] || ran=1
    [ $status = 0 ] || [ $status = 77 ] || { echo "FAILED ($status): $1 ${*:3}"; failed=1; }
}
for t in ${TOPOLOGIES:-1x2 2x1 2x2 3x1}; do
    export MK_BLOCKS=$((sms / (${t%x*} * ${t#*x})))
    for part in "$@"; do
        echo "== $part, $t"
        case $part in
        right) ranks "$t" "${LIMIT:-90}" "$build/tests/test_gpu_pair" "$shapes" "$calls" ;;
        times)
            for size in ${SIZES:-8192x8192x3584 16384x8192x3584 4096x8192x3584 2048x8192x3584}; do
                # shellcheck disable=SC2086
                ranks "$t" "${LIMIT:-60}" "$build/tests/test_gpu_pair" times ${size//x/ } "${ROUNDS:-31}"
            done
            ;;
        *) echo "no part $part" && exit 2 ;;
        esac
    done
done
[ $ran = 1 ] || exit 77
exit $failed
