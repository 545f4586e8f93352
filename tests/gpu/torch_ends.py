# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Programs that must end, and not hang, though they go wrong. torch_ends.py mismatch: two graphs of different counts, which one rank
replays in another order: every rank gets an error. torch_ends.py abort: ncclCommAbort with a sum under way whose other ranks do not
come. torch_ends.py pointer: one rank calls NCCL by a pointer that no
hook knows, when the others' calls are ours. Exit 0: as it must be."""
import os
import sys
import time

os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # else PyTorch ends the process at the first error that it sees

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_help import by_pointer, preloaded
from torch_help import CPU, Layer, capture, device, exact, fail, failures, gathered, gpu, rank, ranks, same, say, settle, watch


def leave():
    """Without PyTorch's own end, which may wait for what was lost."""
    print(f"rank {rank} of {ranks}: {len(failures)} failures", flush=True)
    sys.stderr.flush()
    os._exit(1 if failures else 0)


def mismatch():
    a, b = Layer(1024, 2048, 512, seed=1), Layer(512, 1024, 512, seed=2)
    a.learn()
    b.learn()
    (ga, ya), (gb, yb) = capture(a.pair), capture(b.pair)
    for _ in range(3):
        ga.replay()
        gb.replay()
    exact("in order, a", ya, a.want)
    exact("in order, b", yb, b.want)
    same("in order")
    watch("ends: in another order", 45)
    for g in (gb, ga) if rank == ranks - 1 and not CPU else (ga, gb):
        g.replay()
    error, since = None, time.time()
    try:
        while time.time() - since < 30 and not CPU:
            gpu.synchronize()
            dist.all_reduce(torch.ones(64, device=device, dtype=torch.bfloat16))
            time.sleep(0.05)
    except Exception as e:
        error = f"{type(e).__name__}: {str(e).splitlines()[0]}"
    if not error:
        fail("no error came")
    print(f"ends rank {rank}: after {time.time() - since:.1f} s {error}"[:200], flush=True)
    gathered(rank)


def abort():
    a = Layer(2048, 2048, 512, seed=3)
    a.learn()
    gathered(rank)
    watch("ends: abort", 40)
    since = time.time()
    if rank == 0 and not CPU:
        y = F.linear(a.x, a.w)
        dist.all_reduce(y)
        time.sleep(1)
        dist.group.WORLD._get_backend(device).abort()
        try:
            gpu.synchronize()
        except Exception as e:
            print(f"ends rank 0: {type(e).__name__}: {str(e).splitlines()[0]}"[:200], flush=True)
    gathered(rank)  # the others wait here meanwhile
    say(f"ends: aborted after {time.time() - since:.1f} s")


def pointer():
    if CPU or preloaded():
        say("skip: gpu.torch ends pointer: such pointers are known here")
        return
    a = Layer(1024, 2048, 512, seed=4)
    a.learn()
    exact("before", a.pair(), a.want)
    same("before")
    watch("ends: a pointer", 60)
    y, since, error = F.linear(a.x, a.w), time.time(), None
    try:
        if rank == ranks - 1:
            by_pointer(y)
        else:
            dist.all_reduce(y)
        while time.time() - since < 30:  # nobody waits for the GPU, where NCCL's kernel waits for the other ranks'
            dist.all_reduce(torch.ones(64, device=device, dtype=torch.bfloat16))
            time.sleep(0.05)
    except Exception as e:
        error = f"{type(e).__name__}: {str(e).splitlines()[0]}"
    if not error:
        fail("no error came")
    print(f"ends rank {rank}: after {time.time() - since:.1f} s {error}"[:200], flush=True)
    gathered(rank)
    dist.group.WORLD._get_backend(device).abort()
    gathered(rank)


with torch.no_grad():
    watch("ends: settling", 45)
    settle()
    {"mismatch": mismatch, "abort": abort, "pointer": pointer}[sys.argv[1]]()
    leave()
