/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The control thread: accepts clients, answers their requests, clears up after the dead. */
#include "nic.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SWEEP_MS 1 /* while copies of dropped windows or of dead clients are under way */

static struct pollfd fds[NIC_CLIENTS + 2];
static int whose[NIC_CLIENTS + 2];

static void send_reply(int client, const struct mk_nic_reply *r)
{
    /* one request at a time: there is room, else the client is broken, and its end will be seen */
    if (send(nic.client[client].fd, r, sizeof(*r), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(*r))
        shutdown(nic.client[client].fd, SHUT_RDWR);
}

static void answer_drop(int client, uint32_t seq)
{
    struct mk_nic_reply r;
    memset(&r, 0, sizeof(r));
    r.magic = MK_NIC_MAGIC;
    r.seq = seq;
    send_reply(client, &r);
}

/* ---- clients come and go ---- */

static void accept_client(void)
{
    struct ucred who;
    socklen_t len = sizeof(who);
    const int fd = accept4(nic.listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || who.uid != geteuid()) {
        MK_WARN("NET", "mknic: process %d of user %u refused", (int)who.pid, (unsigned)who.uid);
        close(fd);
        return;
    }
    for (int i = 0; i < NIC_CLIENTS; i++) {
        struct nic_client *c = &nic.client[i];
        if (nic_state(c) != NIC_NOBODY)
            continue;
        memset(&c->bad, 0, sizeof(*c) - offsetof(struct nic_client, bad)); /* copy threads look at `state` */
        c->fd = fd;
        c->pid = who.pid;
        nic_state_set(c, NIC_JOINING);
        if ((uint32_t)i >= nic.client_top)
            __atomic_store_n(&nic.client_top, (uint32_t)i + 1, __ATOMIC_RELEASE);
        return;
    }
    MK_WARN("NET", "mknic: process %d refused: %d clients are here", (int)who.pid, NIC_CLIENTS);
    close(fd);
}

/* Its windows close once no copy touches them; its rings when the copy thread has let go. */
static void client_ended(int i)
{
    struct nic_client *c = &nic.client[i];
    close(c->fd);
    c->fd = -1;
    nic_win_drop_client(i);
    if (nic_state(c) == NIC_JOINING) {
        nic_state_set(c, NIC_NOBODY);
        return;
    }
    MK_INFO("NET", "mknic: process %d has left", c->pid);
    nic_state_set(c, NIC_LEAVING);
    mk_bell_ring(nic_bell(nic_thread_of(i)));
}

static int bury(void)
{
    int left = 0;
    for (int i = 0; i < NIC_CLIENTS; i++) {
        struct nic_client *c = &nic.client[i];
        const uint32_t state = nic_state(c);
        if (state == NIC_LEAVING)
            left++;
        if (state == NIC_SERVED && __atomic_load_n(&c->bad, __ATOMIC_ACQUIRE)) {
            MK_WARN("NET", "mknic: the job ring of process %d is broken; it is cut off", c->pid);
            shutdown(c->fd, SHUT_RDWR);
            __atomic_store_n(&c->bad, 0, __ATOMIC_RELEASE);
        }
        if (state != NIC_LEFT)
            continue;
        nic_lanes_close(c);
        nic.cu->host_unregister(c->seg);
        mk_shm_release(&c->shm);
        mk_shm_release(&c->bell_shm);
        nic_state_set(c, NIC_NOBODY);
    }
    return left;
}

/* ---- requests ---- */

static int hello(int client, const struct mk_nic_hello *h, struct mk_nic_reply *r)
{
    struct nic_client *c = &nic.client[client];
    if (nic_state(c) != NIC_JOINING)
        return nic_say(r, MK_ERR_INVALID, "a second hello");
    if (h->version != MK_NIC_VERSION)
        return nic_say(r, MK_ERR_MISMATCH, "mknic speaks version %u, this process %u", MK_NIC_VERSION,
                       h->version);
    if (h->host != nic.host)
        return nic_say(r, MK_ERR_UNSUPPORTED, "mknic is on another host, or in another container");
    int ret = mk_shm_import(&h->segment, &c->shm);
    if (!ret)
        ret = mk_shm_import(&h->bell, &c->bell_shm);
    if (ret)
        goto refuse;
    c->seg = c->shm.addr;
    if (c->shm.size < sizeof(*c->seg) || h->bell_off & 7 ||
        h->bell_off > c->bell_shm.size - sizeof(struct mk_bell) || c->seg->magic != MK_NIC_MAGIC) {
        ret = mk_fail(MK_ERR_INVALID, "NET", "mknic: process %d sent wrong memory", c->pid);
        goto refuse;
    }
    nic_use(0);
    const int err = nic.cu->host_register(c->seg, c->shm.size, MK_CU_HOST_PORTABLE | MK_CU_HOST_MAPPED);
    if (err) {
        ret = mk_cuda_fail(err, "cuMemHostRegister");
        goto refuse;
    }
    c->bell = (struct mk_bell *)((char *)c->bell_shm.addr + h->bell_off);
    r->pid = getpid();
    r->nic = nic.id;
    mk_shm_ref(&nic.doorbell, &r->doorbell);
    r->doorbell_off = 64u * (unsigned)nic_thread_of(client);
    MK_INFO("NET", "mknic: process %d is here", c->pid);
    nic_state_set(c, NIC_SERVED);
    mk_bell_ring(nic_bell(nic_thread_of(client)));
    return 0;
refuse:
    mk_shm_release(&c->shm);
    mk_shm_release(&c->bell_shm);
    return nic_say(r, ret, "%.150s", mk_last_error());
}

static void serve(int client, const struct mk_nic_request *q, int *passed, int npassed)
{
    struct mk_nic_reply r;
    memset(&r, 0, sizeof(r));
    r.magic = MK_NIC_MAGIC;
    r.seq = q->seq;
    if (q->op == MK_NIC_REG_FD) {
        if (nic_state(&nic.client[client]) == NIC_SERVED) {
            nic_win_reg(client, q, passed, npassed, &r);
            send_reply(client, &r);
            return;
        }
    }
    for (int i = 0; i < npassed; i++)
        close(passed[i]);
    if (q->op == MK_NIC_HELLO)
        hello(client, &q->u.hello, &r);
    else if (nic_state(&nic.client[client]) != NIC_SERVED)
        nic_say(&r, MK_ERR_INVALID, "hello comes first");
    else if (q->op == MK_NIC_REG_IPC || q->op == MK_NIC_REG_HOST)
        nic_win_reg(client, q, NULL, 0, &r);
    else if (q->op == MK_NIC_IMPORT)
        nic_win_import(client, q, &r);
    else if (q->op == MK_NIC_DROP) {
        if (!nic_win_drop(client, q, &r))
            return; /* answered by the sweep */
    } else
        nic_say(&r, MK_ERR_INVALID, "request %u is unknown", q->op);
    send_reply(client, &r);
}

/* false: the client is gone, or talks nonsense. */
static bool read_request(int client)
{
    struct mk_nic_request q;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int) * MK_NIC_SEGMENTS)];
    } control;
    struct iovec io = {&q, sizeof(q)};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = &control};
    int passed[MK_NIC_SEGMENTS], n = 0;
    m.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(nic.client[client].fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (got <= 0)
        return false;
    const struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
        n = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(passed, CMSG_DATA(h), (size_t)n * sizeof(int));
    }
    if (got != sizeof(q) || q.magic != MK_NIC_MAGIC) {
        MK_WARN("NET", "mknic: process %d does not speak our language", nic.client[client].pid);
        for (int i = 0; i < n; i++)
            close(passed[i]);
        return false;
    }
    serve(client, &q, passed, n);
    return true;
}

int nic_ctl_run(void)
{
    for (;;) {
        int n = 2;
        fds[0] = (struct pollfd){.fd = nic.signal_fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = nic.listen_fd, .events = POLLIN};
        for (int i = 0; i < NIC_CLIENTS; i++)
            if (nic_state(&nic.client[i]) != NIC_NOBODY && nic.client[i].fd >= 0) {
                whose[n] = i;
                fds[n++] = (struct pollfd){.fd = nic.client[i].fd, .events = POLLIN};
            }
        const int waiting = nic_win_sweep(answer_drop) + bury();
        if (poll(fds, (nfds_t)n, waiting ? SWEEP_MS : 500) < 0 && errno != EINTR)
            return mk_fail(MK_ERR_SYSTEM, "NET", "mknic: poll: %s", strerror(errno));
        if (fds[0].revents || __atomic_load_n(&nic.stop, __ATOMIC_ACQUIRE))
            return 0;
        for (int i = 2; i < n; i++)
            if (fds[i].revents && !read_request(whose[i]))
                client_ended(whose[i]);
        if (fds[1].revents)
            accept_client();
    }
}
