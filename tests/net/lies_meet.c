/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Lies while meeting (lies.h): the liar is an honest message layer, and a go-between changes what it says. */
#include "mk/err.h"
#include "net/p2p.h"
#include "tests/net/lies.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

struct tamper {
    const char *what;
    size_t at, n;
    int value;
    bool cut, refused; /* refused: must be; else it may do no harm */
    const char *text;  /* of the victim's warning, if refused */
};
#define SET(s, field, v, must, text)                                                                         \
#field, offsetof(struct s, field), sizeof(((struct s *)0)->field), v, false, must, text
#define CUT(s, field, text) "cut at " #field, offsetof(struct s, field), 1, 0, true, true, text

static const struct tamper hellos[] = {
    {SET(mk_p2p_hello, magic, 'G', true, "does not speak this plugin's protocol")},
    {SET(mk_p2p_hello, version, 9, true, "another version")},
    {SET(mk_p2p_hello, size, 0, true, "another version")},
    {SET(mk_p2p_hello, key, 1, true, "does not know this listener's key")},
    {SET(mk_p2p_hello, plugin, 'x', true, "another plugin")},
    {SET(mk_p2p_hello, transport, 'x', true, "it uses xxx")},
    {SET(mk_p2p_hello, provider, 0, true, "it uses")},
    {SET(mk_p2p_hello, adapter, 'x', true, "it uses")},
    {SET(mk_p2p_hello, token, 7, false, "")},
    {SET(mk_p2p_hello, witness, 7, false, "")},
    {SET(mk_p2p_hello, side.addr, 0xff, true, "refused")},
    {SET(mk_p2p_hello, side.addr, 0, true, "refused")},
    {SET(mk_p2p_hello, side.key, 0xff, true, "refused")},
    {SET(mk_p2p_hello, side.key, 0, true, "refused")},
    {SET(mk_p2p_hello, side.base, 0xff, true, "refused")},
    {SET(mk_p2p_hello, side.most, 0, true, "at once")},
    {SET(mk_p2p_hello, side.name, 'A', false, "")},
    {CUT(mk_p2p_hello, version, "it broke off")},
    {CUT(mk_p2p_hello, side.key, "it broke off")},
};
static const struct tamper replies[] = {
    {SET(mk_p2p_reply, magic, 'G', true, "answers in another way")},
    {SET(mk_p2p_reply, version, 9, true, "answers in another way")},
    {SET(mk_p2p_reply, size, 0, true, "answers in another way")},
    {SET(mk_p2p_reply, code, 0x44, true, "refuses the connection")},
    {SET(mk_p2p_reply, code, 0xfe, true, "refuses the connection")},
    {SET(mk_p2p_reply, text, 'A', false, "")},
    {SET(mk_p2p_reply, side.addr, 0xff, true, "connecting to")},
    {SET(mk_p2p_reply, side.addr, 0, true, "connecting to")},
    {SET(mk_p2p_reply, side.key, 0xff, true, "")},
    {SET(mk_p2p_reply, side.key, 0, true, "")},
    {SET(mk_p2p_reply, side.base, 0xff, true, "notes of")},
    {SET(mk_p2p_reply, side.most, 0, true, "at once")},
    {SET(mk_p2p_reply, side.name, 'A', false, "")},
    {CUT(mk_p2p_reply, code, "instead of answering")},
    {CUT(mk_p2p_reply, side.key, "instead of answering")},
};
static const struct tamper *now;

static bool told(struct half *h)
{
    char c;
    return recv(h->fd, &c, 1, MSG_DONTWAIT) == 1;
}

/* ---- the victim accepts ---- */

static int hello_liar(struct half *h)
{
    struct between b = {.to = true, .cut = now->cut, .at = now->at, .n = now->n, .value = now->value};
    uint8_t theirs[MK_P2P_HANDLE] = {0}, mine[MK_P2P_HANDLE] = {0};
    struct mk_p2p_comm *c = NULL;
    h->s.timeout = 3;
    CHECK_OK(half_open(h));
    CHECK_OK(half_swap(h, mine, theirs, sizeof(mine)));
    CHECK_OK(between_start(&b, theirs));
    const uint64_t end = mk_time_ns() + 12000000000ull;
    int ret = MK_ERR_AGAIN;
    while (ret == MK_ERR_AGAIN && mk_time_ns() < end)
        ret = mk_p2p_connect(h->p, theirs, &c);
    CHECK(ret != MK_ERR_AGAIN && (ret || !now->refused));
    CHECK(send(h->fd, "x", 1, MSG_NOSIGNAL) == 1);
    CHECK_OK(half_step(h));
    mk_p2p_comm_close(c);
    between_stop(&b);
    return lies_honest(h, NULL);
}

static int hello_case(struct half *h)
{
    struct victim v;
    uint8_t mine[MK_P2P_HANDLE], theirs[MK_P2P_HANDLE];
    if (h->who)
        return hello_liar(h);
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(victim_listen(&v, mine));
    CHECK_OK(half_swap(h, mine, theirs, sizeof(mine)));
    victim_forget();
    const uint64_t end = mk_time_ns() + 15000000000ull;
    bool heard = false;
    while (!heard && mk_time_ns() < end) {
        heard = told(h);
        CHECK(!caller_accept(&v.c, v.listen, &v.recv)); /* a stranger is not the listener's fault */
        if (v.recv)
            break;
    }
    CHECK(now->refused ? heard && !v.recv : heard || v.recv);
    for (int i = 0; i < 100000 && now->refused && !victim_warnings()[0];
         i++) /* a cut is seen a little later */
        CHECK(!caller_accept(&v.c, v.listen, &v.recv));
    if (now->refused && !strstr(victim_warnings(), now->text))
        fprintf(stderr, "the warnings: %s\n", victim_warnings());
    CHECK(!now->refused || strstr(victim_warnings(), now->text));
    while (!heard && mk_time_ns() < end)
        heard = told(h);
    CHECK(heard);
    CHECK_OK(half_step(h));
    CHECK(!caller_close_listen(&v.c, v.listen));
    v.listen = NULL;
    CHECK_OK(lies_honest(h, &v));
    return victim_close(&v);
}

/* ---- the victim connects ---- */

static int reply_liar(struct half *h)
{
    struct between b = {.to = false, .cut = now->cut, .at = now->at, .n = now->n, .value = now->value};
    uint8_t theirs[MK_P2P_HANDLE], mine[MK_P2P_HANDLE];
    struct mk_p2p_listener *l;
    struct mk_p2p_comm *c = NULL;
    h->s.timeout = 3;
    CHECK_OK(half_open(h));
    CHECK_OK(mk_p2p_listen(h->p, mine, &l));
    CHECK_OK(between_start(&b, mine));
    CHECK_OK(half_swap(h, mine, theirs, sizeof(mine)));
    const uint64_t end = mk_time_ns() + 25000000000ull;
    while (!told(h)) {
        if (!c)
            (void)mk_p2p_accept(l, &c);
        CHECK(mk_time_ns() < end);
    }
    CHECK_OK(half_step(h));
    mk_p2p_comm_close(c);
    mk_p2p_listen_close(l);
    between_stop(&b);
    return lies_honest(h, NULL);
}

static int reply_case(struct half *h)
{
    struct victim v;
    uint8_t mine[MK_P2P_HANDLE] = {0}, theirs[MK_P2P_HANDLE];
    if (h->who)
        return reply_liar(h);
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(half_swap(h, mine, theirs, sizeof(mine)));
    victim_forget();
    const int ret = victim_connect(&v, theirs);
    if (now->refused && (!ret || !victim_warnings()[0] || !strstr(victim_warnings(), now->text)))
        fprintf(stderr, "connect: %d, %s\n", ret, victim_warnings());
    CHECK(ret != -1 && (ret ? !v.send : !now->refused));
    CHECK(!ret || (victim_warnings()[0] && strstr(victim_warnings(), now->text)));
    CHECK(send(h->fd, "x", 1, MSG_NOSIGNAL) == 1);
    CHECK_OK(half_step(h));
    CHECK_OK(lies_honest(h, &v));
    return victim_close(&v);
}

static void all(const struct tamper *list, size_t n, int (*run)(struct half *))
{
    for (size_t i = 0; i < n; i++) {
        now = &list[i];
        if (run_pair(lies_transport, run, 1)) {
            print_error("the lie: %s, %#x\n", now->what, (unsigned)now->value);
            fail();
        }
    }
}

void lies_hello(void **state)
{
    (void)state;
    all(hellos, sizeof(hellos) / sizeof(hellos[0]), hello_case);
}

void lies_reply(void **state)
{
    (void)state;
    all(replies, sizeof(replies) / sizeof(replies[0]), reply_case);
}

/* ---- handles ---- */

/* Every byte of a handle that means something, changed: refused, with a text, in the call. */
static int handle_case(struct half *h)
{
    struct victim v;
    uint8_t good[MK_P2P_HANDLE], bad[MK_P2P_HANDLE];
    if (h->who)
        return 0;
    CHECK_OK(victim_open(h, &v));
    CHECK_OK(victim_listen(&v, good));
    for (size_t i = 0; i < offsetof(struct mk_p2p_handle, zero); i++) {
        memcpy(bad, good, sizeof(bad));
        bad[i] ^= 0x10;
        victim_forget();
        CHECK(!v.send && caller_connect(&v.c, 0, bad, &v.send) == MK_NCCL_INVALID_USAGE && !v.send);
        CHECK(strstr(victim_warnings(), "handle"));
    }
    return victim_close(&v);
}

void lies_handles(void **state)
{
    (void)state;
    assert_int_equal(run_pair(lies_transport, handle_case, 1), 0);
}
