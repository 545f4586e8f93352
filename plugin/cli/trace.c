/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The trace event format: one complete event ("X") a task; a process is a rank, a thread is a block; microseconds
 * from the first event. */
#include "json.h"
#include "timeline.h"
#include <math.h>
#include <string.h>

static const char *const role_names[MK_ROLES] = {"compute", "intra", "send", "recv", "idle"};

void mk_timeline_span(const struct mk_timeline *t, uint64_t *begin_ns, uint64_t *end_ns)
{
    uint64_t begin = UINT64_MAX, end = 0;
    for (int r = 0; r < t->nranks; r++)
        for (uint32_t i = 0; i < t->ranks[r].n; i++) {
            const struct mk_trace_event *e = &t->ranks[r].events[i];
            begin = e->begin_ns < begin ? e->begin_ns : begin;
            end = e->end_ns > end ? e->end_ns : end;
        }
    *begin_ns = end ? begin : 0;
    *end_ns = end;
}

double mk_hidden_share(double t_compute, double t_comm, double t_fused)
{
    const double share = (t_compute + t_comm - t_fused) / t_comm;
    if (!(t_comm > 0) || isnan(share))
        return NAN;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

bool mk_is_disturbed(double t_compute, double t_fused)
{
    return t_fused < 0.95 * t_compute && t_compute - t_fused > 1e-4; /* below it is noise of the clock */
}

static void name_of(struct mk_json *j, const char *what, int pid, int tid, const char *name)
{
    mk_json_object_flat(j, NULL);
    mk_json_text(j, "name", what);
    mk_json_text(j, "ph", "M");
    mk_json_int(j, "pid", pid);
    if (tid >= 0)
        mk_json_int(j, "tid", tid);
    mk_json_object(j, "args");
    mk_json_text(j, "name", name);
    mk_json_end(j);
    mk_json_end(j);
}

static void put_event(struct mk_json *j, const struct mk_timeline *t, int rank,
                      const struct mk_trace_event *e, uint64_t begin)
{
    const char *role = e->role < MK_ROLES ? role_names[e->role] : "unknown";
    const char *task = t->task_name && e->role != MK_ROLE_IDLE ? t->task_name(e->task) : NULL;
    mk_json_object_flat(j, NULL);
    mk_json_text(j, "name", task ? task : role);
    mk_json_text(j, "cat", role);
    mk_json_text(j, "ph", "X");
    mk_json_real(j, "ts", (double)(e->begin_ns - begin) / 1e3);
    mk_json_real(j, "dur", (double)(e->end_ns - e->begin_ns) / 1e3);
    mk_json_int(j, "pid", rank);
    mk_json_int(j, "tid", e->block);
    mk_json_object(j, "args");
    mk_json_text(j, "role", role);
    mk_json_int(j, "index", e->index);
    mk_json_end(j);
    mk_json_end(j);
}

static void put_names(struct mk_json *j, const struct mk_timeline *t)
{
    char text[64];
    for (int r = 0; r < t->nranks; r++) {
        snprintf(text, sizeof(text), "rank %d (node %d, local rank %d)", r, t->ranks[r].node,
                 t->ranks[r].local_rank);
        name_of(j, "process_name", r, -1, text);
        for (int b = 0; b < t->ranks[r].blocks; b++) {
            snprintf(text, sizeof(text), "block %d", b);
            name_of(j, "thread_name", r, b, text);
        }
    }
}

int mk_timeline_trace(const struct mk_timeline *t, const char *path)
{
    struct mk_json j;
    uint64_t begin, end;
    const int ret = mk_json_open(&j, path);
    if (ret)
        return ret;
    mk_timeline_span(t, &begin, &end);
    mk_json_object(&j, NULL);
    mk_json_text(&j, "displayTimeUnit", "ms");
    mk_json_object(&j, "otherData");
    mk_json_text(&j, "title", t->title);
    mk_json_text(&j, "subtitle", t->subtitle);
    mk_json_end(&j);
    mk_json_array(&j, "traceEvents");
    put_names(&j, t);
    for (int r = 0; r < t->nranks; r++)
        for (uint32_t i = 0; i < t->ranks[r].n; i++)
            put_event(&j, t, r, &t->ranks[r].events[i], begin);
    mk_json_end(&j);
    mk_json_end(&j);
    return mk_json_close(&j);
}

int mk_timeline_write(const struct mk_timeline *t, const char *path)
{
    const size_t len = strlen(path);
    return len >= 5 && !strcmp(path + len - 5, ".json") ? mk_timeline_trace(t, path)
                                                        : mk_timeline_svg(t, path);
}
