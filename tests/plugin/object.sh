#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# object.sh needed|exports|stack|soname|tls OBJECT [MAP]: one fact about a built object, read with readelf.
set -u
check=$1 object=$2 map=${3:-}
command -v readelf >/dev/null || { echo "skip: plugin.$check: no readelf"; exit 77; }
[ -r "$object" ] || { echo "$object is not there"; exit 1; }

case $check in
needed)
    found=$(readelf -dW "$object" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    [ -n "$found" ] || { echo "$object: readelf lists no NEEDED entry at all"; exit 1; }
    bad=$(echo "$found" | grep -vE '^(libc|libm|libdl|libpthread|librt)\.so\.[0-9]+$|^ld-linux[-a-z0-9_]*\.so\.[0-9]+$')
    [ -z "$bad" ] || { echo "$object needs more than the C library:" $bad; exit 1; }
    echo "needs:" $found ;;
exports)
    want=$(sed 's|/\*.*||; s|^ \*.*||' "$map" | sed -n '/global:/,/local:/p' | tr ';' '\n' |
           grep -oE '\b(mk|nccl)[A-Za-z0-9_]+' | sort -u)
    have=$(readelf --dyn-syms -W "$object" |
           awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK") {sub(/@.*/, "", $8); print $8}' | sort -u)
    [ -n "$want" ] || { echo "$map lists no name"; exit 1; }
    [ "$want" != "$have" ] || exit 0
    echo "exported but not in mk.map:"
    echo "$have" | grep -vxF "$want"
    echo "in mk.map but not exported:"
    echo "$want" | grep -vxF "$have"
    exit 1 ;;
stack)
    flags=$(readelf -lW "$object" | awk '$1 == "GNU_STACK" {print $7}')
    [ "$flags" = RW ] || { echo "$object: GNU_STACK flags are '$flags', wanted RW"; exit 1; } ;;
soname)
    readelf -dW "$object" | grep -q 'SONAME.*\[libnccl-net-mkernel\.so\]' ||
        { echo "$object: SONAME is not libnccl-net-mkernel.so"; exit 1; }
    readelf -dW "$object" | grep -q 'FLAGS_1.*NODELETE' || { echo "$object: not NODELETE"; exit 1; }
    readelf -dW "$object" | grep -qE 'RPATH|RUNPATH|TEXTREL' && { echo "$object: has RPATH or TEXTREL"; exit 1; }
    exit 0 ;;
tls)
    # The room that all threads have for it is small, and others may have used it up before a plugin is opened.
    readelf -dW "$object" | grep -q 'STATIC_TLS' && { echo "$object: wants static thread-local storage"; exit 1; }
    exit 0 ;;
*)
    echo "unknown check $check"; exit 1 ;;
esac
