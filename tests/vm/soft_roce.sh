#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# soft_roce.sh BUILD: all checks of one machine, in one boot.
cd "$(dirname "$0")"
. ./steps.sh
build=$1

soft_roce_is_up() {
    rdma link | grep 'rxe0/1 state ACTIVE' && [ -c /dev/infiniband/uverbs0 ] &&
        grep -q 0a09:0001 /sys/class/infiniband/rxe0/ports/1/gids/1
}

step "soft RoCE is up" 20 bash -c "$(declare -f soft_roce_is_up); soft_roce_is_up"
step "transport loop" 100 "$build/tests/test_net_transport_loop" loop
finish
