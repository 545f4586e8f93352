#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/steady.sh [BUILD] [CALLS] [PART...]: GEMM+AllReduce under load, ranks of a topology sharing one GPU. Parts:
#   calls   CALLS (10000) calls with new inputs and random delays up to 20 ms, eager and by replay of two graphs
#   cost    2000 calls without delays: what a call costs the host
#   block   a grid of one block finishes, and is right (MK_BLOCKS=1, Hopper and portable kernels)
#   beside  beside NCCL's all-reduce on a second stream, issued in opposite order (LIBNCCL: of libnccl.so.2)
# TOPOLOGIES (1x2 2x1): NODESxRANKS. Every program has a time limit.
set -u
build=${1:-build} calls=${2:-10000} failed=0
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- calls cost block beside
nccl=${LIBNCCL:-libnccl.so.2} sms=${SMS:-132}
export NCCL_SOCKET_IFNAME=lo MK_TIMEOUT=10 MK_PEER_TIMEOUT=20 MK_NET=${MK_NET:-loop}
ranks() { # TOPOLOGY seconds command...
    timeout -k 5 "$2" "$build/bin/mkrun" --gpus-shared --nodes "${1%x*}" --ranks-per-node "${1#*x}" -- "${@:3}"
    local status=$?
    [ $status = 0 ] || [ $status = 77 ] || { echo "FAILED ($status): $1 ${*:3}"; failed=1; }
}
for t in ${TOPOLOGIES:-1x2 2x1}; do
    n=$((${t%x*} * ${t#*x}))
    for part in "$@"; do
        echo "== $part, $t"
        export MK_BLOCKS=$((sms / n))
        case $part in
        calls) ranks "$t" "${LIMIT:-120}" "$build/tests/test_gpu_steady" "$calls" 20 ;;
        cost) ranks "$t" 30 "$build/tests/test_gpu_steady" 2000 0 ;;
        block)
            for MK_GEMM in auto portable; do
                export MK_BLOCKS=1 MK_GEMM
                ranks "$t" 60 "$build/tests/test_gpu_gemm_ar" 6 20
            done
            unset MK_GEMM
            ;;
        beside)
            # shellcheck disable=SC2016
            ranks "$t" 60 sh -c 'NCCL_HOSTID=h$MK_RANK exec "$@"' sh "$build/tests/test_gpu_beside" "$nccl" 200
            ;;
        *) echo "no part $part" && exit 2 ;;
        esac
    done
done
exit $failed
