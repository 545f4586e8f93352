# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Programs around a GEMM and its all-reduce in which a careless interception would go wrong. torch_hostile.py [CASE...]: all
results are sums of whole numbers, compared exactly, and their bits between the ranks; eager and in CUDA graphs. What the library's
log must show goes to stderr ('expect WHAT N'): the captured pairs that overlap, and the reasons of those that must not."""
import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_cases import M, N, both, case, made, main
from torch_help import CPU, Layer, capture, device, exact, expect, fail, gpu, rank, ranks, same, say, triton_kernel


# ---- between the GEMM and the all-reduce ----


@case
def clean():
    """As a measure: nothing between."""
    for dtype in (torch.bfloat16, torch.float16):
        for bias in ((), range(ranks)):
            a = made(dtype=dtype, bias=bias)
            both("nothing between", a.pair, [a.want])
            expect("OVERLAP", 1)


@case
def in_place():
    a = made()

    def f():
        y = F.linear(a.x, a.w)
        y.mul_(2)
        dist.all_reduce(y)
        return y

    both("a kernel in place", f, [2 * a.want])
    expect("reason=intruder", 1)


@case
def triton():
    kernel, why = (None, "the CPU") if CPU else triton_kernel()
    if not kernel:
        say(f"skip: gpu.torch hostile triton: {why}"[:160])
        return
    a = made()

    def f():
        y = F.linear(a.x, a.w)
        kernel(y)
        dist.all_reduce(y)
        return y

    both("a Triton kernel", f, [2 * a.want])
    expect("reason=intruder", 1)


@case
def readers():
    a, side = made(), gpu.Stream()

    def before():
        y = F.linear(a.x, a.w)
        side.wait_stream(gpu.current_stream())
        with gpu.stream(side):
            z = y.clone()
        gpu.current_stream().wait_stream(side)
        dist.all_reduce(y)
        return y, z

    def after():
        y = a.pair()
        side.wait_stream(gpu.current_stream())
        with gpu.stream(side):
            z = y.clone()
        gpu.current_stream().wait_stream(side)
        return y, z

    both("a reader before the sum", before, [a.want, a.mine], shared=[0])
    expect("reason=intruder", 1)
    both("a reader after the sum", after, [a.want, a.want])
    expect("OVERLAP", 1)


@case
def writer():
    a, side, z = made(), gpu.Stream(), torch.zeros(1 << 22, device=device)

    def f():
        side.wait_stream(gpu.current_stream())
        with gpu.stream(side):
            for i in range(8):
                z.fill_(i)
        y = a.pair()
        gpu.current_stream().wait_stream(side)
        return y, z

    both("a writer beside", f, [a.want, torch.full_like(z, 7)])
    expect("OVERLAP", 1)


# ---- what is sent ----


@case
def freed():
    """The input is freed behind the GEMM, and a sum goes where it was."""
    a = made()

    def f():
        x = a.x + 0
        y = F.linear(x, a.w)
        at = x.data_ptr()
        del x
        held = [torch.empty_like(a.x)]
        while held[-1].data_ptr() != at and len(held) < 16:
            held.append(torch.empty_like(a.x))
        if held[-1].data_ptr() != at:
            if not CPU:
                fail("the allocator did not give the input's memory again")
            held[-1].copy_(a.x)
        dist.all_reduce(held[-1])
        dist.all_reduce(y)
        return y, held[-1]

    both("a sum in the input's memory", f, [a.want, a.xsum])
    expect("reason=not-last-gemm", 2)


@case
def out_of_place():
    """As callers of NCCL itself do it: from C into the memory of A."""
    if CPU or "mkernel" not in os.environ.get("LD_PRELOAD", ""):
        say("skip: gpu.torch hostile out_of_place: by NCCL's own function, so with PRELOAD=1 only")
        return
    nccl = ctypes.CDLL("libnccl.so.2")
    comm = ctypes.c_void_p(dist.group.WORLD._get_backend(device)._comm_ptr())
    a = made(m=2048, n=512, k=512)

    def f():
        x = a.x + 0
        y = F.linear(x, a.w)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = nccl.ncclAllReduce(ctypes.c_void_p(y.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(y.numel()), 9, 0, comm, stream)
        if error:
            fail(f"ncclAllReduce: {error}")
        return x, y

    both("out of place into the input", f, [a.want, a.mine], shared=[0])
    expect("reason=overlap-range", 1)


@case
def slices():
    a = made()
    half = M * N // 2

    def f():
        y = F.linear(a.x, a.w)
        dist.all_reduce(y.view(-1)[half:])
        dist.all_reduce(y.view(-1)[:half])
        return y

    def first():
        y = F.linear(a.x, a.w)
        dist.all_reduce(y.view(-1)[:half])
        return y

    both("two halves", f, [a.want])
    both("the first half", first, [torch.cat([a.want[: M // 2], a.mine[M // 2 :]])], shared=[])
    expect("reason=slice", 2)


@case
def wide():
    """C's rows have gaps; the sum takes those too."""
    a = made(n=1024)
    y = torch.empty(M, 2048, device=device, dtype=a.dtype)

    def f():
        y[:, 1024:] = 3
        torch.mm(a.x, a.w.t(), out=y[:, :1024])
        dist.all_reduce(y)
        return y

    both("rows with gaps", f, [torch.cat([a.want, torch.full_like(a.want, 3 * ranks)], dim=1)])
    expect("reason=shape", 1)


@case
def retyped():
    a = made()
    outs = [p.to(a.dtype) for p in a.parts]
    as_half = sum(o.view(torch.float16).float() for o in outs).half().view(a.dtype).float()
    as_int = sum(o.view(torch.int32) for o in outs)

    def f(dtype):
        y = F.linear(a.x, a.w)
        dist.all_reduce(y.view(dtype))
        return y.view(torch.int32) if dtype == torch.int32 else y

    if ranks == 2:  # of more than two ranks the order of roundings is NCCL's
        both("bf16 summed as fp16", lambda: f(torch.float16), [as_half])
        expect("reason=retyped", 1)
    both("bf16 summed as int32", lambda: f(torch.int32), [as_int])
    expect("reason=dtype", 1)


@case
def operators():
    a = made(n=1024, k=128)
    if ranks & (ranks - 1) == 0 and not CPU:  # gloo has no average
        both("average", lambda: reduced(a, dist.ReduceOp.AVG), [a.want / ranks])
        expect("reason=operator", 1)
    both("largest", lambda: reduced(a, dist.ReduceOp.MAX), [torch.stack(a.parts).amax(0)])
    both("least", lambda: reduced(a, dist.ReduceOp.MIN), [torch.stack(a.parts).amin(0)])
    expect("reason=operator", 2)
    x, w = a.x.float(), a.w.float()

    def full():
        y = F.linear(x, w)
        dist.all_reduce(y)
        return y

    both("fp32", full, [a.want])
    expect("reason=dtype", 1)


def reduced(a, op):
    y = F.linear(a.x, a.w)
    dist.all_reduce(y, op=op)
    return y


# ---- how it is called ----


@case
def coalesced():
    a, b = made(), made(m=512)

    def f():
        y, z = F.linear(a.x, a.w), F.linear(b.x, b.w)
        with dist._coalescing_manager():
            dist.all_reduce(y)
            dist.all_reduce(z)
        return y, z

    both("two in a group", f, [a.want, b.want])
    expect("reason=group", 2)


@case
def later():
    """async_op=True, with work beside."""
    a, b = made(), made(m=512)

    def f():
        y = F.linear(a.x, a.w)
        work = dist.all_reduce(y, async_op=True)
        z = F.linear(b.x, b.w)
        work.wait()
        return y, z

    both("async_op", f, [a.want, b.mine], shared=[0])
    expect("reason=cross-stream", 1)


@case
def some_bias():
    a = made(bias=[0])
    both("a bias on rank 0 alone", a.pair, [a.want])
    expect("OVERLAP", 1)


@case
def no_gemm():
    """The last rank has its part from an addition."""
    a = made()
    part = a.mine.to(a.dtype)
    zero = torch.zeros_like(part)

    def f():
        y = torch.add(part, zero) if rank == ranks - 1 else F.linear(a.x, a.w)
        dist.all_reduce(y)
        return y

    both("no GEMM on one rank", f, [a.want])
    if rank != ranks - 1:
        expect("OVERLAP", 1)


@case
def alone():
    """A GEMM whose sum does not come, then one whose does."""
    a = made()

    def f():
        z = F.linear(a.x, a.w)
        z = z + 1
        return z, a.pair()

    both("no sum, then one", f, [a.mine + 1, a.want], shared=[1])
    expect("OVERLAP", 1)


@case
def two_gemms():
    a, b = made(), made(m=512)

    def early():
        y, z = F.linear(a.x, a.w), F.linear(b.x, b.w)
        dist.all_reduce(y)
        return y, z

    def late():
        y, z = F.linear(a.x, a.w), F.linear(b.x, b.w)
        dist.all_reduce(z)
        return y, z

    both("the sum of the first of two GEMMs", early, [a.want, b.mine], shared=[0])
    expect("reason=not-last-gemm", 1)
    both("the sum of the second of two GEMMs", late, [a.mine, b.want], shared=[1])
    expect("OVERLAP", 1)


@case
def sleeps():
    a = made()
    g, z = capture(a.pair)
    expect("OVERLAP", 1)
    for c in range(4):
        y = F.linear(a.x, a.w)
        if c == 1 and rank == ranks - 1:
            time.sleep(0.5 if CPU else 5)
        dist.all_reduce(y)
        if c == 2 and rank == 0:
            time.sleep(0.5)
        g.replay()
        exact(f"a rank sleeps, eager {c}", y, a.want)
        exact(f"a rank sleeps, replay {c}", z, a.want)
    same("a rank sleeps")


# ---- graphs ----


@case
def warm_ups():
    """Captured after 0, 1 and 3 calls. Without any nothing is known of the GEMM, and the capture is what makes it known."""
    for i, calls in enumerate((0, 1, 3)):
        a = Layer(M, 1088 + 64 * i, 448, seed=60 + i)  # sizes that nothing else has
        for c in range(calls):
            exact(f"warm-up {c}", a.pair(), a.want)
        for n in range(2):
            g, y = capture(a.pair)
            for c in range(2):
                y.fill_(77)
                g.replay()
                exact(f"after {calls} calls, capture {n}, replay {c}", y, a.want)
            overlaps = calls or n
            expect("OVERLAP" if overlaps else "reason=learning", 1)
            say(f"captured after {calls} calls, capture {n}: {'overlaps' if overlaps else 'plain, and known from now on'}")
    same("warm-ups")


@case
def alternate():
    """Two graphs of different shapes, and eager calls of the same communicator between, all without a pause."""
    a, b = made(), made(m=512, n=1024, dtype=torch.float16)
    (ga, ya), (gb, yb) = capture(a.pair), capture(b.pair)
    expect("OVERLAP", 2)
    kept = []
    for c in range(6):
        ga.replay()
        kept.append((f"graph a {c}", ya.clone(), a.want))
        gb.replay()
        gb.replay()
        kept.append((f"graph b {c}", yb.clone(), b.want))
        if c % 2:
            kept.append((f"eager a {c}", a.pair(), a.want))
    for name, y, want in kept:
        exact(name, y, want)
    same("graphs in turn")


@case
def inputs():
    """A graph's input changes without a pause between the replays; nothing but the bits tells."""
    a = made()
    g, y = capture(a.pair)
    expect("OVERLAP", 1)
    xs, kept = [], []
    for c in range(8):
        a.renew(100 + c)
        xs.append((a.x.clone(), a.want))
    for x, want in xs:
        a.x.copy_(x)
        g.replay()
        kept.append((y.clone(), want))
    for c, (z, want) in enumerate(kept):
        exact(f"input {c}", z, want)
    same("a graph with other inputs")


main("hostile", sys.argv[1:])
