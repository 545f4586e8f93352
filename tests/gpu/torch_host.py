# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""What an eager call costs the host: microseconds from call to return, of linear layers and collectives that are small enough for the
GPU to keep up. torch_host.py [BATCHES [CALLS]]: medians of batches of calls, each begun with the GPU at rest."""
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_help import device, finish, gpu, rank, ranks, settle, words

batches, calls = (int(a) for a in (sys.argv[1:3] + ["60", "16"][len(sys.argv[1:3]):]))
settle()
x = torch.ones(64, 512, device=device, dtype=torch.bfloat16)
w = torch.ones(512, 512, device=device, dtype=torch.bfloat16)
f = torch.ones(64, 512, device=device)
v = torch.ones(512, 512, device=device)
y = torch.ones(64, 512, device=device, dtype=torch.bfloat16)
parts = torch.ones(64 * ranks, 512, device=device, dtype=torch.bfloat16)


def pair():
    dist.all_reduce(F.linear(x, w))


ways = {
    "all_reduce": lambda: dist.all_reduce(y),
    "all_gather": lambda: dist.all_gather_into_tensor(parts, y),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(y, parts),
    "linear and all_reduce": pair,
    "linear": lambda: F.linear(x, w),
    "linear, fp32": lambda: F.linear(f, v),
    "elementwise": lambda: y.mul_(1),
}
us = {name: [] for name in ways}
for r in range(batches + 2):
    for name, way in ways.items():
        dist.barrier(group=words)
        gpu.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            way()
        took = time.perf_counter() - begin
        gpu.synchronize()
        if r >= 2:
            us[name].append(took * 1e6 / calls)
if rank == 0:
    for name, t in us.items():
        t.sort()
        print(f"host, {name}: {statistics.median(t):.1f} us ({t[len(t) // 10]:.1f} to {t[len(t) * 9 // 10]:.1f})", flush=True)
finish()
