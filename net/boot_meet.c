/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Bootstrap: making the object, and the three ways to meet. */
#include "boot_link.h"
#include "boot_root.h"
#include "ifname.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "mk/shm.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 100000000u

static uint64_t seconds(double s)
{
    return s > 1e9 ? (uint64_t)1e18 : (uint64_t)(s * 1e9);
}

/* ---- objects ---- */

void mk_boot_free(struct mk_boot *b)
{
    mk_boot_fd_close(b->wake_fd);
    pthread_cond_destroy(&b->cond);
    pthread_mutex_destroy(&b->lock);
    free(b->body);
    free(b->result);
    free(b->out);
    free(b->left);
    free(b);
}

static int boot_new(const struct mk_settings *s, int nranks, int rank, struct mk_boot **out)
{
    pthread_condattr_t attr;
    if (nranks < 1 || nranks > (int)MK_BOOT_MAX_RANKS)
        return mk_fail_quiet(MK_ERR_INVALID, "%d ranks; 1 to %u are possible", nranks, MK_BOOT_MAX_RANKS);
    if (rank < 0 || rank >= nranks)
        return mk_fail_quiet(MK_ERR_INVALID, "rank %d is not in 0 to %d", rank, nranks - 1);
    struct mk_boot *b = calloc(1, sizeof(*b));
    if (b)
        b->left = calloc((size_t)nranks, 1);
    if (!b || !b->left) {
        free(b);
        return mk_fail(MK_ERR_NOMEM, "NET", "no memory for a bootstrap of %d ranks", nranks);
    }
    b->pid = getpid();
    b->rank = rank;
    b->nranks = nranks;
    b->timeout_ns = seconds(s->timeout);
    b->fd = b->wake_fd = -1;
    b->first_left = b->root_rank = -1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->cond, &attr);
    pthread_condattr_destroy(&attr);
    *out = b;
    return 0;
}

bool mk_boot_wait(struct mk_boot *b, uint64_t deadline)
{
    const struct timespec t = {.tv_sec = (time_t)(deadline / 1000000000u),
                               .tv_nsec = (long)(deadline % 1000000000u)};
    return pthread_cond_timedwait(&b->cond, &b->lock, &t) != ETIMEDOUT;
}

/* ---- meeting ---- */

/* With b->lock, which it lets go. Sleeps until something changes, `until`, or the next look at what the watch says. */
static int wait_watching(struct mk_boot *b, uint64_t until, bool *more)
{
    const uint64_t look = b->watch ? mk_time_ns() + LOOK_NS : UINT64_MAX;
    int ret = 0;
    const bool woken = mk_boot_wait(b, look < until ? look : until);
    *more = woken || look < until;
    if (woken || !b->watch)
        return 0;
    pthread_mutex_unlock(&b->lock);
    ret = b->watch->look(b->watch->ctx);
    pthread_mutex_lock(&b->lock);
    return ret;
}

/* The root tells in time who is missing; a second later this rank gives up by itself. */
static int await_all(struct mk_boot *b, uint64_t deadline)
{
    int ret = 0;
    bool more = true;
    pthread_mutex_lock(&b->lock);
    while (!b->met && !b->event_set && more && !ret)
        ret = wait_watching(b, deadline + 1000000000u, &more);
    if (b->event_set)
        ret = mk_fail_quiet(b->event.code, "%s", b->event.text);
    else if (b->met)
        ret = 0;
    else if (ret)
        mk_fail_quiet(ret, "the meeting is given up");
    else
        ret =
            mk_fail_quiet(MK_ERR_TIMEOUT, "the root at %s did not say within %.3g s that all ranks had come",
                          b->root_name, (double)b->timeout_ns / 1e9);
    if (ret == MK_ERR_TIMEOUT && !b->event_set && !b->optional)
        MK_WARN("NET", "%s", mk_last_error());
    pthread_mutex_unlock(&b->lock);
    return ret;
}

/* Dials, starts the thread, waits for all. Frees b on failure: without a good-bye, so that the others hear. */
static int join(struct mk_boot *b, const char *host, const char *port, const struct mk_boot_where *at,
                uint64_t deadline, struct mk_boot **out)
{
    /* before the descriptors are used up: without it the ranks of this host would take each other for strangers */
    int ret = mk_host_id() ? 0 : MK_ERR_SYSTEM;
    if (!ret && (b->wake_fd = mk_boot_fd_event()) < 0)
        ret = mk_fail(MK_ERR_SYSTEM, "NET", "eventfd: %s", strerror(errno));
    if (!ret && (ret = mk_boot_dial(b, host, port, at, deadline)) && !b->optional)
        MK_WARN("NET", "%s", mk_last_error());
    if (!ret)
        ret = mk_boot_link_start(b);
    if (!ret)
        ret = await_all(b, deadline);
    if (ret) {
        mk_boot_link_stop(b);
        mk_boot_free(b);
        return ret;
    }
    b->watch = NULL;
    mk_boot_list_add(b);
    *out = b;
    return 0;
}

static struct mk_boot_core_config core_config(const struct mk_settings *s, uint64_t key)
{
    const struct mk_boot_core_config c = {
        .key = key,
        .token = mk_boot_token(),
        .hello_ns = s->timeout < 5 ? seconds(s->timeout) : seconds(5),
        .linger_ns = seconds(s->timeout),
    };
    return c;
}

/* A service at a free port of the chosen interface. */
static int serve_id(const struct mk_settings *s, uint32_t nranks, struct mk_boot_id *id)
{
    struct mk_ifaddr face;
    struct mk_boot_where w;
    struct sockaddr_storage bound;
    socklen_t len;
    int fd;
    int ret = mk_ifname_choose(s, &face);
    if (ret)
        return ret;
    memset(&w, 0, sizeof(w));
    w.n = 1;
    w.addr[0] = face.addr;
    w.len[0] = face.len;
    ret = mk_ports_of(s, &w.ports);
    if (ret)
        return ret;
    ret = mk_boot_listen(&w, 0, &bound, &len, &fd);
    if (ret)
        return ret;
    memset(id, 0, sizeof(*id));
    id->key = mk_boot_random();
    struct mk_boot_core_config c = core_config(s, id->key);
    c.nranks = nranks;
    ret = mk_boot_root_start(&c, fd, mk_boot_addr_port(&bound));
    return ret ? ret : mk_boot_addr_id((struct sockaddr *)&bound, id);
}

int mk_boot_unique_id(const struct mk_settings *s, mk_unique_id_t *id)
{
    struct mk_boot_id w;
    if (!id)
        return mk_fail_quiet(MK_ERR_INVALID, "unique id: the pointer is NULL");
    const int ret = serve_id(s, 0, &w);
    if (!ret)
        mk_boot_put_id(&w, id);
    return ret;
}

static int join_id(const struct mk_boot_id *w, struct mk_boot *b, uint64_t deadline, struct mk_boot **out)
{
    struct mk_boot_where at;
    memset(&at, 0, sizeof(at));
    at.n = 1;
    const int ret = mk_boot_id_addr(w, &at.addr[0], &at.len[0]);
    if (ret) {
        mk_boot_free(b);
        return ret;
    }
    b->key = w->key;
    mk_boot_addr_name((struct sockaddr *)&at.addr[0], at.len[0], b->root_name);
    return join(b, NULL, NULL, &at, deadline, out);
}

int mk_boot_init_id(const struct mk_settings *s, const mk_unique_id_t *id, int nranks, int rank,
                    struct mk_boot **out)
{
    return mk_boot_init_watched(s, id, nranks, rank, NULL, out);
}

int mk_boot_init_watched(const struct mk_settings *s, const mk_unique_id_t *id, int nranks, int rank,
                         const struct mk_boot_watch *watch, struct mk_boot **out)
{
    struct mk_boot_id w;
    struct mk_boot *b;
    if (!id || !out)
        return mk_fail_quiet(MK_ERR_INVALID, "unique id: a pointer is NULL");
    const enum mk_boot_parse state = mk_boot_parse_id(id, &w);
    if (state == MK_BOOT_OTHER)
        return mk_fail_quiet(MK_ERR_MISMATCH, "the unique id was made by another version of the library");
    if (state != MK_BOOT_PARSED)
        return mk_fail_quiet(MK_ERR_INVALID, "the unique id is not one that mk_get_unique_id made");
    const int ret = boot_new(s, nranks, rank, &b);
    if (ret)
        return ret;
    b->watch = watch;
    b->optional = watch != NULL;
    return join_id(&w, b, mk_time_ns() + b->timeout_ns, out);
}

/* Rank 0 listens at MK_ROOT and dials what it listens at (loopback, where that is every address). */
static int serve_root(const struct mk_settings *s, struct mk_boot *b, const struct mk_boot_where *w,
                      uint64_t deadline, struct mk_boot_where *at)
{
    int fd;
    mk_boot_root_evict(mk_boot_addr_port(&w->addr[0]));
    memset(at, 0, sizeof(*at));
    at->n = 1;
    int ret = mk_boot_listen(w, deadline, &at->addr[0], &at->len[0], &fd);
    if (ret)
        return ret;
    struct mk_boot_core_config c = core_config(s, b->key);
    const uint64_t now = mk_time_ns();
    c.nranks = (uint32_t)b->nranks;
    c.wait_ns = deadline > now ? deadline - now : 1;
    return mk_boot_root_start(&c, fd, mk_boot_addr_port(&at->addr[0]));
}

static int resolve_until(const char *host, const char *port, struct mk_boot_where *w, uint64_t deadline)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    while (mk_boot_resolve(host, port, w)) {
        if (mk_time_ns() >= deadline)
            return mk_fail(MK_ERR_INVALID, "NET", "MK_ROOT: %s", mk_last_error());
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int join_root(const struct mk_settings *s, struct mk_boot *b, struct mk_boot **out)
{
    char host[256], port[8];
    struct mk_boot_where w, at;
    const uint64_t deadline = mk_time_ns() + b->timeout_ns;
    snprintf(b->root_name, sizeof(b->root_name), "%s", s->root);
    b->root_rank = 0;
    b->key = mk_boot_hash(s->job, strlen(s->job)) ^ MK_BOOT_HELLO_MAGIC;
    int ret = mk_boot_split(s->root, host, port);
    if (!ret && b->rank)
        return join(b, host, port, NULL, deadline, out);
    if (!ret)
        ret = resolve_until(host, port, &w, deadline);
    if (!ret)
        ret = serve_root(s, b, &w, deadline, &at);
    if (ret) {
        mk_boot_free(b);
        return ret;
    }
    mk_boot_reachable(&at.addr[0]);
    const uint64_t key = b->key;
    const uint32_t nranks = (uint32_t)b->nranks;
    ret = join(b, NULL, NULL, &at, deadline, out);
    /* Ranks that disagree are all there or about to come; after a death the others need not be. */
    const uint64_t soon = mk_time_ns() + 1000000000u;
    if (ret && ret != MK_ERR_TIMEOUT)
        mk_boot_root_hear(key, nranks, ret == MK_ERR_MISMATCH || deadline < soon ? deadline : soon);
    return ret;
}

int mk_boot_init_root(const struct mk_settings *s, int nranks, int rank, struct mk_boot **out)
{
    struct mk_boot *b = NULL;
    if (!out)
        return mk_fail_quiet(MK_ERR_INVALID, "bootstrap: the pointer is NULL");
    const int ret = boot_new(s, nranks, rank, &b);
    if (ret)
        return ret;
    if (nranks > 1 && *s->root)
        return join_root(s, b, out);
    if (nranks > 1) {
        mk_boot_free(b);
        return mk_fail_quiet(MK_ERR_INVALID, "MK_ROOT is not set; %d ranks need a place to meet", nranks);
    }
    b->solo = b->met = true;
    *out = b;
    return 0;
}

/* What each rank gives to the caller's all-gather. */
struct card {
    mk_unique_id_t id; /* of rank 0 */
    int32_t code;      /* of rank 0's attempt to serve */
    uint32_t nranks;
};

static int read_cards(const struct card *cards, int nranks, struct mk_boot_id *w)
{
    for (int r = 0; r < nranks; r++)
        if (cards[r].nranks != (uint32_t)nranks)
            return mk_fail(MK_ERR_MISMATCH, "NET",
                           "ranks disagree on the number of ranks: rank %d says %u, not %d", r,
                           cards[r].nranks, nranks);
    if (cards[0].code)
        return mk_fail(cards[0].code, "NET", "rank 0 could not open the meeting point");
    if (mk_boot_parse_id(&cards[0].id, w) != MK_BOOT_PARSED)
        return mk_fail(MK_ERR_MISMATCH, "NET", "the caller's all-gather did not bring what rank 0 gave");
    return 0;
}

int mk_boot_init_allgather(const struct mk_settings *s, int nranks, int rank,
                           int (*allgather)(void *ctx, const void *send, void *recv, size_t bytes), void *ctx,
                           struct mk_boot **out)
{
    struct mk_boot *b = NULL;
    struct mk_boot_id mine, w;
    struct card card;
    if (!allgather || !out)
        return mk_fail_quiet(MK_ERR_INVALID, "bootstrap: a pointer is NULL");
    int ret = boot_new(s, nranks, rank, &b);
    if (ret)
        return ret;
    struct card *cards = calloc((size_t)nranks, sizeof(*cards));
    memset(&card, 0, sizeof(card));
    card.nranks = (uint32_t)nranks;
    if (!rank) { /* a failure goes into the card, so that nobody waits in vain */
        card.code = cards ? serve_id(s, (uint32_t)nranks, &mine) : MK_ERR_NOMEM;
        if (!card.code)
            mk_boot_put_id(&mine, &card.id);
    }
    ret = cards ? allgather(ctx, &card, cards, sizeof(card)) : 0;
    if (!cards)
        ret = mk_fail(MK_ERR_NOMEM, "NET", "no memory for a bootstrap of %d ranks", nranks);
    else if (ret)
        ret = mk_fail(MK_ERR_NET, "NET", "the caller's all-gather failed (%d)", ret);
    else
        ret = read_cards(cards, nranks, &w);
    free(cards);
    b->root_rank = 0;
    if (!ret)
        return join_id(&w, b, mk_time_ns() + b->timeout_ns, out);
    if (!rank && !card.code)
        mk_boot_root_stop(mine.key);
    mk_boot_free(b);
    return ret;
}
