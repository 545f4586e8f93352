#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# nvcc.sh NVCC SOURCE_DIR OUT FILE.cu...: compiles each file for sm_90a and for compute_80, warnings are errors.
set -u
nvcc=$1 source=$2 out=$3
shift 3
failed=0
for file; do
    for arch in arch=compute_90a,code=sm_90a arch=compute_80,code=compute_80; do
        "$nvcc" -fatbin -std=c++17 -O2 --Werror all-warnings -gencode "$arch" -I"$source/include" -I"$source" \
            -I"$source/fused" -o "$out" "$file" && echo "$(basename "$file") for $arch" || failed=1
    done
done
exit $failed
