/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Provider shm between devices of one process: they reach into each other's queues by the same mapping, which goes
 * with the endpoint that made it. A device that closes is therefore kept while another one of this process has it
 * as a peer. Between processes each side has a mapping of its own. */
#include "mk/err.h"
#include "ofi.h"
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mk_ofi_dev *devices;

void mk_ofi_shm_lock(const struct mk_ofi_dev *d)
{
    if (d->shm)
        pthread_mutex_lock(&lock);
}

void mk_ofi_shm_unlock(const struct mk_ofi_dev *d)
{
    if (d->shm)
        pthread_mutex_unlock(&lock);
}

int mk_ofi_shm_add(struct mk_ofi_dev *d)
{
    size_t len = sizeof(d->name);
    const int err = fi_getname(&d->ep->fid, d->name, &len);
    if (err || len > sizeof(d->name))
        return mk_fail(MK_ERR_NET, "NET", "ofi: shm: the endpoint has no address: %s",
                       d->lib->strerror(-err));
    d->name_len = (uint32_t)len;
    d->shm = true;
    pthread_mutex_lock(&lock);
    d->next_shm = devices;
    devices = d;
    pthread_mutex_unlock(&lock);
    return 0;
}

static bool reached(const struct mk_ofi_dev *d)
{
    for (const struct mk_ofi_dev *o = devices; o; o = o->next_shm)
        for (const struct mk_ofi_peer *p = o->closed ? NULL : o->peers; p; p = p->next)
            if (p->len == d->name_len && !memcmp(p->name, d->name, p->len))
                return true;
    return false;
}

void mk_ofi_shm_close(struct mk_ofi_dev *d)
{
    struct mk_ofi_dev *gone = NULL;
    pthread_mutex_lock(&lock);
    d->closed = true;
    for (struct mk_ofi_dev **at = &devices; *at;) {
        struct mk_ofi_dev *o = *at;
        if (!o->closed || reached(o)) {
            at = &o->next_shm;
            continue;
        }
        *at = o->next_shm;
        o->next_shm = gone;
        gone = o;
    }
    pthread_mutex_unlock(&lock);
    while (gone) {
        struct mk_ofi_dev *next = gone->next_shm;
        mk_ofi_destroy(gone);
        gone = next;
    }
}
