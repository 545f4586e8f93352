/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* COMPUTE on Hopper inside a persistent kernel: the pipeline of gemm_sm90.cuh, fed with tiles that are claimed one by
 * one. Two hooks of the shared text are its only contact with the schedule: the next tile (mk_ar_more, by the producer
 * thread, which thus also learns that the block's role is another one from here on: the session ends, and the leader looks
 * again) and the ready flag of a finished one (a count, one part by each consumer warpgroup).
 *
 * A block is two consumer warpgroups, which also do all communication, and one producer warpgroup, of which one thread
 * does nothing but loads. Registers are shared out once, at the start (232 and 40 a thread): a role switch moves none.
 *
 * The session begins with a tile that the block has claimed and ends when the producer gets no further one: the end
 * travels through the pipeline as a stage without bytes, so that it is drained on both sides.
 *
 * go: a barrier by which the leader tells the producer whether there is a session (blk->task is a tile).
 * tile[i]: number of the tile that comes as number i mod MK_TILES_AHEAD, or MK_TILE_END. Written by the producer before
 * it arrives at full[s] of the tile's first stage (release), read by lane 0 of each consumer warp after it waited for
 * that (acquire), for the warp; the same lane then arrives at tile_read[i], for which the producer waits before it
 * writes the word again. (empty[s] would not do: one thread arrives there for a warpgroup, whose other warps the matrix
 * unit holds together, but not their reads of shared memory.)
 * tiles: tiles and ends that have come so far, kept as s and phase are.
 * s, phase: where the next session begins in the pipeline; by thread 0 at the end of one, read by all consumers at the
 * start of the next (the producer keeps its own).
 *
 * Publish: a tile leaves by bulk stores of thread 0 of each consumer warpgroup, during the first steps of the next
 * tile; that thread waits for them to be complete (not only read), orders them before its count (fence.proxy.async),
 * and adds its part with release at gpu scope. */
#pragma once
#include "tile/gemm_sm90.cuh"
#include "ops/gemm_ar_run.h"

constexpr uint32_t MK_TILE_END = 0xffffffffu;
constexpr uint32_t MK_TILES_AHEAD = 4;
constexpr int MK_AR_THREADS = MK_BIG_THREADS;
static_assert(MK_DEV_LANES == 256, "the shared text runs on the consumers");

struct mk_session_words { /* in shared memory */
    uint64_t go;
    uint64_t tile_read[MK_TILES_AHEAD];
    uint32_t tile[MK_TILES_AHEAD];
    uint32_t s, phase, tiles;
};

template <int BN, int LAYOUT, bool F16> struct mk_session : mk_gemm_sm90_block<BN, LAYOUT, F16, 1> {
    using base = mk_gemm_sm90_block<BN, LAYOUT, F16, 1>;
    using base::BOXES;
    using base::cols;
    using base::full;
    using base::ktiles;
    using typename base::pipe;
    const mk_ar *ar;
    mk_ar_block *blk;
    mk_session_words *words;

    __device__ __forceinline__ mk_session(const mk_gemm_sm90 &args, uint32_t smem, const mk_ar *op,
                                          mk_ar_block *b, mk_session_words *w)
        : base(args, smem), ar(op), blk(b), words(w)
    {
    }
    __device__ __forceinline__ void next_stage(uint32_t &s, uint32_t &phase)
    {
        if (++s == base::STAGES) {
            s = 0;
            phase ^= 1;
        }
    }

    __device__ __forceinline__ void load(uint32_t s, uint32_t kt, uint32_t m0, uint32_t n0)
    {
        mk_mbar_expect(full(s), mk_gemm_sm90_size<BN>::stage);
        if (base::TA == 0) {
            mk_tma_load(base::a_at(s), &base::p.a, full(s), (int)(kt * MK_BK), (int)m0);
        } else {
            mk_tma_load(base::a_at(s), &base::p.a, full(s), (int)m0, (int)(kt * MK_BK));
            mk_tma_load(base::a_at(s) + 8192, &base::p.a, full(s), (int)(m0 + 64), (int)(kt * MK_BK));
        }
        base::load_b(s, kt * MK_BK, n0);
    }
    __device__ __forceinline__ uint32_t read(uint32_t n) const
    {
        return mk_smem(&words->tile_read[n % MK_TILES_AHEAD]);
    }
    __device__ __forceinline__ void tell(uint32_t &n, uint32_t t)
    {
        mk_mbar_wait(read(n), (n / MK_TILES_AHEAD & 1) ^ 1);
        words->tile[n % MK_TILES_AHEAD] = t;
        n++;
    }
    /* One thread. */
    __device__ __forceinline__ void produce_claimed(uint32_t &s, uint32_t &phase, uint32_t &n)
    {
        uint32_t t = blk->task.chunk;
        for (;;) {
            const uint32_t m0 = t / cols * MK_BM, n0 = t % cols * BN;
            for (uint32_t kt = 0; kt < ktiles; kt++) {
                mk_mbar_wait(base::empty(s), phase ^ 1);
                if (kt == 0)
                    tell(n, t);
                load(s, kt, m0, n0);
                next_stage(s, phase);
            }
            /* who prefers communication looks at it after each tile */
            if (blk->prefers_comm || mk_ar_more(ar, blk) != MK_NEXT_TASK)
                break;
#if MK_CONTROL
            if (ar->control)
                mk_ar_account(ar, blk,
                              mk_now_ns()); /* the one before; the last one the leader, after the session */
#endif
            t = blk->task.chunk;
        }
        mk_mbar_wait(base::empty(s), phase ^ 1);
        tell(n, MK_TILE_END);
        mk_mbar_arrive(full(s));
        next_stage(s, phase);
    }

    struct left { /* a tile whose sums are packed and not yet stored, or stored and not yet published */
        uint32_t tile;
        int32_t m0, n0;
        bool unstored, unpublished;
    };
    __device__ __forceinline__ void publish(left &l, uint32_t thread)
    {
        if (thread == 0) {
            mk_tma_wait<0>();
            mk_fence_async();
            mk_count_add(&ar->tile_flag[l.tile], blk->tag, 1);
        }
        l.unpublished = false;
    }
    /* A warp: the next tile's number; its first stage is here. */
    __device__ __forceinline__ uint32_t told(uint32_t &n, uint32_t thread)
    {
        uint32_t t = 0;
        if (thread % 32 == 0) {
            t = words->tile[n % MK_TILES_AHEAD];
            mk_mbar_arrive(read(n));
        }
        n++;
        return __shfl_sync(0xffffffffu, t, 0);
    }
    __device__ __forceinline__ void consume_claimed(uint32_t wg, uint32_t thread)
    {
        constexpr uint32_t PUBLISH_AT =
            BOXES + 3; /* the stores are complete by then: no wait that holds up the steps */
        float acc[BN / 2];
        uint32_t packed[BN / 4];
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            acc[i] = 0;
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            packed[i] = 0;
        pipe q = {words->s, words->phase, 0};
        uint32_t n = words->tiles;
        left l = {0, 0, 0, false, false};
        for (;;) {
            mk_mbar_wait(full(q.s), q.phase);
            const uint32_t t = told(n, thread);
            if (t == MK_TILE_END)
                break;
            base::template first_steps<0>(acc, q, packed, wg, thread, l.unstored, l.m0, l.n0);
            for (uint32_t kt = BOXES; kt < ktiles; kt++) {
                base::step_begin(acc, q, wg, kt);
                if (kt == PUBLISH_AT && l.unpublished)
                    publish(l, thread);
                base::step_end(q, thread, kt);
            }
            mk_wgmma_wait<0>();
            base::release(thread, q.before);
            if (l.unstored && ktiles < BOXES)
                base::template store_from<0>(packed, wg, thread, l.m0, l.n0, ktiles);
            if (l.unpublished)
                publish(l, thread);
            l.tile = t;
            l.m0 = (int32_t)(t / cols * MK_BM + wg * 64);
            l.n0 = (int32_t)(t % cols * BN);
            l.unstored = l.unpublished = true;
            mk_epilogue<BN, F16>(acc, packed, (const void *)0, 0, l.n0, base::p.n, thread % 4);
        }
        if (l.unstored)
            base::template store_from<0>(packed, wg, thread, l.m0, l.n0, 0);
        if (l.unpublished)
            publish(l, thread);
        base::release(thread, q.s); /* of the end */
        next_stage(q.s, q.phase);
        mk_block_sync(); /* all have read words->s */
        if (threadIdx.x == 0) {
            words->s = q.s;
            words->phase = q.phase;
            words->tiles = n;
        }
    }
    /* The producer thread's life: the block's session, if it has one. */
    __device__ __forceinline__ void serve(void)
    {
        uint32_t s = 0, phase = 0, n = 0;
        for (uint32_t go = 0;; go ^= 1) {
            mk_mbar_wait(mk_smem(&words->go), go);
            if (blk->task.kind != MK_AR_TILE)
                break;
            produce_claimed(s, phase, n);
        }
    }
    /* All consumers: blk->task says whether there is a session. All have read it: it is the producer's from here on. */
    __device__ __forceinline__ void start(void)
    {
        mk_block_sync();
        if (threadIdx.x == 0)
            mk_mbar_arrive(mk_smem(&words->go));
    }
    /* All consumers, if it is a tile. Nobody uses blk but the producer, until the block barrier: its last use of it is
     * before it sends the end through the pipeline. */
    __device__ __forceinline__ void run(void)
    {
        consume_claimed(threadIdx.x / 128, threadIdx.x % 128);
        mk_block_sync();
    }
};
