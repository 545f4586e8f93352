#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# hook_types.sh SOURCE: the declarations of plugin/intercept/table.h pass every argument in the register or on the stack
# where the vendor's headers, if they are installed, have it: same number, size and class (integer, pointer, floating
# point, structure).
set -u
source=$1 failed=0 tried=
cxx=$(command -v g++ || command -v clang++) || { echo "skip: plugin.hook_types: no C++ compiler"; exit 77; }
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
headers=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

cat >"$work/same.h" <<'END'
#include "plugin/intercept/table.h"
#include <type_traits>
enum kind { INTEGER, POINTER, FLOATING, STRUCTURE };
template <class T> constexpr kind kind_of =
    std::is_pointer_v<T> ? POINTER : std::is_floating_point_v<T> ? FLOATING : std::is_class_v<T> ? STRUCTURE : INTEGER;
template <class A, class B> constexpr bool same_one = sizeof(A) == sizeof(B) && kind_of<A> == kind_of<B>;
template <> constexpr bool same_one<void, void> = true;
template <class A, class B> struct same : std::false_type {};
template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(A) == sizeof...(B))
            return (same_one<A, B> && ... && same_one<R, S>);
        return false;
    }();
};
#define TYPE(type, name) type
#define COMMA() ,
#define CHECK(result, name) \
    static_assert(same<result (*)(MK_ARGS_##name(TYPE, COMMA)), decltype(&name)>::value, #name);
#define ASK_TYPE(lib, name, args) using ask_##name = int (*) args;
MK_HOOK_ASKS(ASK_TYPE)
#define ASKED(name) static_assert(same<ask_##name, decltype(&name)>::value, #name);
/* the check itself */
static_assert(same<int (*)(void *, long), short *(*)(int)>::value == false);
static_assert(same<int (*)(void *, int), unsigned (*)(char *, int)>::value);
static_assert(!same<int (*)(void *, int), int (*)(char *, long)>::value);
static_assert(!same<int (*)(float), int (*)(int)>::value);
END

# compare NAME HEADER: the source is on the standard input
compare() {
    cat >"$work/$1.cc"
    [ -r "$headers/$2" ] || { echo "note: no $2: $1 is not compared"; return; }
    tried="$tried $1"
    $cxx -std=c++17 -fsyntax-only -I"$source" -isystem "$headers" -include "$headers/$2" "$work/$1.cc" || failed=1
}
compare cublas cublas_v2.h <<'END'
#include "same.h"
CHECK(int, cublasGemmEx_64)
CHECK(int, cublasSgemm_v2)
CHECK(int, cublasSgemm_v2_64)
ASKED(cublasGetStream_v2)
ASKED(cublasGetPointerMode_v2)
ASKED(cublasGetMathMode)
/* two functions of this name in C++; the cast fails where neither has these types */
using gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                                const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *,
                                cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
constexpr auto theirs = static_cast<gemm>(cublasGemmEx);
static_assert(same<int (*)(MK_ARGS_cublasGemmEx(TYPE, COMMA)), gemm>::value, "cublasGemmEx");
END
compare cublas_old cublas.h <<'END'
#include "same.h"
CHECK(void, cublasSgemm)
END
compare cublaslt cublasLt.h <<'END'
#include "same.h"
CHECK(int, cublasLtMatmul)
ASKED(cublasLtMatmulDescGetAttribute)
ASKED(cublasLtMatrixLayoutGetAttribute)
END
compare cuda cuda.h <<'END'
#include "same.h"
CHECK(int, cuLaunchKernel)
CHECK(int, cuLaunchKernelEx)
CHECK(int, cuEventRecord)
CHECK(int, cuEventRecordWithFlags)
CHECK(int, cuStreamWaitEvent)
CHECK(int, cuMemcpyAsync)
CHECK(int, cuMemcpyDtoDAsync_v2)
CHECK(int, cuGraphLaunch)
ASKED(cuStreamGetId)
ASKED(cuStreamGetCtx)
ASKED(cuStreamGetFlags)
ASKED(cuCtxGetId)
static_assert(same<int (*)(const char *, void **, int, uint64_t, int *), decltype(&cuGetProcAddress_v2)>::value);
END
# NCCL: what this version of it has
if [ -r "$headers/nccl.h" ]; then
    {
        echo '#include "same.h"'
        echo 'ASKED(ncclCommCount) ASKED(ncclCommUserRank)'
        sed -n 's/^ *X(NCCL, \([A-Za-z]*\), [a-zN].*/\1/p' "$source/plugin/intercept/table.h" | while read -r name; do
            if grep -qE "ncclResult_t +$name\(" "$headers/nccl.h"; then echo "CHECK(int, $name)"; fi
        done
    } >"$work/nccl"
    [ "$(grep -c CHECK "$work/nccl")" -ge 20 ] || { echo "only $(grep -c CHECK "$work/nccl") functions of NCCL"; failed=1; }
    compare nccl nccl.h <"$work/nccl"
fi
[ -n "$tried" ] || { echo "skip: plugin.hook_types: none of the vendor's headers are installed"; exit 77; }
echo "compared:$tried"
exit $failed
