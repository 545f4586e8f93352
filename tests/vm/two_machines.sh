#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# two_machines.sh BUILD: one rank in each of two machines, MK_* set by hand as a launcher would.
cd "$(dirname "$0")"
. ./steps.sh
build=$1 tests=$1/tests
export MK_NET=verbs MK_ROOT=10.9.0.1:7741 MK_IFNAME=$PORT MK_NRANKS=2 MK_RANK=$((MACHINE - 1)) MK_NODE=$((MACHINE - 1)) \
    MK_LOCAL_RANK=0 MK_LOCAL_NRANKS=1 MK_TIMEOUT=60

multiply() {
    MK_NET=loop MK_RANK=0 MK_NRANKS=1 MK_NODE=0 MK_ROOT='' "$1" --make 96,160,192 --a "$TMPDIR/a.npy" --b "$TMPDIR/b.npy" &&
        "$1" --a "$TMPDIR/a.npy" --b "$TMPDIR/b.npy" --out "$TMPDIR/c.npy" --verify --repeat 1
}

step "the other machine answers" 60 bash -c 'for ((i = 0; i < 50; i++)); do
    busybox ping -c 1 -W 1 10.9.0.$((3 - MACHINE)) && exit 0; done; exit 1'
step "fused, one rank a machine" 90 "$tests/example"
step "mkgemm, one rank a machine" 120 bash -c "$(declare -f multiply); multiply $build/bin/mkgemm"
finish
