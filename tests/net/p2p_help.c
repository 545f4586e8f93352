/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/net/p2p_help.h"
#include "mk/cuda.h"
#include "mk/err.h"
#include "net/p2p.h"
#include "tests/net/nic_help.h"
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#define LIMIT_NS 20000000000ull

static int on_gpu; /* HALF_GPU_* */
static struct nic_proc nic;
static char nic_path[256];
static struct {
    uint8_t *seen; /* by the test */
    mk_cu_ptr gpu; /* by the product; 0: the same */
} view[2];

int half_gpu(const char *which, const char *mknic)
{
    struct mk_settings s;
    on_gpu = !strcmp(which, "gpu")           ? HALF_GPU_SENDS | HALF_GPU_RECEIVES
             : !strcmp(which, "gpu-send")    ? HALF_GPU_SENDS
             : !strcmp(which, "gpu-receive") ? HALF_GPU_RECEIVES
                                             : HALF_HOST;
    const int ret = on_gpu ? nic_start(mknic, NULL, &nic, &s) : 1;
    if (!ret)
        snprintf(nic_path, sizeof(nic_path), "%s", s.nic);
    return ret;
}

bool half_is_gpu(void)
{
    return on_gpu;
}

void half_gpu_end(void)
{
    nic_stop(&nic, SIGTERM);
}

void *half_there(const void *p)
{
    const uint8_t *at = p;
    for (int i = 0; i < 2; i++)
        if (view[i].gpu && at >= view[i].seen && at < view[i].seen + HALF_BYTES / 2)
            return (void *)(uintptr_t)(view[i].gpu + (mk_cu_ptr)(at - view[i].seen));
    return (void *)(uintptr_t)p;
}

/* Half i of the memory comes from the driver. The stand-in's IPC handle begins with the process and the descriptor that
 * the memory has there. */
static int move_to_gpu(uint8_t *seen, int i)
{
    const struct mk_cuda *cu = nic_cuda(0);
    struct mk_cu_ipc handle;
    mk_cu_ptr gpu;
    int fd[2];
    if (!cu || cu->mem_alloc(&gpu, HALF_BYTES / 2) || cu->ipc_get(&handle, gpu))
        return MK_ERR_CUDA;
    memcpy(fd, &handle, sizeof(fd));
    if (mmap(seen, HALF_BYTES / 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd[1], 0) == MAP_FAILED ||
        mprotect((void *)(uintptr_t)gpu, HALF_BYTES / 2, PROT_NONE))
        return MK_ERR_SYSTEM;
    view[i].seen = seen;
    view[i].gpu = gpu;
    return 0;
}

int half_settings(struct half *h, const char *transport)
{
    setenv("MK_IFNAME", "lo", 0);
    setenv("MK_TIMEOUT", "10", 0);
    setenv("MK_LOG", "none", 0);
    const int ret = mk_settings_load(&h->s, true);
    const char *ports = strchr(transport, ':');
    h->ports = ports ? atoi(ports + 1) : 1;
    snprintf(h->s.net, sizeof(h->s.net), "%.*s", (int)strcspn(transport, ":"), transport);
    snprintf(h->s.nic, sizeof(h->s.nic), "%s", nic_path);
    return ret;
}

int transport_missing(const char *transport, const char *test)
{
    struct half h;
    int status = 1;
    memset(&h, 0, sizeof(h));
    const pid_t child = fork(); /* the network is opened by children only */
    if (!child) {
        const int ret = half_settings(&h, transport) || half_open(&h);
        if (!ret)
            mk_p2p_close(h.p);
        else
            printf("skip: %s: %s\n", test, mk_last_error());
        fflush(stdout);
        _exit(ret ? 77 : 0);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}

int run_pair(const char *transport, int (*fn)(struct half *), int both)
{
    int fds[2], bad = 0;
    pid_t pid[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        return 1;
    for (int i = 0; i < 2; i++) {
        pid[i] = fork();
        if (pid[i])
            continue;
        struct half h;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        memset(&h, 0, sizeof(h));
        h.who = i;
        h.fd = fds[i];
        close(fds[!i]);
        const int ret = half_settings(&h, transport) || fn(&h);
        half_close(&h);
        fflush(NULL);
        exit(ret); /* leaks are looked for */
    }
    close(fds[0]);
    close(fds[1]);
    for (int i = 0; i < 2; i++) {
        int status = 0;
        if (pid[i] < 0 || waitpid(pid[i], &status, 0) != pid[i])
            return 1;
        if ((i == 0 || both) && status) {
            fprintf(stderr, "process %d ended with status 0x%x\n", i, status);
            bad = 1;
        }
    }
    return bad;
}

int half_open(struct half *h)
{
    struct mk_settings s[MK_P2P_RAILS];
    for (int i = 0; i < h->ports; i++)
        s[i] = h->s;
    return mk_p2p_open_ports(s, h->ports, &h->p);
}

int half_swap(struct half *h, const void *mine, void *theirs, size_t n)
{
    if (send(h->fd, mine, n, MSG_NOSIGNAL) != (ssize_t)n)
        return 1;
    for (size_t at = 0; at < n;) {
        struct pollfd f = {h->fd, POLLIN, 0};
        if (poll(&f, 1, (int)(LIMIT_NS / 1000000)) != 1)
            return 1;
        const ssize_t k = recv(h->fd, (char *)theirs + at, n - at, 0);
        if (k <= 0)
            return 1;
        at += (size_t)k;
    }
    return 0;
}

int half_step(struct half *h)
{
    char c = 'x', d;
    return half_swap(h, &c, &d, 1);
}

int half_serve(struct half *h)
{
    char c = 'x';
    const uint64_t end = mk_time_ns() + 45000000000ull;
    CHECK(send(h->fd, &c, 1, MSG_NOSIGNAL) == 1);
    while (recv(h->fd, &c, 1, MSG_DONTWAIT) != 1) {
        half_drive(h->p, 1);
        CHECK(mk_time_ns() < end);
    }
    return 0;
}

void half_drive(struct mk_p2p *p, int times)
{
    for (int i = 0; i < times; i++) {
        pthread_mutex_lock(&p->lock);
        mk_p2p_progress(p);
        pthread_mutex_unlock(&p->lock);
    }
}

int half_meet(struct half *h, struct mk_p2p *p, struct mk_p2p_comm **tx, struct mk_p2p_comm **rx)
{
    uint8_t mine[MK_P2P_HANDLE], theirs[MK_P2P_HANDLE];
    struct mk_p2p_listener *l;
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    int ret = mk_p2p_listen(p, mine, &l);
    if (ret || half_swap(h, mine, theirs, sizeof(mine)))
        return ret ? ret : MK_ERR_PEER;
    while ((tx && !*tx) || (rx && !*rx)) {
        if (tx && !*tx && (ret = mk_p2p_connect(p, theirs, tx)) && ret != MK_ERR_AGAIN)
            return ret;
        if (rx && !*rx && (ret = mk_p2p_accept(l, rx)) && ret != MK_ERR_AGAIN)
            return ret;
        if (mk_time_ns() > end)
            return MK_ERR_TIMEOUT;
    }
    mk_p2p_listen_close(l);
    return 0;
}

int half_join(struct half *h)
{
    int ret = h->p ? 0 : half_open(h);
    ret = ret ? ret : half_meet(h, h->p, &h->tx, &h->rx);
    if (ret)
        return ret;
    half_unmap(h);
    h->mem = mmap(NULL, HALF_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (h->mem == MAP_FAILED)
        return MK_ERR_NOMEM;
    for (int i = 0; i < 2 && !ret; i++)
        ret = on_gpu & 1 << i ? move_to_gpu(h->mem + i * (HALF_BYTES / 2), i) : 0;
    ret = ret ? ret : mk_p2p_reg(h->tx, half_there(h->mem), HALF_BYTES / 2, &h->tx_mr);
    return ret ? ret : mk_p2p_reg(h->rx, half_there(half_in(h)), HALF_BYTES / 2, &h->rx_mr);
}

void half_part(struct half *h)
{
    mk_p2p_comm_close(h->tx);
    mk_p2p_comm_close(h->rx);
    h->tx = h->rx = NULL;
}

void half_unmap(struct half *h)
{
    if (h->mem)
        munmap(h->mem, HALF_BYTES);
    h->mem = NULL;
    for (int i = 0; i < 2; i++)
        if (view[i].gpu)
            mk_cuda_open(NULL)->mem_free(view[i].gpu);
    memset(view, 0, sizeof(view));
}

void half_close(struct half *h)
{
    half_part(h);
    mk_p2p_close(h->p);
    half_unmap(h);
    memset(h, 0, sizeof(*h));
}

uint8_t *half_in(struct half *h)
{
    return h->mem + HALF_BYTES / 2;
}

void paint(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + seed);
}

int painted(const uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (uint8_t)(i * 31 + (i >> 8) * 7 + seed)) {
            fprintf(stderr, "byte %zu of %zu is wrong\n", i, n);
            return 0;
        }
    return 1;
}

int post_send(struct mk_p2p_comm *c, const void *data, size_t size, int tag, struct mk_p2p_mr *mr,
              struct mk_p2p_req **out)
{
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    int ret;
    while ((ret = mk_p2p_send(c, half_there(data), size, tag, mr, out)) == MK_ERR_AGAIN && mk_time_ns() < end)
        ;
    return ret;
}

int post_recv(struct mk_p2p_comm *c, void *data, size_t size, int tag, struct mk_p2p_mr *mr,
              struct mk_p2p_req **out)
{
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    int ret;
    data = half_there(data);
    while ((ret = mk_p2p_recv(c, 1, &data, &size, &tag, &mr, out)) == MK_ERR_AGAIN && mk_time_ns() < end)
        ;
    return ret;
}

int finish(struct mk_p2p_req *r, size_t *sizes)
{
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    bool done;
    do {
        const int ret = mk_p2p_test(r, &done, sizes);
        if (ret || done)
            return ret;
    } while (mk_time_ns() < end);
    return MK_ERR_TIMEOUT;
}

int finish_two(struct mk_p2p_req *a, struct mk_p2p_req *b, size_t *size_b)
{
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    bool done_a = false, done_b = false;
    while ((!done_a || !done_b) && mk_time_ns() < end) {
        int ret = done_a ? 0 : mk_p2p_test(a, &done_a, NULL);
        if (!ret && !done_b)
            ret = mk_p2p_test(b, &done_b, size_b);
        if (ret)
            return ret;
    }
    return done_a && done_b ? 0 : MK_ERR_TIMEOUT;
}
