/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mknic on a real GPU:
 *
 *   test_gpu_nic MKNIC probe [OPTIONS OF MKNIC]      copies make progress while a kernel spins on every SM and a
 *                                                    thread of the same process waits in the driver
 *   test_gpu_nic MKNIC rate N [OPTIONS OF MKNIC]     GB/s with N client processes at once, us of one copy
 *   test_gpu_nic MKNIC quick N [OPTIONS OF MKNIC]    the same for 256 KiB from GPU to GPU alone
 *
 * Each client has both ends of a connection and its own GPU buffers; mknic sees the same as with two ranks. Exit 0,
 * 1, or 77 without a GPU. */
#include "mk/err.h"
#include "net/transport.h"
#include "tests/net/nic_help.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define GPU_BYTES (256u << 20)
#define HOST_BYTES (64u << 20)
#define DEPTH 32u
#define FLAG_OFF (GPU_BYTES - 4096u)
#define STUCK_NS 3000000000ull

enum side { HOST, GPU };

struct client {
    const struct mk_cuda *cu;
    struct mk_dev *dev;
    struct mk_conn *conn[2];
    struct mk_shm host;
    mk_cu_ptr gpu;
    struct mk_mr *mr[2];
    struct mk_rmem *rmem[2];
};

static bool quick;
static const char *mknic;
static const char *const *options;

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            printf("%s:%d: ", __FILE__, __LINE__);                                                           \
            printf(__VA_ARGS__);                                                                             \
            printf(" (%s)\n", #cond);                                                                        \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

static int client_open(struct client *c, const struct mk_settings *s)
{
    struct mk_net_addr addr[2];
    struct mk_net_key key[2];
    memset(c, 0, sizeof(*c));
    c->cu = nic_cuda(0);
    CHECK(c->cu, "CUDA");
    CHECK(!mk_loop_ops.open(s, &c->dev), "%s", mk_last_error());
    CHECK(c->dev->caps.gpu_memory, "mknic is not reached: %s", mk_last_error());
    CHECK(!mk_shm_create("nic test", HOST_BYTES, &c->host), "%s", mk_last_error());
    CHECK(!c->cu->mem_alloc(&c->gpu, GPU_BYTES), "cuMemAlloc");
    CHECK(!mk_loop_ops.reg(c->dev, c->host.addr, HOST_BYTES, &c->host, &c->mr[HOST]), "%s", mk_last_error());
    CHECK(!mk_loop_ops.reg(c->dev, (void *)(uintptr_t)c->gpu, GPU_BYTES, NULL, &c->mr[GPU]), "%s",
          mk_last_error());
    for (int i = 0; i < 2; i++)
        CHECK(!mk_loop_ops.conn_open(c->dev, &addr[i], &c->conn[i]), "%s", mk_last_error());
    for (int i = 0; i < 2; i++) {
        CHECK(!mk_loop_ops.conn_connect(c->conn[i], &addr[!i]), "%s", mk_last_error());
        mk_loop_ops.key(c->mr[i], &key[i]);
    }
    for (int i = 0; i < 2; i++)
        CHECK(!mk_loop_ops.import(c->conn[0], &key[i], &c->rmem[i]), "%s", mk_last_error());
    return 0;
}

static void client_close(struct client *c)
{
    for (int i = 0; i < 2; i++) {
        mk_loop_ops.unimport(c->rmem[i]);
        mk_loop_ops.dereg(c->mr[i]);
    }
    mk_loop_ops.close(c->dev);
    mk_shm_release(&c->host);
    c->cu->mem_free(c->gpu);
}

static int post(struct client *c, enum side src, uint64_t src_off, enum side dst, uint64_t dst_off,
                uint32_t len)
{
    struct mk_wr w;
    memset(&w, 0, sizeof(w));
    w.mr = c->mr[src];
    w.local_off = src_off;
    w.rmem = c->rmem[dst];
    w.remote_off = dst_off;
    w.len = len;
    w.flags = MK_WR_SIGNALED;
    return mk_loop_ops.post(c->conn[0], &w, 1) == 1 ? 0 : 1;
}

/* Completions seen, -1: a failed one, or none for too long. */
static int reap(struct client *c)
{
    struct mk_wc wc[16];
    const uint64_t end = mk_time_ns() + STUCK_NS;
    for (;;) {
        const int n = mk_loop_ops.poll(c->dev, wc, 16);
        for (int i = 0; i < n; i++)
            if (wc[i].status) {
                printf("a copy failed: %s\n", wc[i].text);
                return -1;
            }
        if (n)
            return n;
        if (mk_time_ns() > end)
            return -1;
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median us of single copies; < 0: stuck. */
static double single(struct client *c, enum side src, enum side dst, uint32_t len, uint64_t skew, int n)
{
    double us[512];
    for (int i = -3; i < n; i++) {
        const uint64_t begin = mk_time_ns();
        if (post(c, src, skew, dst, (16u << 20) + skew, len) || reap(c) != 1)
            return -1;
        if (i >= 0)
            us[i] = (double)(mk_time_ns() - begin) * 1e-3;
    }
    qsort(us, (size_t)n, sizeof(us[0]), by_value);
    return us[n / 2];
}

/* GB/s of `total` bytes in copies of `len`, DEPTH in flight; gap: distance of the copies, so that they do not join. */
static double stream(struct client *c, enum side src, enum side dst, uint32_t len, uint64_t total,
                     uint64_t gap, uint64_t seconds_ns)
{
    const uint64_t step = len + gap;
    const uint64_t half = (src == GPU && dst == GPU ? (uint64_t)GPU_BYTES : HOST_BYTES) / 2;
    const uint64_t slots = (half - 4096) / step;
    const uint64_t begin = mk_time_ns();
    uint64_t posted = 0, done = 0, n = total / len;
    while (done < n) {
        while (posted < n && posted - done < DEPTH) {
            if (post(c, src, posted % slots * step, dst, half / 2 * 2 - 4096 + posted % slots * step, len))
                return -1;
            posted++;
        }
        const int got = reap(c);
        if (got < 0)
            return -1;
        done += (uint64_t)got;
        if (seconds_ns && mk_time_ns() - begin > seconds_ns)
            n = posted;
    }
    return (double)(done * len) / (double)(mk_time_ns() - begin);
}

/* ---- rate ---- */

struct meeting {
    uint32_t arrived[64];
};

static void meet(struct meeting *m, int at, int n)
{
    __atomic_fetch_add(&m->arrived[at], 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&m->arrived[at], __ATOMIC_ACQUIRE) < (uint32_t)n)
        usleep(20);
}

static int rate_client(const struct mk_settings *s, struct meeting *m, int who, int n)
{
    static const uint32_t len[] = {64u << 10, 256u << 10, 1u << 20, 2u << 20};
    static const struct {
        enum side src, dst;
        const char *name;
    } way[] = {{GPU, GPU, "GPU to GPU"}, {GPU, HOST, "GPU to host"}, {HOST, GPU, "host to GPU"}};
    struct client c;
    int at = 0;
    if (client_open(&c, s))
        return 1;
    if (n == 1) {
        printf("one copy, us: GPU to GPU 8 B %.1f, 4 KiB %.1f, 64 KiB %.1f, 256 KiB %.1f, 1 MiB %.1f;",
               single(&c, GPU, GPU, 8, 0, 300), single(&c, GPU, GPU, 4096, 0, 300),
               single(&c, GPU, GPU, 64u << 10, 0, 300), single(&c, GPU, GPU, 256u << 10, 0, 300),
               single(&c, GPU, GPU, 1u << 20, 0, 300));
        printf(" GPU to host 8 B %.1f, 256 KiB %.1f; host to GPU 8 B %.1f, 256 KiB %.1f\n",
               single(&c, GPU, HOST, 8, 0, 300), single(&c, GPU, HOST, 256u << 10, 0, 300),
               single(&c, HOST, GPU, 8, 0, 300), single(&c, HOST, GPU, 256u << 10, 0, 300));
    }
    for (int w = 0; w < (quick ? 1 : 3); w++)
        for (int k = quick; k < (quick ? 2 : 4); k++)
            for (int joined = 0; joined < (w || quick ? 1 : 2); joined++) {
                stream(&c, way[w].src, way[w].dst, len[k], 64u << 20, joined ? 0 : 4096, 0);
                meet(m, at++, n);
                const double gb =
                    stream(&c, way[w].src, way[w].dst, len[k], UINT64_MAX / 2, joined ? 0 : 4096, 250000000);
                if (gb < 0)
                    return 1;
                printf("client %d of %d, %s, %4u KiB%s: %.1f GB/s\n", who, n, way[w].name, len[k] >> 10,
                       joined ? ", end to end" : "", gb);
                fflush(stdout);
            }
    client_close(&c);
    return 0;
}

static int rate(int n)
{
    struct mk_settings s;
    struct nic_proc nic;
    int status, bad = 0;
    struct meeting *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED || mk_settings_load(&s, false))
        return 1;
    const int ret = nic_start(mknic, options, &nic, &s);
    if (ret)
        return ret;
    for (int i = 0; i < n; i++)
        if (!fork())
            _exit(rate_client(&s, m, i, n));
    for (int i = 0; i < n; i++)
        bad |= wait(&status) < 0 || status;
    return nic_stop(&nic, SIGTERM) || bad;
}

/* ---- probe ---- */

struct spin_args {
    mk_cu_ptr flag;
    uint64_t target;
    mk_cu_ptr abort, started, arrived, seen, stop;
    uint32_t pollers, pad;
};
struct probe {
    struct client c;
    void *kernel, *stream, *ctx;
    volatile uint32_t *page; /* mapped host memory: abort, started */
    mk_cu_ptr page_gpu, words, spare;
    int sms, culprit;
    volatile int inside, outside;
};
extern const char mk_kernels_nic_spin[];

static int probe_open(struct probe *p)
{
    const struct mk_cuda *cu = p->c.cu;
    void *library;
    CHECK(!cu->library_load(&library, mk_kernels_nic_spin, NULL, NULL, 0, NULL, NULL, 0), "load");
    CHECK(!cu->library_kernel(&p->kernel, library, "mk_nic_spin"), "kernel");
    CHECK(!cu->kernel_set_attribute(MK_CU_FUNC_DYNAMIC_SMEM, 200 << 10, p->kernel, 0), "shared memory");
    CHECK(!cu->device_attribute(&p->sms, MK_CU_ATTR_SMS, 0), "SMs");
    CHECK(!cu->stream_create(&p->stream, MK_CU_STREAM_NON_BLOCKING), "stream");
    CHECK(!cu->ctx_current(&p->ctx), "context");
    p->page = aligned_alloc(4096, 4096);
    CHECK(p->page && !cu->host_register((void *)(uintptr_t)p->page, 4096, MK_CU_HOST_MAPPED), "host memory");
    CHECK(!cu->host_device_ptr(&p->page_gpu, (void *)(uintptr_t)p->page, 0), "host memory");
    CHECK(!cu->mem_alloc(&p->words, 4096), "memory");
    return 0;
}

static const char *const culprits[] = {
    "nothing else",           "a thread in cuMemFree",        "a thread in cuCtxSynchronize",
    "a thread in cuMemAlloc", "8 blocks polling host memory", "all blocks polling host memory",
};

static void *culprit(void *arg)
{
    struct probe *p = arg;
    mk_cu_ptr mem;
    p->c.cu->ctx_set(p->ctx);
    p->inside = 1;
    if (p->culprit == 1)
        p->c.cu->mem_free(p->spare);
    else if (p->culprit == 2)
        p->c.cu->ctx_sync();
    else if (p->culprit == 3 && !p->c.cu->mem_alloc(&mem, 64u << 20))
        p->c.cu->mem_free(mem);
    p->outside = 1;
    return NULL;
}

static int launch(struct probe *p, uint64_t target, uint32_t pollers)
{
    const struct mk_cuda *cu = p->c.cu;
    const uint64_t zero[2] = {0, 0};
    struct mk_cu_launch config;
    struct spin_args a = {p->c.gpu + FLAG_OFF, target,   p->page_gpu,
                          p->page_gpu + 64,    p->words, p->words + 4,
                          p->words + 8,        pollers,  0};
    void *params[1] = {&a};
    CHECK(!cu->copy_to_device(p->words, zero, 16), "clear");
    CHECK(!cu->copy_to_device(p->c.gpu + FLAG_OFF, zero, 8), "clear");
    p->page[0] = p->page[16] = 0;
    memset(&config, 0, sizeof(config));
    config.grid[0] = (uint32_t)p->sms;
    config.block[0] = 32;
    config.grid[1] = config.grid[2] = config.block[1] = config.block[2] = 1;
    config.smem = 200 << 10;
    config.stream = p->stream;
    CHECK(!cu->launch(&config, p->kernel, params, NULL), "launch");
    const uint64_t end = mk_time_ns() + STUCK_NS;
    while (!p->page[16] && mk_time_ns() < end)
        usleep(50);
    return 0;
}

/* Copies of all kinds while the kernel spins. */
static bool copies(struct probe *p)
{
    static const uint32_t len[] = {8, 100, 4096, 64u << 10, 256u << 10, 1u << 20};
    bool ok = true;
    printf("  us, one by one, GPU to GPU:");
    for (size_t i = 0; i < sizeof(len) / sizeof(len[0]) && ok; i++) {
        const double us = single(&p->c, GPU, GPU, len[i], len[i] == 100 ? 3 : 0, 20);
        printf(" %u B%s %.1f", len[i], len[i] == 100 ? " (at an odd address)" : "", us);
        ok = us >= 0;
    }
    for (int back = 0; back < 2 && ok; back++) {
        const double us = single(&p->c, back ? HOST : GPU, back ? GPU : HOST, 256u << 10, 0, 20);
        printf("; %s 256 KiB %.1f", back ? "host to GPU" : "GPU to host", us);
        ok = us >= 0;
    }
    const double gb = ok ? stream(&p->c, GPU, GPU, 256u << 10, 1ull << 30, 4096, 0) : -1;
    printf("; 256 KiB, %u in flight: %.1f GB/s\n", DEPTH, gb);
    return ok && gb > 0;
}

static int probe_case(struct probe *p, int which)
{
    const struct mk_cuda *cu = p->c.cu;
    const uint64_t target = 77 + (uint64_t)which;
    struct mk_wr flag;
    pthread_t thread;
    uint32_t words[2] = {0, 0};
    CHECK(which != 1 || !cu->mem_alloc(&p->spare, 32u << 20), "memory");
    const bool calls = which && which < 4;
    if (launch(p, target, which == 4 ? 8 : which == 5 ? (uint32_t)p->sms : 0))
        return 1;
    const bool resident = p->page[16];
    p->culprit = which;
    p->inside = p->outside = 0;
    if (calls)
        CHECK(!pthread_create(&thread, NULL, culprit, p), "thread");
    usleep(20000);
    printf("kernel on %d SMs (%s), %s (%s):\n", p->sms, resident ? "all blocks run" : "NOT ALL BLOCKS RUN",
           culprits[which],
           !calls       ? "-"
           : p->outside ? "returned"
                        : "waits");
    const bool ok = copies(p);
    memset(&flag, 0, sizeof(flag));
    flag.inline_data = target;
    flag.rmem = p->c.rmem[GPU];
    flag.remote_off = FLAG_OFF;
    flag.len = 8;
    flag.flags = MK_WR_INLINE | MK_WR_SIGNALED;
    const uint64_t begin = mk_time_ns();
    const bool written = ok && mk_loop_ops.post(p->c.conn[0], &flag, 1) == 1 && reap(&p->c) == 1;
    while (written && cu->stream_query(p->stream) == MK_CU_NOT_READY && mk_time_ns() - begin < STUCK_NS)
        ;
    const double us = (double)(mk_time_ns() - begin) * 1e-3;
    p->page[0] = 1;
    CHECK(!cu->stream_sync(p->stream), "the kernel failed");
    if (calls)
        pthread_join(thread, NULL);
    CHECK(!cu->copy_to_host(words, p->words, 8), "read");
    printf("  flag by mknic: seen by %u of %d blocks, kernel over after %.0f us\n", words[1], p->sms, us);
    return ok && written && resident && words[1] == (uint32_t)p->sms ? 0 : 1;
}

/* What was copied is what was there. */
static int data_case(struct client *c)
{
    const uint32_t n = 5u << 20;
    uint8_t *a = malloc(n), *b = malloc(n);
    CHECK(a && b, "memory");
    for (uint32_t i = 0; i < n; i++)
        a[i] = (uint8_t)(i * 131 + (i >> 9));
    CHECK(!c->cu->copy_to_device(c->gpu + 8, a, n), "write");
    CHECK(!post(c, GPU, 8, GPU, 32u << 20, n) && reap(c) == 1, "copy");
    CHECK(!post(c, GPU, 32u << 20, HOST, 5, n) && reap(c) == 1, "copy");
    CHECK(!memcmp((char *)c->host.addr + 5, a, n), "GPU to GPU to host: wrong bytes");
    CHECK(!post(c, HOST, 5, GPU, 77, n) && reap(c) == 1, "copy");
    CHECK(!c->cu->copy_to_host(b, c->gpu + 77, n), "read");
    CHECK(!memcmp(a, b, n), "host to GPU: wrong bytes");
    free(a);
    free(b);
    return 0;
}

static int probe(void)
{
    static struct probe p;
    struct mk_settings s;
    struct nic_proc nic;
    int bad = 0;
    if (mk_settings_load(&s, false))
        return 1;
    int ret = nic_start(mknic, options, &nic, &s);
    if (ret)
        return ret;
    ret = client_open(&p.c, &s) || probe_open(&p) || data_case(&p.c);
    for (int i = 0; i < 6 && !ret && !bad; i++)
        bad += probe_case(&p, i);
    if (!ret)
        client_close(&p.c);
    ret = nic_stop(&nic, SIGTERM) || ret || bad;
    printf("probe: %s\n", ret ? "FAILED" : "copies made progress in every case");
    return ret;
}

int main(int argc, char **argv)
{
    quick = argc > 3 && !strcmp(argv[2], "quick");
    const bool is_rate = argc > 3 && (quick || !strcmp(argv[2], "rate"));
    alarm(100);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3 || (!is_rate && strcmp(argv[2], "probe"))) {
        fprintf(stderr, "usage: %s MKNIC probe|rate N|quick N [options of mknic]\n", argv[0]);
        return 2;
    }
    mknic = argv[1];
    options = (const char *const *)(argv + (is_rate ? 4 : 3));
    return is_rate ? rate(atoi(argv[3])) : probe();
}
