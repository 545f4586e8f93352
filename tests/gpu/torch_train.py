# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Training of tensor-parallel transformer blocks with plain torch.distributed. torch_train.py STEPS SEEDS FILE: STEPS of AdamW from
each of SEEDS initial weights, eager and as one CUDA graph a step. With MK_FUSE=off the losses go to FILE; otherwise they are compared
with those in it: for each seed no further from the run without us than its seeds are from each other. With MK_DETERMINISTIC=1
one seed, eager (our GEMM and our sum one after the other) against graph (overlapped): the same bits of all losses and weights.
Always: the same losses and the same unsharded weights on all ranks. There is no setting that forces the plain way on a graph."""
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_help import CPU, capture, checksum, device, expect, fail, finish, gathered, gpu, ranks, rank, say, settle, watch

DETERMINISTIC = os.environ.get("MK_DETERMINISTIC") == "1"
FUSED = os.environ.get("MK_FUSE", "off") != "off"
COUNTED = FUSED and os.environ.get("MK_TUNER") != "on"  # else it may leave sums to NCCL
BLOCKS, BATCH, LENGTH, WIDTH, HEADS, OUT = (2, 2, 32, 64, 4, 16) if CPU else (2, 4, 512, 1024, 16, 64)
SUMS = 4 * BLOCKS  # all-reduces of a step: behind attention and MLP, and in front of them on the way back
BATCHES = 4


looked_at = None  # a list: checksums of what SumOverRanks gave


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous()
        dist.all_reduce(dy)
        return dy


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        if looked_at is not None:
            looked_at.append(checksum(x).item())
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy


class Model:
    """Weights in bf16 at fixed places, fp32 masters for the optimizer. A sharded one is cut from the whole, so that its values do
    not depend on the number of ranks."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.masters, self.weights, self.sharded = [], [], []
        self.blocks = []
        for _ in range(BLOCKS):
            one = torch.ones(WIDTH)
            self.blocks.append([
                self.add(one), self.add(self.rand(g, 3 * WIDTH, WIDTH).view(3, WIDTH, WIDTH), 1),
                self.add(self.rand(g, WIDTH, WIDTH), 1), self.add(one), self.add(self.rand(g, 4 * WIDTH, WIDTH), 0),
                self.add(self.rand(g, WIDTH, 4 * WIDTH), 1)])
        self.norm, self.head = self.add(torch.ones(WIDTH)), self.add(self.rand(g, OUT, WIDTH))
        self.first = [m.detach().clone() for m in self.masters]
        for m in self.masters:
            m.grad = torch.zeros_like(m)
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-3, weight_decay=0.01, capturable=not CPU, foreach=True)

    @staticmethod
    def rand(g, rows, cols):
        return torch.randn(rows, cols, generator=g) / cols**0.5

    def add(self, whole, dim=None):
        mine = whole if dim is None else whole.chunk(ranks, dim)[rank]
        mine = mine.reshape(-1, mine.shape[-1]) if mine.dim() == 3 else mine
        master = mine.clone(memory_format=torch.contiguous_format).to(device).requires_grad_()
        self.masters.append(master)
        self.weights.append(master.detach().to(torch.bfloat16).requires_grad_())
        self.sharded.append(dim is not None)
        return self.weights[-1]

    def reset(self):
        """Back to the first step, in place: a graph holds these addresses."""
        with torch.no_grad():
            torch._foreach_copy_(self.masters, self.first)
            torch._foreach_copy_(self.weights, self.masters)
            for state in self.optimizer.state.values():
                for t in state.values():
                    t.zero_()

    def attention(self, x, qkv, out):
        q, k, v = F.linear(CopyToRanks.apply(x), qkv).view(BATCH, LENGTH, 3, HEADS // ranks, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-1, -2)).float() * (WIDTH // HEADS) ** -0.5
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
        p = scores.masked_fill(mask, float("-inf")).softmax(-1).to(v.dtype)
        y = torch.matmul(p, v).transpose(1, 2).reshape(BATCH, LENGTH, -1)
        return SumOverRanks.apply(F.linear(y, out))

    def forward(self, x):
        for ln1, qkv, out, ln2, up, down in self.blocks:
            x = x + self.attention(F.layer_norm(x, (WIDTH,), ln1), qkv, out)
            y = F.gelu(F.linear(CopyToRanks.apply(F.layer_norm(x, (WIDTH,), ln2)), up))
            x = x + SumOverRanks.apply(F.linear(y, down))
        return F.linear(F.layer_norm(x, (WIDTH,), self.norm), self.head)

    def step(self, x, want):
        for w in self.weights:
            w.grad = None
        loss = F.mse_loss(self.forward(x).float(), want)
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in self.masters], [w.grad for w in self.weights])
            self.optimizer.step()
            torch._foreach_copy_(self.weights, self.masters)
        return loss.detach()


def data():
    """The same on all ranks, for all seeds: whole numbers, since a library of the CPU may add others in any order."""
    g = torch.Generator().manual_seed(999)
    xs = (32 * torch.randn(BATCHES, BATCH, LENGTH, WIDTH, generator=g)).round().to(device)
    teacher = (3 * torch.randn(WIDTH, OUT, generator=g)).round().to(device)
    wants = torch.tanh((xs + xs.roll(1, 2)) @ teacher / (48 * WIDTH**0.5))
    return (xs / 32).to(torch.bfloat16), wants


def alike_at_first(model, x, name):
    """What the ranks should share: weights, each sum of a forward pass, and what each makes of these by itself."""
    global looked_at
    looked_at = []
    with torch.no_grad():
        y = model.forward(x)
    whole = [checksum(m).item() for m, s in zip(model.masters, model.sharded) if not s]
    for what, mine in (("weights", whole), ("sums", looked_at), ("output", [checksum(y).item()])):
        wrong = [i for t in gathered(mine) for i in range(len(mine)) if t[i] != mine[i]]
        if wrong:
            fail(f"{name}: before the first step another rank has other {what}, number {wrong}")
    looked_at = None


def train(way, seed, steps, xs, wants):
    """Losses, sums of the bits (losses, unsharded weights, all weights), milliseconds of the steps."""
    model = Model(seed)
    x, want = xs[0].clone(), wants[0].clone()
    alike_at_first(model, x, f"{way}, seed {seed}")
    side = gpu.Stream()
    side.wait_stream(gpu.current_stream())
    with gpu.stream(side):  # what is made at the first call is made before the capture
        for _ in range(3):
            model.step(x, want)
    gpu.current_stream().wait_stream(side)
    if way == "graph":
        graph, loss = capture(model.step, x, want)
        if COUNTED:
            expect("OVERLAP", SUMS)
    model.reset()
    losses, marks = torch.zeros(steps, device=device), []
    for i in range(steps):
        marks.append(torch.cuda.Event(enable_timing=True) if not CPU else None)
        if marks[-1]:
            marks[-1].record()
        x.copy_(xs[i % BATCHES])
        want.copy_(wants[i % BATCHES])
        if way == "graph":
            graph.replay()
        else:
            loss = model.step(x, want)
        losses[i] = loss
    gpu.synchronize()
    ms = [a.elapsed_time(b) for a, b in zip(marks[5:], marks[6:])] if not CPU else [0.0] * 2
    loose = [checksum(m).item() for m, s in zip(model.masters, model.sharded) if not s]
    return losses, [checksum(losses).item(), *loose], [checksum(m).item() for m in model.masters], ms


def spread(values):
    return max(values) - min(values)


def compare(final, file):
    """No further from the run without us than the seeds of that run are from each other."""
    with open(file) as f:
        off = json.load(f)
    limit = spread([loss for loss, _ in off.values()])
    for name, (loss, ms) in final.items():
        before, ms_before = off[name]
        if not abs(loss - before) <= limit:
            fail(f"{name}: loss {loss:.6f}, without us {before:.6f}, their seeds differ by {limit:.6f}")
        say(f"train {name}: loss {loss:.6f} against {before:.6f} (seeds differ by {limit:.6f}), step {ms:.2f} ms against {ms_before:.2f}")


def main(steps, seeds, file):
    watch("train: settling", 45)
    settle()
    xs, wants = data()
    began = [checksum(t).item() for t in (xs, wants)]
    if any(other != began for other in gathered(began)):
        fail(f"the ranks have other data to begin with: {gathered(began)}")
    final, kept = {}, {}
    for seed in [1] if DETERMINISTIC else range(1, seeds + 1):
        for way in ("eager", "eager again", "graph") if DETERMINISTIC else ("eager", "graph"):
            name = f"{way}, seed {seed}"
            watch(f"train: {name}", 60)
            losses, alike, every, ms = train(way, seed, steps, xs, wants)
            if [checksum(t).item() for t in (xs, wants)] != began:
                fail(f"{name}: somebody wrote into the data")
            if any(other != alike for other in gathered(alike)):
                first = min((i for t in gathered(losses.tolist()) for i in range(steps) if t[i] != losses[i].item()), default=None)
                fail(f"{name}: losses (from step {first} on) or unsharded weights have other bits on another rank")
            if not losses[-20:].mean() < 0.9 * losses[:4].mean():
                fail(f"{name}: nothing was learnt: {losses[:4].mean():.4f} to {losses[-20:].mean():.4f}")
            ms.sort()
            final[name] = (losses[-20:].mean().item(), statistics.median(ms))
            kept[way] = (alike, every)
            if rank == 0 and seed == 1:
                say(f"train {name}: loss {losses[:4].mean():.4f} to {final[name][0]:.6f}, bits {alike[0] & (1 << 64) - 1:016x}, "
                    f"step {final[name][1]:.2f} ms ({ms[len(ms) // 10]:.2f} to {ms[len(ms) * 9 // 10]:.2f})")
            if COUNTED:
                expect("PLAIN", 0 if way == "graph" else SUMS * steps)
    if DETERMINISTIC:
        if kept["eager"] != kept["eager again"]:
            fail("two eager runs have other bits: the program itself is not deterministic")
        if kept["eager"] != kept["graph"]:
            fail("eager and graph have other bits")
        if COUNTED:
            expect("G", SUMS * steps)
        say(f"train: eager (plain) and graph (overlapped) have the same bits: {kept['eager'] == kept['graph']}")
    elif FUSED:
        compare(final, file)
    elif rank == 0:
        with open(file, "w") as f:
            json.dump(final, f)
    finish()


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
