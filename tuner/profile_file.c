/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The file of a profile: one JSON object,
 *   {"format": "mkernel profile", "version": 1, "host", "pid", "seconds", "state",
 *    "cost": {"events", "seconds"}, "forgotten",
 *    "communicators": [{"id", "rank", "ranks", "nodes", "name", "table", "open", "api_calls", "collectives", "p2p", "no_room",
 *      "kinds": [{"collective", "dtype", "algorithm", "protocol", "channels", "size_class", "clock", "calls", "bytes": [least,
 *        most, all], "host_ns", "host_hist", "timed", "unfinished", "run_ns": [least, most, all], "overlap_ns", "run_hist"}]}]}
 * id is text (hexadecimal: JSON's numbers are too short); a histogram is [bucket, count, bucket, count, ...], buckets as in
 * mk/profile.h. Counts of host_hist and run_hist add up to at most calls, and to timed: a reader can tell damage. The text is
 * made in memory, then written under another name and renamed. */
#include "profile.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define U(x) ((unsigned long long)(x))

bool profile_path(const char *pattern, const char *host, int pid, char out[PROFILE_PATH])
{
    const char *const add = strstr(pattern, "%p") ? "" : ".%h.%p", *const part[2] = {pattern, add};
    char number[16];
    size_t n = 0;
    snprintf(number, sizeof(number), "%d", pid);
    for (int i = 0; i < 2; i++)
        for (const char *c = part[i]; *c; c++) {
            char one[2] = {*c, 0};
            const char *text = one;
            if (*c == '%') {
                c++;
                text = *c == 'h' ? host : *c == 'p' ? number : *c == '%' ? "%" : NULL;
                if (!text)
                    return false;
            }
            const size_t len = strlen(text);
            if (n + len + 32 > PROFILE_PATH) /* room for the temporary name */
                return false;
            memcpy(out + n, text, len);
            n += len;
        }
    out[n] = 0;
    return true;
}

/* Text in quotes; what is no plain ASCII becomes '?'. */
static void quoted(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fputc('\\', f);
        fputc(c >= 32 && c < 127 ? c : '?', f);
    }
    fputc('"', f);
}

static void histogram(FILE *f, const char *name, const uint32_t *h)
{
    const char *comma = "";
    fprintf(f, ", \"%s\": [", name);
    for (int i = 0; i < MK_HIST_BUCKETS; i++)
        if (h[i]) {
            fprintf(f, "%s%d, %u", comma, i, h[i]);
            comma = ", ";
        }
    fputs("]", f);
}

static void kind(FILE *f, const struct mk_kind *k)
{
    fprintf(f,
            "      {\"collective\": \"%s\", \"dtype\": \"%s\", \"algorithm\": \"%s\", \"protocol\": \"%s\"",
            mk_name_of(MK_NAMES_COLL, k->coll), mk_name_of(MK_NAMES_DTYPE, k->dtype),
            mk_name_of(MK_NAMES_ALGO, k->algo), mk_name_of(MK_NAMES_PROTO, k->proto));
    fprintf(f, ", \"channels\": %d, \"size_class\": %d, \"clock\": \"%s\", \"calls\": %llu", k->channels,
            k->size_class, k->gpu_clock ? "gpu" : "host", U(k->calls));
    fprintf(f, ", \"bytes\": [%llu, %llu, %llu], \"host_ns\": %llu", U(k->bytes_min), U(k->bytes_max),
            U(k->bytes_sum), U(k->host_ns));
    histogram(f, "host_hist", k->host_hist);
    fprintf(f,
            ", \"timed\": %llu, \"unfinished\": %llu, \"run_ns\": [%llu, %llu, %llu], \"overlap_ns\": %llu",
            U(k->timed), U(k->unfinished), U(k->timed ? k->run_min : 0), U(k->run_max), U(k->run_ns),
            U(k->overlap_ns));
    histogram(f, "run_hist", k->run_hist);
    fputs("}", f);
}

static void communicator(FILE *f, struct mk_profile *p, struct mk_profile_comm *c, struct mk_kind *k)
{
    pthread_mutex_lock(&c->lock);
    fprintf(f,
            "    {\"id\": \"%016llx\", \"rank\": %d, \"ranks\": %d, \"nodes\": %d, \"name\": ", U(c->who.id),
            c->who.rank, c->who.nranks, c->who.nnodes);
    quoted(f, c->name);
    fprintf(f,
            ", \"table\": %d, \"open\": %s, \"api_calls\": %llu, \"collectives\": %llu, \"p2p\": %llu, "
            "\"no_room\": %llu",
            c->who.table, c->live ? "true" : "false",
            U(__atomic_load_n(&c->api, __ATOMIC_RELAXED) + __atomic_load_n(&c->api_p2p, __ATOMIC_RELAXED)),
            U(c->colls), U(c->p2p), U(c->no_room));
    fputs(", \"kinds\": [", f);
    for (int i = 0; i < c->nkinds; i++) {
        profile_copy_kind(p, c, i, k);
        fputs(i ? ",\n" : "\n", f);
        kind(f, k);
    }
    fputs("]}", f);
    pthread_mutex_unlock(&c->lock);
}

static void document(FILE *f, struct mk_profile *p, struct mk_kind *k)
{
    static const char *const state[] = {"on", "without GPU times", "off"};
    const uint64_t spent = p->spent_before + __atomic_load_n(&p->spent, __ATOMIC_RELAXED);
    fprintf(f, "{\"format\": \"mkernel profile\", \"version\": 1, \"host\": ");
    quoted(f, p->host);
    fprintf(f, ", \"pid\": %d, \"seconds\": %.6f, \"state\": \"%s\"", (int)getpid(),
            (double)(p->clock() - p->opened) * 1e-9, state[__atomic_load_n(&p->limit, __ATOMIC_RELAXED)]);
    fprintf(
        f, ",\n  \"cost\": {\"events\": %u, \"seconds\": %.6f}, \"forgotten\": %llu,\n  \"communicators\": [",
        __atomic_load_n(&p->events, __ATOMIC_RELAXED), (double)spent * PROFILE_MEASURED * 1e-9,
        U(p->forgotten));
    const char *comma = "\n";
    for (int i = 0; i < PROFILE_COMMS && p->comm[i]; i++)
        if (p->comm[i]->used) {
            fputs(comma, f);
            communicator(f, p, p->comm[i], k);
            comma = ",\n";
        }
    fputs("]}\n", f);
}

/* Why it failed, or NULL. Writers of one process take turns under the lock: they share the temporary name. */
static const char *put(const char *path, const char *text, size_t n)
{
    char other[PROFILE_PATH + 32];
    snprintf(other, sizeof(other), "%s.%d.tmp", path, (int)getpid());
    FILE *f = fopen(other, "we");
    if (!f)
        return strerror(errno);
    bool ok = fwrite(text, 1, n, f) == n;
    int why = ok ? 0 : errno;
    if (fclose(f) && ok) {
        ok = false;
        why = errno;
    }
    if (ok && rename(other, path)) {
        ok = false;
        why = errno;
    }
    if (!ok)
        unlink(other);
    return ok ? NULL : strerror(why);
}

int mk_profile_write(struct mk_profile *p)
{
    char *text = NULL;
    size_t n = 0;
    const char *why = "no memory";
    if (profile_off(p) || !*p->path)
        return 0;
    struct mk_kind *k = malloc(sizeof(*k));
    FILE *f = k ? open_memstream(&text, &n) : NULL;
    pthread_mutex_lock(&p->lock);
    if (f) {
        document(f, p, k);
        const bool bad = ferror(f) != 0;
        if (!fclose(f) && !bad)
            why = put(p->path, text, n);
    }
    const bool say = why && !p->failed;
    p->failed |= why != NULL;
    pthread_mutex_unlock(&p->lock);
    free(text);
    free(k);
    if (!why)
        return 0;
    if (say)
        return mk_fail(MK_ERR_SYSTEM, "TUNER", "the profile cannot be written to %s: %s", p->path, why);
    return mk_fail_quiet(MK_ERR_SYSTEM, "the profile cannot be written to %s: %s", p->path, why);
}
