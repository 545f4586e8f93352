# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Random programs of GEMMs and collectives. torch_random.py SEED SECONDS GROUPS [ONLY]: programs of one seed for so many seconds, of
GROUPS (1, 2) communicators; ONLY: program number ONLY alone. What the ranks must do alike is drawn alike on all of them; what lies
between (kernels, events, readers, naps, freed memory) is drawn by each rank for itself. Half of the programs are CUDA graphs, some
of which are kept and replayed later. All values are whole numbers that every dtype writes exactly, so results are compared exactly.
stderr: each program before it runs, and how many pairs must have overlapped ('expect')."""
import random
import sys
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_help import CPU, LARGEST, Layer, backend, capture, device, exact, expect, fail, failures, finish, gathered, gpu, rank
from torch_help import ranks, same, say, settle, watch

SHARED_MODS = ("double", "negate")
LOCAL_MODS = ("event", "other", "gemm", "free", "read", "nap", "cache")


@dataclass
class Step:
    layer: int
    group: int
    how: str
    side: bool  # on the side stream
    join: bool  # which the main stream then waits for at once
    mods: list = field(default_factory=list)

    def __str__(self):
        where = f"{'side' if self.side else 'main'}{'' if self.join or not self.side else '...'}"
        return f"{self.how}(layer {self.layer}, group {self.group}, {where}{''.join(', ' + m for m in self.mods)})"


@dataclass
class Program:
    number: int
    captured: bool
    times: int
    steps: list

    def __str__(self):
        return f"program {self.number}, {'graph' if self.captured else 'eager'} x{self.times}: " + "; ".join(map(str, self.steps))


def make_pool(seed):
    """Layers whose sites are known to all communicators."""
    draw = random.Random(f"{seed} pool")
    out = []
    for i in range(10):
        dtype = draw.choice((torch.bfloat16, torch.bfloat16, torch.float16))
        m, n = draw.choice((64, 512, 512, 640, 1000, 1024, 2048)), draw.choice((256, 264, 512, 1024, 1536, 2048))
        k = draw.choice((128, 256, 512))
        bias = draw.choice(((), (), range(ranks), (0,)))
        a = Layer(m // 2 if i % 3 == 2 else m, n, k, dtype, seed * 100 + i, bias, (2,) if i % 3 == 2 else ())
        a.learn()
        out.append(a)
    return out


def make_program(seed, number, pool, groups):
    shared, local = random.Random(f"{seed} {number}"), random.Random(f"{seed} {number} {rank}")
    captured = shared.random() < 0.5
    # within a graph a communicator stays on one stream
    all_async, where = shared.random() < 0.2, [shared.random() < 0.5 for _ in range(groups)]
    steps = []
    for _ in range(shared.randint(1, 4)):
        ways = ["sum"] * 12 + ["halves", "halves", "odd", "max", "fp32", "twice", "none", "grouped"] + ["async"] * 3 * (not captured)
        s = Step(shared.randrange(len(pool)), shared.randrange(groups), shared.choice(ways), shared.random() < 0.3, shared.random() < 0.5)
        if captured:
            s.side = where[s.group]
            s.how = "async" if all_async else s.how
        room = LARGEST[pool[s.layer].dtype] // (32 * ranks)
        s.how = "sum" if s.how == "twice" and room < 2 * ranks else s.how
        s.mods = [m for m in SHARED_MODS if shared.random() < 0.15 and (m != "double" or room >= 2)]
        s.mods += [m for m in LOCAL_MODS if local.random() < 0.08 and not (captured and m == "cache")]
        local.shuffle(s.mods)
        steps.append(s)
    return Program(number, captured, shared.randint(1, 3), steps)


# ---- what it does ----


def modify(mod, a, y, tools):
    """Between the GEMM and its collective; returns what a reader saw."""
    here = gpu.current_stream()
    if mod == "double":
        y.mul_(2)
    elif mod == "negate":
        y.neg_()
    elif mod == "event":
        e = gpu.Event()
        e.record()
        here.wait_event(e)
    elif mod == "other":
        tools.scratch.fill_(1)
    elif mod == "gemm":
        F.linear(a.x, a.w)
    elif mod == "free":
        t = torch.empty(3 << 20, device=device)
        t.fill_(1)
    elif mod == "nap":
        time.sleep(0.003)
    elif mod == "cache" and not CPU:
        torch.cuda.empty_cache()
    elif mod == "read":
        tools.third.wait_stream(here)
        with gpu.stream(tools.third):
            z = y.clone()
        here.wait_stream(tools.third)
        return [z]
    return []


def odd(y):
    return y.numel() // 2 + 7


def collect(how, y, group):
    """The collective, in place; returns results beside y."""
    if how == "sum":
        dist.all_reduce(y, group=group)
    elif how == "async":
        dist.all_reduce(y, group=group, async_op=True).wait()
    elif how == "twice":
        dist.all_reduce(y, group=group)
        dist.all_reduce(y, group=group)
    elif how == "max":
        dist.all_reduce(y, op=dist.ReduceOp.MAX, group=group)
    elif how == "halves":
        cut = y.numel() // 2 // 64 * 64
        dist.all_reduce(y.view(-1)[cut:], group=group)
        dist.all_reduce(y.view(-1)[:cut], group=group)
    elif how == "odd":  # a count that is no multiple of anything
        dist.all_reduce(y.view(-1)[: odd(y)], group=group)
    elif how == "fp32":
        z = y.float()
        dist.all_reduce(z, group=group)
        y.copy_(z)
    elif how == "grouped":
        z = y.clone()
        with dist._coalescing_manager(group=group):
            dist.all_reduce(y, group=group)
            dist.all_reduce(z, group=group)
        return [z]
    return []


def run(p, pool, groups, tools):
    out, main = [], gpu.current_stream()
    for s in p.steps:
        a = pool[s.layer]
        if s.side:
            tools.side.wait_stream(main)
        with gpu.stream(tools.side if s.side else main):
            y = F.linear(a.x, a.w, a.b)
            for m in s.mods:
                out += modify(m, a, y, tools)
            out += collect(s.how, y, groups[s.group])
            out.append(y)
        if s.side and s.join:
            main.wait_stream(tools.side)
    if any(s.side for s in p.steps):
        main.wait_stream(tools.side)
    return out


# ---- what must come out ----


def wanted(p, pool):
    """(values, whether all ranks have them) of each result, for the inputs as they are now."""
    out = []
    for s in p.steps:
        parts = pool[s.layer].parts
        for m in s.mods:
            if m == "read":
                out.append((parts[rank], False))
            parts = [2 * q for q in parts] if m == "double" else [-q for q in parts] if m == "negate" else parts
        total = sum(parts)
        if s.how == "odd":
            c = odd(total)
            out.append((torch.cat([total.view(-1)[:c], parts[rank].view(-1)[c:]]).view(total.shape), False))
        elif s.how == "none":
            out.append((parts[rank], False))
        elif s.how == "max":
            out.append((torch.stack(parts).amax(0), True))
        elif s.how == "grouped":
            out += [(total, True)] * 2
        else:
            out.append((total * ranks if s.how == "twice" else total, True))
    return out


def check(p, y, pool):
    for i, (t, (want, shared)) in enumerate(zip(y, wanted(p, pool), strict=True)):
        exact(f"{p}, result {i}", t, want, shared)


def overlaps(p, pool, groups):
    """Pairs of a captured program that nothing can keep from overlapping: a step without anything between. Where other
    communicators live, one has to wait if it is the communicator's first operation in a graph, or follows a group."""
    n, last = 0, {}
    for s in p.steps:
        a = pool[s.layer]
        rows = a.x.numel() // a.k
        fits = rows >= 512 and a.n % 8 == 0 and rows * a.n % 64 == 0
        n += fits and s.how == "sum" and set(s.mods) <= {"nap"} and (groups == 1 or last.get(s.group, "grouped") != "grouped")
        if s.how != "none":
            last[s.group] = s.how
    return n


# ---- the loop ----


class Tools:
    def __init__(self):
        self.side, self.third = gpu.Stream(), gpu.Stream()
        self.scratch = torch.zeros(1 << 20, device=device)


def one(seed, number, pool, groups, tools, kept):
    shared = random.Random(f"{seed} {number} around")
    if shared.random() < 0.4:
        pool[shared.randrange(len(pool))].renew(seed * 10000 + number)
    p = make_program(seed, number, pool, len(groups))
    watch(str(p), 30)
    old = kept[shared.randrange(len(kept))] if kept and shared.random() < 0.4 else None
    results = []
    if p.captured:
        g, y = capture(run, p, pool, groups, tools)
        expect("OVERLAP", overlaps(p, pool, len(groups)))
        for t in y:
            t.fill_(77)
    for _ in range(p.times):
        if old:
            old[1].replay()
        if p.captured:
            g.replay()
        else:
            results.append(run(p, pool, groups, tools))
    for r in results + ([y] if p.captured else []):
        check(p, r, pool)
    if old:
        check(old[0], old[2], pool)
    same(str(p))
    if p.captured and shared.random() < 0.3:
        kept.append((p, g, y))
    if len(kept) > 5:
        kept.pop(shared.randrange(len(kept)))


def main(seed, seconds, ngroups, only):
    watch("random: settling", 45)
    groups = [None] + [dist.new_group(backend=backend) for _ in range(ngroups - 1)]
    for g in groups:
        settle(g)
    pool, tools, kept = make_pool(seed), Tools(), []
    same("the pool")
    began, n = time.time(), 0
    if only is not None:
        one(seed, only, pool, groups, tools, kept)
        n = 1
    while only is None and not (n % 4 == 0 and gathered(time.time() - began > seconds)[0]):
        one(seed, n, pool, groups, tools, kept)
        n += 1
        if n % 4 == 0 and any(gathered(len(failures) > 20)):
            break
    say(f"random: seed {seed}, {ngroups} communicators: {n} programs in {time.time() - began:.1f} s")
    kept.clear()
    if not n:
        fail("no program ran")
    finish()


with torch.no_grad():
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
