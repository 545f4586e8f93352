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

/* One attempt: connects, asks, waits for the answer. AGAIN: nobody there, or he went; worth another attempt. */
static int ask(const struct sockaddr *at, socklen_t len, const struct mk_place_msg *m, uint64_t deadline,
               struct mk_place_msg *answer)
{
    uint8_t out[MK_PLACE_BYTES], in[MK_PLACE_BYTES];
    size_t have = 0;
    int ret = MK_ERR_AGAIN;
    const int fd = mk_boot_connect(at, len, deadline);
    if (fd < 0)
        return ret;
    mk_place_put_msg(m, out);
    if (send(fd, out, sizeof(out), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(out)) {
        while (have < sizeof(in) && mk_boot_poll(fd, POLLIN, deadline)) {
            const ssize_t n = recv(fd, in + have, sizeof(in) - have, MSG_DONTWAIT);
            if (n <= 0 && !(n < 0 && (errno == EAGAIN || errno == EINTR)))
                break;
            have += n > 0 ? (size_t)n : 0;
        }
        if (have == sizeof(in))
            ret = mk_place_parse_msg(in, answer) ? 0 : MK_ERR_NET;
    }
    mk_boot_fd_close(fd);
    return ret;
}

/* All addresses of the place, one after the other; serves there itself where it can. */
static int ask_place(const struct mk_boot_where *w, const struct mk_place_msg *m, uint64_t deadline,
                     struct mk_place_msg *answer)
{
    int ret = MK_ERR_AGAIN;
    for (int i = 0; i < w->n && ret; i++) {
        struct sockaddr_storage at;
        mk_boot_listens_at(w, i, &at);
        mk_place_serve((const struct sockaddr *)&at, w->len[i]);
        ret = ask((const struct sockaddr *)&w->addr[i], w->len[i], m, deadline, answer);
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

int mk_boot_init_name(const struct mk_settings *s, uint64_t name, int nranks, int rank, struct mk_boot **out)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    struct mk_settings alone = *s;
    struct mk_boot_where w;
    struct mk_place_msg m, a;
    struct mk_boot_id id;
    char host[256], port[8];
    if (nranks == 1) {
        alone.root[0] = 0;
        return mk_boot_init_root(&alone, nranks, rank, out);
    }
    if (!out || nranks < 1 || nranks > (int)MK_BOOT_MAX_RANKS || rank < 0 || rank >= nranks)
        return mk_fail_quiet(MK_ERR_INVALID, "rank %d of %d", rank, nranks);
    const uint64_t deadline = mk_time_ns() + (uint64_t)(s->timeout < 1e6 ? s->timeout * 1e9 : 1e15);
    memset(&m, 0, sizeof(m));
    m.version = MK_PLACE_VERSION;
    m.what = rank ? MK_PLACE_TAKE : MK_PLACE_PUT;
    m.key = mk_boot_hash(s->job, strlen(s->job));
    m.name = name;
    m.nranks = (uint32_t)nranks;
    m.rank = (uint32_t)rank;
    int ret = place_of(s, host, port);
    if (!ret && !rank)
        ret = mk_boot_unique_id(s, &m.id);
    if (ret)
        return ret;
    for (;;) {
        ret = mk_boot_resolve(host, port, &w);
        if (!ret)
            ret = ask_place(&w, &m, deadline, &a);
        if (!ret || mk_time_ns() >= deadline)
            break;
        nanosleep(&pause, NULL);
    }
    if (!ret)
        ret = refused(&a, name);
    else
        ret = mk_fail_quiet(MK_ERR_TIMEOUT, "communicator %016llx: rank %d did not %s at %.200s:%s in time",
                            (unsigned long long)name, rank, rank ? "find its root" : "leave word of its root",
                            host, port);
    if (!ret)
        return mk_boot_init_id(s, rank ? &a.id : &m.id, nranks, rank, out);
    if (!rank && mk_boot_parse_id(&m.id, &id) == MK_BOOT_PARSED)
        mk_boot_root_stop(id.key);
    return ret;
}
