/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkrun's plumbing: what the ranks write becomes whole lines "[rank] text" on mkrun's own streams.
 *
 * Each rank has two pipes (stdout, stderr). A pipe's bytes are cut into lines; a line goes out with its
 * prefix as soon as it is complete, a last line without newline gets one. Nothing is lost or reordered within
 * a stream. All lines pass one queue, so a line is never broken by another one, also when both streams are
 * the same terminal. When mkrun's stderr is a terminal, that of rank 0 is one too: what it writes after a
 * carriage return (progress) is shown at once and erased by whatever comes next. Nothing here blocks: a slow reader fills the queue, then the pipes are not read, then
 * the ranks wait. */
#pragma once
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

enum { MK_LINE_MAX = 4 << 20 }; /* a longer line is cut here */

struct mk_lines;
/* prefix: show "[rank] ". */
int mk_lines_open(int ranks, bool prefix, struct mk_lines **out);
/* A pipe end to read from: stream 1 or 2 of a rank. Takes over the descriptor. terminal: the rank sees one. */
void mk_lines_add(struct mk_lines *l, int rank, int stream, int fd, bool terminal);
/* A line of mkrun itself on stream 2, in the same queue. */
void mk_lines_say(struct mk_lines *l, const char *text);
/* Fills at most mk_lines_poll_max descriptors; returns how many. */
int mk_lines_poll_max(const struct mk_lines *l);
int mk_lines_poll(struct mk_lines *l, struct pollfd *p);
/* Does what poll found. */
void mk_lines_run(struct mk_lines *l, const struct pollfd *p, int n);
/* Pipes still open, or bytes still queued. */
bool mk_lines_busy(const struct mk_lines *l);
/* Bytes wait for mkrun's own streams to take them. */
bool mk_lines_queued(const struct mk_lines *l);
/* Gives up the pipes that are still open (a process that escaped may hold the other end); what is queued
 * stays. */
void mk_lines_give_up(struct mk_lines *l);
/* 0, or the errno with which mkrun's own stream 1 or 2 failed (EPIPE: its reader left). */
int mk_lines_error(const struct mk_lines *l, int stream);
void mk_lines_close(struct mk_lines *l);
