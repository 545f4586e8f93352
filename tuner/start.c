/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Starting points that were learned: the table in memory, and when its file is read and written. */
#include "start.h"
#include "mk/err.h"
#include "mk/log.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct mk_starts {
    pthread_mutex_t lock;
    char path[256];       /* "": memory alone */
    bool hands_off;       /* the file is not ours to replace */
    uint32_t told;        /* 1 << enum mk_start_found */
    uint64_t puts, saved; /* counted; so many of them are in the file */
    struct mk_start_table table;
};

/* 0 for nothing; else 1, 2, ... for [1, 1.4), [1.4, 2), [2, 2.8) ... */
static uint16_t half_octave(int64_t v)
{
    if (v <= 0)
        return 0;
    const uint64_t x = v > INT32_MAX ? INT32_MAX : (uint64_t)v;
    const int floor_log2 = 63 - __builtin_clzll(x);
    return (uint16_t)(1 + 2 * floor_log2 + (x * x >= 2ull << 2 * floor_log2));
}

static void copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

void mk_start_key(struct mk_start_key *key, enum mk_start_op op, int dtype, const int64_t mnk[3], int nodes,
                  int local_ranks, const char *gpu, const char *link)
{
    memset(key, 0, sizeof(*key));
    key->op = (uint16_t)op;
    key->dtype = (uint16_t)dtype;
    key->m = half_octave(mnk[0]);
    key->n = half_octave(mnk[1]);
    key->k = half_octave(mnk[2]);
    key->nodes = (uint16_t)nodes;
    key->local_ranks = (uint16_t)local_ranks;
    copy_text(key->gpu, sizeof(key->gpu), gpu);
    copy_text(key->link, sizeof(key->link), link);
}

static bool text_ends(const char *text, size_t size)
{
    const size_t n = strnlen(text, size);
    for (size_t i = n; i < size; i++)
        if (text[i])
            return false; /* keys are compared byte by byte */
    return n < size;
}

bool mk_start_valid(const struct mk_start_entry *e)
{
    const struct mk_start_key *k = &e->key;
    const struct mk_start *v = &e->value;
    return k->op && k->op < 256 && k->dtype < 256 && k->m < 64 && k->n < 64 && k->k < 64 && k->nodes &&
           k->local_ranks && !k->spare && text_ends(k->gpu, sizeof(k->gpu)) &&
           text_ends(k->link, sizeof(k->link)) && v->units && v->units <= 4096 && v->target <= v->units &&
           v->chunk <= 1u << 30 && v->batch <= 8 && !v->spare;
}

static struct mk_start_entry *find(struct mk_start_table *t, const struct mk_start_key *key)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (!memcmp(&t->entry[i].key, key, sizeof(*key)))
            return &t->entry[i];
    return NULL;
}

/* Where a new key goes: behind the last, or in place of the least known; NULL: that is better known than `launches`. */
static struct mk_start_entry *room(struct mk_start_table *t, uint32_t launches)
{
    if (t->count < MK_STARTS_MAX)
        return &t->entry[t->count++];
    struct mk_start_entry *least = t->entry;
    for (uint32_t i = 1; i < t->count; i++)
        if (t->entry[i].value.launches < least->value.launches)
            least = &t->entry[i];
    return least->value.launches <= launches ? least : NULL;
}

void mk_start_merge(struct mk_start_table *t, const struct mk_start_entry *e)
{
    struct mk_start_entry *have = find(t, &e->key);
    if (!have)
        have = room(t, e->value.launches);
    else if (have->value.launches > e->value.launches)
        have = NULL;
    if (have)
        *have = *e;
}

/* Each is said once a file. */
static void tell(struct mk_starts *s, enum mk_start_found found, const char *why)
{
    static const char *const text[] = {
        [MK_START_DAMAGED] = "is damaged: ignored, and replaced when something is saved",
        [MK_START_FOREIGN] = "is not a file of starting points: ignored and left alone",
        [MK_START_OTHER] = "is of another version: ignored and left alone",
        [MK_START_FAILED] = "cannot be used",
    };
    if (found == MK_START_FOREIGN || found == MK_START_OTHER)
        s->hands_off = true;
    if (found == MK_START_READ || found == MK_START_ABSENT || s->told >> found & 1)
        return;
    s->told |= 1u << found;
    MK_WARN("TUNER", "MK_TUNER_FILE %s %s%s%s", s->path, text[found], *why ? ": " : "", why);
}

int mk_starts_open(const char *path, struct mk_starts **out)
{
    char why[160] = "";
    if (strlen(path) >= sizeof(((struct mk_starts *)0)->path))
        return mk_fail_quiet(MK_ERR_INVALID, "MK_TUNER_FILE is longer than 255 characters");
    struct mk_starts *s = calloc(1, sizeof(*s));
    if (!s)
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory for starting points");
    pthread_mutex_init(&s->lock, NULL);
    copy_text(s->path, sizeof(s->path), path);
    if (*path)
        tell(s, mk_start_read_file(path, &s->table, why), why);
    *out = s;
    return 0;
}

int mk_starts_open_settings(const struct mk_settings *settings, struct mk_starts **out)
{
    return mk_starts_open(strcmp(settings->tuner, "off") ? settings->tuner_file : "", out);
}

bool mk_starts_get(struct mk_starts *s, const struct mk_start_key *key, struct mk_start *out)
{
    pthread_mutex_lock(&s->lock);
    const struct mk_start_entry *e = find(&s->table, key);
    if (e)
        *out = e->value;
    pthread_mutex_unlock(&s->lock);
    return e;
}

int mk_starts_put(struct mk_starts *s, const struct mk_start_key *key, const struct mk_start *value)
{
    struct mk_start_entry e = {*key, *value};
    e.value.launches = 1;
    if (!mk_start_valid(&e))
        return mk_fail_quiet(MK_ERR_INVALID, "a starting point of %u in %u units makes no sense",
                             value->target, value->units);
    pthread_mutex_lock(&s->lock);
    struct mk_start_entry *have = find(&s->table, key);
    if (have)
        e.value.launches = have->value.launches + (have->value.launches < UINT32_MAX);
    else
        have = room(&s->table, UINT32_MAX); /* what is done here counts more than what is remembered */
    *have = e;
    s->puts++;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

size_t mk_starts_count(struct mk_starts *s)
{
    pthread_mutex_lock(&s->lock);
    const size_t n = s->table.count;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* Under the file's lock; the table's is held for copies alone. Ours into the file's, and both into both. */
static int merge_and_write(struct mk_starts *s, const char *path, struct mk_start_table *file,
                           struct mk_start_table *ours)
{
    char why[160] = "";
    const enum mk_start_found found = mk_start_read_file(path, file, why);
    pthread_mutex_lock(&s->lock);
    tell(s, found, why);
    const bool hands_off = s->hands_off;
    const uint64_t puts = s->puts;
    *ours = s->table;
    pthread_mutex_unlock(&s->lock);
    if (hands_off)
        return 0;
    if (found == MK_START_FAILED) /* what is in it must not be lost */
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, why);
    for (uint32_t i = 0; i < ours->count; i++)
        mk_start_merge(file, &ours->entry[i]);
    const int ret = mk_start_write_file(path, file);
    if (ret)
        return ret;
    pthread_mutex_lock(&s->lock);
    s->saved = puts;
    if (s->puts == puts)
        s->table = *file;
    for (uint32_t i = 0; s->puts != puts && i < file->count; i++)
        mk_start_merge(&s->table, &file->entry[i]);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int mk_starts_save(struct mk_starts *s)
{
    char path[MK_START_PATH];
    int lock, ret;
    pthread_mutex_lock(&s->lock);
    const bool wanted = *s->path && s->puts != s->saved && !s->hands_off;
    pthread_mutex_unlock(&s->lock);
    if (!wanted)
        return 0;
    struct mk_start_table *two = calloc(2, sizeof(*two));
    ret =
        two ? mk_start_resolve(s->path, path) : mk_fail_quiet(MK_ERR_NOMEM, "no memory for starting points");
    if (!ret)
        ret = mk_start_lock(path, &lock);
    if (!ret) {
        ret = merge_and_write(s, path, &two[0], &two[1]);
        mk_start_unlock(lock);
    }
    free(two);
    if (ret && ret != MK_ERR_AGAIN) {
        pthread_mutex_lock(&s->lock);
        tell(s, MK_START_FAILED, mk_last_error());
        pthread_mutex_unlock(&s->lock);
    }
    return ret;
}

void mk_starts_close(struct mk_starts *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    free(s);
}
