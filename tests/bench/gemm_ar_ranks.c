/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* How a benchmark becomes a job of ranks, and options that such benchmarks share. */
#include "mk/param.h"
#include "plugin/cli/cli.h"
#include "tests/bench/gemm_ar.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool ar_list_of(void *to, const char *text)
{
    struct ar_list *l = to;
    char copy[200], *save, *one;
    snprintf(copy, sizeof(copy), "%s", text);
    for (one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save))
        if (l->n == AR_LIST || !bench_real(one, 0, 1000, &l->v[l->n++]))
            return false;
    return l->n > 0;
}

int ar_set_default(const char *name, const char *value)
{
    return setenv(name, value, 0);
}

/* Directory of this program and its name. */
bool ar_self(char path[400], char **name)
{
    const ssize_t n = readlink("/proc/self/exe", path, 399);
    if (n <= 0)
        return false;
    path[n] = 0;
    *name = strrchr(path, '/') + 1;
    return true;
}

/* Becomes mkrun, which starts this program again as the ranks. Returns only on a failure. */
int ar_become_mkrun(const struct ar_options *o, int argc, char **argv)
{
    char path[400], mkrun[420], nodes[40], per_node[40], blocks[16], *name;
    char **args = calloc((size_t)argc + 10, sizeof(*args));
    int n = 0;
    if (!args || !ar_self(path, &name))
        return MK_EXIT_FAILED;
    snprintf(mkrun, sizeof(mkrun), "%.*smkrun", (int)(name - path), path);
    snprintf(nodes, sizeof(nodes), "--nodes=%d", o->nodes ? o->nodes : 1);
    snprintf(per_node, sizeof(per_node), "--ranks-per-node=%d", o->per_node ? o->per_node : 1);
    snprintf(blocks, sizeof(blocks), "%d", o->blocks);
    args[n++] = mkrun;
    args[n++] = nodes;
    args[n++] = per_node;
    if (!o->cpu)
        args[n++] = (char *)(uintptr_t) "--gpus-shared";
    args[n++] = (char *)(uintptr_t) "--";
    args[n++] = path;
    for (int i = 0; i < argc; i++)
        args[n++] = argv[i];
    if (o->blocks)
        setenv("MK_BLOCKS", blocks, 1); /* the census asks for as many */
    ar_set_default("MK_NET", "loop");
    execv(mkrun, args);
    mk_cli_say("%s cannot be run", mkrun);
    return MK_EXIT_FAILED;
}

bool ar_is_rank(void)
{
    struct mk_settings s;
    return mk_settings_load(&s, false) || s.rank >= 0 || mk_settings_launcher(&s);
}
