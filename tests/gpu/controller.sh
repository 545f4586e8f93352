#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/controller.sh BUILD PART [ARGUMENT...]: GEMM+AllReduce under the controller (MK_COMM_BLOCKS=-1), the ranks
# sharing the GPUs. Each program ends within LIMIT seconds (60).
#   right [TOPOLOGY...]   results as tests/gpu/gemm_ar.sh checks them, SHAPES (12) and CALLS (300), KINDS of kernels; the same bits
#                         with fixed budgets; launches have taught something
#   cost [OPTION...]      the controller's work at a fixed number of blocks against none, 2x1 or TOPOLOGY; mkbench's options
#                         (SHAPES and ratio 1 if none is given)
#   sweep [OPTION...]     the controller against every fixed number, TOPOLOGY (2x1): OUT/controller_TOPOLOGY.json and .svg
set -u
[ $# -ge 2 ] || { sed -n '4,11s/^# //p' "$0"; exit 2; }
build=$1 part=$2 out=${OUT:-$1} topology=${TOPOLOGY:-2x1} limit=${LIMIT:-60}
shift 2
export MK_TIMEOUT=${MK_TIMEOUT:-10} MK_PEER_TIMEOUT=${MK_PEER_TIMEOUT:-10} MK_COMM_BLOCKS=-1

bench() { # options...
    timeout "$limit" "$build/bin/mkbench" controller --nodes "${topology%x*}" --ranks-per-node "${topology#*x}" --graph "$@" \
        2>&1 | sed 's/^\[0\] //'
    local status=${PIPESTATUS[0]}
    [ "$status" = 0 ] || [ "$status" = 77 ] || { echo "FAILED ($status): $topology $*"; return 1; }
}

case $part in
right)
    [ $# -gt 0 ] || set -- 1x2 2x1 2x2
    LIMIT=$limit "$(dirname "$0")/gemm_ar.sh" "$build" "${SHAPES:-12}" "${CALLS:-300}" "$@"
    ;;
cost)
    [ $# -gt 0 ] || set -- --shape 8192,8192,3584 --shape 2048,8192,3584 --shape 512,8192,3584 --ratio 1 --pairs 31
    bench --cost "$@"
    ;;
sweep)
    bench --json "$out/controller_$topology.json" --svg "$out/controller_$topology.svg" "$@"
    ;;
*)
    echo "no part $part"
    exit 2
    ;;
esac
