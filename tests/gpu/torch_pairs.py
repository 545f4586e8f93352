# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""An unmodified PyTorch program, one process a rank: a linear layer whose output is all-reduced, eager and in CUDA graphs.
torch_pairs.py right: each result against the float64 sum, and the same bits on all ranks. torch_pairs.py times M N K ROUNDS:
microseconds of a replay, of an eager call, and of the GEMM alone. What ran stands in the log of the library."""
import statistics
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_help import capture, close, device, finish, layer, rank, settle, words


def make(shape, n, k, dtype, bias, seed):
    """This rank's x, weight and bias."""
    g = torch.Generator(device=device).manual_seed(1000 * seed + rank)
    x = torch.randn(*shape, k, device=device, dtype=torch.float32, generator=g).to(dtype)
    w = (torch.randn(n, k, device=device, dtype=torch.float32, generator=g) / k**0.5).to(dtype)
    b = torch.randn(n, device=device, dtype=torch.float32, generator=g).to(dtype) if bias else None
    return x, w, b


def exact(x, w, b):
    """The sum over the ranks in float64, exchanged on the host."""
    y = x.double() @ w.double().t()
    y = (y + b.double() if b is not None else y).cpu()
    dist.all_reduce(y, group=words)
    return y


def right():
    cases = [((1024,), 2048, 512, torch.bfloat16, False), ((4, 512), 1024, 1024, torch.bfloat16, True),
             ((2048,), 4096, 256, torch.float16, False), ((1000,), 2000, 512, torch.float16, True),
             ((8, 1024), 2048, 1024, torch.bfloat16, False)]
    settle()
    for i, (shape, n, k, dtype, bias) in enumerate(cases):
        name = f"{shape} x {n} x {k} {dtype} bias {bias}"
        x, w, b = make(shape, n, k, dtype, bias, i)
        want = exact(x, w, b)
        if i % 2 == 0:  # captured with no call of this site before
            g, y = capture(layer, x, w, b)
            for _ in range(3):
                y.zero_()
                g.replay()
                close(f"{name}, captured first", y, want)
        for c in range(4):
            close(f"{name}, eager call {c}", layer(x, w, b), want)
        g, y = capture(layer, x, w, b)
        for c in range(5):
            y.zero_()
            g.replay()
            close(f"{name}, replay {c}", y, want)
        for c in range(20):  # without a pause; the input changes
            x2, _, _ = make(shape, n, k, dtype, bias, 100 + 20 * i + c)
            want = exact(x2, w, b)
            x.copy_(x2)
            g.replay()
            g.replay()
            close(f"{name}, replays with input {c}", y, want)

        def between(x, w, b):
            y = F.linear(x, w, b)
            y.mul_(2)
            dist.all_reduce(y)
            return y

        def apart(x, w, b):
            y = F.linear(x, w, b)
            z = F.linear(x, w, b)
            dist.all_reduce(y)
            dist.all_reduce(z)
            return y + z

        def part(x, w, b):
            y = F.linear(x, w, b)
            dist.all_reduce(y.view(-1)[: y.numel() // 2 // 64 * 64])
            dist.all_reduce(y.view(-1)[y.numel() // 2 // 64 * 64 :])
            return y

        for what, f, factor in (("a kernel between", between, 2), ("two GEMMs first", apart, 2), ("in two parts", part, 1)):
            close(f"{name}, {what}", f(x, w, b), factor * want)
            g, y = capture(f, x, w, b)
            g.replay()
            close(f"{name}, {what}, replayed", y, factor * want)


def times(m, n, k, rounds):
    settle()
    x, w, _ = make((m,), n, k, torch.bfloat16, False, 0)
    chain = 4
    for c in range(400):  # the library has compared its own way with NCCL's by then
        layer(x, w, None)
        if c % 8 == 0:
            torch.cuda.synchronize()
    ways = {"GEMM alone": capture(lambda: [F.linear(x, w) for _ in range(chain)])[0]}
    ways["linear and all_reduce, replayed"] = capture(lambda: [layer(x, w, None) for _ in range(chain)])[0]
    us = {name: [] for name in [*ways, "linear and all_reduce, eager"]}
    for r in range(rounds + 2):
        for name in us:
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            dist.barrier(group=words)
            torch.cuda.synchronize()
            a.record()
            if name in ways:
                ways[name].replay()
            else:
                for _ in range(chain):
                    layer(x, w, None)
            b.record()
            torch.cuda.synchronize()
            if r >= 2:
                us[name].append(a.elapsed_time(b) * 1000 / chain)
    if rank == 0:
        for name, t in us.items():
            t.sort()
            print(f"{m} x {n} x {k}, {name}: {statistics.median(t):.1f} us ({t[len(t) // 10]:.1f} to {t[len(t) * 9 // 10]:.1f}, {rounds} rounds)", flush=True)


if sys.argv[1] == "right":
    right()
else:
    times(*map(int, sys.argv[2:6]))
finish()
