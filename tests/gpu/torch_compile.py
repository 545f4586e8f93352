# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""torch.compile over a linear layer and its all-reduce, in place (dist.all_reduce) and functional. torch_compile.py [CALLS]: each
compiled in the default mode and with CUDA graphs (reduce-overhead), sums of whole numbers compared exactly. Calls before the ranks
have agreed are made too."""
import os
import sys
import time

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes for a few small kernels

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F

from torch_help import CPU, Layer, compiler, exact, expect, finish, same, say, settle, watch


def in_place(x, w, b):
    y = F.linear(x, w, b)
    dist.all_reduce(y)
    return y * 2


def in_order(x, w, b):
    y = functional.all_reduce(F.linear(x, w, b), "sum", dist.group.WORLD)
    return functional.wait_tensor(y) * 2


def beside(x, w, b):
    """What the sum does not need comes between."""
    y = functional.all_reduce(F.linear(x, w, b), "sum", dist.group.WORLD)
    z = x.float().square().sum()
    return y * 2, z


def skips():
    return torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


def one(f, mode, a, calls):
    name = f"{f.__name__}, {mode}"
    watch(f"compile: {name}", 60)
    torch._dynamo.reset()
    began, before = time.time(), skips()
    g = torch.compile(f, mode=mode, fullgraph=True)
    for c in range(calls):
        if c % 3 == 2:
            a.renew(1000 + 10 * c)
        torch.compiler.cudagraph_mark_step_begin()
        y = g(a.x, a.w, a.b)
        if f is beside:
            y, z = y
            exact(f"{name}, call {c}, beside", z, a.x.float().square().sum(), shared=False)
        exact(f"{name}, call {c}", y, 2 * a.want)
    same(name)
    graphs = mode == "reduce-overhead" and skips() == before and not CPU
    if mode == "default":
        expect("PLAIN", calls)
    elif graphs:
        expect("OVERLAP", 1)
    return f"{name}: {time.time() - began:.1f} s" + (", no graphs" if mode != "default" and not graphs else "")


def main(calls):
    why = compiler()
    if why:
        say(f"skip: gpu.torch compile: {why}")
        sys.exit(77)
    watch("compile: settling", 60)
    first = Layer(1024, 1024, 512, seed=1)
    early = torch.compile(in_place, fullgraph=True)
    for c in range(3):  # NCCL's
        exact(f"before the agreement, call {c}", early(first.x, first.w, first.b), 2 * first.want)
    settle()
    done = []
    for i, f in enumerate((in_place, in_order, beside)):
        a = Layer(1024, 2048, 512, seed=10 + i, bias=() if i % 2 == 0 else (0, 1), dtype=torch.float16 if i == 2 else torch.bfloat16)
        a.learn()
        for mode in ("default", "reduce-overhead"):
            done.append(one(f, mode, a, calls))
    for text in done:
        say(f"compile {text}")
    finish()


with torch.no_grad():
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
