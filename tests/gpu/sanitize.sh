#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/sanitize.sh [BUILD] [TOPOLOGY...]: compute-sanitizer on the kernels of GEMM+AllReduce, Hopper and portable.
# Topologies (1x1 1x2 2x1): NODESxRANKS; the ranks take turns on the GPU (no MPS), with few blocks each. TOOLS, SHAPES,
# LIMIT seconds a run. Reports inside these kernels count; those on the test's own copies (initcheck does not see what
# kernels wrote that are filtered out) do not.
set -u
build=${1:-build} failed=0
shift $(($# < 1 ? $# : 1))
[ $# -gt 0 ] || set -- 1x1 1x2 2x1
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v compute-sanitizer >/dev/null || { echo "skip: gpu.sanitize: no compute-sanitizer"; exit 77; }
export MK_SHARED_GPU=1 MK_BLOCKS=${MK_BLOCKS:-4} MK_TIMEOUT=60 MK_NET=loop
log=$(mktemp)
for t in "$@"; do
    for kernels in ${KINDS:-auto portable}; do
        for tool in ${TOOLS:-memcheck racecheck synccheck initcheck}; do
            MK_GEMM=$kernels timeout -k 5 "${LIMIT:-60}" "$build/bin/mkrun" --nodes "${t%x*}" --ranks-per-node "${t#*x}" -- \
                compute-sanitizer --tool "$tool" --kernel-name kernel_substring=gemm_ar \
                "$build/tests/test_gpu_gemm_ar" "${SHAPES:-3}" 0 >"$log" 2>&1
            status=$?
            reports=$(grep -cE "(at|in|between .* at) [^ ]*gemm_ar_" "$log")
            right=$(grep -c " 0 failures" "$log")
            echo "$t $kernels $tool: exit $status, $right of $((${t%x*} * ${t#*x})) ranks right, $reports reports on our kernels"
            [ "$reports" = 0 ] && [ "$right" = $((${t%x*} * ${t#*x})) ] && continue
            failed=1
            grep -E "=========|FAIL" "$log" | head -20
        done
    done
done
rm -f "$log"
exit $failed
