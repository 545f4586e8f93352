# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Hostile programs that need a job of their own (torch.sh jobs). torch_jobs.py hundred: 100 communicators at once. pointer: a rank
that calls NCCL by a pointer which no hook knows, from the first call on. absent: rank WITHOUT has no plugin. sleeps: a rank that
comes SLEEP (90) seconds late. Results as in torch_hostile.py."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_cases import both
from torch_help import CPU, Layer, backend, capture, device, exact, expect, expected, fail, finish, gpu, layer, rank, ranks, same, say, settle, watch
from torch_help import by_pointer, preloaded


def hundred():
    """More than can be fused. Some go, and others come, which may be fused then."""
    n = 10 if CPU else int(os.environ.get("COMMUNICATORS", "100"))
    a, ones = Layer(512, 1024, 256, seed=1), torch.ones(64, device=device, dtype=torch.bfloat16)
    began = time.time()
    groups = [dist.new_group(backend=backend) for _ in range(n)]

    def calls(groups, rounds):
        for _ in range(rounds):
            for g in groups:
                dist.all_reduce(ones, group=g)
            gpu.synchronize()
            time.sleep(0.0 if CPU else 0.02)

    def check(groups, what):
        kept = [layer(a.x, a.w, group=g) for g in groups]  # without a pause
        for i, y in enumerate(kept):
            exact(f"{what} {i}", y, a.want)
        same(what)

    watch("jobs: hundred communicators", 250)
    calls(groups, 1)
    say(f"jobs: {n} communicators made after {time.time() - began:.1f} s")
    calls(groups, 79)
    say(f"jobs: 80 calls of each after {time.time() - began:.1f} s")
    for c in range(3):
        check(groups, f"round {c}, communicator")
    graph, ys = capture(lambda: tuple(layer(a.x, a.w, group=g) for g in groups[::8]))
    for c in range(3):
        for y in ys:
            y.fill_(77)
        graph.replay()
        for i, y in enumerate(ys):
            exact(f"replay {c}, communicator {8 * i}", y, a.want)
    same("a graph of many communicators")
    graph = ys = None
    gpu.synchronize()
    for g in groups[::2]:
        dist.destroy_process_group(g)
    groups = groups[1::2]
    new = [dist.new_group(backend=backend) for _ in range(4)]
    calls(new, 80)
    check(groups + new, "those that are left, and new ones,")
    expect("NCCL", n)
    expect("PLAIN", 3)
    say(f"jobs: all of it after {time.time() - began:.1f} s")


def pointer():
    if CPU or preloaded():
        say("skip: gpu.torch jobs pointer: by LD_PRELOAD such pointers are known" if not CPU else "skip: gpu.torch jobs pointer: the CPU")
        expect("NCCL", 0)
        return
    a = Layer(1024, 2048, 512, seed=2)
    y = layer(a.x, a.w)  # makes the communicator
    exact("the first call", y, a.want)
    for c in range(150):
        y = F.linear(a.x, a.w)
        if rank == ranks - 1:
            by_pointer(y)
        else:
            dist.all_reduce(y)
        time.sleep(0.005)
        if c % 10 == 0:
            exact(f"call {c}", y, a.want)
    same("a rank calls by a pointer")
    expect("NCCL", 1 if rank == ranks - 1 else 100)


def absent():
    without = rank == int(os.environ.get("WITHOUT", "0"))
    maps = open("/proc/self/maps").read() if not CPU else ""
    settle(n=100)
    a = Layer(1024, 2048, 512, seed=3)
    if not CPU and ("mkernel" in maps or "mkernel" in open("/proc/self/maps").read()) == without:
        fail(f"the plugin is {'' if without else 'not '}loaded")
    for c in range(60):  # until long after the others have given it up
        exact(f"call {c}", a.pair(), a.want)
        time.sleep(0.0 if CPU else 0.15)
    both("a rank without the plugin", a.pair, [a.want])
    expect("NCCL", 0 if without else 160)


def sleeps():
    seconds = 2 if CPU else float(os.environ.get("SLEEP", "90"))
    settle()
    a = Layer(1024, 2048, 512, seed=4)
    a.learn()
    graph, z = capture(a.pair)
    watch("jobs: a rank sleeps", seconds + 60)
    began = time.time()
    for c in range(3):
        if c == 1 and rank == ranks - 1:
            time.sleep(seconds)
        y = a.pair()
        graph.replay()
        exact(f"a rank sleeps, eager {c}", y, a.want)
        exact(f"a rank sleeps, replay {c}", z, a.want)
    same("a rank sleeps")
    say(f"jobs: slept, {time.time() - began:.1f} s")
    expect("OVERLAP", 1)


with torch.no_grad():
    watch(f"jobs: {sys.argv[1]}", 120)
    {"hundred": hundred, "pointer": pointer, "absent": absent, "sleeps": sleeps}[sys.argv[1]]()
    if not expected:
        expect("NCCL", 0)
    finish()
