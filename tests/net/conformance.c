/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* One test for all completion adapters: an arrival flag names a payload that is complete.
 *
 *   conformance ADAPTER [net=loop|ofi|verbs] [provider=NAME, + for ;] [chunks=N] [bytes=N] [hostile=SEED] [ordered=0|1] [stall=S]
 *               [expect=caught] [gpu=source|destination|both nic=PATH_OF_MKNIC [nicopt=OPTION]]
 *
 * A sending thread fills source slots and hands commands to a proxy; a checking thread on the other side polls the
 * flags and compares the payload at the moment it sees one, then gives credit. Rings of several sizes run at once:
 * the ring of one slot stalls on any lost credit, the large one gives credit in lumps. A source slot
 * is reused as soon as its done word says so, long before the credit of its destination comes back. `store` has no
 * network: payload and flag are stores into shared memory. gpu: the source slots, the destination slots or both are
 * GPU memory, moved by a mknic process of the test's own; flags and credits stay in host memory.
 *
 * Exit 0: no error in N chunks; with expect=caught: an error or a stall within N (at most 10000) chunks. 1: not
 * so. 77: this network is not here. */
#include "conformance.h"
#include "mk/err.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    uint32_t slots, lump; /* credit is given after so many chunks */
    uint32_t eighths; /* of all chunks: each ring has its own share, so that none can stand still unnoticed */
} shapes[CF_RINGS] = {{1, 1, 2}, {2, 1, 1}, {3, 2, 1}, {8, 1, 2}, {64, 32, 2}};

/* ---- payload: every word names ring, position and place ---- */

static uint64_t mix(uint64_t v)
{
    v = (v ^ (v >> 31)) * 0x9e3779b97f4a7c15ull;
    v = (v ^ (v >> 29)) * 0xbf58476d1ce4e5b9ull;
    return v ^ (v >> 32);
}

static uint32_t length(const struct cf *t, uint32_t ring, uint64_t pos)
{
    return 8 + (uint32_t)(mix(pos * CF_RINGS + ring) % (t->bytes - 7));
}

static void fill(uint64_t *to, uint32_t ring, uint64_t pos, uint32_t len)
{
    for (uint32_t i = 0; i * 8 < len; i++)
        to[i] = mix((pos << 24) + (ring << 20) + i);
}

/* Index of the first wrong word; -1: right. */
static int wrong(const uint64_t *at, uint32_t ring, uint64_t pos, uint32_t len)
{
    for (uint32_t i = 0; i * 8 < len; i++) {
        const uint64_t want = mix((pos << 24) + (ring << 20) + i);
        const uint32_t n = len - i * 8 < 8 ? len - i * 8 : 8;
        if (n == 8 ? at[i] != want : memcmp(&at[i], &want, n) != 0)
            return (int)i;
    }
    return -1;
}

/* ---- the two threads ---- */

static bool stopped(struct cf *t)
{
    return __atomic_load_n(&t->stop, __ATOMIC_ACQUIRE);
}

void cf_fail(struct cf *t, const char *fmt, ...)
{
    va_list ap;
    if (__atomic_exchange_n(&t->failed, 1, __ATOMIC_ACQ_REL))
        return;
    va_start(ap, fmt);
    vsnprintf(t->text, sizeof(t->text), fmt, ap);
    va_end(ap);
    __atomic_store_n(&t->stop, 1, __ATOMIC_RELEASE);
}

/* Nothing to do: some yields, then a short sleep on the bell; too long without anything: a stall. */
struct patience {
    uint32_t empty;
    uint64_t since;
};
static void lose_patience(struct cf *t, struct patience *p, struct mk_bell *bell, uint32_t seq,
                          const char *who)
{
    if (++p->empty < 30) {
        sched_yield();
        return;
    }
    const uint64_t now = mk_time_ns();
    if (p->empty == 30)
        p->since = now;
    if (now - p->since > t->stall_ns) {
        cf_fail(t, "stall: the %s has waited for %.1f s", who, (double)t->stall_ns / 1e9);
        return;
    }
    if (t->store) { /* no bell from writer to reader: it would order what the flag alone must order */
        const struct timespec nap = {0, 20000};
        nanosleep(&nap, NULL);
    } else {
        mk_bell_wait(bell, seq, 500000);
    }
}

static bool send_one(struct cf *t, uint32_t i)
{
    struct cf_ring *r = &t->ring[i];
    const uint64_t pos = r->sent;
    const uint32_t len = length(t, i, pos);
    if (pos == r->quota || mk_poll_sys(&t->a.credits[i]) <= pos)
        return false;
    mk_consume();
    if (t->store) {
        uint64_t *to = (uint64_t *)(t->b_alias + r->dst_off + pos % r->slots * t->bytes);
        fill(to, i, pos, len);
        mk_publish_sys((uint64_t *)(t->b_alias + t->flags_off) + r->flag0 + pos % r->slots, pos + 1);
        r->sent++;
        return true;
    }
    const uint32_t src = (uint32_t)(pos % CF_SOURCES);
    if (pos >= CF_SOURCES && mk_poll_sys(&t->done[i * CF_SOURCES + src]) < pos + 1 - CF_SOURCES)
        return false; /* the NIC may still read the source */
    uint64_t at;
    if (!mk_ring_claim(mk_proxy_ring(t->a.proxy), &at))
        return false;
    const uint64_t off = r->src_off + src * t->bytes;
    if (t->gpu & CF_GPU_SOURCE) {
        uint64_t tmp[CF_BYTES_MAX / 8];
        fill(tmp, i, pos, len);
        if (t->cu->copy_to_device(t->a.gpu + off, tmp, len))
            cf_fail(t, "cuMemcpyHtoD");
    } else {
        fill((uint64_t *)((char *)t->a.mem.addr + off), i, pos, len);
    }
    struct mk_cmd c;
    mk_cmd_init(&c);
    mk_cmd_set_kind(&c, MK_CMD_WRITE);
    mk_cmd_set_comm(&c, t->a.id);
    mk_cmd_set_swin(&c, t->gpu & CF_GPU_SOURCE ? 1 : 0);
    mk_cmd_set_dwin(&c, t->gpu & CF_GPU_DESTINATION ? 1 : 0);
    mk_cmd_set_loff(&c, off);
    mk_cmd_set_roff(&c, r->dst_off + pos % r->slots * t->bytes);
    mk_cmd_set_len(&c, len);
    mk_cmd_set_note(&c, r->flag0 + pos % r->slots);
    mk_cmd_set_use4(&c, pos / r->slots + 1);
    mk_cmd_set_value(&c, pos + 1);
    mk_cmd_set_done(&c, i * CF_SOURCES + src);
    mk_ring_publish(mk_proxy_ring(t->a.proxy), at, &c);
    mk_proxy_kick(t->a.proxy);
    r->sent++;
    return true;
}

void cf_send_all(struct cf *t)
{
    struct patience p = {0, 0};
    uint64_t sent = 0;
    while (sent < t->chunks && !stopped(t)) {
        const uint32_t seq = mk_bell_seq(&t->a.bell);
        bool any = false;
        for (uint32_t i = 0; i < CF_RINGS; i++) {
            const bool did = send_one(t, i);
            any = any || did;
            sent += did;
        }
        if (any)
            p.empty = 0;
        else
            lose_patience(t, &p, &t->a.bell, seq, "sender");
    }
}

static bool give_credit(struct cf *t, uint32_t i, uint64_t value)
{
    uint64_t at;
    if (t->store) {
        mk_max_sys_u64(&t->a.credits[i], value);
        mk_bell_ring(&t->a.bell);
        return true;
    }
    if (!mk_ring_claim(mk_proxy_ring(t->b.proxy), &at))
        return false;
    struct mk_cmd c;
    mk_cmd_init(&c);
    mk_cmd_set_kind(&c, MK_CMD_CREDIT);
    mk_cmd_set_comm(&c, t->b.id);
    mk_cmd_set_note(&c, i);
    mk_cmd_set_use4(&c, value);
    mk_cmd_set_value(&c, value);
    mk_cmd_set_done(&c, MK_CMD_NO_DONE);
    mk_ring_publish(mk_proxy_ring(t->b.proxy), at, &c);
    mk_proxy_kick(t->b.proxy);
    return true;
}

/* The flag of the next chunk of ring i; true: seen and checked. */
static bool check_one(struct cf *t, uint32_t i)
{
    struct cf_ring *r = &t->ring[i];
    const uint64_t pos = r->got, slot = pos % r->slots;
    const uint64_t seen = mk_poll_sys(&t->b.flags[r->flag0 + slot]);
    if (seen != pos + 1) {
        if ((int64_t)(seen - (pos + 1)) > 0)
            cf_fail(t, "ring %u: the flag of slot %u is %llu, beyond %llu", i, (unsigned)slot,
                    (unsigned long long)seen, (unsigned long long)pos + 1);
        return false;
    }
    mk_consume();
    const uint32_t len = length(t, i, pos);
    const uint64_t *at = (const uint64_t *)((char *)t->b.mem.addr + r->dst_off + slot * t->bytes);
    uint64_t tmp[CF_BYTES_MAX / 8];
    if (t->gpu & CF_GPU_DESTINATION) {
        if (t->cu->copy_to_host(tmp, t->b.gpu + r->dst_off + slot * t->bytes, len))
            cf_fail(t, "cuMemcpyDtoH");
        at = tmp;
    }
    const int word = wrong(at, i, pos, len);
    if (word >= 0) {
        t->errors++;
        cf_fail(t, "payload: ring %u, position %llu, %u bytes: word %d is wrong when the flag is seen", i,
                (unsigned long long)pos, len, word);
    }
    r->got++;
    __atomic_store_n(&t->checked, t->checked + 1, __ATOMIC_RELAXED);
    return true;
}

static void *check_all(void *arg)
{
    struct cf *t = arg;
    if (t->gpu && !nic_cuda(0)) /* on this thread too */
        cf_fail(t, "no GPU for the checker");
    struct patience p = {0, 0};
    unsigned seed = 1;
    while (t->checked < t->chunks && !stopped(t)) {
        const uint32_t seq = mk_bell_seq(&t->b.bell);
        bool any = false;
        for (uint32_t i = 0; i < CF_RINGS; i++) {
            struct cf_ring *r = &t->ring[i];
            any = check_one(t, i) || any;
            /* in lumps of any size, but never so late that the sender runs dry */
            if (r->got - r->credited >= r->now && give_credit(t, i, r->got + r->slots)) {
                r->credited = r->got;
                r->now = 1 + (uint32_t)rand_r(&seed) % r->lump;
                any = true;
            }
        }
        if (any)
            p.empty = 0;
        else
            lose_patience(t, &p, &t->b.bell, seq, "checker");
    }
    return NULL;
}

/* ---- main ---- */

static void lay_out(struct cf *t)
{
    uint32_t flag = 0;
    size_t src = 0, dst = 0;
    for (uint32_t i = 0; i < CF_RINGS; i++) {
        struct cf_ring *r = &t->ring[i];
        r->slots = shapes[i].slots;
        r->lump = r->now = shapes[i].lump;
        r->quota = t->chunks / 8 * shapes[i].eighths;
        r->flag0 = flag;
        r->src_off = src;
        r->dst_off = dst;
        flag += r->slots;
        src += CF_SOURCES * t->bytes;
        dst += r->slots * t->bytes;
    }
    t->nflags = flag;
    t->flags_off = (src > dst ? src : dst) + 64;
    t->size = t->flags_off + 16ull * flag;
}

static bool take_arg(struct cf *t, const char *a)
{
    const char *eq = strchr(a, '=');
    char *end;
    if (!eq)
        return false;
    const size_t n = (size_t)(eq - a);
    const char *v = eq + 1;
    if (n == 3 && !strncmp(a, "net", n))
        return snprintf(t->set.net, sizeof(t->set.net), "%s", v) > 0;
    if (n == 8 && !strncmp(a, "provider", n)) {
        snprintf(t->set.ofi_provider, sizeof(t->set.ofi_provider), "%s", v);
        for (char *p = t->set.ofi_provider; *p; p++)
            *p = *p == '+' ? ';' : *p; /* a semicolon does not survive CMake's lists */
        return true;
    }
    if (n == 6 && !strncmp(a, "expect", n))
        return t->expect_caught = !strcmp(v, "caught");
    if (n == 3 && !strncmp(a, "gpu", n)) {
        t->gpu = !strcmp(v, "source")        ? CF_GPU_SOURCE
                 : !strcmp(v, "destination") ? CF_GPU_DESTINATION
                 : !strcmp(v, "both")        ? 3
                                             : 0;
        return t->gpu != 0;
    }
    if (n == 3 && !strncmp(a, "nic", n))
        return snprintf(t->nic_program, sizeof(t->nic_program), "%s", v) > 0;
    if (n == 6 && !strncmp(a, "nicopt", n))
        return snprintf(t->nic_options, sizeof(t->nic_options), "%s", v) > 0;
    const double x = strtod(v, &end);
    if (end == v || *end || x < 0)
        return false;
    if (n == 6 && !strncmp(a, "chunks", n))
        t->chunks = (uint64_t)x;
    else if (n == 5 && !strncmp(a, "bytes", n))
        t->bytes = ((uint32_t)x + 7) / 8 * 8;
    else if (n == 7 && !strncmp(a, "hostile", n))
        t->set.loop_hostile = (int64_t)x;
    else if (n == 7 && !strncmp(a, "ordered", n))
        t->set.ordered = x != 0;
    else if (n == 5 && !strncmp(a, "stall", n))
        t->stall_ns = (uint64_t)(x * 1e9);
    else
        return false;
    return t->bytes >= 16 && t->bytes <= CF_BYTES_MAX && t->chunks > 0;
}

static int verdict(const struct cf *t, double seconds)
{
    const uint64_t at = __atomic_load_n(&t->checked, __ATOMIC_RELAXED);
    printf("conformance: %s over %s: %llu of %llu chunks in %.1f s%s%s\n", t->adapter,
           t->store ? "shared memory" : t->where, (unsigned long long)at, (unsigned long long)t->chunks,
           seconds, t->failed ? ", caught: " : ", 0 payload errors", t->failed ? t->text : "");
    if (!t->store)
        cf_print_stats(t);
    if (t->expect_caught && !t->failed)
        printf("conformance: nothing was caught, but had to be\n");
    return t->expect_caught == (t->failed != 0) ? 0 : 1;
}

int main(int argc, char **argv)
{
    static struct cf t;
    pthread_t checker;
    if (mk_settings_load(&t.set, false))
        return 2;
    strcpy(t.set.net, "loop");
    t.chunks = 200000;
    t.bytes = 256;
    t.stall_ns = 20000000000ull;
    t.adapter = argc > 1 ? argv[1] : "?";
    t.store = !strcmp(t.adapter, "store");
    for (int i = 2; i < argc; i++)
        if (!take_arg(&t, argv[i])) {
            fprintf(stderr, "conformance: %s is not understood\n", argv[i]);
            return 2;
        }
    if (t.expect_caught && t.chunks > 10000)
        t.chunks = 10000;
    t.chunks = (t.chunks + 7) / 8 * 8;
    lay_out(&t);
    int ret = cf_open_gpu(&t);
    if (ret)
        return ret;
    ret = cf_open(&t);
    if (ret) {
        cf_close(&t);
        if (ret != MK_ERR_UNSUPPORTED) {
            fprintf(stderr, "conformance: set-up failed: %s\n", mk_last_error());
            return 1;
        }
        printf("skip: net.conformance: %s\n", mk_last_error());
        return 77;
    }
    const uint64_t begin = mk_time_ns();
    if (pthread_create(&checker, NULL, check_all, &t)) {
        cf_close(&t);
        return 1;
    }
    cf_send_all(&t);
    pthread_join(checker, NULL);
    ret = verdict(&t, (double)(mk_time_ns() - begin) / 1e9);
    const uint64_t errors = t.errors;
    cf_close(&t);
    return t.errors != errors ? 1 : ret;
}
