/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* placeholder until the first file of the folder */
extern int mk_net_empty;
int mk_net_empty;
