/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Hopper GEMM: C = epilogue(op(A) * op(B)), 16-bit operands, fp32 sums. Persistent: clusters take tiles by their
 * number. A block has one producer warpgroup (one thread issues bulk tensor copies) and two consumer warpgroups,
 * each with 64 rows of a 128 x BN tile. A cluster of CM blocks stands along M and shares the B tile by multicast.
 *
 * The epilogue of a tile is hidden behind the next one: sums are packed to 16 bits when the tile ends, and leave
 * through shared memory of their own (which the pipeline never uses) in boxes of 64 columns, one box after each of
 * the next tile's first matrix steps has been issued.
 *
 * Barriers: full[s]: the producer's expect plus the bytes of A and B; who waits: consumers. empty[s]: one arrival per
 * consumer warpgroup and block of the cluster (multicast writes into all of them); who waits: the producers.
 * Shared memory per stage, 128-byte swizzle: A as 128 rows x 64 k (K contiguous) or panels of 64 k x 64 m; B likewise.
 *
 * Order of sums: k ascending in steps of 16, one accumulator: a function of K alone. */
#pragma once
#include "tile/epilogue.cuh"
#include "tile/ptx_sm90.cuh"
#include "tile/wgmma_sm90.cuh"

struct mk_gemm_sm90 {
    CUtensorMap a, b, c;
    int32_t m, n, k;
    int32_t group; /* bands of CM * 128 rows that are open at a time */
    const void *bias;
    int32_t act;
    int32_t pad;
};

constexpr int MK_BM = 128, MK_BK = 64;
template <int BN> struct mk_gemm_sm90_size {
    static constexpr int stage = (MK_BM + BN) * MK_BK * 2;
    static constexpr int out =
        BN >= 128 ? 32768 : 16384; /* two consumers, one or two boxes of 64 x 64 each */
    static constexpr int stages_fit = (MK_SMEM_MAX - 1024 - 1024 - out) / stage;
    static constexpr int stages = stages_fit > 8 ? 8 : stages_fit;
    static constexpr int bytes = 1024 + stages * stage + out + 1024;
};

/* Tile number -> first row and column. Bands of `group` tile rows; within a group column by column, so that the
 * blocks that run together share operands in L2. */
static __device__ __forceinline__ void mk_tile_at(uint32_t t, uint32_t rows, uint32_t cols, uint32_t group,
                                                  uint32_t *row, uint32_t *col)
{
    const uint32_t per = group * cols, first = t / per * group;
    const uint32_t height = rows - first < group ? rows - first : group, in = t % per;
    *row = first + in % height;
    *col = in / height;
}

/* A box of the packed tile is stored into C alone. Else: one thread, the box stands in shared memory at `buffer`, swizzled. */
struct mk_store_c_alone {
    __device__ __forceinline__ void operator()(uint32_t, int) const
    {
    }
};

template <int BN, int LAYOUT, bool F16, int CM> struct mk_gemm_sm90_block {
    static constexpr int TA = LAYOUT == 2, TB = LAYOUT != 0, STAGES = mk_gemm_sm90_size<BN>::stages;
    static constexpr int BOXES = BN / 64, BUFFERS = BN >= 128 ? 2 : 1;

    const mk_gemm_sm90 &p;
    uint32_t stages, out, bars;
    uint32_t rank, rows, cols, total, ktiles;

    __device__ __forceinline__ mk_gemm_sm90_block(const mk_gemm_sm90 &args, uint32_t smem) : p(args)
    {
        stages = smem;
        out = smem + STAGES * mk_gemm_sm90_size<BN>::stage;
        bars = out + mk_gemm_sm90_size<BN>::out;
        rank = CM > 1 ? mk_cluster_rank() : 0;
        rows = (uint32_t)(p.m + MK_BM * CM - 1) / (MK_BM * CM);
        cols = (uint32_t)(p.n + BN - 1) / BN;
        total = rows * cols;
        ktiles = (uint32_t)(p.k + MK_BK - 1) / MK_BK;
    }
    __device__ __forceinline__ uint32_t full(uint32_t s) const
    {
        return bars + 8 * s;
    }
    __device__ __forceinline__ uint32_t empty(uint32_t s) const
    {
        return bars + 8 * (STAGES + s);
    }
    __device__ __forceinline__ uint32_t a_at(uint32_t s) const
    {
        return stages + s * mk_gemm_sm90_size<BN>::stage;
    }
    __device__ __forceinline__ uint32_t b_at(uint32_t s) const
    {
        return a_at(s) + MK_BM * MK_BK * 2;
    }

    __device__ __forceinline__ void load_b(uint32_t s, uint32_t k, uint32_t n0)
    {
        const uint32_t part = rank * (BN / CM);
        if constexpr (TB == 0) {
            const uint32_t dst = b_at(s) + part * 128;
            if (CM > 1)
                mk_tma_load_multicast(dst, &p.b, full(s), (int)k, (int)(n0 + part), (1 << CM) - 1);
            else
                mk_tma_load(dst, &p.b, full(s), (int)k, (int)n0);
        } else {
#pragma unroll
            for (uint32_t panel = 0; panel < BN / CM / 64; panel++) {
                const uint32_t dst = b_at(s) + (part / 64 + panel) * 8192, n = n0 + part + panel * 64;
                if (CM > 1)
                    mk_tma_load_multicast(dst, &p.b, full(s), (int)n, (int)k, (1 << CM) - 1);
                else
                    mk_tma_load(dst, &p.b, full(s), (int)n, (int)k);
            }
        }
    }

    __device__ __forceinline__ void produce(void)
    {
        uint32_t s = 0, phase = 0;
        for (uint32_t t = mk_cluster_id(); t < total; t += mk_clusters()) {
            uint32_t row, col;
            mk_tile_at(t, rows, cols, (uint32_t)p.group, &row, &col);
            const uint32_t m0 = (row * CM + rank) * MK_BM, n0 = col * BN;
            for (uint32_t kt = 0; kt < ktiles; kt++) {
                mk_mbar_wait(empty(s), phase ^ 1);
                mk_mbar_expect(full(s), mk_gemm_sm90_size<BN>::stage);
                if (TA == 0) {
                    mk_tma_load(a_at(s), &p.a, full(s), (int)(kt * MK_BK), (int)m0);
                } else {
                    mk_tma_load(a_at(s), &p.a, full(s), (int)m0, (int)(kt * MK_BK));
                    mk_tma_load(a_at(s) + 8192, &p.a, full(s), (int)(m0 + 64), (int)(kt * MK_BK));
                }
                load_b(s, kt * MK_BK, n0);
                if (++s == STAGES) {
                    s = 0;
                    phase ^= 1;
                }
            }
        }
    }

    /* Issues the four matrix steps of a stage. */
    __device__ __forceinline__ void multiply(float (&acc)[BN / 2], uint32_t wg, uint32_t s, bool first)
    {
        const uint32_t a = a_at(s) + wg * 8192, b = b_at(s);
        mk_wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            const uint64_t da =
                TA ? mk_wgmma_desc(a + kk * 2048, 8192, 1024) : mk_wgmma_desc(a + kk * 32, 16, 1024);
            const uint64_t db =
                TB ? mk_wgmma_desc(b + kk * 2048, 8192, 1024) : mk_wgmma_desc(b + kk * 32, 16, 1024);
            mk_wgmma<BN, F16, TA, TB>::issue(acc, da, db, !(first && kk == 0));
        }
        mk_wgmma_commit();
    }
    __device__ __forceinline__ void release(uint32_t thread, uint32_t s)
    {
        if (CM == 1) {
            if (thread == 0)
                mk_mbar_arrive(empty(s));
        } else if (thread < CM) {
            mk_mbar_arrive_at(empty(s), thread);
        }
    }

    /* One box of 64 x 64 of the packed tile leaves: registers -> shared memory -> C. */
    template <int BOX, class Also>
    __device__ __forceinline__ void store_box(const uint32_t (&packed)[BN / 4], uint32_t wg, uint32_t thread,
                                              int32_t m0, int32_t n0, const Also &also)
    {
        const uint32_t buffer = out + (wg * BUFFERS + BOX % BUFFERS) * 8192;
        const uint32_t warp = thread / 32, lane = thread % 32, row = (lane / 8 % 2) * 8 + lane % 8;
        if (thread == 0)
            mk_tma_wait_read<BUFFERS - 1>();
        mk_bar_sync(1 + wg, 128);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int g = BOX * 8 + j * 2;
            const uint32_t chunk = (uint32_t)j * 2 + lane / 16;
            mk_stmatrix4(buffer + (warp * 16 + row) * 128 + ((chunk ^ (row & 7)) << 4), packed[g * 2],
                         packed[g * 2 + 1], packed[g * 2 + 2], packed[g * 2 + 3]);
        }
        mk_fence_smem_async();
        mk_bar_sync(1 + wg, 128);
        if (thread == 0) {
            if (m0 < p.m && n0 + BOX * 64 < p.n)
                mk_tma_store(&p.c, buffer, n0 + BOX * 64, m0);
            also(buffer, BOX);
            mk_tma_commit();
        }
    }
    template <int BOX, class Also = mk_store_c_alone>
    __device__ __forceinline__ void store_from(const uint32_t (&packed)[BN / 4], uint32_t wg, uint32_t thread,
                                               int32_t m0, int32_t n0, uint32_t first,
                                               const Also &also = Also())
    {
        if (BOX >= first)
            store_box<BOX>(packed, wg, thread, m0, n0, also);
        if constexpr (BOX + 1 < BOXES)
            store_from<BOX + 1>(packed, wg, thread, m0, n0, first, also);
    }

    struct pipe {
        uint32_t s, phase, before;
    };
    __device__ __forceinline__ void step_begin(float (&acc)[BN / 2], pipe &q, uint32_t wg, uint32_t kt)
    {
        mk_mbar_wait(full(q.s), q.phase);
        multiply(acc, wg, q.s, kt == 0);
    }
    __device__ __forceinline__ void step_end(pipe &q, uint32_t thread, uint32_t kt)
    {
        mk_wgmma_wait<1>();
        if (kt)
            release(thread, q.before);
        q.before = q.s;
        if (++q.s == STAGES) {
            q.s = 0;
            q.phase ^= 1;
        }
    }
    /* The first BOXES steps of a tile, each with one box of the tile before. */
    template <int BOX, class Also = mk_store_c_alone>
    __device__ __forceinline__ void
    first_steps(float (&acc)[BN / 2], pipe &q, const uint32_t (&packed)[BN / 4], uint32_t wg, uint32_t thread,
                bool have, int32_t m0, int32_t n0, const Also &also = Also())
    {
        if (BOX < ktiles) {
            step_begin(acc, q, wg, BOX);
            if (have)
                store_box<BOX>(packed, wg, thread, m0, n0, also);
            step_end(q, thread, BOX);
        }
        if constexpr (BOX + 1 < BOXES)
            first_steps<BOX + 1>(acc, q, packed, wg, thread, have, m0, n0, also);
    }

    /* left: told what becomes of each tile; a tile's stores are issued while the next one multiplies. */
    template <class Left> __device__ __forceinline__ void consume(uint32_t wg, uint32_t thread, Left &left)
    {
        float acc[BN / 2];
        uint32_t packed[BN / 4];
        pipe q = {0, 0, 0};
        bool have = false;
        int32_t m_before = 0, n_before = 0;
        for (uint32_t t = mk_cluster_id(); t < total; t += mk_clusters()) {
            uint32_t row, col;
            mk_tile_at(t, rows, cols, (uint32_t)p.group, &row, &col);
            first_steps<0>(acc, q, packed, wg, thread, have, m_before, n_before);
            for (uint32_t kt = BOXES; kt < ktiles; kt++) {
                step_begin(acc, q, wg, kt);
                left.step(kt - BOXES, thread);
                step_end(q, thread, kt);
            }
            mk_wgmma_wait<0>();
            release(thread, q.before);
            if (have && ktiles < BOXES)
                store_from<0>(packed, wg, thread, m_before, n_before, ktiles);
            left.over(thread);
            left.tile(row * CM + rank);
            m_before = (int32_t)((row * CM + rank) * MK_BM + wg * 64);
            n_before = (int32_t)(col * BN);
            mk_epilogue<BN, F16>(acc, packed, p.bias, p.act, n_before, p.n, thread % 4);
            have = true;
        }
        if (have)
            store_from<0>(packed, wg, thread, m_before, n_before, 0);
        if (thread == 0)
            mk_tma_wait<0>();
        left.over(thread);
    }
};

/* Nobody wants to know what becomes of a tile; the kernel may start before the one before it ends. */
struct mk_gemm_untold {
    __device__ __forceinline__ void enter(uint32_t *) /* thread 0, before the block's first barrier */
    {
    }
    __device__ __forceinline__ void begin(const uint32_t *) /* all, behind it */
    {
        mk_grid_wait(); /* nothing of global memory was touched so far */
    }
    __device__ __forceinline__ void produced(void) /* the producer, when all its loads are under way */
    {
        mk_grid_launch_next(); /* it waits for this grid, but is there when it ends */
    }
    __device__ __forceinline__ void step(uint32_t, uint32_t)
    {
    }
    __device__ __forceinline__ void over(uint32_t)
    {
    }
    __device__ __forceinline__ void tile(uint32_t)
    {
    }
};

template <int BN, int LAYOUT, bool F16, int CM, class Told>
static __device__ __forceinline__ void mk_gemm_sm90_run(const mk_gemm_sm90 &p, Told told)
{
    extern __shared__ uint8_t raw[];
    const uint32_t smem = (mk_smem(raw) + 1023) & ~1023u;
    mk_gemm_sm90_block<BN, LAYOUT, F16, CM> block(p, smem);
    uint32_t *word = (uint32_t *)(raw + (block.bars - mk_smem(raw)) + 512); /* behind the barriers */
    static_assert(16 * mk_gemm_sm90_size<BN>::stages <= 512, "the barriers");
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < block.STAGES; s++) {
            mk_mbar_init(block.full(s), 1);
            mk_mbar_init(block.empty(s), 2 * CM);
        }
        mk_mbar_init_fence();
        mk_tma_prefetch(&p.a);
        mk_tma_prefetch(&p.b);
        mk_tma_prefetch(&p.c);
        told.enter(word);
    }
    if (CM > 1)
        mk_cluster_sync();
    else
        __syncthreads();
    told.begin(word);
    const uint32_t wg = threadIdx.x / 128;
    if (wg == 0) {
        mk_regs_down<24>();
        if (threadIdx.x == 0) {
            block.produce();
            told.produced();
        }
    } else {
        mk_regs_up<240>();
        block.consume(wg - 1, threadIdx.x % 128, told);
    }
    if (CM > 1)
        mk_cluster_sync(); /* nobody arrives at the barriers of a block that has gone */
}
