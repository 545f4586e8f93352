#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/gemm.sh [BUILD]: correctness, sanitizers and timing of the GEMM kernels on a machine with a GPU, in one go.
# cuBLAS must be in the loader's path.
set -u
build=${1:-build}
timeout 200 "$build/tests/test_gpu_gemm" 500 || exit 1
# Asking where a pointer lives is an error by design; cuBLAS's kernels have hazards of their own, so ours are counted.
for tool in memcheck racecheck synccheck initcheck; do
    command -v compute-sanitizer >/dev/null || { echo "skip: compute-sanitizer $tool: not there"; continue; }
    log=$(timeout 250 compute-sanitizer --tool $tool --report-api-errors no --print-limit 1000 "$build/tests/test_gpu_gemm" 4 3 2>&1)
    ours=$(printf '%s\n' "$log" | grep -cE '(at|in) [^ ]*(gemm_(tn|nn|nt)|skinny_|portable_)')
    echo "$tool: $ours reports on our kernels; $(printf '%s\n' "$log" | grep -E 'failures|SUMMARY' | tr '\n' ' ')"
done
for set in table tp decode; do timeout 120 "$build/bin/mkbench" gemm --set $set; done
timeout 120 "$build/bin/mkbench" gemm --set table --bands 2
timeout 120 "$build/bin/mkbench" gemm --set table --blocks 66
for fatbin in "$build"/fused/gemm_*.fatbin; do
    cuobjdump --dump-sass "$fatbin" 2>/dev/null | awk -v f="$fatbin" '
        /Function :/ { k = $3 } /HGMMA/ { h[k]++ } /STL|LDL/ { s[k]++ }
        END { for (i in h) n += 1; for (i in s) print "spills:", i, s[i]; print f ": " n + 0 " kernels use HGMMA" }'
done
