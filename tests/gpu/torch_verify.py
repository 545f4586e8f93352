# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""MK_VERIFY=2 takes every pair for proved, so what lies between one is seen by its look at the GEMM's output: torch_verify.py
[CASE...]. Each case has a size of its own, since a site is told, and looked at, until something was seen there. The results are
right all the same."""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_cases import case, made, main
from torch_help import capture, exact, expect, gpu, same

REPLAYS = 4


def replayed(name, f, want):
    g, y = capture(f)
    for c in range(REPLAYS):
        y.fill_(77)
        g.replay()
        exact(f"{name}, replay {c}", y, want)
    same(name)


@case
def nothing():
    """Looked at, captured and not, and the same."""
    a = made(n=1024)
    replayed("nothing between", a.pair, a.want)
    for c in range(3):
        exact(f"nothing between, eager {c}", a.pair(), a.want)
    same("nothing between, eager")
    expect("checked", REPLAYS + 3)


def doubled(a):
    y = F.linear(a.x, a.w)
    y.mul_(2)
    dist.all_reduce(y)
    return y


@case
def in_place():
    a = made(n=1536)
    replayed("a kernel in place", lambda: doubled(a), 2 * a.want)
    expect("differed", REPLAYS)


@case
def in_place_eager():
    a = made(n=1792)
    exact("a kernel in place, eager", doubled(a), 2 * a.want)
    same("a kernel in place, eager")
    exact("then nothing", a.pair(), a.want)  # it finds what was seen: plain from now on
    expect("differed", 1)
    expect("reason=refuted", 1)


@case
def copied():
    """Other contents by a copy."""
    a = made(n=1280)
    z = a.mine.to(a.dtype) * 2

    def f():
        y = F.linear(a.x, a.w)
        y.copy_(z)
        dist.all_reduce(y)
        return y

    replayed("a copy into it", f, 2 * a.want)
    expect("differed", REPLAYS)


@case
def one_element():
    a = made(n=768)

    def f():
        y = F.linear(a.x, a.w)
        y[-1, -1] += 1
        dist.all_reduce(y)
        return y

    want = a.want.clone()
    want[-1, -1] += dist.get_world_size()
    replayed("one element", f, want)
    expect("differed", REPLAYS)


@case
def beside():
    """Another stream writes it: the graph has an edge from there."""
    a, side = made(n=640), gpu.Stream()

    def f():
        y = F.linear(a.x, a.w)
        side.wait_stream(gpu.current_stream())
        with gpu.stream(side):
            y.mul_(2)
        gpu.current_stream().wait_stream(side)
        dist.all_reduce(y)
        return y

    replayed("another stream", f, 2 * a.want)
    expect("differed", REPLAYS)


main("verify", sys.argv[1:])
