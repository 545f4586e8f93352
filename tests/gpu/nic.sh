#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# tests/gpu/nic.sh [BUILD [PART...]]: mknic on a machine with a GPU, in under 100 s. Parts: probe rate options
# conformance mkrun; without: all. Without MPS, under MPS with all SMs (a kernel spins on every one of them), and
# under MPS where the ranks have half of the SMs. mknic is never limited.
set -u
build=${1:-build}
[ $# -gt 0 ] && shift
parts=${*:-probe rate options conformance mkrun}
nic="$build/bin/mknic"
failed=0
step() { # seconds command...
    timeout "$@"
    local status=$?
    [ $status = 0 ] || [ $status = 77 ] || { echo "FAILED ($status): ${*:2}"; failed=1; }
}
wants() { case " $parts " in *" $1 "*) echo "== $*" ;; *) return 1 ;; esac; }
probe() { wants probe "$1" && step 15 "$build/tests/test_gpu_nic" "$nic" probe; }

probe "without MPS"
if wants options "256 KiB, two clients"; then
    for option in "" --no-join --events --lanes=1 --threads=1 --group=4; do
        echo "-- ${option:-as it is}"
        # shellcheck disable=SC2086
        step 8 "$build/tests/test_gpu_nic" "$nic" quick 2 $option
    done
    step 8 "$build/tests/test_gpu_nic" "$nic" quick 1 --events
fi
command -v nvidia-cuda-mps-control >/dev/null || { echo "skip: gpu.nic: no nvidia-cuda-mps-control"; exit $failed; }
dir=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$dir CUDA_MPS_LOG_DIRECTORY=$dir
timeout 20 nvidia-cuda-mps-control -d || failed=1
probe "MPS, all SMs"
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50
probe "MPS, 50 %"
if wants rate "MPS, 50 %"; then
    step 15 "$build/tests/test_gpu_nic" "$nic" rate 1
    step 15 "$build/tests/test_gpu_nic" "$nic" rate 2
fi
if wants conformance "MPS, 50 %"; then
    for mode in "immediate gpu=both bytes=40000" "immediate gpu=both hostile=7" "immediate gpu=source" \
        "immediate gpu=destination" "flag ordered=1 gpu=both hostile=7"; do
        # shellcheck disable=SC2086
        step 15 "$build/tests/test_net_conformance" $mode chunks="${CHUNKS:-20000}" nic="$nic"
    done
fi
unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
echo quit | timeout 20 nvidia-cuda-mps-control
rm -rf "$dir"
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
if wants mkrun --gpus-shared; then
    # shellcheck disable=SC2016
    step 40 "$build/bin/mkrun" --gpus-shared --nodes 2 -- sh -c \
        '[ -S "$MK_NIC" ] && echo "$MK_NIC $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"'
    [ -z "$(pgrep -f "$nic --socket|mps-control -d")" ] || { echo "FAILED: something is left"; failed=1; }
fi
exit $failed
