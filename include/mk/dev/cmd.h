/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A command from a kernel to the proxy: 48 bytes, bit-packed into six 64-bit words. The last word holds the lap
 * and is published last, with one release store (ring.h).
 *
 *   word  bits    field
 *   0     0-39    loff   offset in the source window, bytes
 *         40-47   swin   source window (this rank's)
 *         48-55   dwin   destination window (the peer's)
 *   1     0-39    roff   offset in the destination window, bytes
 *         40-63   chunk  chunk number, for messages and traces only
 *   2     0-31    len    payload bytes; 0: notification alone
 *         32-59   note   notification index in the peer's flag table
 *         60-63   use4   low 4 bits of that index's use count
 *   3     0-55    value  what the peer's flag becomes: position + 1, or a cumulative credit
 *   4     0-27    done   index in this rank's completion table, set to `value` when the NIC has finished reading
 *                        and the payload is at the peer; MK_CMD_NO_DONE: nobody waits
 *         28-43   comm   communicator number in this process
 *         44-63   epoch  low 20 bits, for messages and traces only
 *   5     0-15    node   destination: rail peer on that node
 *         16-23   lane   rail
 *         24-27   kind   enum mk_cmd_kind
 *         28-39   flags  MK_CMD_F_*
 *         40-55   lap    ring lap + 1, low 16 bits; differs from what the slot held before
 *         56-63   0 */
#pragma once
#include "mk/dev/dev.h"

enum mk_cmd_kind {
    MK_CMD_NOP = 0,   /* a slot claimed by a block that aborted */
    MK_CMD_WRITE = 1, /* payload, then notification: the flag names a payload that is complete */
    MK_CMD_CREDIT = 2 /* notification alone; a later credit of the same index may replace an earlier one */
};
#define MK_CMD_NO_DONE 0x0fffffffu

struct mk_cmd {
    uint64_t w[6];
};
#ifdef __cplusplus
static_assert(sizeof(struct mk_cmd) == 48, "a command is 48 bytes");
#else
_Static_assert(sizeof(struct mk_cmd) == 48, "a command is 48 bytes");
#endif

/* X(name, word, shift, width) */
#define MK_CMD_FIELDS(X)                                                                                     \
    X(loff, 0, 0, 40)                                                                                        \
    X(swin, 0, 40, 8)                                                                                        \
    X(dwin, 0, 48, 8)                                                                                        \
    X(roff, 1, 0, 40)                                                                                        \
    X(chunk, 1, 40, 24)                                                                                      \
    X(len, 2, 0, 32)                                                                                         \
    X(note, 2, 32, 28)                                                                                       \
    X(use4, 2, 60, 4)                                                                                        \
    X(value, 3, 0, 56)                                                                                       \
    X(done, 4, 0, 28)                                                                                        \
    X(comm, 4, 28, 16)                                                                                       \
    X(epoch, 4, 44, 20)                                                                                      \
    X(node, 5, 0, 16)                                                                                        \
    X(lane, 5, 16, 8)                                                                                        \
    X(kind, 5, 24, 4)                                                                                        \
    X(flags, 5, 28, 12)                                                                                      \
    X(lap, 5, 40, 16)

/* mk_cmd_set_NAME(cmd, value): value is cut to the field's width. The command starts zeroed (mk_cmd_init).
 * mk_cmd_NAME(cmd). */
#define MK_CMD_ACCESS(name, word, shift, width)                                                              \
    MK_DEV uint64_t mk_cmd_##name(const struct mk_cmd *c)                                                    \
    {                                                                                                        \
        return (c->w[word] >> (shift)) & ((1ull << (width)) - 1);                                            \
    }                                                                                                        \
    MK_DEV void mk_cmd_set_##name(struct mk_cmd *c, uint64_t v)                                              \
    {                                                                                                        \
        const uint64_t mask = ((1ull << (width)) - 1) << (shift);                                            \
        c->w[word] = (c->w[word] & ~mask) | ((v << (shift)) & mask);                                         \
    }
MK_CMD_FIELDS(MK_CMD_ACCESS)
#undef MK_CMD_ACCESS

MK_DEV void mk_cmd_init(struct mk_cmd *c)
{
    for (int i = 0; i < 6; i++)
        c->w[i] = 0;
}
