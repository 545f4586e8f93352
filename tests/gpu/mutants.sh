#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/mutants.sh BUILD compile|run [MUTATION...]: the Hopper bf16 kernels with one ordering or message left out
# (MK_MUTATE in include/mk/dev/dev.h), under tests/gpu/steady. compile: BUILD/mutants/N.fatbin; run: each takes the place
# of the right one in a relinked test, which is put back at the end. Those named in `caught` must fail; the others are run
# and told: all ranks of one die share an L2, which hides what is missing between them.
set -u
build=$1 what=$2 caught=" 5 7 " failed=0
shift 2
[ $# -gt 0 ] || set -- 1 2 3 4 5 6 7
source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$build/mutants"
if [ "$what" = compile ]; then
    for n in "$@"; do
        nvcc -fatbin -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -DMK_MUTATE="$n" -I"$source/include" -I"$source/fused" \
            -o "$build/mutants/$n.fatbin" "$source/fused/cuda/gemm_ar_bf16.cu" &
    done
    wait
    exit
fi
kernels=$build/fused/gemm_ar_bf16.fatbin
cp "$kernels" "$build/mutants/right.fatbin"
relink() { cp "$build/mutants/$1.fatbin" "$kernels" && ninja -C "$build" test_gpu_steady >/dev/null; }
export MK_TIMEOUT=3 MK_PEER_TIMEOUT=3 MK_NET=loop MK_LOG=none MK_WORKSPACE=${MK_WORKSPACE:-4M}
for n in "$@"; do
    relink "$n" || { failed=1; continue; }
    for t in ${TOPOLOGIES:-1x2 2x1}; do
        log=$build/mutants/$n.$t.log
        timeout -k 5 60 "$build/bin/mkrun" --gpus-shared --quiet --nodes "${t%x*}" --ranks-per-node "${t#*x}" -- \
            "$build/tests/test_gpu_steady" "${CALLS:-2000}" 0 >"$log" 2>&1
        status=$?
        echo "mutation $n, $t: $([ $status = 0 ] && echo not observed || echo caught): $(grep -h FAIL "$log" | head -1)"
        [[ $caught != *" $n "* ]] || [ $status != 0 ] || failed=1
    done
done
relink right || failed=1
exit $failed
