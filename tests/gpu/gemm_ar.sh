#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/gemm_ar.sh [BUILD] [SHAPES] [CALLS] [TOPOLOGY...]: GEMM+AllReduce on one GPU shared by the ranks of each
# topology (NODESxRANKS), under MPS; every program has a time limit.
set -u
build=${1:-build} shapes=${2:-40} calls=${3:-500}
shift $(($# < 3 ? $# : 3))
[ $# -gt 0 ] || set -- 1x1 1x2 2x1 2x2 1x4 3x1 3x2
sms=${SMS:-132}
export CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
nvidia-cuda-mps-control -d || exit 1
trap 'echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null' EXIT
failed=0
for t in "$@"; do
    ranks=$((${t%x*} * ${t#*x}))
    export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / ranks)) MK_BLOCKS=$((sms / ranks)) MK_SHARED_GPU=1
    for portable in ${KINDS:-auto portable}; do
        echo "== $t, $MK_BLOCKS blocks a rank, MK_GEMM=$portable"
        MK_GEMM=$portable MK_TIMEOUT=10 MK_PEER_TIMEOUT=10 timeout "${LIMIT:-60}" "$build/bin/mkrun" --nodes "${t%x*}" \
            --ranks-per-node "${t#*x}" -- "$build/tests/test_gpu_gemm_ar" "$shapes" "$calls" || failed=$((failed + 1))
    done
done
echo "$failed topologies failed"
[ $failed -eq 0 ]
