/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Bootstrap without a network: the bytes, the choice of an interface, MK_ROOT, and the root's core fed by hand. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "net/boot_core.h"
#include "net/boot_sock.h"
#include "net/ifname.h"
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void hello_bytes(void **state)
{
    struct mk_boot_hello h, back;
    uint8_t buf[sizeof(h)];
    (void)state;
    memset(&h, 0, sizeof(h));
    h.version = MK_BOOT_VERSION;
    h.key = 0x1122334455667788ull;
    h.token = 9;
    h.nranks = 0x01020304;
    h.rank = 5;
    h.wait_ms = 30000;
    mk_boot_put_hello(&h, buf);
    assert_memory_equal(buf, "\x89mKhel\r\n\x02\0\0\0\x30\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11", 24);
    assert_memory_equal(buf + 32, "\x04\x03\x02\x01\x05\0\0\0", 8);
    for (size_t n = 0; n < sizeof(buf); n++)
        assert_int_equal(mk_boot_parse_hello(buf, n, &back), MK_BOOT_MORE);
    assert_int_equal(mk_boot_parse_hello(buf, sizeof(buf), &back), MK_BOOT_PARSED);
    assert_true(back.key == h.key && back.nranks == h.nranks && back.rank == 5 && back.wait_ms == 30000);
    for (size_t i = 0; i < 8; i++) { /* the first wrong byte of the magic is enough */
        buf[i] ^= 0x40;
        assert_int_equal(mk_boot_parse_hello(buf, i, &back), MK_BOOT_MORE);
        assert_int_equal(mk_boot_parse_hello(buf, i + 1, &back), MK_BOOT_ALIEN);
        buf[i] ^= 0x40;
    }
    buf[8] = 3;
    assert_int_equal(mk_boot_parse_hello(buf, 16, &back), MK_BOOT_OTHER);
    assert_int_equal(back.version, 3);
}

static enum mk_boot_parse frame(uint32_t type, uint32_t length, uint64_t seq, int to_root)
{
    const struct mk_boot_frame f = {.type = type, .length = length, .seq = seq};
    struct mk_boot_frame back;
    uint8_t buf[sizeof(f)];
    mk_boot_put_frame(&f, buf);
    assert_int_equal(mk_boot_parse_frame(buf, sizeof(buf) - 1, to_root, 4, &back), MK_BOOT_MORE);
    return mk_boot_parse_frame(buf, sizeof(buf), to_root, 4, &back);
}

static void frame_limits(void **state)
{
    (void)state;
    assert_int_equal(frame(MK_BOOT_GATHER, 1 << 20, 1, 1), MK_BOOT_PARSED);
    assert_int_equal(frame(MK_BOOT_GATHER, (1 << 20) + 1, 1, 1), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_GATHER, 0, 1, 0), MK_BOOT_ALIEN); /* never from the root */
    assert_int_equal(frame(MK_BOOT_GATHERED, 4 << 20, 1, 0), MK_BOOT_PARSED);
    assert_int_equal(frame(MK_BOOT_GATHERED, (4 << 20) + 4, 1, 0), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_GATHERED, 5, 1, 0), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_LEFT, 0, 3, 0), MK_BOOT_PARSED);
    assert_int_equal(frame(MK_BOOT_LEFT, 0, 4, 0), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_BYE, 1, 0, 1), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_EVENT, 7, 0, 0), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_EVENT, 8, 0, 0), MK_BOOT_PARSED);
    assert_int_equal(frame(MK_BOOT_SAY, MK_BOOT_MAX_SAY, 4, 1), MK_BOOT_PARSED);
    assert_int_equal(frame(MK_BOOT_SAY, MK_BOOT_MAX_SAY + 1, 4, 1), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_SAY, 0, 5, 1), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_SAY, 0, 0, 0), MK_BOOT_ALIEN); /* from the root it is SAID */
    assert_int_equal(frame(MK_BOOT_SAID, MK_BOOT_MAX_SAY, 3, 0), MK_BOOT_PARSED);
    assert_int_equal(frame(MK_BOOT_SAID, MK_BOOT_MAX_SAY + 1, 3, 0), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_SAID, 0, 4, 0), MK_BOOT_ALIEN);
    assert_int_equal(frame(MK_BOOT_SAID, 0, 3, 1), MK_BOOT_ALIEN);
    assert_int_equal(frame(99, 0, 0, 0), MK_BOOT_ALIEN);
}

static void verdicts(void **state)
{
    struct mk_boot_verdict v;
    uint8_t buf[MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT];
    char text[1000];
    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    assert_int_equal(mk_boot_put_verdict(-7, 3, text, buf), sizeof(buf));
    assert_int_equal(mk_boot_parse_verdict(buf, sizeof(buf), &v), MK_BOOT_PARSED);
    assert_int_equal(strlen(v.text), MK_BOOT_MAX_TEXT);
    const size_t n = mk_boot_put_verdict(-7, 3, "tab\tand \033[31m", buf);
    assert_int_equal(mk_boot_parse_verdict(buf, n, &v), MK_BOOT_PARSED);
    assert_string_equal(v.text, "tab?and ?[31m"); /* nothing that steers a terminal */
    assert_int_equal(v.code, -7);
    assert_int_equal(v.rank, 3);
    assert_int_equal(mk_boot_parse_verdict(buf, 7, &v), MK_BOOT_ALIEN);
    mk_boot_put_verdict(0, 3, "", buf);
    assert_int_equal(mk_boot_parse_verdict(buf, 8, &v), MK_BOOT_ALIEN); /* success is no verdict */
}

static void ids(void **state)
{
    struct mk_boot_id in, out;
    mk_unique_id_t id;
    struct sockaddr_storage a;
    socklen_t len;
    char name[MK_BOOT_NAME];
    (void)state;
    memset(&in, 0, sizeof(in));
    in.family = 6;
    in.port = 4711;
    in.addr[15] = 1;
    in.key = 0xabcdef;
    mk_boot_put_id(&in, &id);
    assert_int_equal(mk_boot_parse_id(&id, &out), MK_BOOT_PARSED);
    assert_true(out.key == in.key && out.port == 4711);
    assert_int_equal(mk_boot_id_addr(&out, &a, &len), 0);
    mk_boot_addr_name((struct sockaddr *)&a, len, name);
    assert_string_equal(name, "[::1]:4711");
    for (int i = 0; i < 56; i++) { /* every byte counts */
        id.internal[i] ^= 1;
        assert_int_not_equal(mk_boot_parse_id(&id, &out), MK_BOOT_PARSED);
        id.internal[i] ^= 1;
    }
}

static void interface_names(void **state)
{
    (void)state;
    assert_true(mk_ifname_match(NULL, "eth0"));
    assert_true(mk_ifname_match("", "eth0"));
    assert_true(mk_ifname_match("eth", "eth0"));
    assert_false(mk_ifname_match("eth1", "eth0"));
    assert_true(mk_ifname_match("ib,eth", "eth0"));
    assert_false(mk_ifname_match("=eth", "eth0"));
    assert_true(mk_ifname_match("=eth1,eth0", "eth0"));
    assert_false(mk_ifname_match("=eth00", "eth0"));
    assert_false(mk_ifname_match("^eth", "eth0"));
    assert_true(mk_ifname_match("^docker,lo", "eth0"));
    assert_false(mk_ifname_match("^docker,lo", "docker0"));
    assert_true(mk_ifname_match("^=eth", "eth0"));
    assert_false(mk_ifname_match("^=eth0", "eth0"));
    assert_false(mk_ifname_match(",", "eth0"));
}

static void rdma_names(void **state)
{
    (void)state;
    assert_true(mk_hca_match(NULL, "mlx5_0", 1));
    assert_true(mk_hca_match("mlx5", "mlx5_10", 2));
    assert_false(mk_hca_match("=mlx5_1", "mlx5_10", 1));
    assert_true(mk_hca_match("=mlx5_0:2,mlx5_1:1", "mlx5_1", 1));
    assert_false(mk_hca_match("=mlx5_0:2,mlx5_1:1", "mlx5_0", 1));
    assert_true(mk_hca_match("=mlx5_0:2,mlx5_1:1", "mlx5_0", 0));
    assert_false(mk_hca_match("=mlx5_0:2", "mlx5_3", 0));
    assert_false(mk_hca_match("^mlx5_3", "mlx5_3", 1));
    assert_true(mk_hca_match("^=mlx5_3", "mlx5_30", 1));
    assert_false(mk_hca_match("^mlx5_3:2", "mlx5_3", 2));
    assert_true(mk_hca_match("^mlx5_3:2", "mlx5_3", 1));
    assert_true(mk_hca_match("^mlx5_3:2", "mlx5_3", 0));
    assert_false(mk_hca_match(":1", "mlx5_0", 1));
}

static void port_ranges(void **state)
{
    static const char *const bad[] = {"0",    "65536", "5-4",  "-4",      "4-", "a",
                                      "4-5x", " 4",    "4 -5", "1-70000", "+3"};
    struct mk_settings s;
    struct mk_ports p;
    (void)state;
    assert_int_equal(mk_settings_load(&s, false), 0);
    assert_int_equal(mk_ports_of(&s, &p), 0);
    assert_true(p.low == 0 && mk_ports_count(&p) == 1 && mk_ports_nth(&p, 7, 0) == 0);
    snprintf(s.ports, sizeof(s.ports), "65530-65535");
    assert_int_equal(mk_ports_of(&s, &p), 0);
    assert_int_equal(mk_ports_count(&p), 6);
    for (uint32_t start = UINT32_MAX - 3; start != 3; start++) { /* each of them, once */
        unsigned seen = 0;
        for (uint32_t n = 0; n < 6; n++) {
            const uint16_t port = mk_ports_nth(&p, start, n);
            assert_true(port >= 65530);
            seen |= 1u << (port - 65530);
        }
        assert_int_equal(seen, 63);
    }
    snprintf(s.ports, sizeof(s.ports), "443");
    assert_int_equal(mk_ports_of(&s, &p), 0);
    assert_true(mk_ports_count(&p) == 1 && mk_ports_nth(&p, 9, 0) == 443);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(s.ports, sizeof(s.ports), "%s", bad[i]);
        assert_int_equal(mk_ports_of(&s, &p), MK_ERR_INVALID);
        assert_non_null(strstr(mk_last_error(), "MK_PORTS"));
    }
}

static void interface_choice(void **state)
{
    struct mk_settings s;
    struct mk_ifaddr a;
    (void)state;
    assert_int_equal(mk_settings_load(&s, false), 0);
    snprintf(s.ifname, sizeof(s.ifname), "=lo");
    assert_int_equal(mk_ifname_choose(&s, &a), 0);
    assert_string_equal(a.name, "lo");
    assert_int_equal(a.addr.ss_family, AF_INET);
    s.ifname[0] = 0;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    assert_int_equal(mk_ifname_choose(&s, &a), 0);
    assert_string_equal(a.name, "lo");
    setenv("NCCL_SOCKET_IFNAME", "nosuch", 1);
    assert_int_equal(mk_ifname_choose(&s, &a), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "NCCL_SOCKET_IFNAME=nosuch"));
    unsetenv("NCCL_SOCKET_IFNAME");
    assert_int_equal(mk_ifname_choose(&s, &a), 0); /* this machine has at least lo */
}

static void split(const char *text, int ret, const char *want_host, const char *want_port)
{
    char host[256] = "", port[8] = "";
    assert_int_equal(mk_boot_split(text, host, port), ret);
    assert_string_equal(host, want_host);
    assert_string_equal(port, want_port);
}

static void roots(void **state)
{
    (void)state;
    split("10.0.0.1:4711", 0, "10.0.0.1", "4711");
    split("node-1.cluster:80", 0, "node-1.cluster", "80");
    split("[::1]:65535", 0, "::1", "65535");
    split("[fe80::1%eth0]:9", 0, "fe80::1%eth0", "9");
    split("host", MK_ERR_INVALID, "", "");
    split("host:", MK_ERR_INVALID, "", "");
    split(":80", MK_ERR_INVALID, "", "");
    split("host:0", MK_ERR_INVALID, "", "");
    split("host:65536", MK_ERR_INVALID, "", "");
    split("host:+80", MK_ERR_INVALID, "", "");
    split("host:80x", MK_ERR_INVALID, "", "");
    split("::1:80", MK_ERR_INVALID, "", "");
    split("[::1:80", MK_ERR_INVALID, "", "");
    split("[]:80", MK_ERR_INVALID, "", "");
    split("[::1]80", MK_ERR_INVALID, "", "");
}

/* ---- the core ---- */

struct reader { /* what one client was told */
    uint8_t bytes[4096];
    size_t n;
};

static void read_out(struct mk_boot_peer *p, struct reader *r)
{
    const uint8_t *buf;
    size_t n;
    while ((n = mk_boot_peer_out(p, &buf)) > 0) {
        n = n > 3 ? 3 : n; /* in small pieces */
        assert_true(r->n + n <= sizeof(r->bytes));
        memcpy(r->bytes + r->n, buf, n);
        r->n += n;
        mk_boot_peer_sent(p, n);
    }
}

static struct mk_boot_peer *enter(struct mk_boot_core *c, uint32_t rank, uint64_t token, uint32_t wait_ms,
                                  uint64_t now)
{
    struct mk_boot_hello h;
    uint8_t buf[sizeof(h)];
    memset(&h, 0, sizeof(h));
    h.version = MK_BOOT_VERSION;
    h.key = 1;
    h.token = token;
    h.nranks = 2;
    h.rank = rank;
    h.wait_ms = wait_ms;
    mk_boot_put_hello(&h, buf);
    struct mk_boot_peer *p = mk_boot_core_accept(c, "client", now);
    assert_non_null(p);
    mk_boot_core_feed(c, p, buf, sizeof(buf), now);
    return p;
}

static struct mk_boot_core *core(uint32_t nranks)
{
    struct mk_boot_core_config cfg;
    struct mk_boot_core *c = NULL;
    memset(&cfg, 0, sizeof(cfg));
    cfg.key = 1;
    cfg.token = 7;
    cfg.nranks = nranks;
    cfg.hello_ns = 5000000000u;
    cfg.linger_ns = 9000000000u;
    assert_int_equal(mk_boot_core_new(&cfg, 1000, &c), 0);
    return c;
}

static void answer_kind(const struct reader *r, uint32_t kind, const char *text)
{
    struct mk_boot_answer a;
    char got[MK_BOOT_MAX_TEXT + 1];
    memset(&a, 0, sizeof(a));
    assert_int_equal(mk_boot_parse_answer(r->bytes, r->n, &a), MK_BOOT_PARSED);
    assert_int_equal(a.kind, kind);
    snprintf(got, sizeof(got), "%.*s", (int)a.length, (const char *)r->bytes + sizeof(a));
    if (!strstr(got, text))
        fail_msg("\"%s\" is not in \"%s\"", text, got);
}

static void core_meets(void **state)
{
    struct mk_boot_core *c = core(0);
    struct reader r0, r1, r2;
    struct mk_boot_frame f;
    struct mk_boot_met m;
    (void)state;
    memset(&r0, 0, sizeof(r0));
    memset(&r1, 0, sizeof(r1));
    memset(&r2, 0, sizeof(r2));
    struct mk_boot_peer *p1 = enter(c, 1, 7, 60000, 1000), *p0 = enter(c, 0, 8, 60000, 1000);
    assert_true(mk_boot_core_met(c));
    read_out(p1, &r1);
    assert_int_equal(r1.n, 24 + 16 + sizeof(m));
    answer_kind(&r1, MK_BOOT_WELCOME, "");
    assert_int_equal(mk_boot_parse_frame(r1.bytes + 24, 16, 0, 2, &f), MK_BOOT_PARSED);
    assert_int_equal(f.type, MK_BOOT_MET);
    assert_int_equal(mk_boot_parse_met(r1.bytes + 40, sizeof(m), &m), MK_BOOT_PARSED);
    assert_int_equal(m.root_rank, 1); /* rank 1 has the root's token */
    /* the same rank of the same process is told to try again, of another process to go away */
    struct mk_boot_peer *again = enter(c, 1, 7, 1, 2000);
    read_out(again, &r2);
    answer_kind(&r2, MK_BOOT_BUSY, "rank 1 of this process");
    r2.n = 0;
    again = enter(c, 1, 9, 1, 2000);
    read_out(again, &r2);
    answer_kind(&r2, MK_BOOT_REFUSE, "rank 1 is in the job already");
    /* rank 1 dies: rank 0 hears it; the job is over for newcomers */
    mk_boot_core_lost(c, p1, "reset", 3000);
    assert_int_equal(mk_boot_core_event(c)->rank, 1);
    mk_boot_core_sweep(c, NULL);
    r2.n = 0;
    again = enter(c, 1, 9, 1, 4000);
    read_out(again, &r2);
    answer_kind(&r2, MK_BOOT_BUSY, "still ending");
    assert_false(mk_boot_core_done(c, 4000));
    mk_boot_core_lost(c, p0, "reset", 5000);
    assert_int_equal(mk_boot_core_event(c)->rank, 1); /* the first stays */
    assert_true(mk_boot_core_done(c, 5000));
    mk_boot_core_free(c);
}

static void core_times_out(void **state)
{
    struct mk_boot_core *c = core(2);
    struct reader r;
    (void)state;
    memset(&r, 0, sizeof(r));
    assert_true(mk_boot_core_deadline(c) == UINT64_MAX);
    struct mk_boot_peer *p = enter(c, 1, 7, 10, 1000);
    assert_int_equal(mk_boot_core_deadline(c), 10001000);
    mk_boot_core_tick(c, 10000999);
    assert_int_equal(mk_boot_core_event(c)->code, 0);
    mk_boot_core_tick(c, 10001000);
    assert_int_equal(mk_boot_core_event(c)->code, MK_ERR_TIMEOUT);
    assert_non_null(strstr(mk_boot_core_event(c)->text, "missing: rank 0"));
    mk_boot_core_lost(c, p, "gone", 10002000);
    mk_boot_core_sweep(c, NULL);
    p = enter(c, 0, 8, 10, 10003000);
    read_out(p, &r);
    answer_kind(&r, MK_BOOT_REFUSE, "missing: rank 0");
    assert_false(mk_boot_core_done(c, 10003000));
    assert_true(mk_boot_core_idle(c));
    assert_true(mk_boot_core_done(c, 10001000 + 9000000000u));
    mk_boot_core_free(c);
}

static void silent(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)level;
    (void)subsys;
    (void)text;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_bytes), cmocka_unit_test(frame_limits),     cmocka_unit_test(verdicts),
        cmocka_unit_test(ids),         cmocka_unit_test(interface_names),  cmocka_unit_test(rdma_names),
        cmocka_unit_test(port_ranges), cmocka_unit_test(interface_choice), cmocka_unit_test(roots),
        cmocka_unit_test(core_meets),  cmocka_unit_test(core_times_out),
    };
    mk_log_set_sink(silent);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
