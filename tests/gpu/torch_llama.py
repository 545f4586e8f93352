# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""Eight layers of Llama-3.1-8B's shapes, random weights, tensor parallel with plain torch.distributed. torch_llama.py [ROUNDS]: tokens
a second of a prefill of 4,096 tokens, eager and as a CUDA graph, and of decoding at batch 1, 16 and 64 after 1,024 tokens, as
CUDA graphs; graphs are captured after some eager passes. Each result against the one of the first pass, which NCCL summed."""
import statistics
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from torch_help import CPU, bits, capture, device, fail, finish, gathered, gpu, rank, ranks, say, settle, watch, words

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, LAYERS, CONTEXT = 4096, 32, 8, 128, 14336, 8, 1024
dtype = torch.bfloat16


class Block:
    def __init__(self, seed):
        g = torch.Generator(device=device).manual_seed(1000 * seed + rank)

        def weight(n, k):
            return (torch.randn(n, k, device=device, generator=g) / k**0.5).to(dtype)

        self.heads, self.kv = HEADS // ranks, KV_HEADS // ranks
        self.qkv = weight((self.heads + 2 * self.kv) * HEAD, HIDDEN)
        self.o = weight(HIDDEN, self.heads * HEAD)
        self.gate_up = weight(2 * FFN // ranks, HIDDEN)
        self.down = weight(HIDDEN, FFN // ranks)
        self.norm = torch.ones(HIDDEN, device=device, dtype=dtype)

    def attention(self, x, cache):
        """x: tokens x HIDDEN. cache: None, one sequence that begins here; else keys and values of batch sequences, one token each."""
        n = x.shape[0]
        q, k, v = F.linear(x, self.qkv).split([self.heads * HEAD, self.kv * HEAD, self.kv * HEAD], dim=-1)
        if cache is None:
            q, k, v = (t.view(1, n, -1, HEAD).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            cache[0][:, :, -1] = k.view(n, -1, HEAD)
            cache[1][:, :, -1] = v.view(n, -1, HEAD)
            y = F.scaled_dot_product_attention(q.view(n, -1, 1, HEAD), *cache, enable_gqa=True)
        return y.transpose(1, 2).reshape(n, -1)

    def __call__(self, x, cache):
        y = F.linear(self.attention(F.rms_norm(x, (HIDDEN,), self.norm), cache), self.o)
        dist.all_reduce(y)
        x = x + y
        gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.norm), self.gate_up).chunk(2, dim=-1)
        y = F.linear(F.silu(gate) * up, self.down)
        dist.all_reduce(y)
        return x + y


def forward(blocks, x, caches):
    for block, cache in zip(blocks, caches):
        x = block(x, cache)
    return x


def caches_of(batch):
    g = torch.Generator(device=device).manual_seed(rank)
    shape = (batch, KV_HEADS // ranks, CONTEXT, HEAD)
    return [[torch.randn(shape, device=device, generator=g).to(dtype) for _ in range(2)] for _ in range(LAYERS)]


def check(name, y, want):
    gpu.synchronize()
    error = ((y.float() - want).norm() / want.norm()).item()
    if not error < 2e-2:
        fail(f"{name}: relative difference {error:.2e} from the first pass")
    if len(set(gathered(bits(y)))) != 1:
        fail(f"{name}: not the same bits on all ranks")


def measure(name, f, tokens, rounds):
    times = []
    if CPU:
        return
    for r in range(rounds + 2):
        a, b = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)
        dist.barrier(group=words)
        gpu.synchronize()
        a.record()
        for _ in range(4):
            f()
        b.record()
        gpu.synchronize()
        if r >= 2:
            times.append(a.elapsed_time(b) / 4)
    times.sort()
    t = statistics.median(times)
    say(f"llama {name}: {tokens / t * 1e3:.0f} tokens/s, {t * 1e3:.0f} us a pass ({times[len(times) // 10] * 1e3:.0f} to {times[len(times) * 9 // 10] * 1e3:.0f})")


def main(rounds):
    blocks = [Block(i) for i in range(LAYERS)]
    g = torch.Generator(device=device).manual_seed(7)
    cases = []
    for name, tokens, caches in [("prefill", 4096, [None] * LAYERS)] + [(f"decode {b}", b, caches_of(b)) for b in (1, 16, 64)]:
        x = torch.randn(tokens, HIDDEN, device=device, generator=g).to(dtype)
        cases.append((name, tokens, x, caches))
    watch("llama: first passes", 60)
    want = {name: forward(blocks, x, caches).float() for name, tokens, x, caches in cases}
    settle()
    for name, tokens, x, caches in cases:
        watch(f"llama {name}", 60)
        for _ in range(24):
            y = forward(blocks, x, caches)
            gpu.synchronize()
        check(f"{name}, eager", y, want[name])
        if name == "prefill":
            measure(f"{name}, eager", lambda: forward(blocks, x, caches), tokens, rounds)
        graph, y = capture(forward, blocks, x, caches)
        graph.replay()
        check(f"{name}, graph", y, want[name])
        measure(f"{name}, graph", graph.replay, tokens, rounds)
        del graph


main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
finish()
