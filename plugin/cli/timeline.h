/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Who did what when: the events of one call of a fused operator, of all blocks of all ranks, as a picture (SVG) or
 * as a trace that Perfetto and chrome://tracing open. */
#pragma once
#include "mk/fused.h"

struct mk_timeline_rank {
    int node, local_rank, blocks;
    const struct mk_trace_event *events; /* by block, then time */
    uint32_t n;
    uint64_t dropped; /* events beyond the recorder's room */
};

struct mk_timeline {
    int nranks;
    const struct mk_timeline_rank *ranks;
    const char *title;    /* operator and shape */
    const char *subtitle; /* nodes, ranks, transport, dtype */
    /* Seconds; NaN where not measured. With all three the picture says how much communication is hidden. */
    double t_compute, t_comm, t_fused;
    const char *(*task_name)(int task); /* may be NULL */
};

/* By the end of the file's name: ".json" is a trace, anything else a picture. */
int mk_timeline_write(const struct mk_timeline *t, const char *path);
int mk_timeline_svg(const struct mk_timeline *t, const char *path);
int mk_timeline_trace(const struct mk_timeline *t, const char *path);

/* First begin and last end of all events; both 0 if there are none. */
void mk_timeline_span(const struct mk_timeline *t, uint64_t *begin_ns, uint64_t *end_ns);

/* Share of the communication time that does not make the call longer than computing alone, 0 to 1:
 * (T_compute + T_comm - T_fused) / T_comm. NaN if a time is missing or there is no communication. */
double mk_hidden_share(double t_compute, double t_comm, double t_fused);
/* The fused call contains the computation: when it took clearly less, something else used the machine meanwhile. */
bool mk_is_disturbed(double t_compute, double t_fused);
