#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/gemm_ar_bench.sh BUILD PART...: the timings of GEMM+AllReduce, all ranks on one GPU. Each part is one job (or
# some), ends within LIMIT seconds (150) and writes OUT/gemm_ar_PART.json (OUT: build).
#   paced   2x1, the four large shapes, link at 0.5, 1 and 2 x T_compute: fused against its bound and its own parts
#   nccl    the same at ratio 1, against cuBLAS then NCCL and two streams, NCCL over the same link
#   small   2x1, 128, 512 and 2048 rows at ratio 1, 30 pairs against cuBLAS then NCCL
#   decode  1x2, 1, 16 and 64 rows of Llama shapes against our GEMM alone, 128 and 512 rows against the bound
#   multi   2x2 2x4 1x8 4x2 3x2 (TOPOLOGIES), 2048 rows and more, link not paced: fused against its own parts in a row
# LIBNCCL: path of libnccl.so.2 (that of PyTorch, else the system's). More options of mkbench gemm_ar, for all parts: OPTIONS. Settings pass (MK_CHUNK, MK_R ...).
set -u
[ $# -ge 2 ] || { sed -n '4,11s/^# //p' "$0"; exit 2; }
build=$1 out=${OUT:-$1} failed=0
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])' 2>/dev/null)
nccl=${LIBNCCL:-${torch:+$torch/lib/}libnccl.so.2}
shift
export MK_TIMEOUT=${MK_TIMEOUT:-10} MK_PEER_TIMEOUT=${MK_PEER_TIMEOUT:-10}

bench() { # topology file options...
    local topology=$1 file=$2 left=$((end - SECONDS))
    shift 2
    [ $left -gt 5 ] || { echo "FAILED: no time left for $topology $*"; failed=1; return; }
    echo "== $topology: $*"
    # shellcheck disable=SC2086
    timeout $left "$build/bin/mkbench" gemm_ar --nodes "${topology%x*}" --ranks-per-node "${topology#*x}" --graph \
        --json "$out/gemm_ar_$file.json" "$@" ${OPTIONS:-} 2>&1 | sed 's/^\[0\] //'
    local status=${PIPESTATUS[0]}
    [ "$status" = 0 ] || [ "$status" = 77 ] || { echo "FAILED ($status): $topology $*"; failed=1; }
}

for part in "$@"; do
    end=$((SECONDS + ${LIMIT:-150}))
    case $part in
    paced) bench 2x1 paced --set issue --ratio 0.5,1,2 ;;
    nccl) bench 2x1 nccl --set issue --ratio 1 --nccl "$nccl" --ctas 0,4,16 --calls 2 ;;
    small) bench 2x1 small --set small --ratio 1 --pairs 30 --nccl "$nccl" --no-two ;;
    decode) bench 1x2 decode --set decode --set prefill ;;
    multi)
        for topology in ${TOPOLOGIES:-2x2 2x4 1x8 4x2 3x2}; do
            bench "$topology" "multi_$topology" --set multi --calls 2
        done
        ;;
    *)
        echo "no part $part"
        failed=1
        ;;
    esac
done
exit $failed
