#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# hook_relocs.sh FOLDER: the test objects of interception have the kinds of slots that they stand for. A compiler or
# linker that makes something else of their source would leave a kind untested.
set -u
folder=$1 failed=0
command -v readelf >/dev/null || { echo "skip: plugin.hook_relocs: no readelf"; exit 77; }

# has OBJECT TYPE SYMBOL
has() {
    readelf -rW "$folder/$1" | grep -qE "R_X86_64_$2 .* $3( |@|$)" || { echo "$1: no $2 slot for $3"; failed=1; }
}
for how in lazy partial now noplt; do
    for object in hook_linkage_$how libhook_late_$how.so; do
        if [ $how = noplt ]; then
            has $object GLOB_DAT ncclAllReduce
        else
            has $object JUMP_SLOT ncclAllReduce
            has $object JUMP_SLOT cublasLtMatmul
        fi
        has $object GLOB_DAT ncclReduceScatter
        has $object 64 ncclReduceScatter
    done
done
has hook_linkage_fixed JUMP_SLOT ncclAllReduce
# flag OBJECT: now, bound at once; relro: there are pages to protect
now() { readelf -dW "$folder/$1" | grep -qE 'BIND_NOW|FLAGS_1.*NOW'; }
relro() { readelf -lW "$folder/$1" | grep -q GNU_RELRO; }
for object in hook_linkage_now hook_linkage_noplt libhook_late_now.so libhook_late_noplt.so; do
    now $object && relro $object || { echo "$object: not bound at once and protected"; failed=1; }
done
now hook_linkage_lazy && { echo "hook_linkage_lazy: bound at once"; failed=1; }
relro hook_linkage_lazy && { echo "hook_linkage_lazy: protected"; failed=1; }
relro hook_linkage_partial || { echo "hook_linkage_partial: not protected"; failed=1; }
readelf -hW "$folder/hook_linkage_fixed" | grep -q 'Type:.*EXEC' || { echo "hook_linkage_fixed: can be moved"; failed=1; }
readelf --dyn-syms -W "$folder/libcublasLt.so.13" | grep -qE 'IFUNC .* cublasLtMatmul' ||
    { echo "libcublasLt.so.13: cublasLtMatmul is no IFUNC"; failed=1; }
exit $failed
