# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Programs with nothing in them for the library: torch_unchanged.py CASE, by themselves, without NCCL. torch.sh unchanged runs each with
and without the file in LD_PRELOAD, and compares output and exit code."""
import multiprocessing
import os
import sys

import torch


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((128,), float(i))


def loader():
    """Workers are forked from a process that has a CUDA context."""
    total = torch.zeros(128, device="cuda")
    for epoch in range(2):
        for rows in torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=3, pin_memory=True, multiprocessing_context="fork"):
            total += rows.to("cuda", non_blocking=True).sum(0)
    print("loader", total[0].item(), total[127].item())


def child(n):
    os._exit(n)


def fork():
    torch.zeros(1, device="cuda")
    for n in (0, 5):
        p = multiprocessing.get_context("fork").Process(target=child, args=(n,))
        p.start()
        p.join()
        print("child", p.exitcode)
    p = multiprocessing.get_context("spawn").Process(target=on_gpu)
    p.start()
    p.join()
    print("spawned", p.exitcode)


def on_gpu():
    sys.exit(int(torch.arange(4, device="cuda").sum().item()))


def elementwise():
    """Kernels, copies, streams, a graph, and no GEMM."""
    x, side = torch.arange(1 << 20, device="cuda", dtype=torch.float32), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2 + 1
        graph = torch.cuda.CUDAGraph()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        z = y.sqrt().sum()
    for _ in range(3):
        graph.replay()
    print("elementwise", z.item(), y.cpu()[::100000].tolist())
    sys.exit(4)


def gemm():
    """Of one process: there is nobody to sum with."""
    g = torch.Generator(device="cuda").manual_seed(1)
    a, b = (torch.randn(512, 512, device="cuda", generator=g).bfloat16() for _ in range(2))
    print("gemm", (a @ b).float().abs().sum().item())


def error():
    """What CUDA reports, and the exit code of an exception."""
    try:
        torch.empty(1 << 50, device="cuda")
    except torch.cuda.OutOfMemoryError:
        print("out of memory")
    raise SystemExit(int(torch.ones(9, device="cuda").sum().item()))


{"loader": loader, "fork": fork, "elementwise": elementwise, "gemm": gemm, "error": error}[sys.argv[1]]() if __name__ == "__main__" else None
