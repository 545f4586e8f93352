/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mKernel inside a kernel: what an own fused kernel needs to hand tiles to other blocks and chunks to the network.
 * The text compiles as C11, C++17 and CUDA; with a C compiler one thread stands for one block, so a schedule can be
 * tested without a GPU.
 *
 *   mk/dev/dev.h      lanes, block barrier, loads and stores with a scope in their name, a clock
 *   mk/dev/flag.h     publish and consume; counters that start anew with each launch
 *   mk/dev/cmd.h      a command for the proxy: write this range to that peer, then raise that flag
 *   mk/dev/ring.h     the ring that takes commands from kernels to the proxy thread
 *   mk/dev/control.h  how many blocks communicate, how many compute, from what they measured
 *
 * How to write a fused kernel:
 *  1. Launch no more blocks than are resident at once. A block takes a role by arrival order (mk_add_gpu_u64 on a
 *     ticket), never by its index, and never waits inside a task: it polls all the work that it could do.
 *  2. Compute a tile, then mk_publish_gpu(ready, epoch). Who sends it polls with mk_poll_gpu and, once it saw the
 *     epoch, calls mk_consume() with the whole block before it reads the tile.
 *  3. To send: claim an index of the ring (one lane), fill a command, publish it. False from mk_ring_claim is
 *     back-pressure: do something else and come back.
 *         struct mk_cmd c;
 *         uint64_t at;
 *         if (mk_ring_claim(ring, &at)) {
 *             mk_cmd_init(&c);
 *             mk_cmd_set_kind(&c, MK_CMD_WRITE); ... loff, roff, len, node, note, use4, value, done
 *             mk_ring_publish(ring, at, &c);
 *         }
 *  4. A slot of staging memory has a position that only grows: slot = position mod slots, and its arrival flag
 *     becomes position + 1. Nothing is cleared. The reader gives slots back with a credit, the count of positions
 *     consumed; the sender writes a slot only when the credit covers it, and again only after local completion.
 *  5. To receive: poll the arrival flag (mk_poll_sys), mk_consume(), read. Give the credit back.
 *  6. Every loop that polls also watches an abort word and a deadline (mk_now_ns). */
#pragma once
#include "mk/dev/dev.h"
#include "mk/dev/cmd.h"
#include "mk/dev/ring.h"
#include "mk/dev/flag.h"
#include "mk/dev/control.h"
