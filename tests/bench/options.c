/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/bench/options.h"
#include "plugin/cli/cli.h"
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS 40

bool bench_real(const char *text, double min, double max, double *out)
{
    char *end;
    errno = 0;
    const double v = strtod(text, &end);
    if (end == text || *end || errno || !(v >= min && v <= max))
        return false;
    *out = v;
    return true;
}

static bool take(const struct bench_option *o, const char *text)
{
    long long v;
    switch (o->kind) {
    case BENCH_FLAG:
        *(bool *)o->to = true;
        return true;
    case BENCH_INT:
        if (!mk_cli_number(text, (long long)o->min, (long long)o->max, &v))
            return false;
        *(int *)o->to = (int)v;
        return true;
    case BENCH_REAL:
        return bench_real(text, o->min, o->max, o->to);
    case BENCH_TEXT:
        *(const char **)o->to = text;
        return true;
    case BENCH_CALL:
        return o->call(o->to, text);
    }
    return false;
}

int bench_options(int argc, char **argv, const struct bench_option *table, bool arguments, const char *help)
{
    struct option longs[OPTIONS + 2];
    int n = 0, c;
    memset(longs, 0, sizeof(longs));
    for (; table[n].name && n < OPTIONS; n++) {
        longs[n].name = table[n].name;
        longs[n].has_arg = table[n].kind != BENCH_FLAG;
        longs[n].val = 1000 + n;
    }
    longs[n].name = "help";
    longs[n].val = 'h';
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longs, NULL)) >= 0) {
        if (c == 'h')
            return mk_cli_print(help) + 1;
        if (c < 1000)
            return mk_cli_bad_option(c, argv) + 1;
        if (!take(&table[c - 1000], optarg))
            return mk_cli_usage("--%s %s: not what this option takes", table[c - 1000].name, optarg) + 1;
    }
    return !arguments && optind < argc ? mk_cli_usage("%s takes no argument: %s", argv[0], argv[optind]) + 1
                                       : 0;
}

bool bench_sizes(void *to, const char *text)
{
    struct bench_sizes *s = to;
    char copy[200], *save, *one;
    if (strlen(text) >= sizeof(copy))
        return false;
    strcpy(copy, text);
    s->n = 0;
    for (one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        long long v;
        const size_t n = strlen(one);
        const char unit = n ? one[n - 1] : 0;
        const unsigned shift = unit == 'K' ? 10 : unit == 'M' ? 20 : 0;
        if (shift)
            one[n - 1] = 0;
        if (s->n == BENCH_SIZES || !mk_cli_number(one, 1, (long long)(s->most >> shift), &v))
            return false;
        s->v[s->n++] = (size_t)v << shift;
    }
    return s->n > 0;
}

/* ---- shapes ---- */

static bool add(struct bench_shapes *s, int64_t m, int64_t n, int64_t k)
{
    if (s->n == BENCH_SHAPES || m < 1 || n < 1 || k < 1)
        return false;
    s->at[s->n][0] = m;
    s->at[s->n][1] = n;
    s->at[s->n++][2] = k;
    return true;
}

bool bench_shape(void *to, const char *text)
{
    long long m, n, k;
    char behind;
    return sscanf(text, "%lld,%lld,%lld%c", &m, &n, &k, &behind) == 3 && add(to, m, n, k);
}

/* Every m with every (n, k) of Llama-3.1-8B's and 70B's o_proj and down_proj: tp 2, then tp 8. */
static bool add_llama(struct bench_shapes *s, const int *m, int count)
{
    static const int nk[8][2] = {{4096, 2048}, {4096, 7168}, {8192, 4096}, {8192, 14336},
                                 {4096, 512},  {4096, 1792}, {8192, 1024}, {8192, 3584}};
    bool all = true;
    for (int i = 0; m[i]; i++)
        for (int j = 0; j < count; j++)
            all = add(s, m[i], nk[j][0], nk[j][1]) && all;
    return all;
}

bool bench_shape_set(void *to, const char *name)
{
    static const int table[][3] = {{8192, 8192, 8192}, {16384, 8192, 3584}, {8192, 8192, 3584},
                                   {8192, 8192, 2048}, {8192, 8192, 1024},  {16384, 8192, 1024},
                                   {32768, 4096, 512}, {4096, 4096, 4096},  {2048, 8192, 1024},
                                   {512, 8192, 1024},  {128, 8192, 1024},   {0, 0, 0}};
    static const int issue[][3] = {
        {8192, 8192, 3584}, {16384, 8192, 3584}, {8192, 8192, 8192}, {4096, 8192, 3584}, {0, 0, 0}};
    static const int small[][3] = {{128, 8192, 3584}, {512, 8192, 3584}, {2048, 8192, 3584}, {0, 0, 0}};
    static const int multi[][3] = {{2048, 8192, 3584}, {4096, 8192, 3584}, {8192, 8192, 3584}, {0, 0, 0}};
    static const int two[][3] = {{8192, 8192, 4096},  {8192, 8192, 14336}, {4096, 4096, 2048},
                                 {16384, 8192, 4096}, {2048, 8192, 4096},  {0, 0, 0}};
    static const struct {
        const char *name;
        const int (*at)[3];
    } sets[] = {{"table", table}, {"issue", issue}, {"small", small}, {"multi", multi}, {"two", two}};
    static const int tp[] = {512, 4096, 16384, 0}, decode[] = {1, 16, 64, 0}, prefill[] = {128, 512, 0};
    if (!strcmp(name, "tp"))
        return add_llama(to, tp, 8);
    if (!strcmp(name, "decode"))
        return add_llama(to, decode, 4);
    if (!strcmp(name, "prefill"))
        return add_llama(to, prefill, 4);
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        bool all = true;
        if (strcmp(name, sets[i].name))
            continue;
        for (const int(*s)[3] = sets[i].at; (*s)[0]; s++)
            all = add(to, (*s)[0], (*s)[1], (*s)[2]) && all;
        return all;
    }
    return false;
}

bool bench_shape_file(void *to, const char *path)
{
    char line[256];
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    while (fgets(line, sizeof(line), f)) {
        long long v[3] = {0, 0, 0};
        char *at = line + strlen(line);
        for (int i = 2; i >= 0; i--) {
            while (at > line && at[-1] != ',')
                at--;
            v[i] = atoll(at);
            if (at > line)
                at--;
        }
        add(to, v[0], v[1], v[2]);
    }
    fclose(f);
    return true;
}
