/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Finds libfabric. The symbols are versioned: getinfo and its kin as of the 1.3 layout of struct fi_info, which is
 * what the headers of every later 1.x describe. */
#include "ofi_lib.h"
#include "mk/err.h"
#include <dlfcn.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mk_ofi_lib lib;
static int opened;

static void *find(void *h, const char *name, const char *version)
{
    void *p = version ? dlvsym(h, name, version) : NULL;
    return p ? p : dlsym(h, name);
}

static int open_locked(void)
{
    uint32_t (*version)(void);
    void *h = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!h)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "ofi: libfabric is not installed (%s)", dlerror());
    *(void **)&lib.getinfo = find(h, "fi_getinfo", "FABRIC_1.3");
    *(void **)&lib.freeinfo = find(h, "fi_freeinfo", "FABRIC_1.3");
    *(void **)&lib.dupinfo = find(h, "fi_dupinfo", "FABRIC_1.3");
    *(void **)&lib.fabric = find(h, "fi_fabric", "FABRIC_1.1");
    *(void **)&lib.strerror = find(h, "fi_strerror", NULL);
    *(void **)&version = find(h, "fi_version", NULL);
    if (!lib.getinfo || !lib.freeinfo || !lib.dupinfo || !lib.fabric || !lib.strerror || !version) {
        dlclose(h);
        return mk_fail(MK_ERR_UNSUPPORTED, "NET", "ofi: libfabric.so.1 lacks functions that every 1.x has");
    }
    lib.version = version();
    opened = 1;
    return 0;
}

int mk_ofi_lib_get(const struct mk_ofi_lib **out)
{
    pthread_mutex_lock(&lock);
    const int ret = opened ? 0 : open_locked();
    pthread_mutex_unlock(&lock);
    if (!ret)
        *out = &lib;
    return ret;
}
