# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""What the PyTorch programs of torch.sh share: one process a rank, the GPU shared by all. With TORCH_TEST_CPU=1 they run on the
CPU over gloo, a graph's replay being the function once more: that finds errors of these programs, not of the library."""
import ctypes
import faulthandler
import gc
import hashlib
import importlib.util
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

CPU = os.environ.get("TORCH_TEST_CPU") == "1"
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gpu = torch.cpu if CPU else torch.cuda  # streams, events, synchronize
device = torch.device("cpu" if CPU else f"cuda:{rank % torch.cuda.device_count()}")
backend = "gloo" if CPU else "nccl"
if not CPU:
    torch.cuda.set_device(device)
dist.init_process_group(backend, device_id=None if CPU else device)
words = dist.new_group(backend="gloo")  # for what the ranks tell each other, past the library
failures = []
sums = []  # of the results that all ranks must share, to be compared
expected = {}


def gathered(x):
    out = [None] * ranks
    dist.all_gather_object(out, x, group=words)
    return out


def bits(y):
    return hashlib.sha1(y.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()


def say(text):
    if rank == 0:
        print(text, flush=True)


def fail(text):
    failures.append(text)
    if len(failures) <= 5:
        print(f"FAIL rank {rank}: {text}\n", end="", flush=True)  # in one piece


def expect(what, n):
    """At least `n` more of 'fuse total WHAT' in the library's log on this rank; torch.sh compares."""
    expected[what] = expected.get(what, 0) + n


def watch(what, seconds):
    """Ends the process with its threads' stacks if `what` takes longer."""
    print(f"begin {what}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(seconds * (8 if CPU else 1), exit=True)


def settle(group=None, n=120):
    """Enough collectives for the ranks to agree on their first fused operation, and then some that are ours."""
    if n >= 120:
        expect("PLAIN", n // 3)
    t = torch.ones(64, device=device, dtype=torch.bfloat16)
    for _ in range(n):
        dist.all_reduce(t, group=group)
        gpu.synchronize()
        time.sleep(0.0 if CPU else 0.01)


def triton_kernel():
    """Doubles its tensor; None where Triton cannot be used, with the reason."""
    try:
        import triton

        from torch_triton import twice

        x = torch.ones(2048, device=device)
        twice[(2,)](x, 2048, BLOCK=1024)
        gpu.synchronize()
        return lambda y: twice[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), BLOCK=1024), ""
    except Exception as e:  # no Triton, no compiler for its launchers
        return None, f"{type(e).__name__} {str(e).splitlines()[0] if str(e) else ''}"


def layer(x, w, b=None, group=None):
    y = F.linear(x, w, b)
    dist.all_reduce(y, group=group)
    return y


def preloaded():
    return "mkernel" in os.environ.get("LD_PRELOAD", "")


def by_pointer(y, group=None):
    """The sum by NCCL's own function, looked up by name: without LD_PRELOAD no hook sees it."""
    nccl = ctypes.CDLL("libnccl.so.2")
    comm = ctypes.c_void_p((group or dist.group.WORLD)._get_backend(device)._comm_ptr())
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    at = ctypes.c_void_p(y.data_ptr())
    error = nccl.ncclAllReduce(at, at, ctypes.c_size_t(y.numel()), {torch.bfloat16: 9, torch.float16: 6}[y.dtype], 0, comm, stream)
    if error:
        raise RuntimeError(f"ncclAllReduce: {error}")


class Again:
    """In the place of a graph where there are none."""

    def __init__(self, f, a):
        self.f, self.a = f, a
        self.y = f(*a)

    def replay(self):
        for old, new in zip(tensors(self.y), tensors(self.f(*self.a))):
            old.copy_(new)


def tensors(y):
    return [t for t in (y if isinstance(y, (tuple, list)) else [y]) if torch.is_tensor(t)]


def capture(f, *a):
    if CPU:
        g = Again(f, a)
        return g, g.y
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = f(*a)
    return g, y


def close(name, y, want, limit=None):
    """Against a float64 sum on the host, and the same bits on all ranks."""
    gpu.synchronize()
    error = ((y.double().cpu() - want).norm() / want.norm()).item()
    same = len(set(gathered(bits(y)))) == 1
    limit = limit or (6e-3 if y.dtype == torch.bfloat16 else 8e-4)
    if not same or not error < limit:
        fail(f"{name}: relative error {error:.2e} (limit {limit:.0e}), same bits on all ranks: {same}")


def checksum(y):
    """Of the bits: -0 is not 0."""
    v = y.detach().contiguous().view(-1)
    v = v.view({2: torch.int16, 4: torch.int32}[v.element_size()]).to(torch.int64)
    return (v * torch.arange(1, 2 * v.numel(), 2, device=v.device)).sum()


def exact(name, y, want, shared=True):
    """Equal to `want`, whole numbers in fp32, or in y's type. `shared`: all ranks must have these bits, which same() compares."""
    gpu.synchronize()
    z = y.float() if want.is_floating_point() else y
    if z.shape != want.shape or not torch.equal(z, want):
        wrong = (z != want).nonzero() if z.shape == want.shape else []
        at = wrong[0].tolist() if len(wrong) else None
        got = f"{y[tuple(at)].item()}, not {want[tuple(at)].item()}" if at else f"shape {list(y.shape)}, not {list(want.shape)}"
        fail(f"{name}: {len(wrong)} of {y.numel()} wrong, at {at} {got}")
    if shared:
        sums.append(checksum(y))


def same(name):
    """A call of all ranks: the checked results since the last one have the same bits everywhere."""
    mine = torch.stack(sums).tolist() if sums else []
    sums.clear()
    theirs = gathered(mine)
    if any(t != mine for t in theirs):
        n = sum(any(t[i : i + 1] != mine[i : i + 1] for t in theirs) for i in range(len(mine)))
        fail(f"{name}: {n} of {len(mine)} results have other bits on another rank")


def whole(shape, dtype, seed, share=4):
    """-1, 0 and 1; one in `share` is not 0."""
    g = torch.Generator(device=device).manual_seed(seed)
    v = torch.randint(0, 2 * share, shape, generator=g, device=device, dtype=torch.int32)
    return (v == 0).to(dtype) - (v == 1).to(dtype)


def compiler():
    """Why torch.compile cannot be used here; None if it can."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "no C compiler"
    return None if importlib.util.find_spec("triton") else "no Triton"


LARGEST = {torch.bfloat16: 256, torch.float16: 2048, torch.float32: 2**24}  # up to it every whole number can be written


class Layer:
    """A linear layer of whole numbers. x, w, b: this rank's; parts: what each rank has before the sum, mine: this one; want: the sum."""

    def __init__(self, m, n, k, dtype=torch.bfloat16, seed=1, bias=(), lead=()):
        self.m, self.n, self.k, self.dtype, self.lead = m, n, k, dtype, lead
        self.ws = [whole((n, k), dtype, 8000 * seed + r) for r in range(ranks)]
        self.bs = [whole((n,), dtype, 8000 * seed + 4000 + r) if r in bias else None for r in range(ranks)]
        self.w, self.b = self.ws[rank], self.bs[rank]
        self.x = torch.empty(*lead, m, k, device=device, dtype=dtype)
        self.renew(seed)

    def renew(self, seed):
        """Other inputs, in the same memory."""
        xs = [whole(tuple(self.x.shape), self.dtype, 5000 * seed + 77 + r) for r in range(ranks)]
        self.x.copy_(xs[rank])
        # eager GEMMs in fp32: exact, and never ours
        self.parts = [F.linear(x.float(), w.float(), None if b is None else b.float()) for x, w, b in zip(xs, self.ws, self.bs)]
        self.mine, self.want = self.parts[rank], sum(self.parts)
        self.xsum = sum(x.float() for x in xs)
        top = sum(p.abs() for p in self.parts).max().item()
        if top > LARGEST[self.dtype]:
            raise ValueError(f"{top} cannot be written exactly as {self.dtype}")

    def pair(self):
        return layer(self.x, self.w, self.b)

    def learn(self):
        """The site becomes known."""
        exact("the first call", self.pair(), self.want)


def finish():
    """Does not return."""
    watch("the end", 40)
    gpu.synchronize()
    every = gathered(len(failures))
    for what, n in sorted(expected.items()):
        print(f"expect {what} {n}", file=sys.stderr, flush=True)
    print(f"rank {rank} of {ranks}: {len(failures)} failures\n", end="", flush=True)
    if "torch._dynamo" in sys.modules:  # NCCL's destroy waits for the graphs that its collectives are in
        torch._dynamo.reset()
        trees = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees:
            trees.reset_cudagraph_trees()
    gc.collect()
    dist.destroy_process_group()
    sys.exit(1 if any(every) else 0)
