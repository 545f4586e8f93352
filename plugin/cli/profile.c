/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "profile.h"
#include "json_read.h"
#include "mk/err.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)64 << 20)
#define get mk_json_get

/* ---- one file ---- */

static bool name(const struct mk_json_value *of, const char *field, enum mk_names list, uint8_t *out)
{
    const char *text = mk_json_string(get(of, field));
    *out = mk_name_find(list, text);
    return text && (*out != MK_NAME_UNKNOWN || !strcmp(text, "?"));
}

static bool byte(const struct mk_json_value *of, const char *field, int max, uint8_t *out)
{
    int n;
    if (!mk_json_i32(get(of, field), &n) || n < 0 || n > max)
        return false;
    *out = (uint8_t)n;
    return true;
}

/* [least, most, all] */
static bool three(const struct mk_json_value *of, const char *field, uint64_t *least, uint64_t *most,
                  uint64_t *all)
{
    const struct mk_json_value *a = get(of, field);
    return a && a->kind == MK_JSON_ARRAY && a->count == 3 && mk_json_u64(a->first, least) &&
           mk_json_u64(a->first->next, most) && mk_json_u64(a->first->next->next, all);
}

/* *sum: of the counts. */
static bool histogram(const struct mk_json_value *of, const char *field, uint32_t h[MK_HIST_BUCKETS],
                      uint64_t *sum)
{
    const struct mk_json_value *a = get(of, field);
    int last = -1;
    *sum = 0;
    if (!a || a->kind != MK_JSON_ARRAY || a->count % 2)
        return false;
    for (const struct mk_json_value *v = a->first; v; v = v->next->next) {
        uint64_t count;
        int bucket;
        if (!mk_json_i32(v, &bucket) || bucket <= last || bucket >= MK_HIST_BUCKETS ||
            !mk_json_u64(v->next, &count) || !count || count > UINT32_MAX)
            return false;
        h[bucket] = (uint32_t)count;
        *sum += count;
        last = bucket;
    }
    return true;
}

/* What is wrong with it, or NULL. */
static const char *read_kind(const struct mk_json_value *v, struct mk_kind *k)
{
    uint64_t enqueued, timed;
    memset(k, 0, sizeof(*k));
    const char *clock = mk_json_string(get(v, "clock"));
    if (!name(v, "collective", MK_NAMES_COLL, &k->coll) || !name(v, "dtype", MK_NAMES_DTYPE, &k->dtype) ||
        !name(v, "algorithm", MK_NAMES_ALGO, &k->algo) || !name(v, "protocol", MK_NAMES_PROTO, &k->proto) ||
        !byte(v, "channels", 255, &k->channels) || !byte(v, "size_class", 63, &k->size_class))
        return "a kind of collective without its name, type, algorithm, protocol, channels or size";
    if (!clock || (strcmp(clock, "gpu") && strcmp(clock, "host")))
        return "a kind of collective without a clock";
    k->gpu_clock = *clock == 'g';
    if (!mk_json_u64(get(v, "calls"), &k->calls) || !mk_json_u64(get(v, "host_ns"), &k->host_ns) ||
        !mk_json_u64(get(v, "timed"), &k->timed) || !mk_json_u64(get(v, "unfinished"), &k->unfinished) ||
        !mk_json_u64(get(v, "overlap_ns"), &k->overlap_ns) ||
        !three(v, "bytes", &k->bytes_min, &k->bytes_max, &k->bytes_sum) ||
        !three(v, "run_ns", &k->run_min, &k->run_max, &k->run_ns))
        return "a kind of collective without its counts";
    if (!histogram(v, "host_hist", k->host_hist, &enqueued) || !histogram(v, "run_hist", k->run_hist, &timed))
        return "a distribution that is none";
    if (!k->calls || enqueued > k->calls || timed != k->timed || k->bytes_min > k->bytes_max ||
        k->bytes_sum < k->bytes_max || k->run_min > k->run_max || k->run_ns < k->run_max ||
        k->overlap_ns > k->run_ns)
        return "counts that contradict each other";
    return NULL;
}

static uint64_t plus(uint64_t a, uint64_t b) /* what files say may be anything */
{
    return a + b < a ? UINT64_MAX : a + b;
}

struct reading {
    struct mk_profile_row *row;
    int n, communicators;
    uint64_t no_room, collectives, p2p;
};

static const char *read_comm(const struct mk_json_value *c, struct reading *r)
{
    const struct mk_json_value *kinds = get(c, "kinds");
    uint64_t no_room, collectives, p2p;
    int nranks, nnodes, rank;
    const char *called = mk_json_string(get(c, "name"));
    if (!called || !mk_json_string(get(c, "id")) || !mk_json_i32(get(c, "rank"), &rank) ||
        !mk_json_i32(get(c, "ranks"), &nranks) || !mk_json_i32(get(c, "nodes"), &nnodes) || nranks < 0 ||
        nnodes < 0 || rank < -1 || (nranks && rank >= nranks))
        return "a communicator without its identity";
    if (!mk_json_u64(get(c, "no_room"), &no_room) || !mk_json_u64(get(c, "collectives"), &collectives) ||
        !mk_json_u64(get(c, "p2p"), &p2p) || !kinds || kinds->kind != MK_JSON_ARRAY)
        return "a communicator without its counts";
    r->communicators++;
    r->no_room = plus(r->no_room, no_room);
    r->collectives = plus(r->collectives, collectives);
    r->p2p = plus(r->p2p, p2p);
    for (const struct mk_json_value *v = kinds->first; v; v = v->next) {
        struct mk_profile_row *row = &r->row[r->n++];
        const char *why = read_kind(v, &row->k);
        if (why)
            return why;
        row->nranks = nranks;
        row->nnodes = nnodes;
        row->ranks = 1;
        snprintf(row->name, sizeof(row->name), "%s", called);
    }
    return NULL;
}

static int kinds_of(const struct mk_json_value *comms)
{
    int n = 0;
    for (const struct mk_json_value *c = comms ? comms->first : NULL; c; c = c->next) {
        const struct mk_json_value *kinds = get(c, "kinds");
        n += kinds && kinds->kind == MK_JSON_ARRAY ? kinds->count : 0;
    }
    return n;
}

static const char *read_comms(const struct mk_json_value *root, struct reading *r)
{
    const struct mk_json_value *comms = get(root, "communicators");
    if (!comms || comms->kind != MK_JSON_ARRAY)
        return "no communicators";
    r->row = calloc((size_t)kinds_of(comms) + 1, sizeof(*r->row));
    if (!r->row)
        return "no memory";
    const char *why = NULL;
    for (const struct mk_json_value *c = comms->first; c && !why; c = c->next)
        why = read_comm(c, r);
    return why;
}

/* ---- merging ---- */

/* Kinds of a row, as a number to sort by. */
static int compare(const void *x, const void *y)
{
    const struct mk_profile_row *a = x, *b = y;
    const int by[][2] = {
        {a->k.coll, b->k.coll},          {a->k.dtype, b->k.dtype}, {a->k.size_class, b->k.size_class},
        {a->nranks, b->nranks},          {a->nnodes, b->nnodes},   {strcmp(a->name, b->name), 0},
        {a->k.algo, b->k.algo},          {a->k.proto, b->k.proto}, {a->k.channels, b->k.channels},
        {a->k.gpu_clock, b->k.gpu_clock}};
    for (size_t i = 0; i < sizeof(by) / sizeof(by[0]); i++)
        if (by[i][0] != by[i][1])
            return by[i][0] < by[i][1] ? -1 : 1;
    return 0;
}

static void merge_hist(uint32_t *into, const uint32_t *from)
{
    for (int i = 0; i < MK_HIST_BUCKETS; i++)
        into[i] = into[i] + from[i] < from[i] ? UINT32_MAX : into[i] + from[i];
}

static void merge(struct mk_profile_row *into, const struct mk_profile_row *from)
{
    struct mk_kind *a = &into->k;
    const struct mk_kind *b = &from->k;
    a->bytes_min = b->bytes_min < a->bytes_min ? b->bytes_min : a->bytes_min;
    a->bytes_max = b->bytes_max > a->bytes_max ? b->bytes_max : a->bytes_max;
    a->bytes_sum = plus(a->bytes_sum, b->bytes_sum);
    if (b->timed && (!a->timed || b->run_min < a->run_min))
        a->run_min = b->run_min;
    a->run_max = b->run_max > a->run_max ? b->run_max : a->run_max;
    a->calls = plus(a->calls, b->calls), a->timed = plus(a->timed, b->timed);
    a->unfinished = plus(a->unfinished, b->unfinished), a->host_ns = plus(a->host_ns, b->host_ns);
    a->run_ns = plus(a->run_ns, b->run_ns), a->overlap_ns = plus(a->overlap_ns, b->overlap_ns);
    merge_hist(a->host_hist, b->host_hist);
    merge_hist(a->run_hist, b->run_hist);
    into->ranks += from->ranks;
}

void mk_profile_sort(struct mk_profile_sum *s)
{
    if (s->n)
        qsort(s->row, (size_t)s->n, sizeof(*s->row), compare);
}

/* Room for n more rows and one more file. */
static bool grow(struct mk_profile_sum *s, int n)
{
    struct mk_profile_seen *seen = realloc(s->seen, ((size_t)s->files + 1) * sizeof(*seen));
    if (!seen)
        return false;
    s->seen = seen;
    if (s->n + n <= s->room)
        return true;
    const int room = 2 * s->room + n;
    struct mk_profile_row *row = realloc(s->row, (size_t)room * sizeof(*row));
    if (!row)
        return false;
    s->row = row;
    s->room = room;
    return true;
}

static void take(struct mk_profile_sum *s, const struct reading *r)
{
    for (int i = 0; i < r->n; i++) {
        int at = 0;
        while (at < s->n && compare(&s->row[at], &r->row[i]))
            at++;
        if (at < s->n)
            merge(&s->row[at], &r->row[i]);
        else
            s->row[s->n++] = r->row[i];
    }
    s->communicators += r->communicators;
    s->no_room = plus(s->no_room, r->no_room);
    s->collectives = plus(s->collectives, r->collectives);
    s->p2p = plus(s->p2p, r->p2p);
}

/* ---- head of a file ---- */

static const char *read_head(const struct mk_json_value *root, struct mk_profile_seen *seen, double *cost,
                             uint64_t *forgotten, const char **state)
{
    const char *format = mk_json_string(get(root, "format")), *host = mk_json_string(get(root, "host"));
    const struct mk_json_value *seconds = get(root, "seconds"), *spent = get(get(root, "cost"), "seconds");
    int version;
    memset(seen, 0, sizeof(*seen));
    if (!format || strcmp(format, "mkernel profile"))
        return "no profile of mKernel";
    if (!mk_json_i32(get(root, "version"), &version) || version != 1)
        return "a profile of another version";
    *state = mk_json_string(get(root, "state"));
    if (!host || !mk_json_i32(get(root, "pid"), &seen->pid) || !seconds || seconds->kind != MK_JSON_NUMBER ||
        !spent || spent->kind != MK_JSON_NUMBER || !*state ||
        !mk_json_u64(get(root, "forgotten"), forgotten) || seconds->number < 0 || spent->number < 0)
        return "no host, process, time or cost";
    snprintf(seen->host, sizeof(seen->host), "%s", host);
    seen->seconds = seconds->number;
    *cost = seconds->number > 0 ? spent->number / seconds->number : 0;
    return NULL;
}

static bool known(const struct mk_profile_sum *s, const struct mk_profile_seen *seen)
{
    for (int i = 0; i < s->files; i++)
        if (s->seen[i].pid == seen->pid && !strcmp(s->seen[i].host, seen->host) &&
            !(s->seen[i].seconds < seen->seconds) && !(s->seen[i].seconds > seen->seconds))
            return true;
    return false;
}

int mk_profile_add_text(struct mk_profile_sum *s, const char *path, const char *text, size_t bytes)
{
    struct mk_json_doc *d;
    struct mk_profile_seen seen;
    struct reading r;
    const char *state = "";
    uint64_t forgotten = 0;
    double cost = 0;
    memset(&r, 0, sizeof(r));
    int ret = mk_json_parse(text, bytes, &d);
    if (ret) {
        char why[200];
        snprintf(why, sizeof(why), "%s", mk_last_error());
        return mk_fail_quiet(ret, "%s: damaged: %s", path, why);
    }
    const char *why = read_head(mk_json_root(d), &seen, &cost, &forgotten, &state);
    if (!why)
        why = read_comms(mk_json_root(d), &r);
    if (!why && known(s, &seen))
        why = "the same profile a second time";
    if (!why && !grow(s, r.n))
        why = "no memory";
    if (why) {
        ret = mk_fail_quiet(MK_ERR_INVALID, "%s: %s", path, why);
    } else {
        take(s, &r);
        s->seen[s->files++] = seen;
        s->forgotten = plus(s->forgotten, forgotten);
        s->cost_max = cost > s->cost_max ? cost : s->cost_max;
        s->off += !strcmp(state, "off");
        s->without_gpu += !strcmp(state, "without GPU times");
    }
    free(r.row);
    mk_json_free(d);
    return ret;
}

int mk_profile_add(struct mk_profile_sum *s, const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    size_t n = 0, room = 1 << 16;
    char *text = malloc(room);
    while (text && n < FILE_MAX) {
        n += fread(text + n, 1, room - n, f);
        if (n < room)
            break;
        char *more = realloc(text, room *= 2);
        if (!more)
            free(text);
        text = more;
    }
    const int why = ferror(f) ? errno : 0;
    fclose(f);
    int ret;
    if (!text)
        ret = mk_fail_quiet(MK_ERR_NOMEM, "%s: no memory to read it", path);
    else if (why)
        ret = mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(why));
    else if (n >= FILE_MAX)
        ret = mk_fail_quiet(MK_ERR_INVALID, "%s: too large for a profile", path);
    else
        ret = mk_profile_add_text(s, path, text, n);
    free(text);
    return ret;
}

void mk_profile_free(struct mk_profile_sum *s)
{
    free(s->row);
    free(s->seen);
    memset(s, 0, sizeof(*s));
}

double mk_hist_quantile(const uint32_t h[MK_HIST_BUCKETS], double share)
{
    uint64_t all = 0, sum = 0;
    for (int i = 0; i < MK_HIST_BUCKETS; i++)
        all += h[i];
    for (int i = 0; i < MK_HIST_BUCKETS && all; i++) {
        sum += h[i];
        if ((double)sum >= share * (double)all)
            return mk_hist_value(i);
    }
    return 0;
}
