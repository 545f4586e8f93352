#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# nvcc.sh NVCC SOURCE_DIR OUT FILE.cu...: compiles each file for sm_90a and for compute_80, with and without the
# controller; warnings are errors.
set -u
nvcc=$1 source=$2 out=$3
shift 3
failed=0
for file; do
    for how in arch=compute_90a,code=sm_90a:0 arch=compute_90a,code=sm_90a:1 arch=compute_80,code=compute_80:0; do
        arch=${how%:*} control=${how##*:}
        "$nvcc" -fatbin -std=c++17 -O2 --Werror all-warnings -gencode "$arch" "-DMK_CONTROL=$control" -I"$source/include" -I"$source" \
            -I"$source/fused" -o "$out" "$file" && echo "$(basename "$file") for $arch, control $control" || failed=1
    done
done
exit $failed
