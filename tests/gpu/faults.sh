#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/faults.sh [BUILD] [LATE]: GEMM+AllReduce jobs that go wrong, as 1 node x 2 ranks and as 2 nodes x 1 rank
# (loop, through mknic), all on one GPU under MPS. LATE (20): seconds that the late rank takes; both topologies at once,
# beside the other cases. kill -9 in a kernel comes last, under MPS daemons of its own: what it does to the other
# clients is the driver's choice. Every wait has a limit; nothing may be left.
set -u
build=${1:-build} late=${2:-20} failed=0
command -v nvidia-cuda-mps-control >/dev/null || { echo "skip: gpu.faults: no nvidia-cuda-mps-control"; exit 77; }
export MK_BLOCKS=${MK_BLOCKS:-20} CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-16}
faults() { # seconds NODES LOCAL [CASE...]
    local limit=$1
    shift
    timeout -k 5 "$limit" "$build/tests/test_gpu_faults" "$@"
}
shared() { timeout -k 10 "$1" "$build/bin/mkrun" --gpus-shared --quiet -- bash -c "$2" faults "${@:3}"; }
export -f faults
export build

# shellcheck disable=SC2016
shared $((200 + late)) '
pids=() status=0
for t in "1 2" "2 1"; do
    faults $((60 + $1)) $t late "$1" & pids+=($!)
    for c in absent stop stop_long abort exit disagree leave; do faults 100 $t $c || exit 1; done & pids+=($!)
done
for p in "${pids[@]}"; do wait "$p" || status=1; done
exit $status' "$late" || failed=1

for t in "1 2" "2 1"; do
    echo "== kill -9 in a kernel, $t, its own MPS daemon"
    # shellcheck disable=SC2016
    shared 90 'faults 60 $1 $2 kill' $t || failed=1
done

left=$(pgrep -f "mps-control -d|mknic --socket|test_gpu_faults" | wc -l)
[ "$left" = 0 ] || { echo "FAILED: $left processes are left"; failed=1; }
[ $failed = 0 ] && echo "gpu.faults: all cases as they must be"
exit $failed
