/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The pair recogniser (mk/pair.h) on event lists. */
#include "tests/unit/pair_help.h"

int main(void)
{
    return pair_rules() + pair_rules_start() + pair_rules_comm() + pair_rules_life() + pair_hostile() ? 1 : 0;
}
