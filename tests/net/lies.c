/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Lies over a connection (lies.h), over the transport of argument 2. What the victim must do: an error with a text, in
 * time; nothing written outside of what it posted; and the device goes on. */
#include "mk/err.h"
#include "net/engine.h"
#include "net/p2p.h"
#include "tests/net/lies.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

const char *lies_plugin, *lies_transport;

/* ---- the liar's hands ---- */

static int put(struct mk_p2p_comm *c, uint64_t from, uint32_t len, struct mk_rmem *rmem, uint64_t to,
               uint32_t note)
{
    const struct mk_put put = {.mr = c->ctrl_mr,
                               .local_off = from,
                               .len = len,
                               .rmem = rmem,
                               .remote_off = to,
                               .note = note,
                               .use4 = 1,
                               .value = 1,
                               .id = MK_P2P_ID_CONTROL};
    pthread_mutex_lock(&c->p->lock);
    const int ret = mk_p2p_put(c, &put, 1);
    pthread_mutex_unlock(&c->p->lock);
    return ret;
}

static void *at(struct mk_p2p_comm *c, uint64_t offset)
{
    return (uint8_t *)c->ctrl.addr + offset;
}

int lies_honest(struct half *h, struct victim *v)
{
    struct mk_p2p_req *r, *s;
    int got = 0;
    if (h->who) {
        half_part(h);
        CHECK_OK(half_join(h));
        memset(h->mem, 0x66, 1000);
        CHECK_OK(post_send(h->tx, h->mem, 1000, 3, h->tx_mr, &s));
        CHECK_OK(finish(s, NULL));
        CHECK_OK(post_recv(h->rx, half_in(h), VICTIM_SEND, 4, h->rx_mr, &r));
        CHECK_OK(finish(r, NULL));
        return half_serve(h);
    }
    struct victim fresh = *v;
    fresh.send = fresh.recv = fresh.listen = fresh.send_mr = fresh.recv_mr = NULL;
    CHECK_OK(victim_join(h, &fresh));
    CHECK(!victim_receives(&fresh, 5000, 1000, 3, &got) && got == 1000);
    for (int i = 0; i < 1000; i++)
        CHECK(v->all[VICTIM_CANARY + 5000 + i] == 0x66);
    CHECK(!victim_sends(&fresh, VICTIM_SEND, 4));
    CHECK(!caller_dereg(&v->c, fresh.send, fresh.send_mr) && !caller_dereg(&v->c, fresh.recv, fresh.recv_mr));
    CHECK(!caller_close_send(&v->c, fresh.send) && !caller_close_recv(&v->c, fresh.recv));
    return half_step(h);
}

/* ---- announcing what is not so ---- */

struct announced {
    const char *what;
    uint32_t count, mr, bytes; /* of the entry that are written */
    uint64_t offset, size;
    int key; /* -1: the true one; 0..7: this word of it is all ones; 8: zeros; 9: two entries of one number, two keys */
    int result; /* NCCL's code; 0: an error or none */
    const char *text;
};
#define LINE 128u
static const struct announced announced[] = {
    {"no receives", 0, 0, LINE, 0, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR, "announced 0 receives"},
    {"too many receives", 65, 0, LINE, 0, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR, "announced 65 receives"},
    {"all receives", UINT32_MAX, 0, LINE, 0, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR, "receives at once"},
    {"a number of memory", 1, UINT32_MAX, LINE, 0, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR, "memory number"},
    {"a place behind", 1, 0, LINE, HALF_BYTES, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR, "leave its memory"},
    {"a place near the end", 1, 0, LINE, HALF_BYTES / 2 - 10, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR,
     "leave its memory"},
    {"a place that wraps", 1, 0, LINE, UINT64_MAX - 10, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR,
     "leave its memory"},
    {"a negative size", 1, 0, LINE, 0, UINT64_MAX, -1, MK_NCCL_REMOTE_ERROR, "leave its memory"},
    {"a size that wraps", 1, 0, LINE, 16, UINT64_MAX - 8, -1, MK_NCCL_REMOTE_ERROR, "leave its memory"},
    {"too little", 1, 0, LINE, 0, VICTIM_SEND - 1, -1, MK_NCCL_INVALID_USAGE, "larger than the"},
    {"a part of an entry", 1, 0, 16, 0, VICTIM_SEND, -1, MK_NCCL_REMOTE_ERROR, "memory that"},
    {"an empty key", 1, 0, LINE, 0, VICTIM_SEND, 8, MK_NCCL_REMOTE_ERROR, "memory that"},
    {"one number twice", 2, 0, 2 * LINE, 0, VICTIM_SEND, 9, MK_NCCL_REMOTE_ERROR, "which is in use"},
    {"key, word 0", 1, 0, LINE, 0, VICTIM_SEND, 0, MK_NCCL_REMOTE_ERROR, "memory that"},
    {"key, word 1", 1, 0, LINE, 0, VICTIM_SEND, 1, 0, ""},
    {"key, word 2", 1, 0, LINE, 0, VICTIM_SEND, 2, 0, ""},
    {"key, word 3", 1, 0, LINE, 0, VICTIM_SEND, 3, 0, ""},
    {"key, word 4", 1, 0, LINE, 0, VICTIM_SEND, 4, 0, ""},
    {"key, word 5", 1, 0, LINE, 0, VICTIM_SEND, 5, 0, ""},
};

static const struct announced *told;

/* Memory with a key, where only shared memory has one; it goes with the process. */
static int share(struct half *h, uint8_t **memory, struct mk_net_key *key)
{
    struct mk_shm shm;
    struct mk_mr *mr;
    pthread_mutex_lock(&h->p->lock);
    int ret = mk_shm_create("a liar's", HALF_BYTES / 2, &shm);
    if (!ret)
        ret = mk_engine_reg(h->p->e, shm.addr, shm.size, &shm, &mr);
    if (!ret)
        mk_mr_key(mr, key);
    pthread_mutex_unlock(&h->p->lock);
    CHECK_OK(ret);
    *memory = shm.addr;
    return 0;
}

static int announce(struct half *h)
{
    struct victim v;
    if (h->who) {
        CHECK_OK(half_join(h));
        struct mk_p2p_comm *c = h->rx;
        struct mk_p2p_mail *m = at(c, MK_P2P_RECV_MAIL_AT);
        memset(m, 0, sizeof(*m));
        m->count = told->count;
        m->mr = told->mr;
        m->offset = told->offset;
        m->size = told->size;
        uint8_t *memory = half_in(h);
        m->key = h->rx_mr->key;
        if (c->p->info.caps->shm_only)
            CHECK_OK(share(h, &memory, &m->key));
        if (told->key == 8)
            memset(&m->key, 0, sizeof(m->key));
        else if (told->key >= 0 && told->key < 8)
            memset((uint8_t *)&m->key + 8 * told->key, 0xff, 8);
        if (told->key == 9) { /* the first for a message that does not come, so that its place stays in use */
            m[1] = m[0];
            m[0].tag = 77;
            m[1].key = h->tx_mr->key;
            if (c->p->info.caps->shm_only)
                CHECK_OK(share(h, &memory, &m[1].key));
        }
        CHECK_OK(put(c, MK_P2P_RECV_MAIL_AT, told->bytes, c->peer, MK_P2P_SEND_MAIL_AT, 0));
        CHECK_OK(half_serve(h));
        for (size_t i = 0; told->result == MK_NCCL_INVALID_USAGE && i < VICTIM_SEND; i++)
            CHECK(memory[i] == 0);
        return lies_honest(h, NULL);
    }
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(victim_join(h, &v));
    victim_forget();
    const int ret = victim_sends(&v, VICTIM_SEND, 0);
    CHECK(ret != -1); /* hangs */
    if (ret != told->result && (told->result || !ret))
        fprintf(stderr, "the send: %d, %s\n", ret, victim_warnings());
    CHECK(!told->result || ret == told->result);
    CHECK(!ret || strstr(victim_warnings(), told->text[0] ? told->text : "m"));
    CHECK_OK(half_step(h));
    CHECK_OK(lies_honest(h, &v));
    CHECK_OK(victim_whole(&v, 5000, 1000));
    return victim_close(&v);
}

static void test_announced(void **state)
{
    (void)state;
    const size_t n = sizeof(announced) / sizeof(announced[0]);
    for (size_t i = 0; i < n; i++) {
        told = &announced[i];
        if (run_pair(lies_transport, announce, 1)) {
            print_error("the lie: %s\n", told->what);
            fail();
        }
    }
}

/* ---- sending what is not so ---- */

struct sent {
    const char *what;
    bool at_once; /* with a head in front; else it says the size after the write */
    uint64_t size;
    uint32_t mail;
    int result;
    const char *text;
};
static const struct sent sent[] = {
    {"at once, too much", true, (64u << 10) + 8193, 0, MK_NCCL_REMOTE_ERROR, "at once"},
    {"at once, negative", true, UINT32_MAX, 0, MK_NCCL_REMOTE_ERROR, "at once"},
    {"at once, more than posted", true, 8000, 0, MK_NCCL_INVALID_USAGE, "larger than the 100 bytes"},
    {"at once, for a slot that is none", true, 100, UINT32_MAX, 0, ""},
    {"more than posted", false, 300001, 0, MK_NCCL_REMOTE_ERROR, "says that it wrote"},
    {"a huge size", false, 1ull << 62, 0, MK_NCCL_REMOTE_ERROR, "says that it wrote"},
    {"a negative size", false, UINT64_MAX, 0, MK_NCCL_INVALID_USAGE, "larger than the"},
};
static const struct sent *said;

static int lie_sent(struct half *h)
{
    struct mk_p2p_comm *c = h->tx;
    if (said->at_once) {
        struct mk_p2p_eager *e = at(c, MK_P2P_SEND_EAGER_AT);
        memset(e, 0x77, 20000);
        e->size = (uint32_t)said->size;
        e->tag = 0;
        e->number = 0;
        e->mail = said->mail;
        return put(c, MK_P2P_SEND_EAGER_AT, 20000, c->peer, MK_P2P_RECV_EAGER_AT, 0);
    }
    memcpy(at(c, MK_P2P_SEND_SIZE_AT), &said->size, 8);
    CHECK_OK(put(c, MK_P2P_SEND_SIZE_AT, 8, c->peer, MK_P2P_RECV_SIZE_AT, MK_P2P_RECV_SIZE));
    return put(c, 0, 0, NULL, 0, MK_P2P_RECV_PART);
}

static int send_lie(struct half *h)
{
    const size_t place = 200000, size = said->at_once ? 100 : 300000;
    struct victim v;
    if (h->who) {
        CHECK_OK(half_join(h));
        CHECK_OK(lie_sent(h));
        CHECK_OK(half_serve(h));
        return lies_honest(h, NULL);
    }
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(victim_join(h, &v));
    victim_forget();
    const int ret = victim_receives(&v, place, size, 0, NULL);
    if (ret != said->result)
        fprintf(stderr, "the receive: %d, %s\n", ret, victim_warnings());
    CHECK(ret == said->result && strstr(victim_warnings(), said->text));
    CHECK_OK(victim_whole(&v, place, ret ? 0 : size));
    CHECK_OK(half_step(h));
    CHECK_OK(lies_honest(h, &v));
    return victim_close(&v);
}

static void test_sent(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]); i++) {
        said = &sent[i];
        if (run_pair(lies_transport, send_lie, 1)) {
            print_error("the lie: %s\n", said->what);
            fail();
        }
    }
}

/* ---- writes and notes that nobody asked for ---- */

/* The victim announced a receive; the liar writes over the end of the memory of its key. (Over loop there is no such
 * place: what it can reach is a copy.) */
static int beyond_key(struct half *h)
{
    struct victim v;
    if (!strcmp(lies_transport, "loop"))
        return 0;
    if (h->who) {
        CHECK_OK(half_join(h));
        struct mk_p2p_comm *c = h->tx;
        const uint64_t end = mk_time_ns() + 10000000000ull;
        struct mk_p2p_req *s;
        CHECK_OK(post_send(c, h->mem, 10, 9, h->tx_mr, &s)); /* so that the mailbox is read */
        while (!c->tx->offer[0].open && mk_time_ns() < end) {
            bool done;
            (void)mk_p2p_test(s, &done, NULL);
            if (done)
                CHECK_OK(post_send(c, h->mem, 10, 9, h->tx_mr, &s));
        }
        struct mk_rmem *far = c->tx->offer[0].mem;
        CHECK(c->tx->offer[0].open && far->len == VICTIM_MEMORY);
        far->len = 1ull << 40; /* its own check is put aside */
        CHECK_OK(put(c, MK_P2P_SEND_EAGER_AT, 4096, far, VICTIM_MEMORY - 10, MK_P2P_RECV_FULL));
        CHECK_OK(half_serve(h));
        return lies_honest(h, NULL);
    }
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(victim_join(h, &v));
    const size_t n = VICTIM_SEND;
    void *request = NULL, *data[1] = {v.all + VICTIM_CANARY}, *mr[1] = {v.recv_mr};
    int tag = 0, done = 0, ret = 0, size[MK_P2P_RECVS];
    while (!ret && !request)
        ret = caller_irecv(&v.c, v.recv, 1, data, &n, &tag, mr, &request);
    CHECK(!ret);
    const uint64_t end = mk_time_ns() + 3000000000ull; /* an error is right, and so is to wait on */
    while (!ret && !done && mk_time_ns() < end)
        ret = caller_test(&v.c, request, &done, size);
    CHECK(!done && (!ret || ret == MK_NCCL_REMOTE_ERROR || ret == MK_NCCL_SYSTEM_ERROR));
    CHECK_OK(victim_whole(&v, 0, 0));
    CHECK_OK(half_step(h));
    CHECK_OK(lies_honest(h, &v));
    return victim_close(&v);
}

/* Notifications that belong to nobody, and of the comm's own that nothing was announced for. */
static int stray_notes(struct half *h)
{
    struct victim v;
    struct mk_p2p_req *s;
    int got = 0;
    if (h->who) {
        CHECK_OK(half_join(h));
        struct mk_p2p_comm *c = h->tx;
        const uint32_t n = c->l->notes.n;
        for (uint32_t i = 0; i < 20; i++) {
            if (!c->p->info.caps->shm_only) {
                c->l->notes.n = 1u << 27; /* its own check is put aside */
                CHECK_OK(put(c, 0, 0, NULL, 0, n * (2 + i * 1000)));
                c->l->notes.n = n;
            }
            CHECK_OK(put(c, 0, 0, NULL, 0, MK_P2P_RECV_PART + 20 + i));
            CHECK_OK(put(c, 0, 0, NULL, 0, MK_P2P_RECV_STOPPED));
        }
        memset(h->mem, 0x55, 5000);
        CHECK_OK(post_send(c, h->mem, 5000, 0, h->tx_mr, &s));
        CHECK_OK(finish(s, NULL));
        CHECK_OK(half_serve(h));
        return lies_honest(h, NULL);
    }
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(victim_join(h, &v));
    CHECK(!victim_receives(&v, 100000, 5000, 0, &got) && got == 5000);
    CHECK_OK(victim_whole(&v, 100000, 5000));
    CHECK_OK(half_step(h));
    CHECK_OK(lies_honest(h, &v));
    return victim_close(&v);
}

/* It wants its memory back without having any, says that it has closed, and goes on. */
static int false_goodbye(struct half *h)
{
    struct victim v;
    if (h->who) {
        CHECK_OK(half_join(h));
        struct mk_put close = {.note = MK_P2P_RECV_LIFE,
                               .use4 = MK_P2P_LIFE_CLOSED,
                               .value = MK_P2P_LIFE_CLOSED,
                               .id = MK_P2P_ID_CONTROL};
        CHECK_OK(put(h->rx, 0, 0, NULL, 0, MK_P2P_SEND_STOP));
        pthread_mutex_lock(&h->p->lock);
        const int ret = mk_p2p_put(h->tx, &close, 1);
        pthread_mutex_unlock(&h->p->lock);
        CHECK_OK(ret);
        CHECK_OK(half_serve(h));
        return lies_honest(h, NULL);
    }
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(victim_join(h, &v));
    victim_forget();
    CHECK(victim_sends(&v, VICTIM_SEND, 0) == MK_NCCL_REMOTE_ERROR);
    CHECK(strstr(victim_warnings(), "takes its memory back"));
    CHECK(victim_receives(&v, 0, 300000, 0, NULL) == MK_NCCL_REMOTE_ERROR);
    CHECK(strstr(victim_warnings(), "has closed the connection"));
    CHECK_OK(half_step(h));
    CHECK_OK(lies_honest(h, &v));
    return victim_close(&v);
}

#define CASE(fn)                                                                                             \
    static void test_##fn(void **state)                                                                      \
    {                                                                                                        \
        (void)state;                                                                                         \
        assert_int_equal(run_pair(lies_transport, fn, 1), 0);                                                \
    }
CASE(beyond_key)
CASE(stray_notes)
CASE(false_goodbye)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_announced),     cmocka_unit_test(test_sent),
        cmocka_unit_test(test_beyond_key),    cmocka_unit_test(test_stray_notes),
        cmocka_unit_test(test_false_goodbye), cmocka_unit_test(lies_handles),
        cmocka_unit_test(lies_hello),         cmocka_unit_test(lies_reply)};
    if (argc < 3)
        return 2;
    lies_plugin = argv[1];
    lies_transport = argv[2];
    const int missing = transport_missing(lies_transport, "net.lies");
    if (missing)
        return missing;
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
