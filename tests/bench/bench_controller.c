/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench controller: the controller against every fixed number of communicating blocks, same build, same link,
 * interleaved. The best fixed number is chosen on one half of the rounds and compared on the other. */
#include "mk/param.h"
#include "plugin/cli/cli.h"
#include "tests/bench/controller.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: mkbench controller --nodes D --ranks-per-node G [options]     starts the ranks: mkrun\n"
    "       mkrun ... -- mkbench controller [options]\n"
    "Fused GEMM+AllReduce (bf16, TN) with the blocks' roles under the controller, and with every fixed "
    "number "
    "of\n"
    "communicating blocks; microseconds. K is that of one rank. Results are checked before and "
    "after.\n" BENCH_SHAPE_HELP "  --ratio R[,R..]      link rates by which bytes/rate is R x T_compute, "
    "measured first (default 0.5,1,2)\n"
    "  --blocks B           of a rank (MK_BLOCKS; on the CPU MK_THREADS)\n"
    "  --most N             fixed numbers 1 to N (default: MK_R and half of the blocks allow)\n"
    "  --pairs N            rounds, 2 to 101 (default 20)\n"
    "  --calls N            calls a sample, 1 to 101 (default: all sets of operands, at least 4)\n"
    "  --cost               no sweep: the default number fixed, without and with the controller's work\n"
    "  --graph              calls by graph replay\n"
    "  --cpu                on the CPU executor\n"
    "  --json FILE, --svg FILE   written by rank 0\n";

struct ctl_options {
    struct ar_options ar;
    int most;
    bool cost;
    const char *svg;
};

static int parse(int argc, char **argv, struct ctl_options *o)
{
    const struct bench_option table[] = {
        BENCH_SHAPE_OPTIONS(&o->ar.shapes),
        {"ratio", BENCH_CALL, &o->ar.ratios, 0, 0, ar_list_of},
        {"nodes", BENCH_INT, &o->ar.nodes, 1, AR_NODES, NULL},
        {"ranks-per-node", BENCH_INT, &o->ar.per_node, 1, 1024, NULL},
        {"blocks", BENCH_INT, &o->ar.blocks, 1, 100000, NULL},
        {"most", BENCH_INT, &o->most, 1, CTL_BUDGETS - 1, NULL},
        {"pairs", BENCH_INT, &o->ar.pairs, 2, BENCH_SAMPLES, NULL},
        {"calls", BENCH_INT, &o->ar.calls, 1, 101, NULL},
        {"cost", BENCH_FLAG, &o->cost, 0, 0, NULL},
        {"graph", BENCH_FLAG, &o->ar.graph, 0, 0, NULL},
        {"cpu", BENCH_FLAG, &o->ar.cpu, 0, 0, NULL},
        {"json", BENCH_TEXT, &o->ar.json, 0, 0, NULL},
        {"svg", BENCH_TEXT, &o->svg, 0, 0, NULL},
        {NULL, BENCH_FLAG, NULL, 0, 0, NULL},
    };
    o->ar.pairs = 20;
    o->ar.check = 32;
    o->ar.gbps = o->ar.us = -1;
    const int stop = bench_options(argc, argv, table, false, help);
    if (stop)
        return stop;
    for (int i = 0; i < o->ar.ratios.n; i++)
        if (o->ar.ratios.v[i] <= 0)
            return mk_cli_usage("--ratio %g: not what this option takes", o->ar.ratios.v[i]) + 1;
    if (!o->ar.ratios.n && !ar_list_of(&o->ar.ratios, "0.5,1,2"))
        return 1 + MK_EXIT_FAILED;
    if (!o->ar.shapes.n)
        bench_shape_set(&o->ar.shapes, "issue");
    if (o->ar.shapes.n * o->ar.ratios.n > CTL_CASES)
        return mk_cli_usage("%d shapes at %d ratios: %d cases are possible", o->ar.shapes.n, o->ar.ratios.n,
                            CTL_CASES) +
               1;
    return 0;
}

static int failed(const struct ar_bench *b)
{
    mk_cli_say("rank %d: %s", b->rank, mk_last_error());
    return 1;
}

/* v as in ctl_case.us. */
static int take_way(struct ar_bench *b, const struct ctl_case *c, int v)
{
    return mk_comm_set_comm_blocks(b->comm, v && c->pinned ? c->pinned : v) ||
                   mk_comm_pin_comm_blocks(b->comm, v ? 0 : c->pinned)
               ? failed(b)
               : 0;
}

static int one_round(struct ar_bench *b, struct ctl_case *c, struct gpu_graph **graph, int round)
{
    for (int i = 0; i <= c->most; i++) {
        const int v = round & 1 ? c->most - i : i;
        if (take_way(b, c, v))
            return 1;
        const double us = ar_sample(b, graph[v]);
        if (us <= 0)
            return 1;
        if (round >= 0)
            c->us[v][round] = us;
    }
    return 0;
}

static int sweep(struct ar_bench *b, struct ctl_case *c)
{
    struct gpu_graph *graph[CTL_BUDGETS] = {NULL};
    int ret = 0;
    for (int v = 0; v <= c->most && b->o->graph && !ret; v++) {
        ret = take_way(b, c, v);
        graph[v] = ret ? NULL : ar_capture(b);
    }
    for (int round = -1; round < b->o->pairs && !ret; round++)
        ret = one_round(b, c, graph, round);
    for (int v = 0; v <= c->most; v++)
        if (graph[v])
            gpu_graph_free(graph[v]);
    return mk_comm_set_comm_blocks(b->comm, 0) ? failed(b) : ret;
}

static int one_case(struct ar_bench *b, struct ctl_case *c, const struct ctl_options *o)
{
    const int most = o->cost ? 1 : o->most;
    const int calls = b->calls;
    uint64_t hash = 0;
    int rows = 0;
    if (ar_link_set(&c->link) || ar_connect(b))
        return 1;
    int ret = mk_plan_info(b->comm, b->m, b->n, MK_BFLOAT16, &b->plan) ? failed(b) : 0;
    c->blocks = b->plan.blocks;
    c->controlled = b->plan.controlled;
    c->pinned = o->cost ? b->plan.comm_blocks : 0;
    if (!ret && o->cost && !c->controlled)
        ret = (mk_cli_say("rank %d: no controller here, so no cost of it", b->rank), 1);
    c->most = most && most < b->plan.most_comm_blocks ? most : b->plan.most_comm_blocks;
    c->most = c->most < CTL_BUDGETS ? c->most : CTL_BUDGETS - 1;
    b->variant = AR_FUSED;
    b->calls = 1;
    if (!ret) {
        c->first_us = ar_sample(b, NULL);
        ret = c->first_us <= 0;
    }
    b->calls = calls;
    if (!ret)
        ret = ar_check(b, &rows, &hash) || sweep(b, c) || ar_check_again(b, hash);
    ar_disconnect(b);
    if (!ret)
        ctl_judge(c, b->o->pairs);
    return ret;
}

static int run(struct ar_bench *b, const struct ctl_options *o)
{
    static double compute_us[BENCH_SHAPES];
    static struct ctl_case cases[CTL_CASES];
    int n = 0, ret = ar_first_look(b, compute_us);
    const int ratios = b->info.nnodes > 1 ? b->o->ratios.n : 1; /* no link within a node */
    for (int i = 0; i < b->o->shapes.n && !ret; i++) {
        ar_make(b, b->o->shapes.at[i]);
        for (int r = 0; r < ratios && !ret; r++) {
            struct ctl_case *c = &cases[n];
            memcpy(c->shape, b->o->shapes.at[i], sizeof(c->shape));
            if (b->info.nnodes > 1) {
                c->link.ratio = b->o->ratios.v[r];
                c->link.gbps = ar_bytes(b) * 8e-3 / (c->link.ratio * compute_us[i]);
            }
            ret = one_case(b, c, o);
            n += !ret;
            if (!ret && b->rank == 0)
                ctl_print(c, b->o->pairs);
        }
        ar_drop(b);
    }
    if (b->rank == 0 && n) {
        const struct ctl_sum sum = ctl_sum_of(cases, n, b->o->pairs);
        ctl_print_sum(&sum, n, o->cost);
        if (b->o->json)
            ret = ctl_json(b->o->json, b, cases, n, b->o->pairs) || ret;
        if (o->svg)
            ret = ctl_svg(o->svg, cases, n, b->o->pairs) || ret;
    }
    return ret;
}

int bench_controller(int argc, char **argv)
{
    static struct ctl_options o;
    static struct ar_bench b;
    const char *why = "";
    char blocks[16];
    const int stop = parse(argc, argv, &o);
    if (stop)
        return stop - 1;
    snprintf(blocks, sizeof(blocks), "%d", o.ar.blocks);
    if (o.ar.blocks)
        setenv(o.ar.cpu ? "MK_THREADS" : "MK_BLOCKS", blocks, 1);
    if (!o.ar.cpu)
        ar_set_default("MK_COMM_BLOCKS", "-1");
    if ((o.ar.nodes > 1 || o.ar.per_node > 1) && !ar_is_rank())
        return ar_become_mkrun(&o.ar, argc, argv);
    if (o.ar.cpu) {
        gpu_open_host();
    } else if (!gpu_open(&why)) {
        printf("skip: bench.controller: %s\n", why);
        return 77;
    }
    b.o = &o.ar;
    int ret = ar_start(&b);
    if (ret)
        return ret;
    ret = run(&b, &o);
    ar_end(&b);
    return ret ? ret : mk_cli_flush();
}
