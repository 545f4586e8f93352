/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Spin model of the command ring (mk/dev/ring.h) and of the proxy's sleep: producers claim, write the body of the
 * command and then its last word with the lap; the consumer looks at the last word only, copies out, frees, and
 * sleeps when nothing is there; a producer kicks after its publish. One step is one memory access, so every
 * interleaving of the accesses is tried (order within a thread is as release and acquire give it).
 *
 * Checked: a consumed command is whole and is the one that was claimed at that index; none is lost or seen twice;
 * a slot is not overwritten before it was freed; nobody waits for ever (no wake-up is lost, no invalid end state).
 * Broken on purpose, to see that the checks bite: LAP_FIRST, FREE_FIRST, BLIND_SLEEP, KICK_FIRST. */
#define SLOTS 2
#define LAPS 3 /* instead of 65536: the count goes round within the run */
#define PRODUCERS 2
#define EACH 3
#define TOTAL (PRODUCERS * EACH)

byte claim, tail, tail_seen; /* indexes; TOTAL is small, no wrap needed */
byte body[SLOTS];            /* words 0 to 4: index + 1 of the command */
byte lap[SLOTS];             /* word 5 */
bool asleep, rung;
byte consumed;
byte unfreed[SLOTS]; /* ghost: published in this slot and not yet freed */

#define LAP(i) (((i) / SLOTS + 1) % LAPS)

active[PRODUCERS] proctype producer()
{
    byte n, at, seen, t;
    bool sleeping;
    do
    :: n == EACH -> break
    :: else ->
again:
        at = claim;
        seen = tail_seen;
        if
        :: at - seen >= SLOTS ->
            t = tail;
            tail_seen = t;
            if
            :: at - t >= SLOTS ->
                /* full: back-pressure. Waiting for the tail is what the caller's retry comes to. */
                (tail != t || claim != at);
                goto again
            :: else -> skip
            fi
        :: else -> skip
        fi;
        if
        :: atomic { claim == at -> claim = at + 1 }
        :: atomic { else -> goto again }
        fi;
        assert(unfreed[at % SLOTS] == 0);
#ifdef KICK_FIRST
        sleeping = asleep;
#endif
#ifndef LAP_FIRST
        body[at % SLOTS] = at + 1;
#endif
        atomic {
            lap[at % SLOTS] = LAP(at);
            unfreed[at % SLOTS] = 1
        }
#ifdef LAP_FIRST
        body[at % SLOTS] = at + 1;
#endif
#ifndef KICK_FIRST
        sleeping = asleep; /* the read-modify-write of mk_proxy_kick */
#endif
        if
        :: sleeping -> rung = true
        :: else -> skip
        fi;
        n++
    od
}

active proctype consumer()
{
    byte next, copy;
    do
    :: next == TOTAL -> break
    :: else ->
        if
        :: lap[next % SLOTS] == LAP(next) ->
#ifdef FREE_FIRST
            atomic {
                unfreed[next % SLOTS] = 0;
                tail = next + 1
            }
#endif
            copy = body[next % SLOTS];
            assert(copy == next + 1);
            consumed++;
            atomic {
                unfreed[next % SLOTS] = 0;
                next++;
                tail = next
            }
        :: else ->
            asleep = true; /* the exchange of go_idle */
            if
#ifndef BLIND_SLEEP
            :: lap[next % SLOTS] == LAP(next) -> skip
            :: else ->
#else
            :: true ->
#endif
                rung; /* the wait; a ring since the last one ends it at once. No time-out here: it must not be needed */
                rung = false
            fi;
            asleep = false
        fi
    od;
    assert(consumed == TOTAL)
}
