/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The profiler as a witness inside the object: requested without MK_PROFILE it counts collectives of each communicator, asks NCCL
 * for no more than that, whatever it costs while it is held, and leaves no file. Links the objects; the tables are found by
 * name in the program itself. */
#include "check.h"
#include "mk/profile.h"
#include "tests/plugin/prof_events.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct prof_coll ar = {"AllReduce", "ncclFloat32", "TREE", "LL", 1000, 2, false};

int main(void)
{
    void *self = dlopen(NULL, RTLD_NOW);
    struct mk_profile_count n;
    struct prof p[7];
    int mask = -1;
    unsetenv("MK_PROFILE");
    CHECK(prof_open(&p[5], self, 5, 70, 0, 4, &mask) && !mask, "events without a request");
    CHECK(!prof_enqueue(&p[5], &ar) && !mk_profile_of_process(), "something is profiled without a request");
    prof_close(&p[5]);
    mk_profile_request(MK_PROFILE_LIGHT);
    for (int v = 1; v <= 6; v++) {
        CHECK(prof_open(&p[v], self, v, 100 + (uint64_t)v, 3, 4, &mask), "no table %d", v);
        CHECK(mask == 6, "version %d: mask %#x", v, (unsigned)mask); /* collectives, point to point */
    }
    struct mk_profile *profile = mk_profile_of_process();
    CHECK(profile, "nothing is profiled");
    mk_profile_hold(profile, 1);
    for (int v = 1; v <= 6; v++) {
        for (int i = 0; i < 10 * v; i++)
            prof_run(&p[v], prof_enqueue(&p[v], &ar), 2, 1000, 2000, getpid());
        if (v < 4) /* known by what its events say: the hash of prof_events.c, from the first on */
            CHECK(mk_profile_find(profile, 0xabc, 3), "version %d: not found by its events", v);
        if (v >= 4 || v == 1) {
            const uint64_t id = v == 1 ? 0xabc : 100 + (uint64_t)v;
            CHECK(mk_profile_counted(profile, id, v == 1 ? -1 : 3, &n), "version %d: not known", v);
            CHECK(n.colls == 10u * (unsigned)v, "version %d: %llu collectives", v,
                  (unsigned long long)n.colls);
            CHECK(n.api == (v >= 5 ? 10u * (unsigned)v : 0), "version %d: %llu calls", v,
                  (unsigned long long)n.api);
        }
    }
    for (int v = 1; v <= 6; v++) {
        prof_close(&p[v]);
        CHECK(!p[v].failed, "version %d: %d calls were no success", v, p[v].failed);
    }
    CHECK(!mk_profile_counted(profile, 106, 3, &n), "what is finalised is still counted");
    return bad;
}
