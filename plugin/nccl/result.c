/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "face.h"
#include "mk/err.h"

int mk_nccl_result(int ret)
{
    switch (ret) {
    case 0:
        return MK_NCCL_SUCCESS;
    case MK_ERR_INVALID:
        return MK_NCCL_INVALID_USAGE;
    case MK_ERR_SYSTEM:
    case MK_ERR_NOMEM:
    case MK_ERR_NET:
        return MK_NCCL_SYSTEM_ERROR;
    case MK_ERR_PEER:
    case MK_ERR_TIMEOUT:
    case MK_ERR_ABORTED:
        return MK_NCCL_REMOTE_ERROR;
    default:
        return MK_NCCL_INTERNAL_ERROR;
    }
}
