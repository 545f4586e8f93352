/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Devices made of several, as NCCL makes them: test_plugin_merge PLUGIN N [NAME [MOST]], with a network that has N devices
 * in the environment; where it has fewer and there is a NAME, that test is skipped. MOST: messages of up to so many bytes,
 * and each device reaches itself alone. Both ends of every message are in this process. */
#include "tests/plugin/caller.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                          \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)
#define MOST (64u << 20)
#define LIMIT_S 60

static int found;
static size_t most = MOST;
static bool apart;

static int count(const struct caller *c)
{
    int n = -1;
    return caller_devices(c, &n) ? -1 : n;
}

/* Lists that are none; then nothing is new. */
static int refused(const struct caller *c)
{
    static const struct {
        int n, devs[8];
    } bad[] = {{0, {0}}, {-1, {0}}, {2, {0, 0}}, {2, {0, -1}}, {2, {0, 99}}, {9, {0, 1}}, {1 << 30, {0, 1}}};
    int out = -7;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(caller_merge(c, bad[i].n, bad[i].devs, &out) && out == -7);
    CHECK(count(c) == found);
    return 0;
}

static int described(const struct caller *c, int merged)
{
    struct caller_props p[8];
    int speed = 0;
    for (int i = 0; i <= merged && i < 8; i++) {
        CHECK(!caller_properties(c, i, 0xa5, &p[i]));
        CHECK(p[i].ndevs == (i < found ? 1 : found) && p[i].dev0 == (i < found ? i : 0));
        for (int k = 0; k < i; k++)
            CHECK(strcmp(p[i].name, p[k].name) && (p[i].guid != p[k].guid || p[i].port != p[k].port));
        speed += i < found ? p[i].speed : 0;
    }
    CHECK(p[merged].speed == speed && strstr(p[merged].name, "+"));
    return 0;
}

struct ends {
    void *send, *recv, *send_mr, *recv_mr;
    uint8_t *from, *to;
};

static time_t now(void)
{
    return time(NULL);
}

static int join(const struct caller *c, int from, int to, struct ends *e)
{
    uint8_t handle[128];
    void *listen = NULL;
    const time_t end = now() + LIMIT_S;
    CHECK(!caller_listen(c, to, handle, &listen) && listen);
    while ((!e->send || !e->recv) && now() < end) {
        CHECK(e->send || !caller_connect(c, from, handle, &e->send));
        CHECK(e->recv || !caller_accept(c, listen, &e->recv));
    }
    CHECK(e->send && e->recv && !caller_close_listen(c, listen));
    CHECK(!caller_reg(c, e->send, e->from, MOST, MK_NCCL_PTR_HOST, &e->send_mr));
    CHECK(!caller_reg(c, e->recv, e->to, MOST, MK_NCCL_PTR_HOST, &e->recv_mr));
    return 0;
}

static int part(const struct caller *c, struct ends *e)
{
    CHECK(!caller_dereg(c, e->send, e->send_mr) && !caller_dereg(c, e->recv, e->recv_mr));
    CHECK(!caller_close_send(c, e->send) && !caller_close_recv(c, e->recv));
    return 0;
}

static int message(const struct caller *c, struct ends *e, size_t size, size_t posted, unsigned seed)
{
    void *s = NULL, *r = NULL, *data[1] = {e->to};
    int tag = 5, done[2] = {0, 0}, got = -1;
    const time_t end = now() + LIMIT_S;
    for (size_t i = 0; i < size; i++)
        e->from[i] = (uint8_t)(i * 7 + (i >> 9) + seed);
    memset(e->to, 0x5a, posted < MOST ? posted + 1 : posted);
    while ((!s || !r) && now() < end) {
        CHECK(r || !caller_irecv(c, e->recv, 1, data, &posted, &tag, &e->recv_mr, &r));
        CHECK(s || !caller_isend(c, e->send, e->from, size, tag, e->send_mr, &s));
    }
    while ((!done[0] || !done[1]) && now() < end) {
        CHECK(done[0] || !caller_test(c, s, &done[0], NULL));
        CHECK(done[1] || !caller_test(c, r, &done[1], &got));
    }
    CHECK(done[0] && done[1] && (size_t)got == size && !memcmp(e->from, e->to, size));
    CHECK(posted == MOST || e->to[posted] == 0x5a);
    return 0;
}

static int messages(const struct caller *c, int from, int to, struct ends *e)
{
    static const size_t size[] = {0, 8, 8192, 65536, 131072, 131073, 262144, 1 << 20, 5000001, MOST};
    e->send = e->recv = NULL;
    CHECK(!join(c, from, to, e));
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]) && size[i] <= most; i++) {
        CHECK(!message(c, e, size[i], size[i], (unsigned)i));
        CHECK(!message(c, e, size[i] / 2 + size[i] / 3, size[i], (unsigned)i + 100));
    }
    return part(c, e);
}

/* With `version`'s table: twice, since NCCL may close all and come back with the number that it has. */
static int with_table(void *lib, int version, struct ends *e)
{
    static const int all[8] = {0, 1, 2, 3, 4, 5, 6, 7}, back[8] = {1, 0};
    struct caller c;
    int merged = -1, again = -1, other = -1, alone = -1;
    CHECK(caller_table(lib, version, &c) && !caller_init(&c, NULL));
    CHECK(count(&c) >= found);
    if (count(&c) == found)
        CHECK(!refused(&c));
    CHECK(!caller_merge(&c, found, all, &merged) && merged == found && count(&c) >= found + 1);
    CHECK(!caller_merge(&c, found, all, &again) && again == merged);
    CHECK(!caller_merge(&c, 1, all, &alone) && alone == 0);
    CHECK(!described(&c, merged));
    CHECK(!messages(&c, merged, merged, e) && !messages(&c, merged, 0, e) && !messages(&c, 1, 1, e));
    CHECK(!caller_merge(&c, 2, back, &other) && other == found + 1);
    CHECK(apart || (!messages(&c, 1, merged, e) && !messages(&c, other, merged, e)));
    CHECK(!caller_finalize(&c));
    return 0;
}

int main(int argc, char **argv)
{
    const char *why = "";
    struct ends e = {.from = malloc(MOST), .to = malloc(MOST)};
    void *lib = argc > 2 ? caller_load(argv[1], &why) : NULL;
    found = argc > 2 ? atoi(argv[2]) : 0;
    if (!lib || !e.from || !e.to || found < 2 || found > 4) {
        fprintf(stderr, "usage: test_plugin_merge PLUGIN 2..4 (%s)\n", why);
        return 2;
    }
    if (argc > 4) {
        most = strtoul(argv[4], NULL, 10);
        apart = true;
    }
    if (argc > 3) {
        struct caller c;
        const int n = caller_table(lib, 12, &c) && !caller_init(&c, NULL) ? count(&c) : -1;
        caller_finalize(&c);
        if (n >= 0 && n < found) {
            printf("skip: %s: %d network devices\n", argv[3], n);
            return 77;
        }
    }
    const int bad = with_table(lib, 12, &e) || with_table(lib, 12, &e) || with_table(lib, 11, &e) ||
                    with_table(lib, 9, &e);
    free(e.from);
    free(e.to);
    return bad;
}
