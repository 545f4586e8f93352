/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a device says by itself: broken queue pairs, a port that went down, its own end. */
#include "mk/err.h"
#include "mk/log.h"
#include "verbs.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EVENTS_MAX 64

void mk_verbs_break(struct mk_verbs_conn *c, int code, const char *cause)
{
    if (c->error)
        return;
    c->error = code;
    c->tell = true;
    c->dev->news++;
    snprintf(c->text, sizeof(c->text), "%s", cause);
}

static __attribute__((format(printf, 2, 3))) void end_device(struct mk_verbs_dev *d, const char *fmt, ...)
{
    va_list ap;
    if (d->error)
        return;
    va_start(ap, fmt);
    vsnprintf(d->text, sizeof(d->text), fmt, ap);
    va_end(ap);
    d->error = MK_ERR_NET;
}

static void queue_pair_event(struct mk_verbs_dev *d, const struct ibv_async_event *e)
{
    struct ibv_qp_attr attr;
    char cause[96];
    struct mk_verbs_conn *c = e->element.qp->qp_context;
    snprintf(cause, sizeof(cause), "%s: %s", d->name, d->lib->event_type_str(e->event_type));
    mk_verbs_break(c, MK_ERR_NET, cause);
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_ERR; /* so that what is in its queues comes out */
    d->lib->modify_qp(c->qp, &attr, IBV_QP_STATE);
}

static void one_event(struct mk_verbs_dev *d, const struct ibv_async_event *e)
{
    switch (e->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        queue_pair_event(d, e);
        break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
        end_device(d, "device %s: %s", d->name, d->lib->event_type_str(e->event_type));
        break;
    case IBV_EVENT_PORT_ERR:
        if (e->element.port_num != d->port || d->down_ns)
            break;
        d->down_ns = mk_time_ns();
        MK_WARN("NET", "verbs: %s port %u went down; an error if it stays so for %.1f s", d->name, d->port,
                (double)d->grace_ns * 1e-9);
        break;
    case IBV_EVENT_PORT_ACTIVE:
        if (e->element.port_num != d->port || !d->down_ns)
            break;
        d->down_ns = 0;
        MK_WARN("NET", "verbs: %s port %u is up again", d->name, d->port);
        break;
    default:
        break;
    }
}

void mk_verbs_events(struct mk_verbs_dev *d)
{
    struct ibv_async_event e;
    for (int i = 0; i < EVENTS_MAX && !d->lib->get_async_event(d->ctx, &e); i++) {
        one_event(d, &e);
        d->lib->ack_async_event(&e);
    }
    if (d->down_ns && mk_time_ns() - d->down_ns > d->grace_ns)
        end_device(d, "device %s: port %u went down and stayed so for %.1f s", d->name, d->port,
                   (double)d->grace_ns * 1e-9);
}
