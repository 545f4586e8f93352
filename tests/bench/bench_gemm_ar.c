/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench gemm_ar: the fused operator, one process a rank (mkrun, or --nodes and --ranks-per-node here), against its
 * parts, their bound, and against cuBLAS and NCCL over the same link. Terms: conventions "Terms of the tables". */
#include "mk/param.h"
#include "plugin/cli/cli.h"
#include "tests/bench/gemm_ar.h"
#include "tests/bench/nccl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: mkbench gemm_ar --nodes D --ranks-per-node G [options]     starts the ranks: mkrun "
    "--gpus-shared\n"
    "       mkrun ... -- mkbench gemm_ar [options]\n"
    "GEMM+AllReduce (bf16, TN): fused, its parts alone (all ranks at once) and in a row, cuBLAS then NCCL, "
    "and\n"
    "cuBLAS and NCCL on two streams; microseconds. K is that of one rank. Results are checked before and "
    "after.\n" BENCH_SHAPE_HELP
    "  --ratio R[,R..]      link rates by which bytes/rate is R x T_compute, measured first\n"
    "  --link-gbps G        or this rate\n"
    "  --link-latency-us U  latency of the link (default MK_LOOP_US)\n"
    "  --blocks B           of a rank (MK_BLOCKS)\n"
    "  --graph              calls by graph replay, the baselines' too\n"
    "  --calls N            calls a sample, 1 to 101 (default: all sets of operands, at least 4)\n"
    "  --pairs N            interleaved samples of each, 1 to 101 (default 9; 30 for \"never slower\")\n"
    "  --nccl PATH          libnccl for the baselines; over our plugin where ranks share a GPU or there are "
    "nodes\n"
    "  --ctas N[,N..]       CTA counts of NCCL to choose from, 0: its own choice (default 0)\n"
    "  --no-two             without two streams\n"
    "  --check N            one row of N is compared with the contract, 0 to 128 (default 32; 1: all; 0: no "
    "check, for profiling)\n"
    "  --cpu                on the CPU executor, to try this program out\n"
    "  --json FILE          written by rank 0\n";

static int parse(int argc, char **argv, struct ar_options *o)
{
    const struct bench_option table[] = {
        BENCH_SHAPE_OPTIONS(&o->shapes),
        {"ratio", BENCH_CALL, &o->ratios, 0, 0, ar_list_of},
        {"link-gbps", BENCH_REAL, &o->gbps, 0.001, 1e6, NULL},
        {"link-latency-us", BENCH_REAL, &o->us, 0, 1e6, NULL},
        {"nodes", BENCH_INT, &o->nodes, 1, AR_NODES, NULL},
        {"ranks-per-node", BENCH_INT, &o->per_node, 1, 1024, NULL},
        {"blocks", BENCH_INT, &o->blocks, 1, 100000, NULL},
        {"graph", BENCH_FLAG, &o->graph, 0, 0, NULL},
        {"calls", BENCH_INT, &o->calls, 1, 101, NULL},
        {"pairs", BENCH_INT, &o->pairs, 1, BENCH_SAMPLES, NULL},
        {"nccl", BENCH_TEXT, &o->nccl, 0, 0, NULL},
        {"ctas", BENCH_CALL, &o->ctas, 0, 0, ar_list_of},
        {"no-two", BENCH_FLAG, &o->no_two, 0, 0, NULL},
        {"check", BENCH_INT, &o->check, 0, 128, NULL},
        {"cpu", BENCH_FLAG, &o->cpu, 0, 0, NULL},
        {"json", BENCH_TEXT, &o->json, 0, 0, NULL},
        {NULL, BENCH_FLAG, NULL, 0, 0, NULL},
    };
    o->pairs = 9;
    o->check = 32;
    o->gbps = o->us = -1;
    const int stop = bench_options(argc, argv, table, false, help);
    if (stop)
        return stop;
    if (o->ratios.n && o->gbps >= 0)
        return mk_cli_usage("--ratio or --link-gbps, not both") + 1;
    for (int i = 0; i < o->ratios.n; i++)
        if (o->ratios.v[i] <= 0)
            return mk_cli_usage("--ratio %g: not what this option takes", o->ratios.v[i]) + 1;
    if (!o->shapes.n)
        bench_shape_set(&o->shapes, "issue");
    return 0;
}

static const char *const nccl_defaults[][2] = {
    {"NCCL_SOCKET_IFNAME", "lo"},       {"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_NVLS_ENABLE", "0"},
    {"NCCL_COLLNET_ENABLE", "0"},       {"NCCL_PXN_DISABLE", "1"},  {"NCCL_IB_DISABLE", "1"},
    {"NCCL_NET_PLUGIN_REF_COUNT", "1"}, /* communicators come and go, with the rates */
    {"NCCL_NET_GDR_LEVEL", "SYS"},      /* device buffers, where the network takes them */
};

/* Ranks that share a GPU are hosts of their own to NCCL, and its traffic takes the link that ours takes: our plugin. */
static void nccl_environment(const struct ar_bench *b)
{
    struct mk_settings s;
    char path[400], plugin[480], host[32], *name;
    if (mk_settings_load(&s, false) || (!s.shared_gpu && b->info.nnodes < 2))
        return;
    snprintf(host, sizeof(host), "mkbench-%d", s.shared_gpu ? b->rank : b->info.node);
    ar_set_default("NCCL_HOSTID", host);
    for (size_t i = 0; i < sizeof(nccl_defaults) / sizeof(nccl_defaults[0]); i++)
        ar_set_default(nccl_defaults[i][0], nccl_defaults[i][1]);
    if (!ar_self(path, &name))
        return;
    snprintf(plugin, sizeof(plugin), "%.*s../lib/libnccl-net-mkernel.so", (int)(name - path), path);
    if (!access(plugin, R_OK) && !ar_set_default("NCCL_NET_PLUGIN", plugin))
        ar_set_default("NCCL_NET", "mKernel"); /* so that silence cannot pass */
}

/* ---- cases ---- */

static int measure(struct ar_bench *b, struct ar_result *r, struct mk_json *j)
{
    uint64_t hash = 0;
    int ret = ar_link_hold(b, &r->link, &r->reached, &r->small_us);
    if (ret)
        return ret;
    ret = ar_connect(b);
    if (!ret && mk_plan_info(b->comm, b->m, b->n, MK_BFLOAT16, &b->plan))
        ret = 1;
    if (!ret && b->o->check)
        ret = ar_check(b, &r->rows, &hash);
    if (!ret)
        ar_nccl_open(b); /* without it the baselines are left out */
    if (!ret)
        ret = ar_nccl_tune(b, r);
    if (!ret)
        ret = ar_measure(b, hash, r);
    if (!ret && b->rank == 0)
        ar_report(b, r, j);
    ar_nccl_close(b);
    ar_disconnect(b);
    return ret;
}

static int one_shape(struct ar_bench *b, double compute_us, struct mk_json *j)
{
    const struct ar_options *o = b->o;
    const bool by_ratio = o->ratios.n && b->info.nnodes > 1;
    int ret = 0;
    for (int i = 0; i < (by_ratio ? o->ratios.n : 1) && !ret; i++) {
        static struct ar_result r;
        struct mk_settings s;
        memset(&r, 0, sizeof(r));
        if (mk_settings_load(&s, true))
            return 1;
        r.compute_us = compute_us;
        r.link.gbps = o->gbps >= 0 ? o->gbps : s.loop_gbps;
        r.link.us = o->us >= 0 ? o->us : s.loop_us;
        if (by_ratio) {
            r.link.ratio = o->ratios.v[i];
            r.link.gbps = ar_bytes(b) * 8e-3 / (r.link.ratio * compute_us);
        }
        ret = ar_link_set(&r.link) || measure(b, &r, j);
    }
    return ret;
}

static int run(struct ar_bench *b)
{
    static double compute_us[BENCH_SHAPES];
    const struct ar_options *o = b->o;
    struct mk_json json, *j = NULL;
    int ret = ar_first_look(b, compute_us);
    if (ret)
        return ret;
    if ((o->nodes && o->nodes != b->info.nnodes) || (o->per_node && o->per_node != b->info.local_nranks))
        return mk_cli_usage("the ranks are %d nodes x %d", b->info.nnodes, b->info.local_nranks);
    nccl_environment(b);
    if (b->rank == 0 && o->json) {
        if (mk_json_open(&json, o->json))
            return mk_cli_say("%s", mk_last_error()), 1;
        j = &json;
        ar_json_head(j, b);
    }
    if (b->rank == 0)
        printf("%s, %d SMs seen, %d nodes x %d ranks, %d pairs, calls %s\n", gpu_name(), gpu_sms(),
               b->info.nnodes, b->info.local_nranks, o->pairs, o->graph ? "by graph replay" : "eager");
    for (int i = 0; i < o->shapes.n && !ret; i++) {
        ar_make(b, o->shapes.at[i]);
        ret = one_shape(b, compute_us[i], j);
        ar_drop(b);
    }
    if (j) { /* what was measured before a failure is kept, and said to be not all */
        mk_json_end(j);
        mk_json_bool(j, "complete", !ret);
        mk_json_end(j);
        ret = mk_json_close(j) || ret;
    }
    return ret;
}

int bench_gemm_ar(int argc, char **argv)
{
    static struct ar_options o;
    static struct ar_bench b;
    const char *why = "";
    char blocks[16];
    const int stop = parse(argc, argv, &o);
    if (stop)
        return stop - 1;
    if ((o.nodes > 1 || o.per_node > 1) && !ar_is_rank())
        return ar_become_mkrun(&o, argc, argv);
    if (o.cpu) {
        gpu_open_host();
    } else if (!gpu_open(&why) || !blas_open(&why)) {
        printf("skip: bench.gemm_ar: %s\n", why);
        return 77;
    }
    snprintf(blocks, sizeof(blocks), "%d", o.blocks);
    if (o.blocks)
        setenv("MK_BLOCKS", blocks, 1);
    b.o = &o;
    int ret = ar_start(&b);
    if (ret)
        return ret;
    b.base_sms = !o.cpu && o.blocks && o.blocks < gpu_sms() ? o.blocks : 0;
    if (!o.cpu)
        blas_sm_target(b.base_sms);
    ret = run(&b);
    ar_end(&b);
    return ret ? ret : mk_cli_flush();
}
