#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/gemm_ar_bench.sh BUILD NODES RANKS_PER_NODE [mkbench gemm_ar options]: the benchmark with all ranks on one GPU.
# NCCL then sees every rank as a node of its own. SMS: of the GPU (132).
set -u
build=$1 nodes=$2 local=$3 sms=${SMS:-132}
shift 3
export MK_BLOCKS=$((sms / (nodes * local))) MK_TIMEOUT=10 MK_PEER_TIMEOUT=10 NCCL_SOCKET_IFNAME=lo MK_NET=${MK_NET:-loop}
timeout "${LIMIT:-120}" "$build/bin/mkrun" --gpus-shared --nodes "$nodes" --ranks-per-node "$local" -- \
    sh -c 'NCCL_HOSTID=h$MK_RANK exec "$@"' sh "$build/bin/mkbench" gemm_ar "$@"
