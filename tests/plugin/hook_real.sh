#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# hook_real.sh OBJECT HOOKS.so FOLDER: NVIDIA's own cuBLAS, cuBLASLt and NCCL, where they are installed, on a machine with
# or without a GPU: return codes with hooks are those without, every call comes to its hook, by slots and, with OBJECT in
# LD_PRELOAD, from a scripting language's lookups by name.
set -u
object=$1 hooks=$2 folder=$3 failed=0
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
libraries=
for dir in "$root/lib64" "$root/lib" /usr/local/cuda/lib64; do
    if [ -r "$dir/libcublas.so.13" ] && [ -r "$dir/libcublasLt.so.13" ] && [ -r "$dir/libnccl.so.2" ]; then libraries=$dir; fi
done
[ -n "$libraries" ] || { echo "skip: plugin.hook_real: no libcublas.so.13 and libnccl.so.2 beside nvcc"; exit 77; }
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
export LD_LIBRARY_PATH="$libraries" NCCL_DEBUG=
unset MK_FUSE MK_LOG NCCL_NET_PLUGIN

"$folder/hook_real" >"$out/want" 2>"$out/log" || { echo "without hooks:"; cat "$out/log"; exit 1; }
"$folder/hook_real" "$hooks" >"$out/got" 2>"$out/log" || { echo "with hooks:"; cat "$out/log"; failed=1; }
cmp "$out/want" "$out/got" || { diff "$out/want" "$out/got"; failed=1; }
[ "$(grep -cv ' 0$' "$out/want")" -ge 10 ] || { echo "hardly a call was refused:"; cat "$out/want"; failed=1; }

# Lookups by name, as Python's bindings of NCCL make them.
code='import ctypes
n = ctypes.CDLL("libnccl.so.2")
b = ctypes.CDLL("libcublas.so.13")
print(n.ncclGroupStart(), n.ncclGroupEnd(), n.ncclAllReduce(None, None, 1, 7, 0, None, None), b.cublasSgemm_v2(*[None] * 14))'
if command -v python3 >/dev/null && python3 -c 'import ctypes' 2>/dev/null; then
    want=$(python3 -c "$code") || { echo "Python without hooks failed"; exit 1; }
    got=$(LD_PRELOAD=$object MK_FUSE=on MK_LOG=info python3 -c "$code" 2>"$out/log")
    [ "$got" = "$want" ] || { echo "Python: $got, wanted $want"; failed=1; }
    for name in ncclGroupStart ncclGroupEnd ncclAllReduce cublasSgemm_v2; do
        grep -q "$name: 1 calls" "$out/log" || { echo "Python's $name was not hooked:"; cat "$out/log"; failed=1; }
    done
else
    echo "note: no python3 with ctypes: lookups by name are not tried"
fi

# NVIDIA's runtime, shared and within cuBLAS and NCCL, over a stand-in for the driver that has no device: what they look up of it
# comes to us, and they say what they say without us.
mkdir "$out/driver" && ln -s "$folder/libcuda.so.1" "$out/driver/libcuda.so.1"
export LD_LIBRARY_PATH="$out/driver:$libraries"
for runtime in 'r = ctypes.CDLL("libcudart.so.13")
print(r.cudaGetDeviceCount(ctypes.byref(n)), n.value, r.cudaDeviceSynchronize())' 'b = ctypes.CDLL("libcublas.so.13")
print(b.cublasCreate_v2(ctypes.byref(ctypes.c_void_p())))' 'c = ctypes.CDLL("libnccl.so.2")
print(c.ncclCommInitAll(ctypes.byref(ctypes.c_void_p()), 1, None))'; do
    code="import ctypes
n = ctypes.c_int(-1)
$runtime"
    want=$(python3 -c "$code") || continue
    got=$(LD_PRELOAD=$object MK_FUSE=on MK_LOG=trace python3 -c "$code" 2>"$out/log")
    [ "$got" = "$want" ] || { echo "a runtime: $got, wanted $want"; failed=1; }
    grep -q 'counted cuInit: [1-9]' "$out/log" || { echo "a call was not counted:"; tail -n 3 "$out/log"; failed=1; }
    grep -q 'cannot be counted' "$out/log" && { grep 'cannot be counted' "$out/log"; failed=1; }
done
exit $failed
