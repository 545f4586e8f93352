# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""PyTorch's own tensor-parallel API: a transformer's MLP, its first layer cut by columns and its second by rows; and the same with
the sequence cut around it. torch_tp.py [ROUNDS [WAY...]] (TIMED: rounds that are timed and not looked at, after them): forward and backward, eager and compiled, against the unsharded layer in float64.
What the library must have seen follows from the collectives that PyTorch counts (CommDebugMode)."""
import copy
import os
import sys
import time

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes for a few small kernels

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from torch_help import CPU, checksum, compiler, device, expect, fail, finish, gathered, gpu, rank, ranks, say, settle, watch

BATCH, LENGTH, WIDTH, INNER = (2, 64, 64, 128) if CPU else (2, 1024, 1024, 4096)
STYLES = {
    "rows": {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "sequence": {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
                 "down": RowwiseParallel(output_layouts=Shard(1))},
}


class MLP(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=False)
        with torch.no_grad():
            for layer in (self.up, self.down):
                w = layer.weight
                w.copy_(torch.randn(w.shape, generator=g) / w.shape[1] ** 0.5)
        self.to(device, torch.bfloat16)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


def reference(model, x, dy):
    """Output, gradients of the input and of the weights, all whole, in float64."""
    m = copy.deepcopy(model).double()
    x = x.double().requires_grad_()
    y = m(x)
    y.backward(dy.double())
    return {"y": y.detach(), "dx": x.grad, "norm": m.norm.weight.grad, "up": m.up.weight.grad, "down": m.down.weight.grad}


def shard(t, dim):
    return t if dim is None else t.chunk(ranks, dim)[rank]


def local(t):
    return t.to_local() if isinstance(t, DTensor) else t


def one_round(model, x, dy):
    for p in model.parameters():
        p.grad = None
    x.grad = None
    y = model(x)
    y.backward(dy)
    return y


def compare(name, model, x, y, want, cuts):
    got = {"y": y, "dx": x.grad, **{n: getattr(model, n).weight.grad for n in ("norm", "up", "down")}}
    gpu.synchronize()
    for what, t in got.items():
        t, w = local(t).detach(), shard(want[what], cuts[what])
        if t.shape != w.shape:
            fail(f"{name}, {what}: shape {list(t.shape)}, not {list(w.shape)}")
            continue
        error = ((t.double() - w).norm() / w.norm()).item()
        if not error < (4e-2 if what == "norm" else 1.5e-2):  # norm: a sum over all rows of products in bf16
            fail(f"{name}, {what}: relative error {error:.2e}")
    alike = [checksum(local(got[n])).item() for n in got if cuts[n] is None]
    if any(other != alike for other in gathered(alike)):
        fail(f"{name}: other bits on another rank")


def counts(model, x, dy):
    """Collectives of one round by PyTorch's own count, by name."""
    with CommDebugMode() as comm:
        one_round(model, x, dy)
    return {str(op).rsplit(".", 1)[-1]: n for op, n in comm.get_comm_counts().items()}


def demand(style, way, rounds, seen, skipped):
    """What the log must show: the all-reduces are ours, plain or overlapped; the others are NCCL's."""
    sums = seen["all_reduce"] if "all_reduce" in seen else 0
    others = sum(seen.values()) - sums
    if way == "reduce-overhead":
        if style == "rows" and not skipped:
            expect("OVERLAP", 1)
        return
    rounds += way == "eager"  # the counted one
    if sums:
        expect("PLAIN", sums * rounds)
    if others:
        expect("reason=operator-not-built", others * rounds)


def skips():
    return torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


def one(style, way, rounds, mesh, seen):
    name = f"{style}, {way}"
    watch(f"tp: {name}", 80)
    began = time.time()
    g = torch.Generator().manual_seed(7)
    whole_x, whole_dy = (torch.randn(BATCH, LENGTH, WIDTH, generator=g).to(device, torch.bfloat16) for _ in range(2))
    plain = MLP(3)
    want = reference(plain, whole_x, whole_dy)
    model = parallelize_module(plain, mesh, STYLES[style])
    outer = 1 if style == "sequence" else None
    cuts = {"y": outer, "dx": outer, "norm": None, "up": 0, "down": 1}
    x, dy = shard(whole_x, outer).clone().requires_grad_(), shard(whole_dy, outer).clone()
    if way == "eager":
        seen.update(counts(model, x, dy))
        if not seen:
            fail(f"{name}: PyTorch counts no collective")
    run, before = model, 0
    if way != "eager":
        torch._dynamo.reset()
        run, before = torch.compile(model, mode=way), skips()
    ms = []
    for c in range(rounds):
        gpu.synchronize()
        since = time.time()
        if way == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        y = one_round(run, x, dy)
        gpu.synchronize()
        ms.append((time.time() - since) * 1000)
        if style == "sequence":  # each rank has the gradient of its part of the sequence; the user sums them
            grad = model.norm.weight.grad
            want_norm = grad.full_tensor() if isinstance(grad, DTensor) else grad
            model.norm.weight.grad = DTensor.from_local(want_norm, mesh) if isinstance(grad, DTensor) else want_norm
        compare(f"{name}, round {c}", model, x, y, want, cuts)
    timed = int(os.environ.get("TIMED", "0"))
    ms = ms[1:] if not timed else []
    for c in range(timed):
        since = time.time()
        if way == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        one_round(run, x, dy)
        gpu.synchronize()
        ms.append((time.time() - since) * 1000)
    skipped = CPU or (way != "eager" and skips() > before)
    demand(style, way, rounds, seen, skipped)
    ms.sort()
    what = f", {seen}" if way == "eager" else ", no graphs" if way == "reduce-overhead" and skipped else ""
    return f"{name}: {time.time() - began:.1f} s, a round {ms[len(ms) // 2]:.2f} ms{what}"


def main(rounds, chosen):
    watch("tp: settling", 60)
    settle()
    mesh = init_device_mesh(device.type, (ranks,))
    ways = chosen or ["eager", "default", "reduce-overhead"]
    why = compiler()
    if why:
        say(f"skip: gpu.torch tp compiled: {why}")
        ways = ["eager"]
    for style in STYLES:
        seen = {}
        for way in ways:
            say("tp " + one(style, way, rounds, mesh, seen))
    finish()


main(int(sys.argv[1]) if len(sys.argv) > 1 else 6, sys.argv[2:])
