/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Bootstrap by a name: ranks that know nothing of each other but the name of their communicator and one address that
 * their whole job shares. */
#include "boot_link.h"
#include "boot_root.h"
#include "mk/err.h"
#include "mk/param.h"
#include "mk/shm.h"
#include "place.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AGAIN_NS 500000000u /* rank 0 leaves its word again, until all have met */
#define SLICE_NS 100000000u
#define DROP_NS 1000000000u
#define FIRST_PORT 20000u /* derived ports: below those that systems give to clients */
#define PORTS 12000u

uint16_t mk_place_port(const char *given, const struct mk_ports *range)
{
    const uint32_t first = range->low ? range->low : FIRST_PORT;
    const uint32_t n = range->low ? mk_ports_count(range) : PORTS;
    const uint32_t at = (uint32_t)(mk_boot_hash(given, strlen(given)) % n);
    const uint32_t port = first + at;
    return (uint16_t)(port == (uint32_t)strtoul(given, NULL, 10) ? first + (at + 1) % n : port);
}

/* The host of MK_ROOT, else of MASTER_ADDR; the port follows from theirs, on which something else listens. */
static int place_of(const struct mk_settings *s, char host[256], char port[8])
{
    struct mk_ports range;
    char given[16];
    int ret = 0;
    if (*s->root)
        ret = mk_boot_split(s->root, host, given);
    else if (!mk_settings_master(host, given))
        return mk_fail_quiet(
            MK_ERR_UNSUPPORTED,
            "neither MK_ROOT nor MASTER_ADDR and MASTER_PORT are set: the ranks have no place to meet");
    if (!ret)
        ret = mk_ports_of(s, &range);
    if (!ret)
        snprintf(port, 8, "%u", mk_place_port(given, &range));
    return ret;
}

/* A rank that looks for the others of its name. */
struct search {
    char host[256], port[8];
    struct mk_place_msg m;
    uint64_t deadline, again; /* when rank 0 leaves its word once more */
    bool (*go_on)(void *ctx);
    void *ctx;
};
static bool given_up(const struct search *f)
{
    return f->go_on && !f->go_on(f->ctx);
}

/* One attempt: connects, asks, waits for the answer. AGAIN: nobody there, or he went; worth another attempt. */
static int ask(const struct search *f, const struct sockaddr *at, socklen_t len, uint64_t deadline,
               struct mk_place_msg *answer)
{
    uint8_t out[MK_PLACE_BYTES], in[MK_PLACE_BYTES];
    size_t have = 0;
    int ret = MK_ERR_AGAIN;
    const int fd = mk_boot_connect(at, len, deadline);
    if (fd < 0)
        return ret;
    mk_place_put_msg(&f->m, out);
    bool more = send(fd, out, sizeof(out), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(out);
    while (more && have < sizeof(in)) {
        const uint64_t now = mk_time_ns(), soon = now + SLICE_NS;
        if (!mk_boot_poll(fd, POLLIN, soon < deadline ? soon : deadline)) {
            more = now < deadline && !given_up(f);
            continue;
        }
        const ssize_t n = recv(fd, in + have, sizeof(in) - have, MSG_DONTWAIT);
        more = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
        have += n > 0 ? (size_t)n : 0;
    }
    if (have == sizeof(in))
        ret = mk_place_parse_msg(in, answer) ? 0 : MK_ERR_NET;
    mk_boot_fd_close(fd);
    return ret;
}

/* All addresses of the place, one after the other; serves there itself where it can. */
static int ask_place(const struct search *f, uint64_t deadline, struct mk_place_msg *answer)
{
    struct mk_boot_where w;
    int ret = mk_boot_resolve(f->host, f->port, &w);
    if (ret)
        return ret;
    ret = MK_ERR_AGAIN;
    for (int i = 0; i < w.n && ret; i++) {
        struct sockaddr_storage at;
        mk_boot_listens_at(&w, i, &at);
        mk_place_serve((const struct sockaddr *)&at, w.len[i]);
        ret = ask(f, (const struct sockaddr *)&w.addr[i], w.len[i], deadline, answer);
    }
    return ret;
}

static int refused(const struct mk_place_msg *a, uint64_t name)
{
    if (a->version != MK_PLACE_VERSION)
        return mk_fail_quiet(MK_ERR_MISMATCH,
                             "the meeting place is served by another version of the library");
    if (a->what == MK_PLACE_GIVEN && a->name == name)
        return 0;
    return mk_fail_quiet(MK_ERR_MISMATCH,
                         "the meeting place refuses communicator %016llx: the ranks disagree on it",
                         (unsigned long long)name);
}

/* Until the place answers: rank 0's word lies there, or *id is that of the root. */
static int find_place(const struct search *f, mk_unique_id_t *id)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    const struct mk_place_msg *m = &f->m;
    struct mk_place_msg a;
    for (;;) {
        const int ret = ask_place(f, f->deadline, &a);
        if (!ret) {
            *id = a.id;
            return refused(&a, m->name);
        }
        if (given_up(f))
            return mk_fail_quiet(MK_ERR_ABORTED, "communicator %016llx: the meeting is given up",
                                 (unsigned long long)m->name);
        if (mk_time_ns() >= f->deadline)
            return mk_fail_quiet(MK_ERR_TIMEOUT,
                                 "communicator %016llx: rank %u did not %s at %.200s:%s in time",
                                 (unsigned long long)m->name, m->rank,
                                 m->rank ? "find its root" : "leave word of its root", f->host, f->port);
        nanosleep(&pause, NULL);
    }
}

/* While the others come. The place may have moved, with the process that served it, before all found rank 0's word. */
static int look(void *ctx)
{
    struct search *f = ctx;
    struct mk_place_msg a;
    if (given_up(f))
        return MK_ERR_ABORTED;
    const uint64_t now = mk_time_ns();
    if (f->m.rank || now < f->again)
        return 0;
    ask_place(f, now + AGAIN_NS, &a); /* should it fail, there is a next time */
    f->again = mk_time_ns() + AGAIN_NS;
    return 0;
}

/* All have rank 0's word, or nobody will need it. */
static void take_back(struct search *f)
{
    struct mk_boot_where w;
    struct mk_place_msg a;
    f->m.what = MK_PLACE_DROP;
    f->go_on = NULL;
    int ret = mk_boot_resolve(f->host, f->port, &w) ? 0 : MK_ERR_AGAIN;
    for (int i = 0; ret == MK_ERR_AGAIN && i < w.n;
         i++) /* where nobody serves now there is nothing to take */
        ret = ask(f, (const struct sockaddr *)&w.addr[i], w.len[i], mk_time_ns() + DROP_NS, &a);
}

static int meet(const struct mk_settings *s, struct search *f, struct mk_boot **out)
{
    const struct mk_boot_watch watch = {look, f};
    mk_unique_id_t id;
    struct mk_boot_id root;
    int ret = find_place(f, &id);
    const bool left_word = !ret;
    if (!ret) {
        f->again = mk_time_ns() + AGAIN_NS;
        ret = mk_boot_init_watched(s, f->m.rank ? &id : &f->m.id, (int)f->m.nranks, (int)f->m.rank, &watch,
                                   out);
    }
    if (f->m.rank)
        return ret;
    if ((!left_word || (ret && given_up(f))) && mk_boot_parse_id(&f->m.id, &root) == MK_BOOT_PARSED)
        mk_boot_root_stop(root.key);
    if (left_word)
        take_back(f);
    return ret;
}

int mk_boot_init_name_while(const struct mk_settings *s, uint64_t name, int nranks, int rank,
                            bool (*go_on)(void *ctx), void *ctx, struct mk_boot **out)
{
    struct mk_settings alone = *s;
    struct search f;
    if (nranks == 1) {
        alone.root[0] = 0;
        return mk_boot_init_root(&alone, nranks, rank, out);
    }
    if (!out || nranks < 1 || nranks > (int)MK_BOOT_MAX_RANKS || rank < 0 || rank >= nranks)
        return mk_fail_quiet(MK_ERR_INVALID, "rank %d of %d", rank, nranks);
    memset(&f, 0, sizeof(f));
    f.deadline = mk_time_ns() + (uint64_t)(s->timeout < 1e6 ? s->timeout * 1e9 : 1e15);
    f.go_on = go_on;
    f.ctx = ctx;
    f.m.version = MK_PLACE_VERSION;
    f.m.what = rank ? MK_PLACE_TAKE : MK_PLACE_PUT;
    f.m.key = mk_boot_hash(s->job, strlen(s->job));
    f.m.name = name;
    f.m.nranks = (uint32_t)nranks;
    f.m.rank = (uint32_t)rank;
    int ret = place_of(s, f.host, f.port);
    if (!ret && !rank)
        ret = mk_boot_unique_id(s, &f.m.id);
    return ret ? ret : meet(s, &f, out);
}

int mk_boot_init_name(const struct mk_settings *s, uint64_t name, int nranks, int rank, struct mk_boot **out)
{
    return mk_boot_init_name_while(s, name, nranks, rank, NULL, NULL, out);
}
