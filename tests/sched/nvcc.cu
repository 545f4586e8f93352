/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The shared text is CUDA too: everything that decides, instantiated in one kernel. Compiled only (ctest
 * sched.nvcc), for Hopper and for the portable path. */
#include "mkernel_device.h"

extern "C" __global__ void shared_text(struct mk_ring ring, uint64_t *flag, uint64_t *count, uint64_t value)
{
    struct mk_cmd c;
    uint64_t at;
    if (mk_lane() == 0 &&
        mk_count_claim(count, (uint32_t)value, mk_count_peek(count, (uint32_t)value),
                       mk_peek_gpu_u64(count)) &&
        mk_ring_claim(&ring, &at)) {
        mk_cmd_init(&c);
        mk_cmd_set_kind(&c, MK_CMD_WRITE);
        mk_cmd_set_value(&c, value);
        mk_ring_publish(&ring, at, &c);
    }
    if (mk_poll_sys(flag) >= value || mk_poll_gpu(flag) >= value)
        mk_consume();
    mk_count_add(count, (uint32_t)value, 1);
    mk_max_sys_u64(flag, mk_now_ns());
    mk_publish_gpu(flag, value);
    mk_publish_sys(flag + 1, value);
}

extern "C" __global__ void controller(struct mk_ctl_conf f, struct mk_ctl *c, const struct mk_ctl_sample *s,
                                      int *out)
{
    if (mk_lane() != 0)
        return;
    mk_ctl_begin(&f, c, mk_now_ns());
    if (mk_ctl_due(&f, c, s))
        *out = mk_ctl_act(mk_ctl_role(mk_ctl_step(&f, c, s), 1), out[1], out[2], out[3] != 0);
}
