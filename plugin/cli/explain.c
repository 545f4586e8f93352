/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "explain.h"
#include "mk/err.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 4096 /* ours are shorter; of a longer line the beginning is looked at */
#define ROWS_MAX 4096

/* ---- words ---- */

struct cursor {
    const char *at, *end;
    bool whole; /* what stands at the end was followed by the line's end */
};

static bool literal(struct cursor *c, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n))
        return false;
    c->at += n;
    return true;
}

/* Up to `stop`, which is taken too; false: empty, too long, or no `stop`. '\0': the end of a whole line. */
static bool word(struct cursor *c, char stop, char *out, size_t bytes)
{
    size_t n = 0;
    while (c->at + n < c->end && c->at[n] != stop && c->at[n] > ' ' && c->at[n] < 127)
        n++;
    const bool at_end = c->at + n == c->end;
    if (!n || n >= bytes || (stop ? at_end || c->at[n] != stop : !at_end || !c->whole))
        return false;
    memcpy(out, c->at, n);
    out[n] = '\0';
    c->at += n + (stop != '\0');
    return true;
}

static bool number(struct cursor *c, char stop, int base, uint64_t *out)
{
    char text[24], *end;
    if (!word(c, stop, text, sizeof(text)) || text[0] == '-' || text[0] == '+')
        return false;
    errno = 0;
    *out = strtoull(text, &end, base);
    return !*end && !errno;
}

static bool find_reason(const char *name, uint8_t *out)
{
    for (uint32_t i = 0; i < MK_PAIR_REASONS; i++)
        if (!strcmp(name, mk_pair_reason_name(i))) {
            *out = (uint8_t)i;
            return true;
        }
    return false;
}

static bool find_act(const char *name, uint8_t *out)
{
    for (uint32_t i = 1; i < MK_PAIR_ACTS; i++)
        if (!strcmp(name, mk_pair_act_name(i))) {
            *out = (uint8_t)i;
            return true;
        }
    return false;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

/* ---- lines ---- */

/* "ACT reason=WORD" or "OVERLAP proof=WORD" up to the line's end. */
static bool decision(struct cursor *c, struct mk_explain_row *r)
{
    char act[16], why[32];
    if (!word(c, ' ', act, sizeof(act)) || !find_act(act, &r->act))
        return false;
    const bool overlap = r->act == MK_PAIR_DO_OVERLAP;
    if (!literal(c, overlap ? "proof=" : "reason=") || !word(c, '\0', why, sizeof(why)))
        return false;
    if (!overlap)
        return find_reason(why, &r->reason);
    r->proof = !strcmp(why, "capture")   ? MK_PAIR_BY_CAPTURE
               : !strcmp(why, "driver")  ? MK_PAIR_BY_COUNTERS
               : !strcmp(why, "assumed") ? MK_PAIR_ASSUMED
                                         : MK_PAIR_UNPROVED;
    return r->proof != MK_PAIR_UNPROVED;
}

static bool known_dtype(const char *name)
{
    return !strcmp(name, "fp32") || !strcmp(name, "bf16") || !strcmp(name, "fp16") || !strcmp(name, "other");
}

static bool gemm(struct cursor *c, struct mk_explain_row *r)
{
    r->gemm = true;
    strcpy(r->op, "gemm");
    return literal(c, "n=") && number(c, ' ', 10, &r->n) && literal(c, "k=") && number(c, ' ', 10, &r->k) &&
           word(c, ':', r->dtype, sizeof(r->dtype)) && known_dtype(r->dtype) && literal(c, " ") &&
           decision(c, r);
}

static bool called(struct cursor *c, struct mk_explain_row *r)
{
    uint64_t comm;
    return literal(c, "0x") && number(c, ' ', 16, &comm) && literal(c, "op=") &&
           word(c, ' ', r->op, sizeof(r->op)) && literal(c, "n=") && number(c, ' ', 10, &r->n) &&
           word(c, ' ', r->dtype, sizeof(r->dtype)) && known_dtype(r->dtype) && literal(c, "site=") &&
           word(c, ':', r->site, sizeof(r->site)) && literal(c, " ");
}

static bool collective(struct cursor *c, struct mk_explain_row *r)
{
    return called(c, r) && decision(c, r);
}

/* "DIFFERS proof=WORD between=WORDS (for people)": from then on it is plain. */
static bool refuted(struct cursor *c, struct mk_explain_row *r)
{
    char proof[16], between[256];
    r->act = MK_PAIR_DO_PLAIN;
    r->reason = MK_PAIR_REFUTED;
    return literal(c, "comm=") && called(c, r) && literal(c, "DIFFERS proof=") &&
           word(c, ' ', proof, sizeof(proof)) && literal(c, "between=") &&
           word(c, ' ', between, sizeof(between)) && literal(c, "(") && c->whole && c->end[-1] == ')';
}

static bool total(struct cursor *c, struct mk_explain *e)
{
    char name[32];
    uint64_t calls;
    uint8_t i;
    const bool reason = literal(c, "reason=");
    if (!word(c, ':', name, sizeof(name)) || !literal(c, " ") || !number(c, '\0', 10, &calls))
        return false;
    uint64_t *check = reason                      ? NULL
                      : !strcmp(name, "checked")  ? &e->checked
                      : !strcmp(name, "differed") ? &e->differed
                                                  : NULL;
    if (check) {
        *check = plus(*check, calls);
        e->verified = true;
        return true;
    }
    if (!(reason ? find_reason(name, &i) : find_act(name, &i)))
        return false;
    if (reason)
        e->reason[i] = plus(e->reason[i], calls);
    else
        e->act[i] = plus(e->act[i], calls);
    e->totals++;
    return true;
}

/* "id=0xHEX rank=R of N: ON from=NUMBER" or "OFF reason=WORD" */
static bool setup(struct cursor *c, struct mk_explain *e)
{
    uint64_t id, rank, nranks, from;
    char why[32];
    uint8_t reason;
    if (!literal(c, "id=0x") || !number(c, ' ', 16, &id) || !literal(c, "rank=") ||
        !number(c, ' ', 10, &rank) || !literal(c, "of ") || !number(c, ':', 10, &nranks) ||
        !literal(c, " ") || rank >= nranks)
        return false;
    if (literal(c, "ON from=")) {
        if (!number(c, '\0', 10, &from))
            return false;
        e->setup.on++;
        return true;
    }
    if (!literal(c, "OFF reason=") || !word(c, '\0', why, sizeof(why)) || !find_reason(why, &reason))
        return false;
    e->setup.off[reason]++;
    return true;
}

/* ---- rows ---- */

static bool same_site(const struct mk_explain_row *a, const struct mk_explain_row *b)
{
    return a->gemm == b->gemm && a->n == b->n && a->k == b->k && !strcmp(a->op, b->op) &&
           !strcmp(a->dtype, b->dtype) && !strcmp(a->site, b->site);
}

static bool same_row(const struct mk_explain_row *a, const struct mk_explain_row *b)
{
    return same_site(a, b) && a->act == b->act && a->reason == b->reason && a->proof == b->proof;
}

/* Before our words stands who says them: "[3] mkernel: rank 3 INFO HOOK ", "host:pid:thread [0] NCCL INFO mKernel: ". */
static uint64_t process_of(const char *text, size_t bytes)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    int colons = 0;
    for (size_t i = 0; i < bytes; i++) {
        colons += text[i] == ':';
        if (colons == 2)
            break; /* then a thread's number */
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    }
    return h;
}

static void said_by(struct mk_explain_row *r, uint64_t process)
{
    for (uint32_t i = 0; i < r->processes; i++)
        if (r->process[i] == process)
            return;
    if (r->processes < MK_EXPLAIN_PROCESSES)
        r->process[r->processes++] = process;
}

static int keep(struct mk_explain *e, const struct mk_explain_row *r, uint64_t process)
{
    uint64_t order = UINT64_MAX;
    for (uint64_t i = 0; i < e->nrows; i++) {
        struct mk_explain_row *old = &e->row[i];
        if (order == UINT64_MAX && same_site(old, r))
            order = old->order;
        if (!same_row(old, r))
            continue;
        old->lines++;
        said_by(old, process);
        return 0;
    }
    if (e->nrows == ROWS_MAX) {
        e->omitted++;
        return 0;
    }
    if (e->nrows == e->room) {
        const uint64_t room = e->room ? 2 * e->room : 64;
        struct mk_explain_row *more = realloc(e->row, room * sizeof(*more));
        if (!more)
            return mk_fail_quiet(MK_ERR_NOMEM, "out of memory");
        e->row = more;
        e->room = room;
    }
    struct mk_explain_row *new = &e->row[e->nrows];
    *new = *r;
    new->lines = 1;
    said_by(new, process);
    new->order = order == UINT64_MAX ? e->nrows : order;
    e->nrows++;
    return 0;
}

static bool microseconds(struct cursor *c, const char *name, double *out)
{
    char text[24], *end;
    if (!literal(c, name) || !word(c, ' ', text, sizeof(text)))
        return false;
    *out = strtod(text, &end);
    return !*end && *out >= 0 && *out < 1e12;
}

static bool whose(struct cursor *c, const char *name, char stop, bool *nccl)
{
    char text[8];
    if (!literal(c, name) || !word(c, stop, text, sizeof(text)))
        return false;
    *nccl = !strcmp(text, "NCCL");
    return *nccl || !strcmp(text, "ours");
}

static bool timed(struct cursor *c, struct mk_explain *e)
{
    struct mk_explain_timed t;
    uint64_t comm, from;
    if (!literal(c, "comm=0x") || !number(c, ' ', 16, &comm) || !literal(c, "from=") ||
        !number(c, ' ', 10, &from) || !microseconds(c, "ours=", &t.ours) ||
        !microseconds(c, "nccl=", &t.nccl) || !microseconds(c, "gemm=", &t.gemm) ||
        !microseconds(c, "together=", &t.together) || !literal(c, "us: ") ||
        !whose(c, "eager=", ' ', &t.eager_nccl) || !whose(c, "captured=", '\0', &t.captured_nccl))
        return false;
    for (int i = 0; i < MK_PAIR_CLASSES; i++)
        if (from == UINT64_C(64) << i) {
            t.lines = plus(e->timed[i].lines, 1);
            e->timed[i] = t;
            return true;
        }
    return false;
}

/* Where "fuse WORD" begins; NULL: nowhere. */
static const char *find_ours(const char *text, size_t bytes)
{
    static const char *const begins[] = {"fuse gemm ",  "fuse comm=",  "fuse total ",
                                         "fuse setup ", "fuse timed ", "fuse check "};
    for (size_t i = 0; i + 10 <= bytes; i++)
        if (text[i] == 'f' && !memcmp(text + i, "fuse ", 5) && (!i || text[i - 1] == ' '))
            for (size_t b = 0; b < sizeof(begins) / sizeof(begins[0]); b++)
                if (bytes - i >= strlen(begins[b]) && !memcmp(text + i, begins[b], strlen(begins[b])))
                    return text + i;
    return NULL;
}

int mk_explain_line(struct mk_explain *e, const char *text, size_t bytes, bool whole)
{
    struct mk_explain_row r;
    bool ok, row = true;
    e->lines++;
    if (bytes && text[bytes - 1] == '\r')
        bytes--;
    const char *ours = find_ours(text, bytes);
    if (!ours)
        return 0;
    struct cursor c = {ours, text + bytes, whole};
    memset(&r, 0, sizeof(r));
    if (literal(&c, "fuse gemm ")) {
        ok = gemm(&c, &r);
    } else if (literal(&c, "fuse comm=")) {
        ok = collective(&c, &r);
    } else if (literal(&c, "fuse check ")) {
        ok = refuted(&c, &r);
    } else {
        row = false;
        ok = literal(&c, "fuse total ")   ? total(&c, e)
             : literal(&c, "fuse timed ") ? timed(&c, e)
                                          : literal(&c, "fuse setup ") && setup(&c, e);
    }
    e->ours += ok;
    e->damaged += !ok;
    return ok && row ? keep(e, &r, process_of(text, (size_t)(ours - text))) : 0;
}

int mk_explain_add(struct mk_explain *e, const char *path)
{
    static char line[LINE_MAX_BYTES];
    size_t n = 0;
    int c, ret = 0;
    FILE *f = fopen(path, "r");
    if (!f)
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    errno = 0;
    while (!ret && (c = getc_unlocked(f)) != EOF) {
        e->bytes++;
        if (c == '\n') {
            ret = mk_explain_line(e, line, n < sizeof(line) ? n : sizeof(line), n <= sizeof(line));
            n = 0;
        } else {
            if (n < sizeof(line))
                line[n] = (char)c;
            n = n <= sizeof(line) ? n + 1 : n;
        }
    }
    if (!ret && ferror(f))
        ret = mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno ? errno : EIO));
    else if (!ret && n)
        ret = mk_explain_line(e, line, n < sizeof(line) ? n : sizeof(line), false);
    fclose(f);
    return ret;
}

static int by_site(const void *x, const void *y)
{
    const struct mk_explain_row *a = x, *b = y;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return a->act != b->act         ? (a->act > b->act) - (a->act < b->act)
           : a->reason != b->reason ? (a->reason > b->reason) - (a->reason < b->reason)
                                    : (a->proof > b->proof) - (a->proof < b->proof);
}

void mk_explain_sort(struct mk_explain *e)
{
    if (e->nrows)
        qsort(e->row, e->nrows, sizeof(*e->row), by_site);
}

void mk_explain_free(struct mk_explain *e)
{
    free(e->row);
    memset(e, 0, sizeof(*e));
}
