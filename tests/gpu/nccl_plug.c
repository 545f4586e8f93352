/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The plugin without NCCL, called as NCCL calls it: messages in a circle of all ranks, from GPU and host memory into GPU
 * and host memory; as large as what was posted, smaller, and larger, which must be an error. Contents and the guards
 * around what was posted are checked on the GPU. */
#include "mk/err.h"
#include "mk/param.h"
#include "tests/gpu/nccl.h"
#include "tests/plugin/caller.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST (64u << 20)
#define LIMIT_S 20.0

struct plug {
    struct job *j;
    struct caller c;
    void *send, *recv;
    void *from[2], *to[2]; /* registrations: of host memory, of GPU memory */
    uint8_t *host[2];      /* to send from, to receive into */
};

static char warning[256]; /* the last one; what is too large gives many */

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    va_list args;
    (void)flags, (void)file, (void)line;
    if (level != MK_NCCL_LOG_WARN)
        return;
    va_start(args, fmt);
    vsnprintf(warning, sizeof(warning), fmt, args);
    va_end(args);
}

static int bad(struct plug *p, const char *what, int code)
{
    return fail(p->j, "plugin: %s: %d; %s", what, code, warning);
}

static int connect_circle(struct plug *p)
{
    struct job *j = p->j;
    uint8_t mine[MK_NCCL_HANDLE_BYTES], all[64][MK_NCCL_HANDLE_BYTES];
    const double end = now_s() + LIMIT_S;
    void *listen = NULL;
    memset(mine, 0, sizeof(mine));
    int ret = caller_listen(&p->c, 0, mine, &listen);
    if (ret || mk_boot_allgather(j->boot, mine, all, sizeof(mine)))
        return bad(p, "listen", ret);
    uint8_t *next = all[(j->rank + 1) % j->nranks];
    while (!p->send || !p->recv) {
        if (!p->send && (ret = caller_connect(&p->c, 0, next, &p->send)))
            return bad(p, "connect", ret);
        if (!p->recv && (ret = caller_accept(&p->c, listen, &p->recv)))
            return bad(p, "accept", ret);
        if (now_s() > end)
            return bad(p, "connect and accept take for ever", 0);
    }
    ret = caller_close_listen(&p->c, listen);
    return ret ? bad(p, "closeListen", ret) : 0;
}

static int open_plugin(struct plug *p, const char *path)
{
    struct job *j = p->j;
    struct caller_props props;
    const char *why = "";
    int ndev = 0;
    void *lib = caller_load(path, &why);
    if (!lib || !caller_table(lib, 11, &p->c))
        return fail(j, "plugin: %s: %s", path, lib ? "no table of version 11" : why);
    int ret = caller_init(&p->c, logger);
    if (ret || (ret = caller_devices(&p->c, &ndev)) || ndev < 1 ||
        (ret = caller_properties(&p->c, 0, 0, &props)))
        return bad(p, "init, devices, getProperties", ret);
    const bool gpu = props.ptrSupport & MK_NCCL_PTR_CUDA;
    if (j->rank == 0)
        printf("device %s: %s\n", props.name, gpu ? "host and GPU memory" : "host memory only");
    if (connect_circle(p))
        return 1;
    for (int i = 0; i < 2; i++)
        if (!(p->host[i] = malloc(MOST)))
            return bad(p, "no memory", 0);
    void *device[2] = {(void *)(uintptr_t)j->send, (void *)(uintptr_t)j->recv};
    if ((ret = caller_reg(&p->c, p->send, p->host[0], MOST, MK_NCCL_PTR_HOST, &p->from[0])) ||
        (ret = caller_reg(&p->c, p->recv, p->host[1], MOST, MK_NCCL_PTR_HOST, &p->to[0])))
        return bad(p, "regMr of host memory", ret);
    if (gpu && ((ret = caller_reg(&p->c, p->send, device[0], MOST, MK_NCCL_PTR_CUDA, &p->from[1])) ||
                (ret = caller_reg(&p->c, p->recv, device[1], MOST, MK_NCCL_PTR_CUDA, &p->to[1]))))
        return bad(p, "regMr of GPU memory", ret);
    return 0;
}

/* Both requests to their ends: results of irecv's and isend's tests. */
static int carry(struct plug *p, void *from, size_t sent, void *from_mh, void *to, size_t posted, void *to_mh,
                 int result[2], int *got)
{
    void *request[2] = {NULL, NULL};
    bool over[2] = {false, false};
    int tag = 0, ret;
    const double end = now_s() + LIMIT_S;
    while (!over[0] || !over[1]) {
        if (!request[0] && (ret = caller_irecv(&p->c, p->recv, 1, &to, &posted, &tag, &to_mh, &request[0])))
            return bad(p, "irecv", ret);
        if (!request[1] && (ret = caller_isend(&p->c, p->send, from, sent, 0, from_mh, &request[1])))
            return bad(p, "isend", ret);
        for (int i = 0; i < 2; i++) {
            int done = 0;
            if (request[i] && !over[i]) {
                result[i] = caller_test(&p->c, request[i], &done, i ? NULL : got);
                over[i] = result[i] || done;
            }
        }
        if (now_s() > end)
            return bad(p, "a message takes for ever", (over[0] ? 0 : 1) + (over[1] ? 0 : 2));
    }
    return 0;
}

/* words: sent, posted. gpu: bit 0 from, bit 1 into GPU memory. */
static int message(struct plug *p, uint64_t sent, uint64_t posted, int gpu)
{
    static const char *const where[] = {"host to host", "GPU to host", "host to GPU", "GPU to GPU"};
    struct job *j = p->j;
    const bool fits = sent <= posted;
    const struct want w = {.kind = fits ? WANT_BLOCKS : WANT_NOTHING,
                           .first = (j->rank + j->nranks - 1) % j->nranks,
                           .block = sent};
    char text[80];
    int result[2] = {0, 0}, got = -1;
    snprintf(text, sizeof(text), "plugin: %s, %llu bytes into %llu", where[gpu], (unsigned long long)sent * 4,
             (unsigned long long)posted * 4);
    contents(j, sent, posted);
    j->cu->stream_sync(gpu_stream());
    if (!(gpu & 1))
        gpu_get(p->host[0], j->send, sent * 4);
    if (!(gpu & 2))
        gpu_get(p->host[1], j->recv, posted * 4);
    void *from = gpu & 1 ? (void *)(uintptr_t)j->send : p->host[0];
    void *to = gpu & 2 ? (void *)(uintptr_t)j->recv : p->host[1];
    if (meet(j, text) ||
        carry(p, from, sent * 4, p->from[gpu & 1], to, posted * 4, p->to[gpu >> 1], result, &got))
        return fail(j, "%s", text);
    if (!(gpu & 2))
        gpu_put(j->recv, p->host[1], posted * 4);
    if (fits && (result[0] || result[1] || got != (int)(sent * 4)))
        fail(j, "%s: irecv %d, isend %d, %d bytes", text, result[0], result[1], got);
    if (!fits && result[0] != MK_NCCL_INVALID_USAGE)
        fail(j, "%s: irecv ended with %d, not with an error of usage", text, result[0]);
    check(j, j->recv, fits ? sent : posted, &w, text, false);
    j->call++;
    return 0;
}

int show_plugin(struct job *j)
{
    static const uint64_t words[] = {2, 250, 2048, 2049, 16384, 16385, 1u << 18, (1u << 20) + 5, 16u << 20};
    struct plug p = {.j = j};
    const char *path = mk_env("NCCL_NET_PLUGIN");
    int messages = 0, stop = open_plugin(&p, path ? path : "libnccl-net-mkernel.so");
    for (int gpu = 0; gpu < 4 && !stop; gpu++) {
        if ((gpu & 1 && !p.from[1]) || (gpu & 2 && !p.to[1]))
            continue;
        for (int i = 0; i < 9 && !stop; i++) {
            stop = message(&p, words[i], words[i], gpu) || message(&p, words[i] / 2, words[i], gpu);
            messages += 2;
            if (i < 8 && !stop) { /* the memory ends with the largest */
                stop = message(&p, words[i] + 1, words[i], gpu);
                messages++;
            }
        }
    }
    if (!stop)
        stop = meet(j, "plugin");
    for (int i = 0; i < 2; i++) {
        if (p.from[i])
            caller_dereg(&p.c, p.send, p.from[i]);
        if (p.to[i])
            caller_dereg(&p.c, p.recv, p.to[i]);
        free(p.host[i]);
    }
    if (p.send)
        caller_close_send(&p.c, p.send);
    if (p.recv)
        caller_close_recv(&p.c, p.recv);
    if (p.c.t.any)
        caller_finalize(&p.c);
    printf("rank %d of %d: %d messages by the plugin's own table: %d failures\n", j->rank, j->nranks,
           messages, j->failures);
    return stop || j->failures;
}
