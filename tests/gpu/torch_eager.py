# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Eager pairs, with the library in LD_PRELOAD: a linear layer and its all-reduce overlap where nothing at all was put on the GPU
between, and are right where something was. torch_eager.py [CASE...]: results are sums of whole numbers, compared exactly, and
their bits between the ranks. What the library's log must show goes to stderr ('expect WHAT N')."""
import ctypes
import sys
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F

import torch_cases
from torch_cases import M, N, case, main
from torch_help import CPU, device, exact, expect, gpu, same, say

CALLS = 24
LAYERS = []  # their weights' addresses, which are what a site is known by, do not come again


def made(**how):
    LAYERS.append(torch_cases.made(**how))
    return LAYERS[-1]


def eager(name, f, want, calls=2, shared=True):
    for c in range(calls):
        exact(f"{name}, call {c}", f(), want, shared)
    same(name)


def between(what, shape=None):
    """A pair with what(y) between: that doubles y."""
    a = made(**(shape or {}))

    def f():
        y = F.linear(a.x, a.w)
        what(y)
        dist.all_reduce(y)
        return y

    return f, 2 * a.want


# ---- nothing between ----


@case
def clean():
    """In a loop without a pause: all but the first calls of a site overlap."""
    for how in ({}, {"bias": range(8)}, {"dtype": torch.float16}, {"dtype": torch.float16, "bias": range(8)}, {"m": 2048, "n": 1024}):
        a = made(**how)
        kept = []
        for c in range(CALLS):
            y = a.pair()
            if c % 4 == 0:
                kept.append(y)
        for y in kept:
            exact(f"eager {how}", y, a.want)
        same(f"eager {how}")
        expect("OVERLAP", CALLS * 2 // 3)


@case
def three_d():
    a = made()
    x = a.x.view(4, M // 4, -1)
    for _ in range(CALLS):
        y = F.linear(x, a.w)
        dist.all_reduce(y)
    exact("three dimensions", y.view(M, N), a.want)
    same("three dimensions")
    expect("OVERLAP", CALLS * 2 // 3)


@case
def side_stream():
    a, side = made(), gpu.Stream()
    side.wait_stream(gpu.current_stream())
    with gpu.stream(side):
        for _ in range(CALLS):
            y = a.pair()
    gpu.current_stream().wait_stream(side)
    exact("on a side stream", y, a.want)
    same("on a side stream")
    expect("OVERLAP", CALLS // 2)


# ---- something between ----


@case
def kernel():
    eager("a kernel in place", *between(lambda y: y.mul_(2)), calls=4)
    expect("reason=intruder", 2)


@case
def clear():
    a = made()

    def f():
        y = F.linear(a.x, a.w)
        y.zero_()
        dist.all_reduce(y)
        return y

    eager("a memset", f, 0 * a.want)
    expect("reason=intruder", 1)


@case
def copy():
    a = made()
    z = a.mine.to(a.dtype) * 2

    def f():
        y = F.linear(a.x, a.w)
        y.copy_(z)
        dist.all_reduce(y)
        return y

    eager("a copy", f, 2 * a.want)
    expect("reason=intruder", 1)


@case
def thread():
    """Put there by another thread."""
    stream = gpu.current_stream()

    def what(y):
        def run():
            if not CPU:
                torch.cuda.set_device(device)
            with gpu.stream(stream):
                y.mul_(2)

        t = threading.Thread(target=run)
        t.start()
        t.join()

    eager("a kernel by another thread", *between(what))
    expect("reason=intruder", 1)


@case
def graph():
    """A graph's launch."""
    if CPU:
        return
    z = torch.empty(M, N, device=device, dtype=torch.bfloat16)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        z.mul_(2)
    a = made()

    def f():
        torch.mm(a.x, a.w.t(), out=z)
        g.replay()
        dist.all_reduce(z)
        return z.clone()

    eager("a graph between", f, 2 * a.want)
    expect("reason=intruder", 1)


@case
def triton():
    from torch_help import triton_kernel

    twice, why = (None, "the CPU") if CPU else triton_kernel()
    if not twice:
        say(f"skip: gpu.torch eager triton: {why}"[:160])
        return
    eager("a Triton kernel", *between(twice))
    expect("reason=intruder", 1)


# Lets what follows start at once, works for some 0.3 ms, and doubles its numbers then.
EARLY = b""".version 7.8
.target sm_90
.address_size 64
.visible .entry twice(.param .u64 at, .param .u64 count)
{
    .reg .pred %late;
    .reg .b16 %h;
    .reg .b32 %block, %size, %thread;
    .reg .b64 %begin, %now, %i, %n, %p;
    griddepcontrol.launch_dependents;
    mov.u64 %begin, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %late, %now, 500000;
    @%late bra again;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %block, %block, %size, %thread;
    cvt.u64.u32 %i, %block;
    ld.param.u64 %n, [count];
    setp.ge.u64 %late, %i, %n;
    @%late ret;
    ld.param.u64 %p, [at];
    cvta.to.global.u64 %p, %p;
    shl.b64 %i, %i, 1;
    add.u64 %p, %p, %i;
    ld.global.b16 %h, [%p];
    add.rn.bf16 %h, %h, %h;
    st.global.b16 [%p], %h;
    ret;
}
\0"""


@case
def early():
    """A kernel of somebody else's that lets its successor start before it has written: the one thing that the GPU does not hold
    back by itself. By the driver's functions, looked up by name."""
    if CPU:
        return
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    made(m=512)  # there is a context
    for error in (cuda.cuModuleLoadData(ctypes.byref(module), EARLY), cuda.cuModuleGetFunction(ctypes.byref(function), module, b"twice")):
        if error:
            say(f"skip: gpu.torch eager early: driver error {error}")
            return

    def what(y):
        at, count = ctypes.c_uint64(y.data_ptr()), ctypes.c_uint64(y.numel())
        params = (ctypes.c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(count))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = cuda.cuLaunchKernel(function, (y.numel() + 1023) // 1024, 1, 1, 1024, 1, 1, 0, stream, params, None)
        if error:
            raise RuntimeError(f"cuLaunchKernel: {error}")

    eager("a kernel that triggers early", *between(what), calls=4)
    expect("reason=intruder", 1)


@case
def never():
    """A layer that always has something between: its GEMM is cuBLAS's again."""
    f, want = between(lambda y: y.mul_(2))
    eager("always something between", f, want, calls=12)
    expect("reason=unfollowed", 4)


@case
def evaluation():
    """The sum does not come for a while, and then it does."""
    a = made()
    for _ in range(12):
        y = F.linear(a.x, a.w)
    exact("without a sum", y, a.mine, False)
    for _ in range(80 + CALLS):
        y = a.pair()
    exact("with one again", y, a.want)
    same("with one again")
    expect("OVERLAP", CALLS // 2)


main("eager", sys.argv[1:])
