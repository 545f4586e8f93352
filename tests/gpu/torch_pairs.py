# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""An unmodified PyTorch program, one process a rank: a linear layer whose output is all-reduced, eager and in CUDA graphs.
torch_pairs.py right: each result against the float64 sum, and the same bits on all ranks. torch_pairs.py times M N K ROUNDS:
microseconds of a replay, of an eager call, and of the GEMM alone. What ran stands in the log of the library."""
import hashlib
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
words = dist.new_group(backend="gloo")
failures = 0


def gathered(x):
    out = [None] * ranks
    dist.all_gather_object(out, x, group=words)
    return out


def bits(y):
    return hashlib.sha1(y.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()


def make(shape, n, k, dtype, bias, seed):
    """This rank's x, weight and bias."""
    g = torch.Generator(device="cuda").manual_seed(1000 * seed + rank)
    x = torch.randn(*shape, k, device="cuda", dtype=torch.float32, generator=g).to(dtype)
    w = (torch.randn(n, k, device="cuda", dtype=torch.float32, generator=g) / k**0.5).to(dtype)
    b = torch.randn(n, device="cuda", dtype=torch.float32, generator=g).to(dtype) if bias else None
    return x, w, b


def exact(x, w, b):
    """The sum over the ranks in float64, exchanged on the host."""
    y = x.double() @ w.double().t()
    y = (y + b.double() if b is not None else y).cpu()
    dist.all_reduce(y, group=words)
    return y


def layer(x, w, b):
    y = F.linear(x, w, b)
    dist.all_reduce(y)
    return y


def check(name, y, want):
    global failures
    torch.cuda.synchronize()
    error = ((y.double().cpu() - want).norm() / want.norm()).item()
    same = len(set(gathered(bits(y)))) == 1
    limit = 6e-3 if y.dtype == torch.bfloat16 else 8e-4
    if not same or not error < limit:
        failures += 1
        print(f"FAIL rank {rank}: {name}: relative error {error:.2e} (limit {limit:.0e}), same bits on all ranks: {same}", flush=True)


def capture(f, *a):
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = f(*a)
    return g, y


def settle():
    """Enough collectives for the ranks to agree on their first fused operation."""
    t = torch.ones(64, device="cuda", dtype=torch.bfloat16)
    for _ in range(120):
        dist.all_reduce(t)
        torch.cuda.synchronize()
        time.sleep(0.01)


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
                check(f"{name}, captured first", y, want)
        for c in range(4):
            check(f"{name}, eager call {c}", layer(x, w, b), want)
        g, y = capture(layer, x, w, b)
        for c in range(5):
            y.zero_()
            g.replay()
            check(f"{name}, replay {c}", y, want)
        for c in range(20):  # without a pause; the input changes
            x2, _, _ = make(shape, n, k, dtype, bias, 100 + 20 * i + c)
            want = exact(x2, w, b)
            x.copy_(x2)
            g.replay()
            g.replay()
            check(f"{name}, replays with input {c}", y, want)

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
            check(f"{name}, {what}", f(x, w, b), factor * want)
            g, y = capture(f, x, w, b)
            g.replay()
            check(f"{name}, {what}, replayed", y, factor * want)
    every = gathered(failures)
    print(f"rank {rank} of {ranks}: {failures} failures", flush=True)
    return any(every)


def times(m, n, k, rounds):
    settle()
    x, w, _ = make((m,), n, k, torch.bfloat16, False, 0)
    chain = 4
    for _ in range(3):
        layer(x, w, None)
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
    return False


failed = right() if sys.argv[1] == "right" else times(*map(int, sys.argv[2:6]))
torch.cuda.synchronize()
dist.destroy_process_group()
sys.exit(1 if failed else 0)
