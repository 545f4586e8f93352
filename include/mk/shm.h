/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Memory that other processes of this host can map, without a name in the file system: a memfd, reached by peers
 * through /proc/PID/fd/FD. It is gone with the last process that maps it, also after kill -9. Also the futex
 * "bell" on which a process sleeps until a peer (or its own proxy) has written something for it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct mk_shm {
    void *addr;  /* page aligned, zeroed when made */
    size_t size; /* multiple of the page size */
    int fd;      /* owner: the memfd; importer: -1 */
};

/* What a peer needs to map it: exchanged by value. key is stored at nothing; it guards against a recycled PID by
 * comparison with the inode of the file. */
struct mk_shm_ref {
    int32_t pid;
    int32_t fd;
    uint64_t size;
    uint64_t inode;
};

int mk_shm_create(const char *what, size_t size, struct mk_shm *out);
void mk_shm_ref(const struct mk_shm *shm, struct mk_shm_ref *out);
int mk_shm_import(const struct mk_shm_ref *ref, struct mk_shm *out);
void mk_shm_release(struct mk_shm *shm); /* unmap, close; zeroes *shm; NULL addr is allowed */

/* The boot id of this host and the name space of its PIDs, hashed: equal for processes that can import from each
 * other. 0: it cannot be told, mk_last_error() says why; after a success it can always be told. */
uint64_t mk_host_id(void);

/* Bell (in shared memory): `seq` counts rings, `sleepers` who waits. Ring after the data was published.
 * Sleeper: s = mk_bell_seq(b); poll everything; nothing there: mk_bell_wait(b, s, ns). A ring between the two
 * makes the wait return at once, so no wake-up is lost. */
struct mk_bell {
    uint32_t seq;
    uint32_t sleepers;
};
void mk_bell_ring(struct mk_bell *b);
static inline uint32_t mk_bell_seq(const struct mk_bell *b)
{
    return __atomic_load_n(&b->seq, __ATOMIC_SEQ_CST);
}
/* Returns when rung, when `ns` have passed, or on a signal. */
void mk_bell_wait(struct mk_bell *b, uint32_t seq, uint64_t ns);

uint64_t mk_time_ns(void); /* CLOCK_MONOTONIC: comparable between the processes of a host */
