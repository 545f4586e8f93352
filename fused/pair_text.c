/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Words of the pair recogniser, for the log and for mkinfo --explain. */
#include "mk/rival.h"
#include "pair.h"
#include <stdio.h>

static const struct {
    const char *name, *advice;
} reasons[MK_PAIR_REASONS] = {
    [MK_PAIR_OK] = {"ok", "fused"},
    [MK_PAIR_NO_COMM] = {"unknown-communicator", "it was created out of our sight; load the library earlier"},
    [MK_PAIR_NOT_READY] = {"not-ready", "before the first operation that the ranks agreed on; capture later"},
    [MK_PAIR_OFF] = {"off", "set-up ended 'off'; its own line says why"},
    [MK_PAIR_SWITCHED_OFF] = {"switched-off", "the ranks agreed to leave it to NCCL for now"},
    [MK_PAIR_SLOWER] = {"slower", "NCCL was measured to be faster for this size"},
    [MK_PAIR_TIMED] = {"timed", "now and then NCCL's collective takes its turn, to be timed against ours"},
    [MK_PAIR_GRAPH_ONLY] = {"graph-only", "MK_FUSE=graph fuses captured calls only; MK_FUSE=on fuses all"},
    [MK_PAIR_FUNCTION] = {"operator-not-built", "no fused operator for this function yet"},
    [MK_PAIR_OPERATOR] = {"operator", "only sums are fused"},
    [MK_PAIR_DTYPE] = {"dtype", "only bf16 and fp16 are fused"},
    [MK_PAIR_COUNT] = {"count", "a multiple of 64 elements, up to 1 GiB, is fused"},
    [MK_PAIR_P2P] = {"point-to-point", "send and receive are NCCL's"},
    [MK_PAIR_TIMEOUT] = {"setup-timeout", "a rank did not come to set-up; see MK_ROOT and MK_TIMEOUT"},
    [MK_PAIR_MEMBER] = {"member", "a rank runs without the plugin or with other settings"},
    [MK_PAIR_NO_WITNESS] = {"no-witness", "NCCL 2.28 or later with our profiler is needed"},
    [MK_PAIR_UNTIED] = {"untied", "the communicator could not be identified"},
    [MK_PAIR_NONBLOCKING] = {"nonblocking", "non-blocking communicators are not fused"},
    [MK_PAIR_SHARED_GPU] = {"shared-gpu", "MPS or two ranks on one GPU; MK_SHARED_GPU=1 allows it"},
    [MK_PAIR_KILLED] = {"killed", "MK_FUSE=off on a rank"},
    [MK_PAIR_NO_KERNELS] = {"no-kernels",
                            "this build has no fused kernels for it, or there is no GPU that runs them"},
    [MK_PAIR_ALONE] = {"one-rank", "a communicator of one rank has nothing to overlap"},
    [MK_PAIR_GROUPED] = {"group", "call the collective outside of a group with others"},
    [MK_PAIR_NO_GEMM] = {"no-gemm", "no GEMM of ours came before it on its stream"},
    [MK_PAIR_LEARNING] = {"learning", "the first sighting; the next call of this site can overlap"},
    [MK_PAIR_ORIGINAL] = {"original-gemm", "the GEMM's own line says why it stayed the original"},
    [MK_PAIR_CROSS_STREAM] = {"cross-stream",
                              "async_op=True or a side stream: overlaps under graph capture only"},
    [MK_PAIR_NOT_LAST] = {"not-last-gemm", "another GEMM or operation came between"},
    [MK_PAIR_COPY_BETWEEN] = {"copy-between",
                              "the framework copies the result first; torch.compile avoids it"},
    [MK_PAIR_SLICE] = {"slice", "it sends a part of the GEMM's output"},
    [MK_PAIR_RETYPED] = {"retyped", "it sends the output as another dtype"},
    [MK_PAIR_LD] = {"ld", "the output's rows have gaps"},
    [MK_PAIR_RANGE] = {"overlap-range", "the result goes where the GEMM still reads; keep its inputs alive"},
    [MK_PAIR_ORDER] = {"order", "an earlier operation of the communicator on another stream must end first"},
    [MK_PAIR_EVENT_BETWEEN] = {"event-between", "an event is recorded or waited for between; capture it"},
    [MK_PAIR_INTRUDER] = {"intruder", "something was put on the GPU between"},
    [MK_PAIR_NO_PROOF] =
        {"no-proof",
         "nothing shows that no other work lies between; capture both in a CUDA graph, or load the "
         "library by LD_PRELOAD"},
    [MK_PAIR_WINDOW] = {"window", "buffers registered as windows are not overlapped"},
    [MK_PAIR_UNALIGNED] = {"alignment", "align the buffers to 16 bytes"},
    [MK_PAIR_FORCED] = {"forced", "plain by request"},
    [MK_PAIR_LATE] = {"late", "this rank was not ready yet"},
    [MK_PAIR_MEMORY] = {"memory", "no memory"},
    [MK_PAIR_UNHOOKED] = {"unhooked-call", "a collective was called through a pointer taken before us"},
    [MK_PAIR_UNSEEN] = {"unwitnessed", "the profiler does not see what the hooks see"},
    [MK_PAIR_UNKNOWN_SITE] = {"unknown-site", "no collective was seen after this GEMM yet"},
    [MK_PAIR_IDLE] = {"idle", "no communicator of the process can fuse; their own lines say why"},
    [MK_PAIR_NEVER] = {"never", "MK_DETERMINISTIC=1 and first called before MK_FUSE_START"},
    [MK_PAIR_NOT_FUSED] = {"not-fused", "the collective that follows goes to NCCL"},
    [MK_PAIR_UNFOLLOWED] = {"unfollowed",
                            "the lines of its collective say why nothing overlapped it; tried again "
                            "now and then"},
    [MK_PAIR_GEMM_DTYPE] = {"gemm-dtype", "only bf16 and fp16, the same for A, B and C"},
    [MK_PAIR_SCALARS] = {"scalars", "alpha 1 and beta 0 from the host, C not read"},
    [MK_PAIR_COMPUTE] = {"compute-type", "only plain fp32 accumulation"},
    [MK_PAIR_EPILOGUE] = {"epilogue", "this epilogue is not built"},
    [MK_PAIR_ATTRIBUTE] = {"lt-attr", "an attribute that we do not know, or a cublasLt newer than tested"},
    [MK_PAIR_BATCH] = {"batch", "batched GEMMs are not fused"},
    [MK_PAIR_SHAPE] = {"shape", "no kernel for these sizes, or C overlaps an input"},
    [MK_PAIR_STREAMS] = {"streams", "too many streams"},
    [MK_PAIR_FAILED] = {"launch-failed", "our GEMM could not be launched; its own line says why"},
    [MK_PAIR_ERROR] = {"error", "the communicator has failed"},
    [MK_PAIR_REFUTED] =
        {"refuted", "MK_VERIFY saw C change behind the GEMM; overlapped, the sum would be wrong: report it"},
};

const char *mk_pair_reason_name(uint32_t reason)
{
    return reason < MK_PAIR_REASONS ? reasons[reason].name : "?";
}

const char *mk_pair_reason_advice(uint32_t reason)
{
    return reason < MK_PAIR_REASONS ? reasons[reason].advice : "?";
}

const char *mk_pair_act_name(uint32_t act)
{
    static const char *const names[MK_PAIR_ACTS] = {"-",     "ORIGINAL", "G",    "NCCL",
                                                    "PLAIN", "OVERLAP",  "HOLD", "FAIL"};
    return act < MK_PAIR_ACTS ? names[act] : "?";
}

static const char *dtype_name(uint8_t dtype)
{
    return dtype == MK_FLOAT32    ? "fp32"
           : dtype == MK_BFLOAT16 ? "bf16"
           : dtype == MK_FLOAT16  ? "fp16"
                                  : "other";
}

static const char *proof_name(uint8_t proof)
{
    return proof == MK_PAIR_BY_CAPTURE ? "capture" : proof == MK_PAIR_ASSUMED ? "assumed" : "driver";
}

/* Up to the decision. */
static int coll_text(const struct mk_pair_event *e, const char *kind, const char *site, char *text,
                     size_t bytes)
{
    static const char *const functions[MK_PAIR_FUNCTIONS] = {"AllReduce", "ReduceScatter", "AllGather",
                                                             "AlltoAll", "other"};
    char address[24];
    snprintf(address, sizeof(address), "0x%llx", (unsigned long long)e->u.coll.caller);
    return snprintf(text, bytes, "fuse %scomm=0x%llx op=%s n=%llu %s site=%s: ", kind,
                    (unsigned long long)e->u.coll.comm,
                    e->kind == MK_PAIR_EV_P2P                ? "SendRecv"
                    : e->u.coll.function < MK_PAIR_FUNCTIONS ? functions[e->u.coll.function]
                                                             : "?",
                    (unsigned long long)e->u.coll.count, dtype_name(e->u.coll.dtype), site ? site : address);
}

int mk_pair_line(const struct mk_pair_event *e, const struct mk_pair_out *out, const char *site, char *text,
                 size_t bytes)
{
    const bool overlap = out->act == MK_PAIR_DO_OVERLAP;
    const char *key = overlap ? "proof" : "reason";
    const char *why = overlap ? proof_name(out->proof) : mk_pair_reason_name(out->reason);
    int n = e->kind == MK_PAIR_EV_GEMM
                ? snprintf(text, bytes, "fuse gemm n=%lld k=%lld %s: ", (long long)e->u.gemm.n,
                           (long long)e->u.gemm.k, dtype_name(e->u.gemm.c_type))
                : coll_text(e, "", site, text, bytes);
    const size_t at = n < 0 || (size_t)n > bytes ? bytes : (size_t)n;
    n += snprintf(text + at, bytes - at, "%s %s=%s", mk_pair_act_name(out->act), key, why);
    return n;
}

int mk_pair_check_line(const struct mk_pair_event *e, const struct mk_pair_out *out, const char *site,
                       const char *between, char *text, size_t bytes)
{
    int n = coll_text(e, "check ", site, text, bytes);
    const size_t at = n < 0 || (size_t)n > bytes ? bytes : (size_t)n;
    n += snprintf(text + at, bytes - at,
                  "DIFFERS proof=%s between=%s (the output of the GEMM before it changed where the proof saw "
                  "nothing; the sum is right, since MK_VERIFY overlaps nothing; without it, it may not be)",
                  proof_name(out->proof), between);
    return n;
}

/* Not by %f, which writes what the program's locale wants. */
static const char *us(uint64_t ns, char out[32])
{
    snprintf(out, 32, "%llu.%llu", (unsigned long long)(ns / 1000), (unsigned long long)(ns / 100 % 10));
    return out;
}

int mk_rival_line(uint32_t class, const struct mk_rival_round *r, const void *comm, char *text, size_t bytes)
{
    char ours[32], nccl[32], gemm[32], together[32];
    return snprintf(
        text, bytes,
        "fuse timed comm=0x%llx from=%llu ours=%s nccl=%s gemm=%s together=%s us: eager=%s captured=%s",
        (unsigned long long)(uintptr_t)comm, 64ull << class, us(r->k_ns, ours), us(r->nccl_ns, nccl),
        us(r->gemm_ns, gemm), us(r->pair_ns, together), r->eager ? "NCCL" : "ours",
        r->captured ? "NCCL" : "ours");
}
