/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkinfo --explain: what became of each call site, and what to do about it. */
#include "cli.h"
#include "explain.h"
#include "json.h"
#include "mk/err.h"
#include "mkinfo.h"
#include "table.h"
#include <stdio.h>
#include <string.h>

static const char *why(const struct mk_explain_row *r)
{
    if (r->act == MK_PAIR_DO_OVERLAP)
        return r->proof == MK_PAIR_BY_CAPTURE ? "capture"
               : r->proof == MK_PAIR_ASSUMED  ? "assumed"
                                              : "driver";
    return mk_pair_reason_name(r->reason);
}

static const char *advice(const struct mk_explain_row *r)
{
    if (r->act == MK_PAIR_DO_OVERLAP)
        return "overlaps with the GEMM before it";
    return r->act == MK_PAIR_DO_G ? "runs our kernel" : mk_pair_reason_advice(r->reason);
}

/* What a log says, in a table's cell. */
static const char *cell(const char *text, char out[96])
{
    snprintf(out, 96, "%s", *text ? text : "-");
    for (char *c = out; *c; c++)
        if (*c == '|')
            *c = '?';
    return out;
}

static void row(struct mk_table *t, const struct mk_explain_row *r, bool first)
{
    char size[48], site[96], op[96];
    if (r->gemm)
        snprintf(size, sizeof(size), "N=%llu K=%llu", (unsigned long long)r->n, (unsigned long long)r->k);
    else
        snprintf(size, sizeof(size), "%llu", (unsigned long long)r->n);
    mk_table_row(t, "%s|%s|%s|%s|%s|%s|%u%s|%s", first ? cell(r->op, op) : "", first ? size : "",
                 first ? r->dtype : "", first ? cell(r->site, site) : "", mk_pair_act_name(r->act), why(r),
                 r->processes, r->processes == MK_EXPLAIN_PROCESSES ? "+" : "", advice(r));
}

static void calls(const struct mk_explain *e)
{
    if (e->verified)
        printf("MK_VERIFY: %llu pairs were looked at, and in %llu of them something had changed the GEMM's "
               "output\n",
               (unsigned long long)e->checked, (unsigned long long)e->differed);
    if (!e->totals)
        return;
    printf("calls, from the counters at exit:");
    for (uint32_t i = 1; i < MK_PAIR_ACTS; i++)
        if (e->act[i])
            printf(" %s %llu", mk_pair_act_name(i), (unsigned long long)e->act[i]);
    printf("\n");
    for (uint32_t i = 1; i < MK_PAIR_REASONS; i++)
        if (e->reason[i])
            printf("  %llu %s: %s\n", (unsigned long long)e->reason[i], mk_pair_reason_name(i),
                   mk_pair_reason_advice(i));
}

static void notes(const struct mk_explain *e)
{
    printf("\n%llu lines, %llu of interception", (unsigned long long)e->lines, (unsigned long long)e->ours);
    if (e->damaged)
        printf(", %llu cut or mixed with others (not used)", (unsigned long long)e->damaged);
    if (e->omitted)
        printf(", %llu for which there was no room", (unsigned long long)e->omitted);
    printf(".\n");
    if (e->setup.on)
        printf("set-up: on, %llu times (one a rank and communicator)\n", (unsigned long long)e->setup.on);
    for (uint32_t i = 0; i < MK_PAIR_REASONS; i++)
        if (e->setup.off[i])
            printf("set-up: off, %llu times, %s: %s\n", (unsigned long long)e->setup.off[i],
                   mk_pair_reason_name(i), mk_pair_reason_advice(i));
    calls(e);
}

/* Calls that were timed both ways. */
static int times(const struct mk_explain *e)
{
    struct mk_table *t = NULL;
    int ret = 0;
    for (int i = 0; i < MK_PAIR_CLASSES; i++) {
        const struct mk_explain_timed *m = &e->timed[i];
        if (!m->lines)
            continue;
        t = t ? t
              : mk_table_new(
                    ">sizes from|>ours us|>NCCL's us|>GEMM us|>overlapped, about|calls from now on|captured");
        mk_table_row(t, "%llu|%.1f|%.1f|%.1f|%.1f|%s|%s", 64ull << i, m->ours, m->nccl, m->gemm, m->together,
                     m->eager_nccl ? "NCCL" : "ours", m->captured_nccl ? "NCCL" : "ours");
    }
    if (t) {
        printf("\ntimed against NCCL's, where it changed something (the last of each size; MK_TUNER=off: no "
               "turns):\n");
        ret = mk_table_print(t, stdout);
        mk_table_free(t);
    }
    return ret;
}

static bool begins_site(const struct mk_explain *e, uint64_t i)
{
    return !i || e->row[i].order != e->row[i - 1].order;
}

static int print(const struct mk_explain *e)
{
    struct mk_table *t = mk_table_new("call|size|type|from|decision|why|>processes|advice");
    for (uint64_t i = 0; i < e->nrows; i++)
        row(t, &e->row[i], begins_site(e, i));
    int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    if (!ret)
        ret = times(e);
    if (ret) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    notes(e);
    return mk_cli_flush();
}

static int64_t whole(uint64_t n)
{
    return n > INT64_MAX ? INT64_MAX : (int64_t)n;
}

static void json_decision(struct mk_json *j, const struct mk_explain_row *r)
{
    mk_json_object(j, NULL);
    mk_json_text(j, "decision", mk_pair_act_name(r->act));
    mk_json_text(j, r->act == MK_PAIR_DO_OVERLAP ? "proof" : "reason", why(r));
    mk_json_text(j, "advice", advice(r));
    mk_json_int(j, "processes", r->processes);
    mk_json_int(j, "lines", whole(r->lines));
    mk_json_end(j);
}

static void json_sites(struct mk_json *j, const struct mk_explain *e)
{
    mk_json_array(j, "sites");
    for (uint64_t i = 0; i < e->nrows; i++) {
        const struct mk_explain_row *r = &e->row[i];
        if (begins_site(e, i)) {
            mk_json_object(j, NULL);
            mk_json_text(j, "call", r->op);
            mk_json_int(j, r->gemm ? "n" : "count", whole(r->n));
            if (r->gemm)
                mk_json_int(j, "k", whole(r->k));
            mk_json_text(j, "dtype", r->dtype);
            mk_json_text(j, "site", r->gemm ? NULL : r->site);
            mk_json_array(j, "decisions");
        }
        json_decision(j, r);
        if (i + 1 == e->nrows || begins_site(e, i + 1)) {
            mk_json_end(j);
            mk_json_end(j);
        }
    }
    mk_json_end(j);
}

static void json_counts(struct mk_json *j, const struct mk_explain *e)
{
    mk_json_object(j, "setup");
    mk_json_int(j, "on", whole(e->setup.on));
    for (uint32_t i = 0; i < MK_PAIR_REASONS; i++)
        if (e->setup.off[i])
            mk_json_int(j, mk_pair_reason_name(i), whole(e->setup.off[i]));
    mk_json_end(j);
    mk_json_array(j, "timed");
    for (int i = 0; i < MK_PAIR_CLASSES; i++) {
        const struct mk_explain_timed *m = &e->timed[i];
        if (!m->lines)
            continue;
        mk_json_object(j, NULL);
        mk_json_int(j, "from_bytes", whole(UINT64_C(64) << i));
        mk_json_real(j, "ours_us", m->ours);
        mk_json_real(j, "nccl_us", m->nccl);
        mk_json_real(j, "gemm_us", m->gemm);
        mk_json_real(j, "together_us", m->together);
        mk_json_text(j, "eager", m->eager_nccl ? "NCCL" : "ours");
        mk_json_text(j, "captured", m->captured_nccl ? "NCCL" : "ours");
        mk_json_end(j);
    }
    mk_json_end(j);
    if (e->verified) {
        mk_json_object(j, "verify");
        mk_json_int(j, "checked", whole(e->checked));
        mk_json_int(j, "differed", whole(e->differed));
        mk_json_end(j);
    }
    mk_json_object(j, "calls");
    for (uint32_t i = 1; i < MK_PAIR_ACTS; i++)
        if (e->act[i])
            mk_json_int(j, mk_pair_act_name(i), whole(e->act[i]));
    mk_json_end(j);
    mk_json_object(j, "reasons");
    for (uint32_t i = 0; i < MK_PAIR_REASONS; i++)
        if (e->reason[i])
            mk_json_int(j, mk_pair_reason_name(i), whole(e->reason[i]));
    mk_json_end(j);
}

static int write_json(const struct mk_explain *e, const char *path)
{
    struct mk_json j;
    int ret = mk_json_open(&j, path);
    if (!ret) {
        mk_json_object(&j, NULL);
        mk_json_int(&j, "lines", whole(e->lines));
        mk_json_int(&j, "used", whole(e->ours));
        mk_json_int(&j, "damaged", whole(e->damaged));
        mk_json_int(&j, "omitted", whole(e->omitted));
        json_counts(&j, e);
        json_sites(&j, e);
        mk_json_end(&j);
        ret = mk_json_close(&j);
    }
    if (ret)
        mk_cli_say("%s", mk_last_error());
    return ret ? MK_EXIT_FAILED : MK_EXIT_OK;
}

int mkinfo_explain(char *const *path, int n, const char *json)
{
    struct mk_explain e;
    int bad = 0, ret = MK_EXIT_OK;
    memset(&e, 0, sizeof(e));
    for (int i = 0; i < n; i++) {
        const uint64_t before = e.ours + e.damaged;
        const int code = mk_explain_add(&e, path[i]);
        if (code)
            mk_cli_say("%s", mk_last_error());
        else if (e.ours + e.damaged == before)
            mk_cli_say(
                "%s: no line of interception; MK_FUSE=on and MK_LOG=info (or NCCL_DEBUG=INFO) write them",
                path[i]);
        else
            continue;
        bad++;
        if (code == MK_ERR_NOMEM)
            ret = MK_EXIT_FAILED;
    }
    mk_explain_sort(&e);
    if (!ret && e.ours + e.damaged)
        ret = json ? write_json(&e, json) : print(&e);
    mk_explain_free(&e);
    return ret ? ret : bad ? MK_EXIT_USAGE : MK_EXIT_OK;
}
