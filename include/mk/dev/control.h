/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The controller: how many units (clusters; on the CPU threads) of a launch communicate, the others compute. A pure step
 * function, samples and state in, a target out, in integers only: the same inputs give the same target on the GPU, on
 * the CPU and in tests.
 *
 *   mk_ctl_begin(f, c, now)                            before the first task of a launch; c lives on between launches
 *   at a task boundary, by whichever unit comes and gets the lock (one try; else it goes on), all three under it:
 *       take the sample s; if (mk_ctl_due(f, c, s)) target = mk_ctl_step(f, c, s)
 *   every unit, between two tasks:
 *       role = mk_ctl_role(target, ticket); look; mk_ctl_act(role, tile, comm, patient)
 *
 * Target. Both kinds of work end together with n = B R_s C_s / (R_p C_p + R_s C_s): R tasks left, C ticks of a task, waits
 * excluded, s communication, p computation, B the units that have come. Two caps:
 *   demand   Units that communicate were busy u of them on average: u units carry all bytes that the link completes and
 *            that inputs allow, and more only wait. u + a quarter is the cap until they are busy throughout.
 *   link     Where the wait for the link is inside the task (stores to peers), all are always busy and C_s grows with n.
 *            So completed bytes per time are compared: a step up that brings less than a quarter of its proportion was
 *            one too many, and the smaller number is the cap. In turns fewer and more are tried, after 16 windows there,
 *            32, ... 256, or when the rate there has changed; while more bring more, more again.
 * A window lasts until every unit has come to one boundary on average, and as long as one task at least. The target moves
 * by at most an eighth of the units (one at least), only after a whole window at the old one, only if the wish differs by
 * 3/4 of a unit and a sixteenth (where it is the link's limit, which does not waver: 3/4); to turn down after a move up,
 * if two windows wish it.
 * Start. Before the first band of tiles is done no communication can be ready: the target is 0. Then the formula, from the
 * costs of earlier launches; else what the tuner knows (start); else an eighth of the units.
 *
 * Why it cannot deadlock. The target is a preference and nothing waits for it.
 * (1) A unit that finds nothing in its role looks at the other: COMPUTE at once, COMM when it has been patient for a
 *     bounded time (mk_ctl_act). Tasks of a kind are finitely many; so every unit that stays comes to any task that is
 *     ready, whatever the target and whatever other units do; one resident unit is enough.
 * (2) A unit leaves only if no task of either kind is unclaimed, or if no tile is and R >= 1 others have promised to stay
 *     until no communication is: somebody always stays.
 * (3) A claimed task has its inputs and its outputs granted and never waits inside.
 * (4) No unit is "the controller": a step is made by whoever comes to a boundary while it is due, and if nobody comes the
 *     old target stands, which is as good by (1).
 * A wrong target costs time, no more. */
#pragma once
#include "mk/dev/dev.h"

enum mk_ctl_kind { MK_CTL_COMPUTE = 0, MK_CTL_COMM = 1 };

/* Constant in a launch. */
struct mk_ctl_conf {
    uint32_t units;   /* B, at most 4096 */
    uint32_t ceiling; /* R: at most so many communicate; at least 1 */
    uint32_t start;   /* the tuner's first target; 0: it knows none */
    uint32_t band;    /* tasks of computation until the first of communication can be ready */
};
/* Of this launch; counts from its begin. Ticks: any clock that all units share, below 2^28 of them a task. */
struct mk_ctl_sample {
    uint64_t now;
    uint64_t busy[2]; /* ticks inside finished tasks, waits excluded */
    uint64_t off;     /* ticks that units in role COMM waited, or spent on tiles for want of better */
    uint64_t bytes;   /* that the link has completed */
    uint32_t done[2]; /* tasks finished */
    uint32_t left[2]; /* tasks not yet finished, below 2^30 */
    uint32_t units;   /* that have come (tickets taken); 0: all */
};
/* State, per communicator and shape class; all zero: nothing is known. */
struct mk_ctl {
    uint32_t target;
    uint32_t cost[2];   /* ticks of a task, 4 binary places; 0: unknown */
    uint32_t limit;     /* link; 0: none */
    uint32_t knee;      /* the number of units at which ... */
    uint64_t knee_rate; /* ... bytes per 1024 ticks were completed; 0: unknown */
    uint32_t hold, age; /* rates at the knee until others are tried; so far */
    uint32_t bound;     /* it is known that more bring nothing */
    uint32_t down;      /* fewer were tried last */
    /* of this launch */
    uint32_t cap;         /* demand; 0: none */
    int32_t begun, fresh; /* fresh: the target moved, the window is not whole */
    int32_t way, wanted;  /* of the last move; of the last wish */
    int32_t want;         /* of work, in the last window */
    uint64_t at;          /* the window began; when the target last moved */
    uint64_t rate_at, rate_bytes;
    uint32_t rate_done, rate_windows;
    uint64_t seen_busy[2], seen_off;
    uint32_t seen_done[2], done_at;
};

MK_DEV uint32_t mk_ctl_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
MK_DEV uint32_t mk_ctl_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
/* How far one step goes. */
MK_DEV uint32_t mk_ctl_stride(const struct mk_ctl_conf *f)
{
    return mk_ctl_max(f->units / 8, 1);
}
/* Units that are here: a rival may keep some from ever coming. */
MK_DEV uint32_t mk_ctl_here(const struct mk_ctl_conf *f, const struct mk_ctl_sample *s)
{
    return s->units && s->units < f->units ? s->units : f->units;
}
/* At most so many of them communicate while there is computation left. */
MK_DEV uint32_t mk_ctl_most(const struct mk_ctl_conf *f, uint32_t units)
{
    return units ? mk_ctl_min(f->ceiling, units - 1) : 0;
}

MK_DEV void mk_ctl_begin(const struct mk_ctl_conf *f, struct mk_ctl *c, uint64_t now)
{
    c->target = f->band ? 0 : mk_ctl_min(f->start, mk_ctl_most(f, f->units));
    c->begun = c->fresh = c->way = c->wanted = c->want = 0;
    c->at = c->rate_at = now;
    c->rate_bytes = c->seen_off = c->seen_busy[0] = c->seen_busy[1] = 0;
    c->cap = c->rate_windows = c->rate_done = c->done_at = c->seen_done[0] = c->seen_done[1] = 0;
}

/* The formula, in units with 8 binary places. */
MK_DEV uint32_t mk_ctl_balance(uint32_t units, const uint32_t left[2], const uint32_t cost[2])
{
    uint64_t s = (uint64_t)left[MK_CTL_COMM] * mk_ctl_max(cost[MK_CTL_COMM], 1);
    uint64_t sum = (uint64_t)left[MK_CTL_COMPUTE] * mk_ctl_max(cost[MK_CTL_COMPUTE], 1) + s;
    MK_ROLLED
    while (sum >> 40) {
        sum >>= 4;
        s >>= 4;
    }
    return sum ? (uint32_t)(s * units * 256 / sum) : 0;
}

/* Cost of one kind, from the tasks finished since it was last looked at: at most half of the way to their mean, which
 * counts as at most twice and at least half of what was known, so that one stalled task does not turn everything. */
MK_DEV void mk_ctl_learn(struct mk_ctl *c, const struct mk_ctl_sample *s, int kind)
{
    const uint32_t n = s->done[kind] - c->seen_done[kind];
    const uint64_t busy = s->busy[kind] - c->seen_busy[kind];
    if (!n)
        return;
    c->seen_done[kind] = s->done[kind];
    c->seen_busy[kind] = s->busy[kind];
    const uint64_t mean = (busy >> 56 ? ~0ull : busy << 4) / n, most = 0xffffffffu;
    uint64_t now = mean > most ? most : mean ? mean : 1;
    const uint64_t was = c->cost[kind];
    if (was) {
        const uint64_t high = 2 * was + 1, low = was / 2;
        now = now > high ? high : now < low ? low : now;
        const uint64_t weight = n < 8 ? n : 8; /* sixteenths */
        now = (now * weight + was * (16 - weight) + 8) / 16;
        now = now > most ? most : now ? now : 1;
    }
    c->cost[kind] = (uint32_t)now;
}

/* Is it time for a step? Not with a sample that is older than the last step's: counts would go backwards. */
MK_DEV bool mk_ctl_due(const struct mk_ctl_conf *f, const struct mk_ctl *c, const struct mk_ctl_sample *s)
{
    if (!c->begun)
        return s->done[MK_CTL_COMPUTE] >= f->band || s->done[MK_CTL_COMM];
    const int32_t more = (int32_t)(s->done[0] + s->done[1] - c->done_at);
    const int64_t time = (int64_t)(s->now - c->at);
    if (more < 0 || time < 0)
        return false;
    if (!s->left[MK_CTL_COMM] || !s->left[MK_CTL_COMPUTE])
        return c->target != (s->left[MK_CTL_COMM] ? mk_ctl_min(f->ceiling, mk_ctl_here(f, s)) : 0);
    const uint64_t longest = mk_ctl_max(c->cost[0], c->cost[1]) >> 4;
    return (uint32_t)more >= mk_ctl_here(f, s) && (uint64_t)time >= longest;
}

/* Demand: how many of the units that communicate had something to do in this window, 8 binary places. One window of want
 * may be the pipeline filling; the second counts. */
MK_DEV uint32_t mk_ctl_demand(struct mk_ctl *c, const struct mk_ctl_sample *s)
{
    const uint64_t off = s->off - c->seen_off, time = s->now - c->at, n = c->target;
    uint64_t idle = !time ? 0 : off >> 54 ? n * 256 : off * 256 / time;
    idle = idle < n * 256 ? idle : n * 256;
    const uint32_t used = (uint32_t)(n * 256 - idle);
    const bool want = used < n * 192;
    if (used >= n * 240)
        c->cap = 0;
    else if (want && c->want)
        c->cap = mk_ctl_max((used * 5 / 4 + 255) / 256, 1);
    c->want = want;
    return used;
}

MK_DEV void mk_ctl_rate_from(struct mk_ctl *c, const struct mk_ctl_sample *s)
{
    c->rate_at = s->now;
    c->rate_bytes = s->bytes;
    c->rate_done = s->done[MK_CTL_COMM];
    c->rate_windows = 0;
}
/* Rate at n units, against that at the knee. */
MK_DEV void mk_ctl_compare(struct mk_ctl *c, uint32_t n, uint64_t rate)
{
    const uint64_t was = c->knee_rate, knee = c->knee;
    const bool tried = n == c->limit;
    if (!was ||
        (n < knee && rate >= was - was / 16)) { /* so few are enough; if that was tried, perhaps fewer are */
        c->knee = n;
        c->knee_rate = rate;
        c->limit = c->bound = tried ? n : 0;
        c->age = tried ? c->hold : 0;
        c->down = 0;
    } else if (n < knee && tried) { /* too few */
        c->limit = c->bound ? (uint32_t)knee : 0;
        c->hold = mk_ctl_min(c->hold * 2, 64);
    } else if (n == knee) {
        const bool other = rate > was + was / 8 || rate < was - was / 4;
        c->knee_rate = other ? rate : (was * 3 + rate) / 4;
        if (other)
            c->limit = c->bound = c->hold = c->age = 0;
    } else if (n > knee &&
               rate >= was + was / knee * (n - knee) / 4) { /* in proportion, so many are enough */
        const uint64_t enough = (knee * rate + was - 1) / was;
        c->knee = (uint32_t)(enough < n ? enough : n);
        c->knee_rate = rate;
        c->bound = tried && enough < n;
        c->limit = !tried ? 0 : c->bound ? c->knee : n + mk_ctl_max(n / 4, 1); /* the next try */
    } else if (n > knee) {
        c->limit = c->bound = (uint32_t)knee;
        c->hold = mk_ctl_min(c->hold * 2, 64);
        c->age = 0;
    }
}
/* After a while at the knee: are fewer enough? Or, where they are known to be: has the link become another one? */
MK_DEV void mk_ctl_try(struct mk_ctl *c, uint32_t n)
{
    c->hold = mk_ctl_max(c->hold, 4);
    if (n != c->knee || ++c->age < c->hold)
        return;
    c->age = 0;
    c->down = !(c->bound && c->down);
    const uint32_t by = mk_ctl_max(n / 4, 1);
    c->limit = !c->down ? n + by : n > 1 ? n - by : c->limit;
}
/* Link: bytes completed since the target last moved, if there was work all the time. */
MK_DEV void mk_ctl_link(struct mk_ctl *c, const struct mk_ctl_sample *s, uint32_t used)
{
    const uint64_t bytes = s->bytes - c->rate_bytes, time = s->now - c->rate_at;
    if (!c->target || used < c->target * 240) {
        mk_ctl_rate_from(c, s);
        return;
    }
    if (++c->rate_windows < 4 || s->done[MK_CTL_COMM] - c->rate_done < 16 || !time)
        return;
    if (bytes && !(bytes >> 40)) {
        mk_ctl_compare(c, c->target, bytes * 1024 / time);
        mk_ctl_try(c, c->target);
    }
    mk_ctl_rate_from(c, s);
}

/* What the target should be, 8 binary places; between 1 and the most. */
MK_DEV uint32_t mk_ctl_wish(const struct mk_ctl_conf *f, const struct mk_ctl *c,
                            const struct mk_ctl_sample *s)
{
    const uint32_t units = mk_ctl_here(f, s);
    uint32_t wish = mk_ctl_balance(units, s->left, c->cost), top = mk_ctl_most(f, units);
    if (c->cap)
        top = mk_ctl_min(top, c->cap);
    if (c->limit)
        top = mk_ctl_min(top, c->limit);
    wish = mk_ctl_max(wish, 256);
    return mk_ctl_min(wish, top * 256);
}

MK_DEV uint32_t mk_ctl_first(const struct mk_ctl_conf *f, const struct mk_ctl *c,
                             const struct mk_ctl_sample *s)
{
    if (c->cost[MK_CTL_COMPUTE] && c->cost[MK_CTL_COMM])
        return (mk_ctl_wish(f, c, s) + 128) / 256;
    return mk_ctl_min(f->start ? f->start : mk_ctl_stride(f), mk_ctl_most(f, mk_ctl_here(f, s)));
}

/* From the target towards the wish: hysteresis and stride. To turn back takes two windows that want it. */
MK_DEV uint32_t mk_ctl_move(const struct mk_ctl_conf *f, struct mk_ctl *c, uint32_t wish)
{
    const uint32_t n = c->target, at = n * 256;
    const int32_t way = wish > at ? 1 : -1;
    const uint32_t off = wish > at ? wish - at : at - wish;
    const bool wanted = c->wanted == way;
    c->wanted = off < 192 + (wish == c->limit * 256 ? 0 : n * 16) ? 0 : way; /* a try may be one unit */
    if (!c->wanted || (way < 0 && c->way > 0 && !wanted))
        return n;
    const uint32_t by = mk_ctl_min((off + 128) / 256, mk_ctl_stride(f));
    c->way = way;
    return way > 0 ? n + by : n - by;
}

/* One step; returns the target, which also stands in c. */
MK_DEV uint32_t mk_ctl_step(const struct mk_ctl_conf *f, struct mk_ctl *c, const struct mk_ctl_sample *s)
{
    const uint32_t was = c->target;
    const int32_t begun = c->begun;
    mk_ctl_learn(c, s, MK_CTL_COMPUTE);
    mk_ctl_learn(c, s, MK_CTL_COMM);
    if (!s->left[MK_CTL_COMM]) {
        c->target = 0;
    } else if (!s->left[MK_CTL_COMPUTE]) {
        c->target = mk_ctl_min(f->ceiling, mk_ctl_here(f, s));
    } else if (!begun) {
        if (s->done[MK_CTL_COMPUTE] < f->band && !s->done[MK_CTL_COMM])
            return was;
        c->target = mk_ctl_first(f, c, s);
    } else {
        if (!c->fresh) {
            mk_ctl_link(c, s, mk_ctl_demand(c, s));
            c->target = mk_ctl_move(f, c, mk_ctl_wish(f, c, s));
        }
        c->target = mk_ctl_min(c->target, mk_ctl_most(f, mk_ctl_here(f, s)));
    }
    c->begun = 1;
    c->fresh = c->target != was || !begun;
    c->at = s->now;
    c->seen_off = s->off;
    c->done_at = s->done[0] + s->done[1];
    if (c->fresh)
        mk_ctl_rate_from(c, s);
    return c->target;
}

/* The role of the unit that came as number `ticket`: the first ones communicate, so that where not all are resident the
 * kind that others wait for is served. */
MK_DEV int mk_ctl_role(uint32_t target, uint32_t ticket)
{
    return ticket < target ? MK_CTL_COMM : MK_CTL_COMPUTE;
}

/* What a unit does at a task boundary. tile, comm: what a look found: 1 a task that is ready, 0 none ready, -1 none left
 * to claim (what is in role and ready is enough: the other need not be looked at). patient: it has found nothing in
 * its role for a while, or this is as good. MK_CTL_STAY: wait if it is one of the R that promised to stay, or can
 * become one; else leave. */
enum mk_ctl_do { MK_CTL_TILE = 0, MK_CTL_TALK = 1, MK_CTL_WAIT = 2, MK_CTL_STAY = 3, MK_CTL_LEAVE = 4 };
MK_DEV int mk_ctl_act(int role, int tile, int comm, bool patient)
{
    if (tile > 0 && (role == MK_CTL_COMPUTE || (comm <= 0 && (comm < 0 || patient))))
        return MK_CTL_TILE;
    if (comm > 0)
        return MK_CTL_TALK;
    if (tile < 0)
        return comm < 0 ? MK_CTL_LEAVE : MK_CTL_STAY;
    return MK_CTL_WAIT;
}
