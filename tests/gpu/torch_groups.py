# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Hostile programs with groups of operations, several streams, threads and communicators. torch_groups.py [CASE...], as
torch_hostile.py."""
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_cases import K, M, N, both, case, made, main
from torch_help import CPU, Layer, backend, device, exact, expect, fail, gpu, rank, ranks, same, say, settle

# ---- one communicator ----


def group_of(*calls):
    """The calls, each of a process group, as one group of NCCL's."""
    pg = dist.group.WORLD
    pg._start_coalescing(device)
    for c in calls:
        c(pg)
    pg._end_coalescing(device).wait()


@case
def three_kinds():
    """Two sums of ours and a gather of NCCL's in a group."""
    if CPU:
        say("skip: gpu.torch groups three_kinds: gloo has no groups")
        return
    a, b = made(), made(m=512)

    def f():
        y, z = F.linear(a.x, a.w), b.mine.to(b.dtype)
        parts = torch.empty(ranks, 64, device=device)
        mine = parts.new_full((64,), rank)
        group_of(lambda pg: pg.allreduce([y]), lambda pg: pg._allgather_base(parts, mine), lambda pg: pg.allreduce([z]))
        return y, z, parts

    order = torch.arange(ranks, device=device).float().unsqueeze(1).expand(ranks, 64)
    both("three kinds in a group", f, [a.want, b.want, order])
    expect("reason=group", 2)


@case
def sent():
    """A send and a sum grouped on one rank, the sum and the receive on the other."""
    if CPU:
        say("skip: gpu.torch groups sent: gloo has no groups")
        return
    a = made()

    def f():
        y = F.linear(a.x, a.w)
        z = torch.full((4096,), 5.0 + rank, device=device)
        if rank == 0:
            group_of(lambda pg: pg.send([z], 1, 0), lambda pg: pg.allreduce([y]))
        elif rank == 1:
            group_of(lambda pg: pg.allreduce([y]), lambda pg: pg.recv([z], 0, 0))
        else:
            dist.all_reduce(y)
        return y, z

    both("a send in the group", f, [a.want, torch.full((4096,), 5.0 if rank == 1 else 5.0 + rank, device=device)], shared=[0])


@case
def both_ways():
    """In one graph a sum on the stream itself, one on NCCL's, and one on the stream again."""
    a, b = made(), made(m=512)

    def f():
        y = a.pair()
        z = F.linear(b.x, b.w)
        work = dist.all_reduce(z, async_op=True)
        work.wait()
        return y, z, a.pair()

    both("synchronous and not in turn", f, [a.want, b.want, a.want])


# ---- more communicators ----


def end(*groups):
    gpu.synchronize()
    for g in groups:
        dist.destroy_process_group(g)


@case
def two_groups():
    """A tensor-parallel and a data-parallel group, on two streams at once."""
    a, b, side = made(), Layer(512, 1024, 256, seed=91), gpu.Stream()
    tp, dp = dist.new_group(backend=backend), dist.new_group(backend=backend)
    settle(tp)
    settle(dp)
    grads = [p.to(b.dtype) for p in b.parts][rank]

    def f():
        z = grads.clone()
        side.wait_stream(gpu.current_stream())
        with gpu.stream(side):
            dist.all_reduce(z, group=dp)
        y = F.linear(a.x, a.w)
        dist.all_reduce(y, group=tp)
        u = F.linear(a.x, a.w)
        dist.all_reduce(u, group=tp)
        gpu.current_stream().wait_stream(side)
        return y, u, z

    both("two groups on two streams", f, [a.want, a.want, b.want], eager=6, replays=6)
    end(tp, dp)


def in_threads(name, calls, late):
    """Two communicators, each with a thread and a stream of its own. late(i, c): seconds that thread i sleeps before call c."""
    layers = [Layer(M, N, K, seed=93 + i) for i in range(2)]
    groups = [dist.new_group(backend=backend) for _ in range(2)]
    for g in groups:
        settle(g)
    results = [[], []]

    def work(i):
        a, stream = layers[i], gpu.Stream()
        if not CPU:
            torch.cuda.set_device(device)
        with torch.no_grad(), gpu.stream(stream):
            for c in range(calls):
                time.sleep(late(i, c))
                y = F.linear(a.x, a.w)
                dist.all_reduce(y, group=groups[i])
                results[i].append(y)
            if not CPU:
                stream.synchronize()

    gpu.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(2):
        if len(results[i]) != calls:
            fail(f"{name}: thread {i} made {len(results[i])} of {calls} calls")
        for c, y in enumerate(results[i]):
            exact(f"{name}: thread {i}, call {c}", y, layers[i].want)
    same(name)
    end(*groups)


@case
def two_threads():
    in_threads("two threads", 20, lambda i, c: 0)


@case
def opposite():
    """Each rank issues the two communicators' sums in another order."""
    in_threads("opposite order", 6, lambda i, c: 0.03 if (rank + i + c) % 2 else 0)


@case
def many_groups():
    """Communicators that come and go, some before their ranks have agreed, some while, some after."""
    a = Layer(512, 1024, 256, seed=95)
    for i in range(30):
        g = dist.new_group(backend=backend)
        if i % 10 == 9:
            settle(g, 60)
        for _ in range(i % 8 + 1):
            y = F.linear(a.x, a.w)
            dist.all_reduce(y, group=g)
        exact(f"group {i}", y, a.want)
        end(g)
    same("groups that come and go")
    b = made()
    both("after them", b.pair, [b.want])
    expect("OVERLAP", 1)


main("groups", sys.argv[1:])
