#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/mutants.sh BUILD [MUTATION...]: the Hopper bf16 kernels with one ordering or message left out (MK_MUTATE in
# include/mk/dev/dev.h), built in place of the right ones, under tests/gpu/steady; the right ones are built again at the
# end. Those named in `caught` must fail; the others are run and told: all ranks of one die share an L2, which hides what
# is missing between them.
set -u
build=$1 caught=" 5 7 " failed=0
shift
[ $# -gt 0 ] || set -- 1 2 3 4 5 7 8
rebuild() { # MUTATION; nvcc reads the variable
    rm -f "$build/fused/gemm_ar_bf16.fatbin"
    NVCC_APPEND_FLAGS="-DMK_MUTATE=$1" ninja -C "$build" mkrun mknic test_gpu_steady >"$build/mutant.log" 2>&1 ||
        { tail -5 "$build/mutant.log"; failed=1; return 1; }
}
export MK_TIMEOUT=3 MK_PEER_TIMEOUT=3 MK_NET=loop MK_LOG=none MK_WORKSPACE=${MK_WORKSPACE:-4M}
for n in "$@"; do
    rebuild "$n" || continue
    for t in ${TOPOLOGIES:-1x2 2x1}; do
        log=$build/mutant.$n.$t.log
        timeout -k 5 60 "$build/bin/mkrun" --gpus-shared --quiet --nodes "${t%x*}" --ranks-per-node "${t#*x}" -- \
            "$build/tests/test_gpu_steady" "${CALLS:-2000}" 0 >"$log" 2>&1
        status=$?
        echo "mutation $n, $t: $([ $status = 0 ] && echo not observed || echo caught): $(grep -h FAIL "$log" | head -1)"
        [[ $caught != *" $n "* ]] || [ $status != 0 ] || failed=1
    done
done
rebuild 0
exit $failed
