#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# soft_roce.sh BUILD: all checks of one machine, in one boot.
cd "$(dirname "$0")"
. ./steps.sh
build=$1 tests=$1/tests

soft_roce_is_up() {
    rdma link | grep 'rxe0/1 state ACTIVE' && [ -c /dev/infiniband/uverbs0 ] &&
        grep -q 0a09:0001 /sys/class/infiniband/rxe0/ports/1/gids/1
}

# A second port, for rails; what follows uses the first one alone, but where it says more.
second_port() {
    ip link add dum1 type dummy && ip link set dum1 mtu 4200 && ip link set dum1 up &&
        ip addr add 10.9.1.1/24 dev dum1 && rdma link add rxe1 type rxe netdev dum1
}
step "a second port" 20 bash -c "$(declare -f second_port); second_port"
export MK_HCA==rxe0
step "soft RoCE is up" 20 bash -c "$(declare -f soft_roce_is_up); soft_roce_is_up"
step "transport verbs" 100 "$tests/test_net_transport_loop" verbs
step "transport verbs ordered" 100 "$tests/test_net_transport_loop" verbs ordered
step "conformance immediate" 200 "$tests/test_net_conformance" immediate net=verbs chunks=20000
step "conformance flag" 150 "$tests/test_net_conformance" flag net=verbs ordered=1 chunks=20000
step "doorbells" 60 "$tests/test_net_verbs_rate"
MK_NET=verbs step "fused over verbs" 60 "$build/bin/mkrun" --nodes 2 --ranks-per-node 1 -- "$tests/example"
MK_NET=verbs step "plugin over verbs" 200 "$tests/harness" "$build/lib/libnccl-net-mkernel.so" --own --limit 60 --version 12 \
    --max 5000000 --only table,props,sizes,inflight,grouped,many,death_receiving,death_sending
MK_QPS=2 step "rails over verbs" 100 "$tests/test_net_rails" verbs:2 test_plain
MK_HCA=rxe MK_NET=verbs MK_QPS=2 step "two ports as one device" 200 "$tests/test_plugin_merge" \
    "$build/lib/libnccl-net-mkernel.so" 2 vm.soft_roce 262144
step "memory as dma-buf" 100 "$tests/test_net_verbs_dmabuf"
step "faults" 200 "$tests/test_net_verbs_faults" "$PORT"
finish
