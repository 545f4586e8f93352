/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Every MK_* setting: one row each. plugin/base/param.c parses them; it is the only file that calls getenv.
 * A row is X(field, name, kind, default, owner, sentence). Kinds:
 *   STR text · INT integer · BOOL 0|1 · SEC seconds, decimals allowed · SIZE bytes with K M G · GBPS Gbit/s,
 *   decimals · USEC microseconds, decimals · WORD(a|b|c) one of the words, the sentence lists them.
 * Adding a setting: a row here and its use; the tables of mkinfo --settings and of the tests follow. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* clang-format off */
#define MK_SETTINGS(X)                                                                                       \
    X(root, "MK_ROOT", STR, "", net, "host:port where the ranks meet; rank 0 listens there")                 \
    X(rank, "MK_RANK", INT, "-1", fused, "rank of this process; unset: from torchrun, Open MPI or Slurm, else 0") \
    X(nranks, "MK_NRANKS", INT, "-1", fused, "number of ranks")                                              \
    X(node, "MK_NODE", INT, "-1", fused, "node of this rank; unset: found from the host")                    \
    X(local_rank, "MK_LOCAL_RANK", INT, "-1", fused, "rank within the node; unset: found from the host")     \
    X(local_nranks, "MK_LOCAL_NRANKS", INT, "-1", fused, "ranks on this node; unset: found from the host")   \
    X(job, "MK_JOB", STR, "", net, "name of the job; ranks of another job are refused")                      \
    X(timeout, "MK_TIMEOUT", SEC, "30", net, "bootstrap, connect, and anything handed to the NIC must end within it") \
    X(peer_timeout, "MK_PEER_TIMEOUT", SEC, "0", fused, "how long a live peer may stay away from a call; 0: for ever") \
    X(log, "MK_LOG", WORD, "warn", base, "none|warn|info|trace")                                             \
    X(net, "MK_NET", WORD, "auto", net, "auto|ofi|loop|verbs: transport between nodes; auto: the first that works") \
    X(ofi_provider, "MK_OFI_PROVIDER", STR, "auto", net, "libfabric provider: auto (efa, net, tcp, tcp;ofi_rxm) or an exact name") \
    X(ifname, "MK_IFNAME", STR, "", net, "network interfaces, in NCCL_SOCKET_IFNAME's syntax (prefix, =exact, ^not); unset: NCCL_SOCKET_IFNAME") \
    X(ports, "MK_PORTS", STR, "", net, "ports that listeners may take, such as 50000-50999; unset: any")           \
    X(hca, "MK_HCA", STR, "", net, "RDMA devices for verbs, in NCCL_IB_HCA's syntax (prefix, =exact, ^not, :port); unset: NCCL_IB_HCA") \
    X(gid, "MK_GID", INT, "-1", net, "GID index of the RDMA port; -1: NCCL_IB_GID_INDEX, else the best")           \
    X(devices, "MK_DEVICES", INT, "0", net, "network devices offered to NCCL, at most 16; 0: every port for verbs, one for other networks") \
    X(qps, "MK_QPS", INT, "1", net, "connections (queue pairs) that two devices of NCCL have over each port, 1 to 8") \
    X(stripe, "MK_STRIPE", SIZE, "128K", net, "messages of NCCL above this size are cut over all ports and connections") \
    X(ordered, "MK_ORDERED", BOOL, "0", net, "1: the network keeps the order of writes: flags by plain writes") \
    X(loop_gbps, "MK_LOOP_GBPS", GBPS, "0", net, "paces every link to this rate, on any transport; 0: not paced") \
    X(loop_us, "MK_LOOP_US", USEC, "0", net, "latency added by the loop transport")                          \
    X(loop_hostile, "MK_LOOP_HOSTILE", INT, "0", net, "loop transport: seed of random delays and reordering within the declared order; 0: none") \
    X(nic, "MK_NIC", STR, "", net, "socket of mknic, which moves GPU memory for the loop transport; mkrun --gpus-shared sets it") \
    X(chunk, "MK_CHUNK", SIZE, "256K", fused, "network chunk; equal on all ranks; on GPUs between nodes 2M where neither this nor MK_WORKSPACE is set")                           \
    X(batch, "MK_BATCH", INT, "8", net, "commands handed to the NIC in one go, 1 to 8")                      \
    X(workspace, "MK_WORKSPACE", SIZE, "32M", fused, "staging memory of a communicator; equal on all ranks; 64M with such chunks") \
    X(workspace_total, "MK_WORKSPACE_TOTAL", SIZE, "512M", fused, "staging memory of a process")             \
    X(r, "MK_R", INT, "16", fused, "blocks that may wait for remote data alone")                             \
    X(reserve_sms, "MK_RESERVE_SMS", INT, "-1", fused, "SMs left to others by operators whose compute needs remote input") \
    X(fuse_start, "MK_FUSE_START", INT, "16", fused, "first fused operation under MK_DETERMINISTIC")         \
    X(threads, "MK_THREADS", INT, "0", fused, "block threads of the CPU executor; 0: cores / local ranks")   \
    X(blocks, "MK_BLOCKS", INT, "0", fused, "blocks of a fused kernel on the GPU; 0: the SMs that this process sees") \
    X(comm_blocks, "MK_COMM_BLOCKS", INT, "0", fused, "of these, blocks that prefer communication; 0: chosen; -1: by the controller, on a GPU too") \
    X(gemm, "MK_GEMM", WORD, "auto", fused, "auto|builtin|portable: builtin: no OpenBLAS; portable: GPU kernels without Hopper instructions") \
    X(wire, "MK_WIRE", WORD, "auto", fused, "auto|fp32: type of node sums between nodes; auto: that of C")   \
    X(deterministic, "MK_DETERMINISTIC", BOOL, "0", fused, "1: no choice that could change bits between runs") \
    X(fuse, "MK_FUSE", WORD, "off", plugin, "off|graph|on: interception of GEMMs and their all-reduce, in CUDA graphs or everywhere") \
    X(verify, "MK_VERIFY", INT, "0", plugin, "1: interception checks its proofs: K comes after G, and whether C changed in between is looked at; 2: also where there is no proof") \
    X(tuner, "MK_TUNER", WORD, "on", tuner, "off|observe|on: NCCL's tuner logs, or does, what all ranks agreed on; off: nothing is learned either; interception: on: calls are timed against NCCL's")                                                \
    X(tuner_file, "MK_TUNER_FILE", STR, "", tuner, "file of learned starting points")                        \
    X(profile, "MK_PROFILE", STR, "", plugin, "file of what NCCL's collectives take, for mkinfo --profile; %h host, %p process (added where %p is missing)") \
    X(shared_gpu, "MK_SHARED_GPU", BOOL, "0", fused, "1: several ranks may share one GPU")
/* clang-format on */

/* Parsed values: STR and WORD as char arrays, the rest as numbers. SEC in seconds, USEC in microseconds, GBPS in
 * 1e9 bit/s, SIZE in bytes. */
#define MK_SETTING_TYPE_STR(f) char f[256];
#define MK_SETTING_TYPE_WORD(f) char f[16];
#define MK_SETTING_TYPE_INT(f) int64_t f;
#define MK_SETTING_TYPE_BOOL(f) bool f;
#define MK_SETTING_TYPE_SEC(f) double f;
#define MK_SETTING_TYPE_USEC(f) double f;
#define MK_SETTING_TYPE_GBPS(f) double f;
#define MK_SETTING_TYPE_SIZE(f) size_t f;
struct mk_settings {
#define MK_SETTING_FIELD(field, name, kind, def, owner, text) MK_SETTING_TYPE_##kind(field)
    MK_SETTINGS(MK_SETTING_FIELD)
#undef MK_SETTING_FIELD
};

/* Reads the environment anew. INVALID for a malformed value (mk_last_error names it). Unknown MK_* names: one
 * WARN line a process, or, with strict (the commands), INVALID too. */
int mk_settings_load(struct mk_settings *out, bool strict);

/* The rank facts of a launcher, used when MK_RANK is unset: torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
 * LOCAL_WORLD_SIZE, MASTER_ADDR), Open MPI (OMPI_COMM_WORLD_*), Slurm (SLURM_PROCID, SLURM_NTASKS ...).
 * Fills rank, nranks, local_rank, local_nranks where they are unset (-1) and returns the launcher's name, or
 * NULL if there is none. */
const char *mk_settings_launcher(struct mk_settings *s);
/* MASTER_ADDR and MASTER_PORT, as torch.distributed has them. False: not both are set, or one is too long. */
bool mk_settings_master(char host[256], char port[16]);

/* Prints the table of all settings: name, value in force, default, sentence. */
void mk_settings_print(FILE *out, const struct mk_settings *s);

/* An environment variable that is not ours (OPENBLAS_CORETYPE, ...): NULL if unset. Exists so that getenv stays
 * in one file. */
const char *mk_env(const char *name);
