/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The main job: C = A * B with K split over all ranks, as one fused GEMM + AllReduce.
 *
 * Order of things on every rank: options, files, communicator, agreement (nobody starts what another cannot),
 * slices, agreement, product, measurements, timeline, end of the communicator; then rank 0 alone verifies and
 * writes, so that no rank waits for a slow disk. */
#include "mkgemm.h"
#include "cli.h"
#include "mk/err.h"
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
    "usage: mkgemm --a A.npy --b B.npy --out C.npy [options]\n"
    "       mkgemm --make M,N,K --a A.npy --b B.npy [--seed S] [--dtype D] [--layout L]\n"
    "\n"
    "Multiplies two matrices on all ranks of a job. Each rank takes its slice of K; the product of the "
    "slices and\n"
    "their sum over the ranks are one fused operator. Rank 0 writes C. Without mkrun (or torchrun, mpirun, "
    "srun) it\n"
    "is a job of one rank.\n"
    "\n"
    "  --a, --b FILE.npy   fp32 ('<f4'), fp16 ('<f2') or bf16 ('<V2', '|V2') matrices, C or Fortran order\n"
    "  --out FILE.npy      the product, in the dtype of the computation\n"
    "  --layout tn|nn|nt   tn (default): A[M,K], B[N,K]   nn: A[M,K], B[K,N]   nt: A[K,M], B[K,N]\n"
    "  --dtype fp32|bf16   rounds the inputs first; default bf16 if both files are bf16, else fp32\n"
    "  --verify            holds C against a float64 product of the rounded inputs\n"
    "  --device auto|cpu|gpu  auto (default): a GPU, if there is one and the dtype is bf16; ranks that share "
    "one need\n"
    "                      mkrun --gpus-shared\n"
    "  --repeat N          measures N times (default 9); 0: only multiplies\n"
    "  --timeline FILE     who did what when: FILE.svg is a picture, FILE.json opens in ui.perfetto.dev\n"
    "  --json FILE         all figures, in seconds\n"
    "  --make M,N,K        writes random inputs of these sizes and ends\n"
    "  --seed S            of --make, 0 if not given; the same matrices on every machine\n"
    "  --help, --version\n"
    "\n"
    "exit status: 0 done; 1 failed, or the product is wrong; 2 wrong usage, setting or input file. C appears "
    "whole or\n"
    "not at all.\n"
    "\n"
    "examples:\n"
    "  mkgemm --make 512,4096,8192 --a A.npy --b B.npy\n"
    "  mkgemm --a A.npy --b B.npy --out C.npy\n"
    "  mkrun --nodes 2 --ranks-per-node 2 -- mkgemm --a A.npy --b B.npy --out C.npy --verify --timeline "
    "run.svg\n";

void mkgemm_progress(const struct mkgemm *g, const char *fmt, ...)
{
    static int on = -1;
    char text[160] = "";
    if (on < 0)
        on = !g->rank && isatty(STDERR_FILENO);
    if (!on)
        return;
    if (fmt) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
    }
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
}

/* ---- options ---- */

static int parse_make(struct mkgemm_options *o, const char *text)
{
    char copy[96];
    char *save = NULL;
    long long *const to[] = {&o->make_m, &o->make_n, &o->make_k};
    snprintf(copy, sizeof(copy), "%s", text);
    char *part = strtok_r(copy, ",", &save);
    for (int i = 0; i < 3; i++, part = strtok_r(NULL, ",", &save))
        if (!part || !mk_cli_number(part, 0, MK_NPY_DIM_MAX, to[i]))
            return mk_cli_usage("--make %s is not M,N,K", text);
    if (part || strlen(text) >= sizeof(copy))
        return mk_cli_usage("--make %s is not M,N,K", text);
    o->make = true;
    return 0;
}

static int parse_layout(struct mkgemm_options *o, const char *text)
{
    static const char *const names[] = {"tn", "nn", "nt"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            o->layout = (mk_layout_t)i; /* MK_TN, MK_NN, MK_NT */
            o->layout_name = names[i];
            return 0;
        }
    return mk_cli_usage("--layout %s is not tn, nn or nt", text);
}

static int parse_device(struct mkgemm_options *o, const char *text)
{
    if (strcmp(text, "auto") && strcmp(text, "cpu") && strcmp(text, "gpu"))
        return mk_cli_usage("--device %s is not auto, cpu or gpu", text);
    o->device = text;
    return 0;
}

static int parse_dtype(struct mkgemm_options *o, const char *text)
{
    o->dtype = !strcmp(text, "fp32") ? (int)MK_FLOAT32 : !strcmp(text, "bf16") ? (int)MK_BFLOAT16 : -1;
    return o->dtype < 0 ? mk_cli_usage("--dtype %s is not fp32 or bf16", text) : 0;
}

static int take_option(struct mkgemm_options *o, int c, char *const *argv)
{
    switch (c) {
    case 'a':
        o->a = optarg;
        return 0;
    case 'b':
        o->b = optarg;
        return 0;
    case 'o':
        o->out = optarg;
        return 0;
    case 't':
        o->timeline = optarg;
        return 0;
    case 'j':
        o->json = optarg;
        return 0;
    case 'l':
        return parse_layout(o, optarg);
    case 'd':
        return parse_dtype(o, optarg);
    case 'g':
        return parse_device(o, optarg);
    case 'v':
        o->verify = true;
        return 0;
    case 'm':
        return parse_make(o, optarg);
    case 'r':
        return mk_cli_number(optarg, 0, 1000, &o->repeat)
                   ? 0
                   : mk_cli_usage("--repeat %s is not 0 to 1000", optarg);
    case 's':
        return mk_cli_number(optarg, 0, INT64_MAX, &o->seed)
                   ? 0
                   : mk_cli_usage("--seed %s is no whole number", optarg);
    case 'h':
        exit(mk_cli_print(help));
    case 'V':
        exit(mk_cli_version());
    default:
        return mk_cli_bad_option(c, argv);
    }
}

/* A picture or events? The name says it. */
static int check_timeline(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot && (!strcmp(dot, ".svg") || !strcmp(dot, ".json")))
        return 0;
    return mk_cli_usage("--timeline %s is neither FILE.svg nor FILE.json", path);
}

static int check_options(const struct mkgemm_options *o)
{
    if (!o->a || !o->b)
        return mk_cli_usage("%s is missing", o->a ? "--b" : "--a");
    if (o->make) {
        if (o->out || o->verify || o->timeline || o->json)
            return mk_cli_usage("--make only writes the inputs; multiply them with a second call");
        return strcmp(o->a, o->b) ? 0 : mk_cli_usage("--a and --b are the same file");
    }
    if (!o->out && !o->verify && !o->timeline && !o->json)
        return mk_cli_usage("--out is missing");
    return o->timeline ? check_timeline(o->timeline) : 0;
}

static int parse(struct mkgemm_options *o, int argc, char **argv)
{
    static const struct option options[] = {
        {"a", 1, NULL, 'a'},       {"b", 1, NULL, 'b'},        {"out", 1, NULL, 'o'},
        {"layout", 1, NULL, 'l'},  {"dtype", 1, NULL, 'd'},    {"verify", 0, NULL, 'v'},
        {"repeat", 1, NULL, 'r'},  {"timeline", 1, NULL, 't'}, {"json", 1, NULL, 'j'},
        {"make", 1, NULL, 'm'},    {"seed", 1, NULL, 's'},     {"help", 0, NULL, 'h'},
        {"version", 0, NULL, 'V'}, {"device", 1, NULL, 'g'},   {NULL, 0, NULL, 0}};
    int c;
    *o = (struct mkgemm_options){
        .layout_name = "tn", .layout = MK_TN, .dtype = -1, .repeat = 9, .device = "auto"};
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        const int ret = take_option(o, c, argv);
        if (ret)
            return ret;
    }
    if (optind < argc)
        return mk_cli_usage("%s is one argument too many", argv[optind]);
    return check_options(o);
}

/* The rank that this process will have, before any setting is known to be right. */
static int rank_in_environment(void)
{
    struct mk_settings s;
    const char *v = mk_env("MK_RANK");
    memset(&s, 0, sizeof(s));
    s.rank = v && *v ? atoi(v) : -1;
    s.nranks = s.local_rank = s.local_nranks = -1;
    if (s.rank < 0)
        mk_settings_launcher(&s);
    return s.rank > 0 ? (int)s.rank : 0;
}

/* ---- the job ---- */

/* Two names of one file? Devices may be named twice: nothing in them is lost. */
static bool same_file(const char *x, const char *y)
{
    struct stat a, b;
    if (stat(x, &a) || stat(y, &b))
        return !strcmp(x, y);
    return S_ISREG(a.st_mode) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* C may take the place of an input; else an output must not take that of an input, or of another output. */
static int check_names(const struct mkgemm_options *o)
{
    static const char *const option[] = {"--a", "--b", "--out", "--timeline", "--json"};
    const char *const path[] = {o->a, o->b, o->out, o->timeline, o->json};
    for (int i = 2; i < 5; i++)
        for (int k = i == 2 ? 2 : 0; k < i && path[i]; k++)
            if (path[k] && same_file(path[i], path[k]))
                return mk_fail_quiet(MK_ERR_INVALID, "%s and %s are the same file: %s", option[k], option[i],
                                     path[i]);
    return 0;
}

/* Can everything be read and written? An exit code; the sentence is in mk_last_error(). */
static int look_at_files(struct mkgemm *g)
{
    if (mkgemm_open(g) || (!g->rank && check_names(&g->o)))
        return MK_EXIT_USAGE;
    const char *const outputs[] = {g->o.out, g->o.timeline, g->o.json};
    for (size_t i = 0; i < 3 && !g->rank; i++)
        if (outputs[i] && mk_out_check(outputs[i]))
            return MK_EXIT_FAILED;
    return !g->rank && g->o.out && mkgemm_room(g) ? MK_EXIT_FAILED : 0;
}

/* With the communicator. */
static int together(struct mkgemm *g, int status, const char *text)
{
    int ret = mkgemm_agree(g, status, text);
    if (ret)
        return ret;
    status = mkgemm_load_slices(g) || mkgemm_gpu_load(g) ? MK_EXIT_FAILED : 0;
    ret = mkgemm_agree(g, status, status ? mk_last_error() : "");
    if (!ret)
        ret = mkgemm_product(g);
    if (!ret)
        ret = mkgemm_measure(g);
    if (!ret && g->o.timeline)
        ret = mkgemm_trace(g);
    if (!ret && mk_comm_info(g->comm, &g->info)) {
        mk_cli_say("%s", mk_last_error());
        ret = MK_EXIT_FAILED;
    }
    return ret;
}

/* Ranks that share a GPU without leave, or of which some have none, learn it together and, if they may, compute on
 * the CPU together. */
static bool is_about_gpus(int code)
{
    return (code == MK_ERR_UNSUPPORTED && strstr(mk_last_error(), "on one GPU")) ||
           (code == MK_ERR_MISMATCH && strstr(mk_last_error(), "CUDA context"));
}

static int make_comm(struct mkgemm *g)
{
    const int code = mk_comm_init_env(&g->comm, NULL);
    if (!is_about_gpus(code) || strcmp(g->o.device, "auto"))
        return code;
    if (!g->rank)
        mk_cli_say("on the CPU: %s", mk_last_error());
    mkgemm_gpu_drop(g);
    return mk_comm_init_env(&g->comm, NULL);
}

static int job(struct mkgemm *g)
{
    char text[400] = "";
    int status = look_at_files(g);
    if (!status && mkgemm_gpu_open(g))
        status = MK_EXIT_FAILED;
    if (status)
        snprintf(text, sizeof(text), "%s", mk_last_error());
    const int code = make_comm(g);
    if (code) {
        /* What is wrong with the settings is wrong on all ranks; what happened to the network is each rank's own. */
        if (code != MK_ERR_INVALID || !g->rank)
            mk_cli_say("%s", status ? text : mk_last_error());
        return status ? status : code == MK_ERR_INVALID ? MK_EXIT_USAGE : MK_EXIT_FAILED;
    }
    int ret = 0;
    if (mk_comm_size(g->comm, &g->nranks) || mk_comm_rank(g->comm, &g->rank) ||
        mk_comm_info(g->comm, &g->info)) {
        mk_cli_say("%s", mk_last_error());
        ret = MK_EXIT_FAILED;
    }
    if (!ret)
        ret = together(g, status, text);
    mkgemm_progress(g, NULL);
    mk_comm_destroy(g->comm);
    g->comm = NULL;
    mkgemm_gpu_close(g);
    if (ret)
        return ret;
    if (g->rank)
        return g->bitwise_equal ? MK_EXIT_OK : MK_EXIT_FAILED;
    return mkgemm_report(g);
}

int main(int argc, char **argv)
{
    struct mkgemm g;
    memset(&g, 0, sizeof(g));
    g.a.fd = g.b.fd = -1;
    g.rel_error = NAN;
    g.rank = rank_in_environment();
    g.nranks = 1;
    mk_cli_init("mkgemm");
    mk_cli_mute(g.rank > 0); /* a wrong command line is wrong on all ranks: rank 0 tells */
    int ret = parse(&g.o, argc, argv);
    if (!ret && mk_settings_load(&g.settings, true)) {
        mk_cli_say("%s", mk_last_error());
        ret = MK_EXIT_USAGE;
    }
    mk_cli_mute(false);
    if (ret)
        return ret;
    if (g.o.make) {
        if (!g.rank && mkgemm_make(&g.o)) {
            mk_cli_say("%s", mk_last_error());
            return MK_EXIT_FAILED;
        }
        return MK_EXIT_OK;
    }
    ret = job(&g);
    mkgemm_close(&g);
    return ret;
}
