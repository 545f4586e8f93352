# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Cases: small programs around a GEMM and its all-reduce, run one after the other, eager and as CUDA graphs."""
import sys
import time

import torch

from torch_help import Layer, capture, exact, finish, same, say, settle, tensors, watch

M, N, K = 1024, 2048, 512
cases = {}


def case(f):
    cases[f.__name__] = f
    return f


def made(**how):
    """A layer whose site is known."""
    made.seed += 1
    a = Layer(**{"m": M, "n": N, "k": K, "seed": made.seed, **how})
    a.learn()
    return a


made.seed = 0


def both(name, f, wants, eager=2, replays=3, shared=None):
    """f's results, eager and as a graph, against `wants`. shared: which of them all ranks have alike; None: all."""
    def check(y, what):
        for i, (t, want) in enumerate(zip(tensors(y), wants, strict=True)):
            exact(f"{name}, {what}, result {i}", t, want, shared is None or i in shared)

    for c in range(eager):
        check(f(), f"eager {c}")
    g, y = capture(f)
    for c in range(replays):
        for t in tensors(y):
            t.fill_(77)
        g.replay()
        check(y, f"replay {c}")
    same(name)


def main(what, chosen):
    """The chosen cases, or all; does not return."""
    with torch.no_grad():
        watch(f"{what}: settling", 45)
        settle()
        for name in chosen or cases:
            watch(f"{what}: {name}", 70)
            began = time.time()
            cases[name]()
            print(f"{name}: {time.time() - began:.1f} s", file=sys.stderr, flush=True)
        say(f"{what}: {len(chosen or cases)} cases")
        finish()
