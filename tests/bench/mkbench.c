/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench SUBCOMMAND: figures, each beside its baseline of the same run. */
#include "plugin/cli/cli.h"
#include "tests/bench/bench.h"
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"net", bench_net},         {"gemm", bench_gemm},
    {"gemm_ar", bench_gemm_ar}, {"controller", bench_controller},
    {"plugin", bench_plugin},   {"hook", bench_hook},
    {"faces", bench_faces},     {"pair", bench_pair},
};

static const char help[] =
    "usage: mkbench SUBCOMMAND [options]\n"
    "  net     the network engine against a raw libfabric loop (mkbench net --help)\n"
    "  plugin  NCCL net plugins against each other and raw libfabric (mkbench plugin --help)\n"
    "  hook    what interception costs a call that is passed on (mkbench hook --help)\n"
    "  faces   what NCCL's profiler and tuner plugins cost a call (mkbench faces --help)\n"
    "  pair    what the pair recogniser costs an event (mkbench pair --help)\n"
    "  gemm    the GPU GEMM kernels against cuBLAS (mkbench gemm --help)\n"
    "  gemm_ar fused GEMM+AllReduce on GPUs against cuBLAS then NCCL (mkbench gemm_ar --help)\n"
    "  controller  its controller against every fixed split of the blocks (mkbench controller --help)\n";

int main(int argc, char **argv)
{
    mk_cli_init("mkbench");
    if (argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
        return mk_cli_print(help);
    if (argc >= 2 && !strcmp(argv[1], "--version"))
        return mk_cli_version();
    for (size_t i = 0; argc >= 2 && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    return mk_cli_usage(argc < 2 ? "which subcommand?" : "no subcommand %s", argc < 2 ? "" : argv[1]);
}
