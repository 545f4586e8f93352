/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Finds libibverbs. Its functions exist twice, as of 1.0 and as of 1.1 of its ABI; the headers describe the latter. */
#include "verbs_lib.h"
#include "mk/err.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mk_verbs_lib lib;
static int opened;

#define FN(name)                                                                                             \
    {                                                                                                        \
        "ibv_" #name, offsetof(struct mk_verbs_lib, name)                                                    \
    }
static const struct {
    const char *symbol;
    size_t at;
} functions[] = {
    FN(get_device_list),
    FN(free_device_list),
    FN(get_device_name),
    FN(open_device),
    FN(close_device),
    FN(query_device),
    FN(query_port),
    FN(query_gid),
    FN(alloc_pd),
    FN(dealloc_pd),
    FN(reg_mr),
    FN(dereg_mr),
    FN(create_cq),
    FN(create_comp_channel),
    FN(destroy_comp_channel),
    FN(resize_cq),
    FN(destroy_cq),
    FN(get_cq_event),
    FN(ack_cq_events),
    FN(create_qp),
    FN(modify_qp),
    FN(destroy_qp),
    FN(get_async_event),
    FN(ack_async_event),
    FN(wc_status_str),
    FN(event_type_str),
};

static int open_locked(void)
{
    int (*fork_init)(void);
    void *h = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!h)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "verbs: libibverbs is not installed (%s)", dlerror());
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *p = dlvsym(h, functions[i].symbol, "IBVERBS_1.1");
        if (!p)
            p = dlsym(h, functions[i].symbol); /* what came in one version only */
        if (!p) {
            dlclose(h);
            return mk_fail(MK_ERR_UNSUPPORTED, "NET", "verbs: libibverbs.so.1 has no %s",
                           functions[i].symbol);
        }
        *(void **)((char *)&lib + functions[i].at) = p;
    }
    *(void **)&lib.reg_dmabuf_mr = dlsym(h, "ibv_reg_dmabuf_mr");
    /* Kernels before 5.12 give a forked child's writes to the parent's registered pages a copy on the wrong side.
     * It fails where memory was registered before, by somebody else: nothing is lost then but this protection. */
    *(void **)&fork_init = dlsym(h, "ibv_fork_init");
    if (fork_init)
        fork_init();
    opened = 1;
    return 0;
}

int mk_verbs_lib_get(const struct mk_verbs_lib **out)
{
    pthread_mutex_lock(&lock);
    const int ret = opened ? 0 : open_locked();
    pthread_mutex_unlock(&lock);
    if (!ret)
        *out = &lib;
    return ret;
}
