/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Memory of the loop transport: registration of our own, maps of the peers'. */
#include "loop_gpu.h"
#include "mk/err.h"
#include <stdlib.h>
#include <string.h>

int mk_loop_map_get(struct mk_loop_dev *d, const struct mk_shm_ref *ref, struct mk_loop_map **out)
{
    for (struct mk_loop_map *m = d->maps; m; m = m->next)
        if (m->ref.pid == ref->pid && m->ref.inode == ref->inode &&
            m->ref.size == ref->size) { /* else: a lie */
            m->refs++;
            *out = m;
            return 0;
        }
    struct mk_loop_map *m = calloc(1, sizeof(*m));
    if (!m)
        return mk_fail(MK_ERR_NOMEM, "NET", "loop: no memory for a map of process %d", (int)ref->pid);
    const int ret = mk_shm_import(ref, &m->shm);
    if (ret) {
        free(m);
        return ret;
    }
    m->ref = *ref;
    m->refs = 1;
    m->next = d->maps;
    d->maps = m;
    *out = m;
    return 0;
}

void mk_loop_map_put(struct mk_loop_dev *d, struct mk_loop_map *m)
{
    if (!m || --m->refs)
        return;
    struct mk_loop_map **at = &d->maps;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    mk_loop_gpu_drop(d, m->grant);
    mk_shm_release(&m->shm);
    free(m);
}

static struct mk_loop_mr *mr_new(struct mk_dev *dev, void *addr, size_t len)
{
    struct mk_loop_mr *mr = calloc(1, sizeof(*mr));
    if (!mr) {
        mk_fail(MK_ERR_NOMEM, "NET", "loop: no memory for a registration");
        return NULL;
    }
    mr->base.dev = dev;
    mr->base.addr = addr;
    mr->base.len = len;
    mr->key.magic = MK_LOOP_MAGIC;
    mr->key.len = len;
    mr->gpu = -1;
    return mr;
}

/* Memory that no memfd holds: private, which peers cannot write, or on a GPU. */
int mk_loop_export(struct mk_dev *dev, void *addr, size_t len, struct mk_export **out)
{
    struct mk_loop_export *x = calloc(1, sizeof(*x));
    int ret = x ? 0 : mk_fail(MK_ERR_NOMEM, "NET", "loop: no memory for a registration");
    if (!ret) {
        x->base.dev = dev;
        x->base.addr = addr;
        x->base.len = len;
        ret = mk_loop_gpu_export((struct mk_loop_dev *)dev, x);
    }
    if (ret)
        free(x);
    else
        *out = &x->base;
    return ret;
}

int mk_loop_reg_export(struct mk_export *export, struct mk_mr **out)
{
    struct mk_loop_export *x = (struct mk_loop_export *)export;
    struct mk_loop_mr *mr = mr_new(x->base.dev, x->base.addr, x->base.len);
    int ret = mr ? 0 : MK_ERR_NOMEM;
    if (!ret && x->gpu)
        ret = mk_loop_gpu_reg((struct mk_loop_dev *)x->base.dev, mr, x);
    mk_loop_gpu_export_free(x);
    if (ret)
        free(mr);
    else
        *out = &mr->base;
    return ret;
}

int mk_loop_reg(struct mk_dev *dev, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out)
{
    const uintptr_t a = (uintptr_t)addr, s = shm ? (uintptr_t)shm->addr : 0;
    if (!shm) {
        struct mk_export *x;
        const int ret = mk_loop_export(dev, addr, len, &x);
        return ret ? ret : mk_loop_reg_export(x, out);
    }
    if (a < s || a - s > shm->size || len > shm->size - (a - s))
        return mk_fail(MK_ERR_INVALID, "NET",
                       "loop: the registered range (%zu bytes) is not in its shared memory", len);
    struct mk_loop_mr *mr = mr_new(dev, addr, len);
    if (!mr)
        return MK_ERR_NOMEM;
    if (shm->fd >= 0) {
        mr->key.kind = MK_LOOP_SHARED;
        mr->key.offset = a - s;
        mk_shm_ref(shm, &mr->key.u.memory);
        mk_loop_gpu_host((struct mk_loop_dev *)dev, &mr->key.u.memory, a - s, len, &mr->grant);
    }
    *out = &mr->base;
    return 0;
}

/* Writes that still read from the memory end in error: it may be unmapped as soon as we return. GPU memory: no copy
 * touches it any more. */
void mk_loop_dereg(struct mk_mr *mr)
{
    if (!mr)
        return;
    mk_loop_cancel_mr((struct mk_loop_dev *)mr->dev, mr);
    mk_loop_gpu_drop((struct mk_loop_dev *)mr->dev, ((struct mk_loop_mr *)mr)->grant);
    free(mr);
}

void mk_loop_key(const struct mk_mr *mr, struct mk_net_key *out)
{
    static_assert(sizeof(struct mk_loop_key) <= sizeof(out->bytes), "the key fits");
    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &((const struct mk_loop_mr *)mr)->key, sizeof(struct mk_loop_key));
}

int mk_loop_import(struct mk_conn *conn, const struct mk_net_key *key, struct mk_rmem **out)
{
    struct mk_loop_conn *c = (struct mk_loop_conn *)conn;
    struct mk_loop_key k;
    memcpy(&k, key->bytes, sizeof(k));
    if (k.magic != MK_LOOP_MAGIC)
        return mk_fail(MK_ERR_INVALID, "NET", "loop: this is not a key of the loop transport");
    if (k.kind != MK_LOOP_SHARED && k.kind != MK_LOOP_GPU)
        return mk_fail(MK_ERR_INVALID, "NET",
                       "loop: the peer's memory is not shared memory; it cannot be written");
    const bool gpu = k.kind == MK_LOOP_GPU;
    if (!gpu && (k.offset > k.u.memory.size || k.len > k.u.memory.size - k.offset))
        return mk_fail(MK_ERR_INVALID, "NET", "loop: the key names bytes beyond the peer's memory");
    struct mk_loop_rmem *r = calloc(1, sizeof(*r));
    if (!r)
        return mk_fail(MK_ERR_NOMEM, "NET", "loop: no memory for an imported key");
    r->gpu = -1;
    const int ret = gpu ? mk_loop_gpu_import(c->dev, &k, r) : mk_loop_map_get(c->dev, &k.u.memory, &r->map);
    if (ret) {
        free(r);
        return ret;
    }
    r->dev = c->dev;
    r->base.conn = conn;
    r->base.len = k.len;
    if (!gpu) {
        if (!r->map->grant)
            mk_loop_gpu_host(c->dev, &k.u.memory, 0, k.u.memory.size, &r->map->grant);
        r->addr = (uint8_t *)r->map->shm.addr + k.offset;
    }
    *out = &r->base;
    return 0;
}

void mk_loop_unimport(struct mk_rmem *rmem)
{
    struct mk_loop_rmem *r = (struct mk_loop_rmem *)rmem;
    if (!r)
        return;
    mk_loop_gpu_drop(r->dev, r->grant);
    mk_loop_map_put(r->dev, r->map);
    free(r);
}
