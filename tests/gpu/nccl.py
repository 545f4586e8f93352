# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Real NCCL (PyTorch's) over the plugin: ranks that share one GPU, each its own NCCL node (NCCL_HOSTID).

tests/gpu/nccl.py LIBDIR [ranks] [MiB]: starts MPS, then the ranks; checks all collectives over sizes, prints the
all-reduce's rate; first with the plugin (NCCL_NET=mKernel, so that silence cannot pass), then NCCL's own sockets."""
import os, subprocess, sys, tempfile, time


def rank_main(rank, n, store, top):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=n, device_id=torch.device("cuda:0"))
    bad = 0

    def check(name, got, want):
        nonlocal bad
        if not torch.equal(got, want):
            bad += 1
            print(f"rank {rank}: {name} is wrong at {got.numel()} elements", flush=True)

    sizes = [2, 3, 1000, 4096, 65537, 1 << 18, (1 << 20) + 5, 1 << 22, (top << 20) // 4]
    for i, count in enumerate(sizes):
        x = torch.arange(count, device="cuda", dtype=torch.float32) % 1000 + rank
        base = torch.arange(count, device="cuda", dtype=torch.float32) % 1000
        y = x.clone()
        dist.all_reduce(y)
        check("all_reduce", y, base * n + n * (n - 1) / 2)
        y = x.clone()
        dist.broadcast(y, i % n)
        check("broadcast", y, base + i % n)
        y = x.clone()
        dist.reduce(y, 0)
        if rank == 0:
            check("reduce", y, base * n + n * (n - 1) / 2)
        g = torch.empty(n * count, device="cuda")
        dist.all_gather_into_tensor(g, x)
        check("all_gather", g, torch.cat([base + r for r in range(n)]))
        s = torch.empty(count, device="cuda")
        dist.reduce_scatter_tensor(s, torch.cat([base + rank * 2 + r for r in range(n)]))
        check("reduce_scatter", s, base * n + n * (n - 1) + n * rank)
        a = torch.empty(n * count, device="cuda")
        dist.all_to_all_single(a, torch.cat([base + rank * 10 + r for r in range(n)]))
        check("all_to_all", a, torch.cat([base + r * 10 + rank for r in range(n)]))
        peer = (rank + 1) % n
        r = torch.empty(count, device="cuda")
        ops = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, r, (rank - 1) % n)]
        for w in dist.batch_isend_irecv(ops):
            w.wait()
        check("send/recv", r, base + (rank - 1) % n)
    torch.cuda.synchronize()
    for mib in (0.001, 1, 32, 128):
        count = max(2, int(mib * (1 << 20)) // 4)
        x = torch.ones(count, device="cuda")
        for _ in range(3):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        times = []
        for _ in range(7):
            t = time.perf_counter()
            for _ in range(4):
                dist.all_reduce(x)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - t) / 4)
        if rank == 0:
            t = sorted(times)[3]
            print(f"  all_reduce {count * 4} B: {t * 1e6:.1f} us, {count * 4 / t / 1e9:.2f} GB/s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: {bad} wrong", flush=True)
    return bad != 0


def job(n, top, extra, what):
    env = dict(os.environ, NCCL_SOCKET_IFNAME="lo", NCCL_NVLS_ENABLE="0", NCCL_CUMEM_ENABLE="0", **extra)
    with tempfile.TemporaryDirectory() as d:
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(r), str(n), d + "/store", str(top)],
                                  env=dict(env, NCCL_HOSTID=f"host{r}")) for r in range(n)]
        end = time.time() + 150
        codes = []
        for p in ranks:
            try:
                codes.append(p.wait(max(1, end - time.time())))
            except subprocess.TimeoutExpired:
                codes.append("hung")
        for p in ranks:
            p.kill()
    print(f"{what}: {n} ranks, exit codes {codes}", flush=True)
    return all(c == 0 for c in codes)


def main():
    libdir, n = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    top = int(sys.argv[3]) if len(sys.argv) > 3 else 64
    mps = tempfile.mkdtemp()
    os.environ.update(CUDA_MPS_PIPE_DIRECTORY=mps, CUDA_MPS_LOG_DIRECTORY=mps)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)
    path = libdir + ":" + os.environ.get("LD_LIBRARY_PATH", "")
    ok = job(n, top, {"NCCL_NET_PLUGIN": "mkernel", "NCCL_NET": "mKernel", "LD_LIBRARY_PATH": path, "NCCL_DEBUG": "WARN", **dict(e.split("=", 1) for e in sys.argv[4:])}, "plugin")
    job(n, top, {"NCCL_NET": "Socket"}, "sockets")
    subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False)
    return 0 if ok else 1


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        sys.exit(rank_main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
    sys.exit(main())
