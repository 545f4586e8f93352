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
 * tile[i]: number of the tile that comes as number i mod MK_TILES_KEPT, or MK_TILE_END. Written by the producer before
 * it arrives at full[s] of the tile's first stage (release), read by lane 0 of each consumer warp after it waited for
 * that (acquire), for the warp; the same lane then arrives at tile_read[i mod MK_TILES_AHEAD], for which the producer waits
 * before it goes on to the tile MK_TILES_AHEAD later. (empty[s] would not do: one thread arrives there for a warpgroup, whose other warps the matrix
 * unit holds together, but not their reads of shared memory.)
 * tiles: tiles and ends that have come so far, kept as s and phase are.
 * s, phase: where the next session begins in the pipeline; by thread 0 at the end of one, read by all consumers at the
 * start of the next (the producer keeps its own).
 *
 * asked: {tile, its number} of the tile whose loads began last; written by the producer, read by the placing warp, which is
 * idle otherwise. place[i]: where the tile that came as number i mod MK_TILES_KEPT is in a slot too (ops/gemm_ar_run.h, placing):
 * {number / MK_TILES_KEPT 12 bits, ring 4, column / 64 16, row 32}; written by that warp when the slot is granted (release), at
 * whatever time; read by thread 0 of each consumer warpgroup as the tile's first box leaves (acquire), which decides: chosen[wg],
 * of that thread alone. As tile[i], it is kept for MK_TILES_KEPT tiles: the producer is less than MK_TILES_AHEAD ahead of the
 * last tile that all warps have read the number of, and who has read that of one tile has published all but the one before it.
 *
 * Publish: a tile leaves by bulk stores of thread 0 of each consumer warpgroup, during the first steps of the next
 * tile; that thread waits for them to be complete (not only read), orders them before its count (fence.proxy.async),
 * and adds its part with release at gpu scope. */
#pragma once
#include "tile/gemm_sm90.cuh"
#include "ops/gemm_ar_run.h"

constexpr uint32_t MK_TILE_END = 0xffffffffu;
constexpr uint32_t MK_TILES_AHEAD = 4, MK_TILES_KEPT = 8;
constexpr uint64_t MK_NO_PLACE = ~0ull, MK_NOT_ASKED = ~0ull;
constexpr int MK_AR_THREADS = MK_BIG_THREADS;
static_assert(MK_DEV_LANES == 256, "the shared text runs on the consumers");

struct mk_session_words { /* in shared memory */
    uint64_t go;
    uint64_t tile_read[MK_TILES_AHEAD];
    uint32_t tile[MK_TILES_KEPT];
    uint64_t place[MK_TILES_KEPT], asked, chosen[2];
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
    const CUtensorMap *slots; /* [MK_AR_PLACES] rings in boxes of 64 x 64, swizzled */

    __device__ __forceinline__ mk_session(const mk_gemm_sm90 &args, uint32_t smem, const mk_ar *op,
                                          mk_ar_block *b, mk_session_words *w, const CUtensorMap *rings)
        : base(args, smem), ar(op), blk(b), words(w), slots(rings)
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
        words->tile[n % MK_TILES_KEPT] = t;
        words->place[n % MK_TILES_KEPT] = MK_NO_PLACE; /* a number's 12 bits come again */
        mk_smem_release(mk_smem(&words->asked), (uint64_t)t << 32 | n);
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
        uint32_t number; /* as which it came */
        int32_t m0, n0;
        bool unstored, unpublished;
    };
    struct into_slot { /* thread 0 of a warpgroup */
        const mk_session &of;
        const left &l;
        uint32_t wg;
        __device__ __forceinline__ void operator()(uint32_t buffer, int box) const
        {
            uint64_t at = of.words->chosen[wg];
            if (box == 0) {
                at = mk_smem_acquire(mk_smem(&of.words->place[l.number % MK_TILES_KEPT]));
                at = at >> 52 == (l.number / MK_TILES_KEPT & 0xfff) ? at : MK_NO_PLACE;
                of.words->chosen[wg] = at;
            }
            if (at != MK_NO_PLACE)
                mk_tma_store(&of.slots[at >> 48 & 15], buffer, (int32_t)(at >> 32 & 0xffff) * 64 + box * 64,
                             (int32_t)at + (int32_t)wg * 64);
        }
    };
    __device__ __forceinline__ void publish(left &l, uint32_t thread)
    {
        if (thread == 0) {
            mk_tma_wait<0>();
            mk_fence_async();
            mk_count_add(&ar->tile_flag[words->tile[l.number % MK_TILES_KEPT]], blk->tag,
                         words->chosen[threadIdx.x / 128] != MK_NO_PLACE ? 1 + MK_TILE_PLACED : 1);
        }
        l.unpublished = false;
    }
    /* A warp: the next tile's number; its first stage is here. */
    __device__ __forceinline__ uint32_t told(uint32_t &n, uint32_t thread)
    {
        uint32_t t = 0;
        if (thread % 32 == 0) {
            t = words->tile[n % MK_TILES_KEPT];
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
        const into_slot also = {*this, l, wg};
        for (;;) {
            mk_mbar_wait(full(q.s), q.phase);
            const uint32_t t = told(n, thread);
            if (t == MK_TILE_END)
                break;
            base::template first_steps<0>(acc, q, packed, wg, thread, l.unstored, l.m0, l.n0, also);
            for (uint32_t kt = BOXES; kt < ktiles; kt++) {
                base::step_begin(acc, q, wg, kt);
                if (kt == PUBLISH_AT && l.unpublished)
                    publish(l, thread);
                base::step_end(q, thread, kt);
            }
            mk_wgmma_wait<0>();
            base::release(thread, q.before);
            if (l.unstored && ktiles < BOXES)
                base::template store_from<0>(packed, wg, thread, l.m0, l.n0, ktiles, also);
            if (l.unpublished)
                publish(l, thread);
            l.number = n - 1;
            l.m0 = (int32_t)(t / cols * MK_BM + wg * 64);
            l.n0 = (int32_t)(t % cols * BN);
            l.unstored = l.unpublished = true;
            mk_epilogue<BN, F16>(acc, packed, (const void *)0, 0, l.n0, base::p.n, thread % 4);
        }
        if (l.unstored)
            base::template store_from<0>(packed, wg, thread, l.m0, l.n0, 0, also);
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
        mk_smem_release(mk_smem(&words->asked), (uint64_t)MK_TILE_END << 32 | (MK_TILE_END - 1));
    }
    /* The placing warp's life. */
    __device__ __forceinline__ void place(void)
    {
        uint64_t seen = MK_NOT_ASKED;
        bool open = false; /* the tile that was asked for has no place yet */
        for (;;) {
            const uint64_t asked = mk_warp_first(mk_smem_acquire(mk_smem(&words->asked)));
            const uint32_t n = (uint32_t)asked;
            mk_ar_place at;
            if (asked != seen) {
                if ((asked >> 32) == MK_TILE_END && n == MK_TILE_END - 1)
                    return;
                open = (asked >> 32) != MK_TILE_END;
                seen = asked;
            }
            if (open && mk_ar_place_tile(ar, (uint32_t)(asked >> 32), &at)) {
                mk_fence_async(); /* what was read of the slot before, against what is stored now */
                if (mk_warp_lane() == 0)
                    mk_smem_release(mk_smem(&words->place[n % MK_TILES_KEPT]),
                                    (uint64_t)(n / MK_TILES_KEPT & 0xfff) << 52 | (uint64_t)at.ring << 48 |
                                        (uint64_t)(at.col / 64) << 32 | at.row);
                open = false;
            }
            __nanosleep(400);
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
