/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a case says: times and paired ratios as a table, then each figure beside what it is held against. */
#include "plugin/cli/table.h"
#include "tests/bench/gemm_ar.h"
#include "tests/bench/nccl.h"
#include <stdio.h>

struct held {
    double compute, comm, fused, bound; /* us, medians */
    double waves, factor;               /* factor x bound is what fused is held to */
    double small_us;                    /* bytes / rate + the latency that was measured; 0: not paced */
    double wire, wire_us;       /* bytes that left the busiest rank; bytes / rate + latency, 0: not paced */
    double nccl_us, nccl_share; /* its bytes / rate + latency; share of the rate that it reaches */
    double pair_wanted;         /* 0.97 x (cuBLAS + NCCL) / (factor x bound) */
};

static double link_us(const struct ar_link *l, double bytes)
{
    return l->gbps > 0 && bytes > 0 ? bytes * 8e-3 / l->gbps + l->us : 0;
}

/* Within a node the exchange hides behind the GEMM; where communication over a link dominates, waves of computation no
 * longer show. */
static double factor_of(const struct ar_bench *b, const struct ar_result *r, const struct held *h)
{
    if (b->info.nnodes == 1)
        return 1.25;
    const double ratio = r->link.ratio > 0 ? r->link.ratio : h->comm / h->compute;
    return ratio >= 1.5 ? 1.10 : 1.06 + 1.5 / h->waves + (double)b->plan.comm_blocks / b->plan.blocks;
}

static struct held hold(const struct ar_bench *b, const struct ar_result *r)
{
    struct held h = {0};
    h.compute = bench_stat_of(&r->us[AR_COMPUTE]).median;
    h.comm = bench_stat_of(&r->us[AR_COMM]).median;
    h.fused = bench_stat_of(&r->us[AR_FUSED]).median;
    h.bound = h.compute > h.comm ? h.compute : h.comm;
    h.waves = (double)((b->plan.tiles + (uint32_t)b->plan.blocks - 1) / (uint32_t)b->plan.blocks);
    h.factor = factor_of(b, r, &h);
    h.wire = r->counted;
    h.wire_us = link_us(&r->link, h.wire);
    h.small_us = h.wire_us > 0 ? h.wire_us - r->link.us + r->small_us : 0;
    if (r->us[AR_NCCL].n) {
        const double nccl = bench_stat_of(&r->us[AR_NCCL]).median;
        h.nccl_us = link_us(&r->link, ar_nccl_bytes(b));
        h.nccl_share = h.nccl_us / nccl;
        h.pair_wanted = 0.97 * (bench_stat_of(&r->us[AR_CUBLAS]).median + nccl) / (h.factor * h.bound);
    }
    return h;
}

static void heading(const struct ar_bench *b, const struct ar_result *r)
{
    printf("\n%lld x %lld x %lld", (long long)b->m, (long long)b->n, (long long)b->k);
    if (b->info.nnodes == 1)
        printf(", one node");
    else if (r->link.gbps <= 0)
        printf(", %s not paced", b->info.transport);
    else
        printf(", %s at %.4g Gbit/s + %.4g us", b->info.transport, r->link.gbps, r->link.us);
    if (r->link.ratio > 0)
        printf(" (bytes/rate = %.2f x T_compute, %.1f us when alone)", r->link.ratio, r->compute_us);
    printf("; %d calls a sample, %d sets of operands\n", b->calls, b->sets);
    if (r->reached > 0 && r->link.gbps > 0)
        printf("the link alone, all ranks at once: %.4g Gbit/s, %.3f of the rate%s\n", r->reached,
               r->reached / r->link.gbps, r->reached < 0.98 * r->link.gbps ? ": NOT HELD" : "");
    else if (r->reached > 0)
        printf("the link alone, all ranks at once: %.4g Gbit/s\n", r->reached);
    if (r->small_us > 0)
        printf("a small write and its flag, one way: %.1f us\n", r->small_us);
    if (r->rows)
        printf("checked: %d of %lld rows equal the contract bit by bit, same bits on %d ranks, before and "
               "after\n",
               r->rows, (long long)b->m, b->nranks);
}

static void times(const struct ar_result *r)
{
    struct mk_table *t = mk_table_new("what|>us|>min|>max|>/ fused|>95 % from|>to");
    for (int v = 0; t && v < AR_VARIANTS; v++) {
        const struct bench_stat us = bench_stat_of(&r->us[v]), ratio = bench_stat_of(&r->ratio[v]);
        double low, high;
        if (!r->us[v].n)
            continue;
        if (bench_interval(&r->ratio[v], &low, &high))
            mk_table_row(t, "%s|%.1f|%.1f|%.1f|%.3f|%.3f|%.3f", ar_names[v], us.median, us.min, us.max,
                         ratio.median, low, high);
        else
            mk_table_row(t, "%s|%.1f|%.1f|%.1f|%.3f|-|-", ar_names[v], us.median, us.min, us.max,
                         ratio.median);
    }
    if (t)
        mk_table_print(t, stdout);
    mk_table_free(t);
}

/* "Never slower": the interval contains or exceeds 1. */
static const char *verdict(const struct bench_samples *ratio)
{
    double low, high;
    if (!bench_interval(ratio, &low, &high))
        return "too few pairs for an interval";
    return low > 1 ? "faster" : high >= 1 ? "not slower" : "SLOWER";
}

#define LATENCY_US 6 /* what the latency path may add to the GEMM */

static void say_bound(const struct ar_bench *b, const struct ar_result *r, const struct held *h)
{
    const double x = h->fused / h->bound;
    double low, high;
    printf("fused / bound %.3f", x);
    if (bench_interval(&r->to_bound, &low, &high))
        printf(" (of the same round %.3f to %.3f)", low, high);
    printf("; ");
    if (h->factor == 1.10 || h->factor == 1.25)
        printf("held to %.2f", h->factor);
    else
        printf("held to 1.06 + 1.5/%.0f waves + %d/%d blocks = %.3f", h->waves, b->plan.comm_blocks,
               b->plan.blocks, h->factor);
    printf(": %s; T_comm / T_compute %.2f, their sum / fused %.3f\n", x <= h->factor ? "within" : "BEYOND",
           h->comm / h->compute, (h->compute + h->comm) / h->fused);
    if (b->plan.latency)
        printf("latency path: fused takes %.1f us more than our GEMM alone, held to %d: %s\n",
               h->fused - h->compute, LATENCY_US, h->fused - h->compute <= LATENCY_US ? "within" : "BEYOND");
    if (h->wire_us > 0)
        printf("T_comm / (bytes/rate + latency) = %.3f, held to 1.05: %s (%.1f MB, %.1f us)\n",
               h->comm / h->wire_us, h->comm <= 1.05 * h->wire_us ? "within" : "BEYOND", h->wire * 1e-6,
               h->wire_us);
    if (h->small_us > 0)
        printf(
            "T_comm / (bytes/rate + the latency measured above, once) = %.3f, held to 1.05: %s (%.1f us)\n",
            h->comm / h->small_us, h->comm <= 1.05 * h->small_us ? "within" : "BEYOND", h->small_us);
    printf("fused against our own parts in a row: %.3f, %s\n", bench_stat_of(&r->ratio[AR_UNFUSED]).median,
           verdict(&r->ratio[AR_UNFUSED]));
}

static int ctas_of(const struct ar_bench *b, int nccl)
{
    return b->o->ctas.n ? (int)b->o->ctas.v[nccl] : 0;
}
static const char *counts(const struct held *h)
{
    if (h->nccl_us <= 0)
        return "link not paced: no share of a rate";
    return h->nccl_share > 1.05   ? "NCCL's link was not paced at this rate: NO baseline"
           : h->nccl_share < 0.90 ? "below 0.90: does NOT count as a baseline"
                                  : "counts as a baseline";
}

static void say_nccl(const struct ar_bench *b, const struct ar_result *r, const struct held *h)
{
    const double pair = bench_stat_of(&r->ratio[AR_PAIR]).median;
    printf("NCCL, %d CTAs (0: its choice): %.3f of the rate, %s\n", ctas_of(b, b->nccl_best), h->nccl_share,
           counts(h));
    printf("fused against cuBLAS, then NCCL: %.3f, %s; held to 0.97 x (their sum) / (%.3f x bound) = %.3f: "
           "%s\n",
           pair, verdict(&r->ratio[AR_PAIR]), h->factor, h->pair_wanted,
           pair >= h->pair_wanted ? "within" : "BEYOND");
    if (!r->us[AR_TWO].n)
        return;
    const double two = bench_stat_of(&r->ratio[AR_TWO]).median;
    printf(
        "fused against two streams, best of %d (%d chunks of M, cuBLAS on %d SMs (0: all), %d CTAs): %.3f, "
        "held to 1.15: %s\n",
        r->tried, r->two.chunks, r->two.sms, ctas_of(b, r->two.nccl), two, two >= 1.15 ? "within" : "BEYOND");
}

static void json_numbers(const struct ar_bench *b, const struct ar_result *r, const struct held *h,
                         struct mk_json *j)
{
    double low, high;
    mk_json_int(j, "M", b->m);
    mk_json_int(j, "N", b->n);
    mk_json_int(j, "K", b->k);
    mk_json_int(j, "calls", b->calls);
    mk_json_int(j, "operand_sets", b->sets);
    mk_json_int(j, "rows_checked", r->rows);
    mk_json_real(j, "ratio_asked", r->link.ratio);
    mk_json_real(j, "link_gbps", r->link.gbps);
    mk_json_real(j, "link_latency_us", r->link.us);
    mk_json_real(j, "link_alone_gbps", r->reached);
    mk_json_real(j, "link_alone_us", r->small_us);
    mk_json_int(j, "blocks", b->plan.blocks);
    mk_json_int(j, "comm_blocks", b->plan.comm_blocks);
    mk_json_int(j, "tiles", b->plan.tiles);
    mk_json_int(j, "chunks", b->plan.chunks);
    mk_json_int(j, "chunk_bytes", b->plan.chunk_bytes);
    mk_json_bool(j, "latency_path", b->plan.latency);
    mk_json_real(j, "waves", h->waves);
    mk_json_real(j, "wire_bytes", h->wire);
    mk_json_real(j, "wire_bytes_even", ar_bytes(b));
    mk_json_real(j, "wire_us", h->wire_us);
    mk_json_real(j, "wire_us_measured", h->small_us);
    mk_json_real(j, "bound_us", h->bound);
    mk_json_real(j, "fused_to_bound", h->fused / h->bound);
    if (bench_interval(&r->to_bound, &low, &high)) {
        mk_json_real(j, "fused_to_bound_low", low);
        mk_json_real(j, "fused_to_bound_high", high);
    }
    mk_json_real(j, "factor", h->factor);
    if (!r->us[AR_NCCL].n)
        return;
    mk_json_int(j, "nccl_version", nccl_version());
    mk_json_int(j, "nccl_ctas", ctas_of(b, b->nccl_best));
    mk_json_real(j, "nccl_share_of_rate", h->nccl_share);
    mk_json_real(j, "cublas_nccl_wanted", h->pair_wanted);
    if (!r->us[AR_TWO].n)
        return;
    mk_json_int(j, "two_streams_tried", r->tried);
    mk_json_int(j, "two_streams_chunks", r->two.chunks);
    mk_json_int(j, "two_streams_sms", r->two.sms);
    mk_json_int(j, "two_streams_ctas", ctas_of(b, r->two.nccl));
}

static void json_case(const struct ar_bench *b, const struct ar_result *r, const struct held *h,
                      struct mk_json *j)
{
    mk_json_object(j, NULL);
    json_numbers(b, r, h, j);
    for (int v = 0; v < AR_VARIANTS; v++) {
        const struct bench_stat us = bench_stat_of(&r->us[v]), ratio = bench_stat_of(&r->ratio[v]);
        double low, high;
        if (!r->us[v].n)
            continue;
        mk_json_object_flat(j, ar_names[v]);
        mk_json_real(j, "median", us.median);
        mk_json_real(j, "min", us.min);
        mk_json_real(j, "max", us.max);
        mk_json_real(j, "to_fused", ratio.median);
        if (bench_interval(&r->ratio[v], &low, &high)) {
            mk_json_real(j, "to_fused_low", low);
            mk_json_real(j, "to_fused_high", high);
        }
        mk_json_end(j);
    }
    mk_json_end(j);
}

void ar_json_head(struct mk_json *j, const struct ar_bench *b)
{
    mk_json_object(j, NULL);
    mk_json_text(j, "benchmark", "gemm_ar");
    bench_json_machine(j);
    mk_json_text(j, "gpu", gpu_name());
    mk_json_int(j, "sms", gpu_sms());
    mk_json_int(j, "nodes", b->info.nnodes);
    mk_json_int(j, "ranks_per_node", b->info.local_nranks);
    mk_json_text(j, "transport", b->info.transport);
    mk_json_text(j, "provider", b->info.provider);
    mk_json_bool(j, "graph", b->o->graph);
    mk_json_int(j, "pairs", b->o->pairs);
    mk_json_array(j, "cases");
}

void ar_report(const struct ar_bench *b, const struct ar_result *r, struct mk_json *j)
{
    const struct held h = hold(b, r);
    heading(b, r);
    times(r);
    say_bound(b, r, &h);
    if (r->us[AR_NCCL].n)
        say_nccl(b, r, &h);
    fflush(stdout);
    if (j)
        json_case(b, r, &h, j);
}
