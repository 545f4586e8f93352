/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Memory of a GPU as a dma-buf, over verbs, without a GPU: the library's function is replaced by one that registers a
 * memfd, which the processor may not touch where the product sees it. (Soft RoCE itself takes no dma-buf: that is tried
 * too.) All but the device's own mapping is as with a GPU. */
#include "mk/err.h"
#include "net/p2p.h"
#include "net/verbs/verbs_lib.h"
#include "tests/net/p2p_help.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* after the above */
#include <cmocka.h>

#define BYTES (4u << 20)
#define OFFSET 4096u

static struct {
    int fd;
    uint8_t *there, *seen; /* by the product; by the test */
    int asked, registered, wrong;
    const struct mk_verbs_lib *lib;
} gpu;

static struct ibv_mr *reg_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd,
                                 int access)
{
    gpu.asked++;
    if (fd != gpu.fd) {
        errno = EBADF;
        return NULL;
    }
    gpu.wrong += offset != OFFSET || iova != (uintptr_t)gpu.there || len != BYTES ||
                 !(access & IBV_ACCESS_REMOTE_READ);
    gpu.registered++;
    return gpu.lib->reg_mr(pd, (void *)(uintptr_t)iova, len, access);
}

static int make_gpu(void)
{
    gpu.fd = memfd_create("a gpu", MFD_CLOEXEC);
    CHECK(gpu.fd >= 0 && !ftruncate(gpu.fd, BYTES + OFFSET));
    gpu.there = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, gpu.fd, OFFSET);
    gpu.seen = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, gpu.fd, OFFSET);
    CHECK(gpu.there != MAP_FAILED && gpu.seen != MAP_FAILED);
    CHECK_OK(mk_verbs_lib_get(&gpu.lib));
    return 0;
}

/* Soft RoCE says no, and so do we: before anything is touched. */
static int refused(struct half *h)
{
    struct mk_p2p_info info;
    struct mk_p2p_mr *m = NULL;
    CHECK_OK(make_gpu());
    CHECK_OK(half_open(h));
    mk_p2p_get_info(h->p, &info);
    CHECK(!info.caps->dmabuf);
    CHECK_OK(half_join(h));
    CHECK(mk_p2p_reg_dmabuf(h->rx, gpu.there, BYTES, OFFSET, gpu.fd, &m) == MK_ERR_UNSUPPORTED && !m);
    return half_step(h);
}

/* Process 0 to 1, from `from` (the GPU's view or the host's) into the GPU. */
static int one(struct half *h, bool from_gpu, struct mk_p2p_mr *m, size_t sent, size_t posted, unsigned seed)
{
    struct mk_p2p_req *r;
    size_t got = SIZE_MAX;
    if (!h->who) {
        paint(from_gpu ? gpu.seen + 64 : h->mem, sent, seed);
        CHECK_OK(post_send(h->tx, from_gpu ? gpu.there + 64 : h->mem, sent, 3, from_gpu ? m : h->tx_mr, &r));
        CHECK_OK(finish(r, NULL));
        return half_step(h);
    }
    memset(gpu.seen, 0xee, posted + 128);
    if (!from_gpu && sent <= MK_P2P_EAGER) { /* let it come before there is a place for it */
        for (int i = 0; i < 200; i++) {
            half_drive(h->p, 1);
            usleep(100);
        }
    }
    CHECK_OK(post_recv(h->rx, gpu.there + 64, posted, 3, m, &r));
    CHECK_OK(finish(r, &got));
    CHECK_OK(mk_p2p_flush(h->rx, m));
    CHECK(got == sent && painted(gpu.seen + 64, sent, seed));
    for (size_t i = 0; i < 64; i++)
        CHECK(gpu.seen[i] == 0xee && gpu.seen[64 + posted + i] == 0xee);
    return half_step(h);
}

static int messages(struct half *h)
{
    static const size_t size[] = {0, 1, 8, 8191, 8192, 8193, 65536, 300001, 1 << 20};
    struct mk_p2p_info info;
    struct mk_p2p_mr *m, *none = NULL;
    CHECK_OK(make_gpu());
    ((struct mk_verbs_lib *)(uintptr_t)gpu.lib)->reg_dmabuf_mr = reg_dmabuf;
    CHECK_OK(half_open(h));
    mk_p2p_get_info(h->p, &info);
    CHECK(info.caps->dmabuf && gpu.asked && !gpu.registered);
    CHECK_OK(half_join(h));
    struct mk_p2p_comm *c = h->who ? h->rx : h->tx;
    CHECK(mk_p2p_reg_dmabuf(c, gpu.there, BYTES, OFFSET, gpu.fd + 1000, &none) == MK_ERR_NET && !none);
    CHECK(mk_p2p_reg_dmabuf(c, NULL, BYTES, OFFSET, gpu.fd, &none) == MK_ERR_INVALID && !none);
    CHECK_OK(mk_p2p_reg_dmabuf(c, gpu.there, BYTES, OFFSET, gpu.fd, &m));
    CHECK(mk_p2p_on_gpu(m) && gpu.registered == h->ports && !gpu.wrong);
    CHECK(!mprotect(gpu.there, BYTES, PROT_NONE));
    for (int from_gpu = 0; from_gpu < 2; from_gpu++)
        for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
            for (int k = 0; k < 3; k++)
                CHECK_OK(
                    one(h, from_gpu, m, k ? size[i] / 2 : size[i], size[i], (unsigned)(i * 5) + (unsigned)k));
    mk_p2p_dereg(c, m);
    return half_step(h);
}

static void test_refused(void **state)
{
    (void)state;
    assert_int_equal(run_pair("verbs", refused, 1), 0);
}

static void test_messages(void **state)
{
    (void)state;
    assert_int_equal(run_pair("verbs", messages, 1), 0);
    assert_int_equal(run_pair("verbs:2", messages, 1), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_messages)};
    const int missing = transport_missing("verbs", "net.verbs_dmabuf");
    if (missing)
        return missing;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
