/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* placeholder until the first file of the folder */
extern int mk_fused_empty;
int mk_fused_empty;
