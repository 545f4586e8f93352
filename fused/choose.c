/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Never slower: for each shape class of a communicator, whether a call runs fused, or computes first and exchanges then
 * (the same plan in two launches, so the same bits). Both ways are timed now and then; which calls try which way depends on
 * the number of the call within its class alone, so all ranks do the same without a word. What the other calls do is a
 * decision of all ranks (mk_agree, carried by the bootstrap): rank 0 proposes, by its own times, which contain the
 * slowest rank's.
 *
 * The class is made of what all ranks share: M, N (half octaves), dtype. A communicator has MK_CHOOSE_CLASSES of them, in
 * order of their first call; calls of further classes run fused. Bit i of the agreed value: class i runs one after the
 * other. */
#include "choose.h"
#include "comm.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEAD 8           /* calls between the highest count and a switch */
#define REMIND_LOOKS 300 /* of a tenth of a second */

uint64_t (*mk_choose_test_ns)(const struct mk_choice *choice, uint64_t ns);

/* ---- of a communicator ---- */

struct mk_choose {
    struct mk_choose_class {
        struct mk_start_key key; /* under the communicator's call_lock, like all but `agree` */
        uint64_t calls;
        struct mk_choose_times times;
    } class[MK_CHOOSE_CLASSES];
    int classes;
    uint64_t said; /* the value that was last reported */

    pthread_mutex_t lock; /* agree; the boot thread writes it too */
    pthread_cond_t cond;
    struct mk_agree agree;
};

static void tell(struct mk_comm *comm, int to, const struct mk_agree_msg *m)
{
    if (m->kind != MK_AGREE_NONE)
        mk_boot_say(comm->boot, to, m,
                    sizeof(*m)); /* fails when the bootstrap has ended: its event ends the job */
}

void mk_choose_said(void *ctx, int from, const void *bytes, size_t n)
{
    struct mk_comm *comm = ctx;
    struct mk_choose *c = comm->choose;
    struct mk_agree_msg m, reply;
    if (n != sizeof(m))
        return;
    memcpy(&m, bytes, n);
    pthread_mutex_lock(&c->lock);
    memset(&reply, 0, sizeof(reply));
    const int ret = mk_agree_receive(&c->agree, from, &m, &reply);
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
    if (ret)
        mk_comm_fail(comm, MK_ERR_INTERNAL, true, "rank %d: message %u of rank %d does not fit the agreement",
                     comm->rank, m.kind, from);
    else
        tell(comm, comm->rank ? 0 : -1, &reply);
}

int mk_choose_open(struct mk_comm *comm)
{
    pthread_condattr_t attr;
    struct mk_choose *c;
    if (!comm->may_choose)
        return 0;
    c = calloc(1, sizeof(*c));
    if (!c)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for the choices of a communicator");
    const int ret = mk_agree_init(&c->agree, comm->rank, comm->nranks, LEAD, 0);
    if (ret) {
        free(c);
        return ret;
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->cond, &attr);
    pthread_condattr_destroy(&attr);
    comm->choose = c;
    mk_boot_on_said(comm->boot, mk_choose_said, comm);
    return 0;
}

void mk_choose_close(struct mk_comm *comm, bool mine)
{
    struct mk_choose *c = comm->choose;
    if (!c)
        return;
    if (mine) {
        pthread_cond_destroy(&c->cond);
        pthread_mutex_destroy(&c->lock);
    }
    comm->choose = NULL;
    free(c);
}

/* Under c->lock, after MK_PEER_TIMEOUT at the fence: a rank that stays away. On rank 0 one that has not answered. */
static int absent(const struct mk_comm *comm, const struct mk_choose *c)
{
    for (int r = 1; r < comm->nranks && !comm->rank; r++)
        if (!(c->agree.answered[r / 8] >> r % 8 & 1))
            return r;
    return 0;
}

/* The value for the next call. Waits where a switch is being decided: for rank 0, whose boot thread answers without its
 * host. The death of a rank ends the communicator, and this wait; one that has left cannot be in the next call; for one
 * that lives it waits MK_PEER_TIMEOUT, rank 0 a second less: it knows who. */
static int begin(struct mk_comm *comm, struct mk_choose *c, uint64_t *value)
{
    const uint64_t look_ns = 100000000u;
    const double limit = comm->settings.peer_timeout > 0
                             ? comm->settings.peer_timeout * 1e9 + (comm->rank ? 1e9 : 0)
                             : INFINITY;
    int ret, gone = -1, looks = 0; /* looks, not time: while this process is stopped nobody stays away */
    pthread_mutex_lock(&c->lock);
    while ((ret = mk_agree_begin(&c->agree, value)) == MK_ERR_AGAIN && gone < 0 &&
           (double)looks * (double)look_ns < limit && !__atomic_load_n(&comm->abort_word, __ATOMIC_ACQUIRE)) {
        const uint64_t until = mk_time_ns() + look_ns;
        const struct timespec t = {.tv_sec = (time_t)(until / 1000000000u),
                                   .tv_nsec = (long)(until % 1000000000u)};
        looks += pthread_cond_timedwait(&c->cond, &c->lock, &t) == ETIMEDOUT && looks < INT_MAX;
        if (looks && looks % REMIND_LOOKS == 0)
            MK_WARN("FUSED", "waiting for %d s: the word of rank %d on a switch", looks / 10,
                    absent(comm, c));
        for (int r = 0; r < comm->nranks && gone < 0; r++)
            gone = mk_boot_has_left(comm->boot, r) ? r : -1;
    }
    const int away = absent(comm, c);
    pthread_mutex_unlock(&c->lock);
    if (!ret)
        return 0;
    const int failed = mk_comm_check(comm);
    if (failed)
        return failed;
    return gone < 0 ? mk_comm_fail(comm, MK_ERR_TIMEOUT, true,
                                   "MK_PEER_TIMEOUT: rank %d waits for the word of rank %d on a switch",
                                   comm->rank, away)
                    : mk_comm_fail(comm, MK_ERR_PEER, true, "rank %d has left, rank %d makes another call",
                                   gone, comm->rank);
}

static int class_of(struct mk_choose *c, const struct mk_comm *comm, const struct mk_gemm_call *call)
{
    const int64_t mnk[3] = {call->m, call->n, 0};
    struct mk_start_key key;
    mk_start_key(&key, MK_START_GEMM_ALLREDUCE, (int)call->dtype, mnk, comm->topo.nnodes, comm->topo.nlocal,
                 "", "");
    for (int i = 0; i < c->classes; i++)
        if (!memcmp(&c->class[i].key, &key, sizeof(key)))
            return i;
    if (c->classes == MK_CHOOSE_CLASSES)
        return -1;
    c->class[c->classes].key = key;
    return c->classes++;
}

static void report(struct mk_choose *c, const struct mk_comm *comm, uint64_t value, uint64_t number)
{
    for (int i = 0; i < c->classes; i++) {
        const struct mk_choose_class *k = &c->class[i];
        if (!((value ^ c->said) >> i & 1))
            continue;
        if (comm->rank)
            MK_INFO("FUSED", "calls of shape class %d run %s from call %llu on", i,
                    value >> i & 1 ? "one part after the other" : "fused", (unsigned long long)number);
        else
            MK_INFO(
                "FUSED",
                "calls of shape class %d run %s from call %llu on: %.1f us fused, %.1f us one part after the "
                "other",
                i, value >> i & 1 ? "one part after the other" : "fused", (unsigned long long)number,
                (double)k->times.median[0] / 1e3, (double)k->times.median[1] / 1e3);
    }
    c->said = value;
}

int mk_choose_begin(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_choice *out)
{
    struct mk_choose *c = comm->choose;
    uint64_t value = 0;
    memset(out, 0, sizeof(*out));
    out->class = -1;
    if (!c)
        return 0;
    const int ret = begin(comm, c, &value);
    if (ret)
        return ret;
    if (value != c->said)
        report(c, comm, value, c->agree.begun - 1);
    out->class = call->m && call->n ? class_of(c, comm, call) : -1;
    if (out->class < 0)
        return 0;
    mk_choose_way(c->class[out->class].calls++, (int)(value >> out->class & 1), out);
    out->value = value;
    return 0;
}

void mk_choose_end(struct mk_comm *comm, const struct mk_choice *choice, uint64_t ns)
{
    struct mk_choose *c = comm->choose;
    struct mk_agree_msg m;
    if (!c || comm->rank || choice->class < 0)
        return;
    if (mk_choose_test_ns)
        ns = mk_choose_test_ns(choice, ns);
    if (!mk_choose_note(&c->class[choice->class].times, choice, ns))
        return;
    memset(&m, 0, sizeof(m));
    pthread_mutex_lock(&c->lock);
    const int ret = mk_agree_propose(&c->agree, choice->value ^ 1ull << choice->class, &m);
    pthread_mutex_unlock(&c->lock);
    if (!ret) /* else another switch is under way: the next rounds find it again */
        tell(comm, -1, &m);
}
