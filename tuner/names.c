/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Names of collectives, types, algorithms and protocols, and what follows from a collective's kind alone. */
#include "mk/profile.h"
#include <string.h>
#include <strings.h>

static const char *const colls[] = {"Broadcast", "Reduce",     "AllGather", "ReduceScatter", "AllReduce",
                                    "SendRecv",  "Send",       "Recv",      "AlltoAll",      "Scatter",
                                    "Gather",    "AllGatherV", "PutSignal", "Signal",        "WaitSignal"};
static const char *const dtypes[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                     "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
static const uint8_t dtype_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static const char *const algos[] = {"TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
                                    "NVLS_TREE", "PAT"};
static const char *const protos[] = {"LL", "LL128", "SIMPLE"};

#define N(a) (int)(sizeof(a) / sizeof((a)[0]))
static const struct {
    const char *const *name;
    int n;
} lists[] = {{colls, N(colls)}, {dtypes, N(dtypes)}, {algos, N(algos)}, {protos, N(protos)}};

const char *mk_name_of(enum mk_names what, int number)
{
    return number >= 0 && number < lists[what].n ? lists[what].name[number] : "?";
}

uint8_t mk_name_find(enum mk_names what, const char *name)
{
    if (!name)
        return MK_NAME_UNKNOWN;
    if (what == MK_NAMES_DTYPE && !strncasecmp(name, "nccl", 4))
        name += 4;
    for (int i = 0; i < lists[what].n; i++)
        if (((lists[what].name[i][0] ^ name[0]) & 0x5f) == 0 && !strcasecmp(lists[what].name[i], name))
            return (uint8_t)i;
    return MK_NAME_UNKNOWN;
}

size_t mk_dtype_bytes(int dtype)
{
    return dtype >= 0 && dtype < N(dtype_bytes) ? dtype_bytes[dtype] : 0;
}

static bool of_all_ranks(int coll)
{
    return coll == MK_COLL_ALLGATHER || coll == MK_COLL_REDUCESCATTER || coll == MK_COLL_ALLTOALL ||
           coll == MK_COLL_SCATTER || coll == MK_COLL_GATHER;
}

uint64_t mk_coll_bytes(int coll, uint64_t count, size_t element, int nranks)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, element, &bytes) ||
        (of_all_ranks(coll) && nranks > 0 && __builtin_mul_overflow(bytes, (uint64_t)nranks, &bytes)))
        return UINT64_MAX;
    return bytes;
}

double mk_coll_bus_factor(int coll, int nranks)
{
    if (nranks < 1)
        return 0;
    if (coll == MK_COLL_ALLREDUCE)
        return 2.0 * (nranks - 1) / nranks;
    return of_all_ranks(coll) ? (double)(nranks - 1) / nranks : 1;
}
