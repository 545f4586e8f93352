# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
"""A Triton kernel that doubles a tensor in place; a file of its own, since Triton reads its source."""
import triton
import triton.language as tl


@triton.jit
def twice(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
