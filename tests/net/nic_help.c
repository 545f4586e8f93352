/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "nic_help.h"
#include "mk/shm.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static bool answers(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const bool ok = fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof(a));
    if (fd >= 0)
        close(fd);
    return ok;
}

int nic_start(const char *program, const char *const *options, struct nic_proc *out, struct mk_settings *s)
{
    const char *argv[16] = {program, "--socket", out->path};
    int n = 3, status;
    const char *why;
    memset(out, 0, sizeof(*out));
    if (!mk_cuda_open(&why)) {
        printf("skip: net.nic: %s\n", why);
        return 77;
    }
    snprintf(out->dir, sizeof(out->dir), "/tmp/mknic-test-XXXXXX");
    if (!mkdtemp(out->dir))
        return 1;
    snprintf(out->path, sizeof(out->path), "%s/nic", out->dir);
    for (; options && *options && n < 15; options++)
        argv[n++] = *options;
    fflush(stdout);
    out->pid = fork();
    if (!out->pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); /* for the ranks, not for it */
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    for (int i = 0; i < 6000 && out->pid > 0; i++) {
        if (answers(out->path)) {
            snprintf(s->nic, sizeof(s->nic), "%s", out->path);
            return 0;
        }
        if (waitpid(out->pid, &status, WNOHANG) == out->pid)
            break;
        usleep(5000);
    }
    printf("nic_start: %s did not come up\n", program);
    rmdir(out->dir);
    out->pid = 0;
    return 1;
}

int nic_stop(struct nic_proc *p, int sig)
{
    int status = -1;
    if (p->pid <= 0)
        return -1;
    kill(p->pid, sig);
    if (waitpid(p->pid, &status, 0) != p->pid)
        status = -1;
    unlink(p->path);
    rmdir(p->dir);
    p->pid = 0;
    return status;
}

const struct mk_cuda *nic_cuda(int ordinal)
{
    const char *why = "";
    int device;
    void *ctx;
    const struct mk_cuda *cu = mk_cuda_open(&why);
    if (cu && !cu->init(0) && !cu->device_get(&device, ordinal) && !cu->ctx_retain(&ctx, device) &&
        !cu->ctx_set(ctx))
        return cu;
    printf("nic_cuda: device %d: %s\n", ordinal, why);
    return NULL;
}
