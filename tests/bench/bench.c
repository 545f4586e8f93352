/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/bench/bench.h"
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

void bench_add(struct bench_samples *s, double v)
{
    if (s->n < BENCH_SAMPLES)
        s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_stat bench_stat_of(const struct bench_samples *s)
{
    struct bench_samples t = *s;
    struct bench_stat out = {0, 0, 0};
    if (!t.n)
        return out;
    qsort(t.v, (size_t)t.n, sizeof(t.v[0]), by_value);
    out.min = t.v[0];
    out.max = t.v[t.n - 1];
    out.median = t.n & 1 ? t.v[t.n / 2] : 0.5 * (t.v[t.n / 2 - 1] + t.v[t.n / 2]);
    return out;
}

bool bench_interval(const struct bench_samples *s, double *low, double *high)
{
    struct bench_samples t = *s;
    double term = 1, below = 0; /* chance of i, and of at most i, of n samples below the median */
    int skip = 0;
    *low = *high = 0;
    if (!t.n)
        return false;
    qsort(t.v, (size_t)t.n, sizeof(t.v[0]), by_value);
    for (int i = 0; i < t.n; i++)
        term *= 0.5;
    for (int i = 0; below + term <= 0.025; i++) {
        below += term;
        term *= (double)(t.n - i) / (i + 1);
        skip = i + 1;
    }
    *low = t.v[skip ? skip - 1 : 0];
    *high = t.v[skip ? t.n - skip : t.n - 1];
    return skip > 0;
}

void bench_json_stat(struct mk_json *j, const char *name, const struct bench_stat *s)
{
    mk_json_object_flat(j, name);
    mk_json_real(j, "median", s->median);
    mk_json_real(j, "min", s->min);
    mk_json_real(j, "max", s->max);
    mk_json_end(j);
}

static void processor(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, n, "unknown");
    while (f && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        snprintf(out, n, "%s", colon + 2);
        out[strcspn(out, "\n")] = 0;
        break;
    }
    if (f)
        fclose(f);
}

void bench_json_machine(struct mk_json *j)
{
    char cpu[128];
    struct utsname u;
    processor(cpu, sizeof(cpu));
    mk_json_object(j, "machine");
    mk_json_text(j, "processor", cpu);
    mk_json_int(j, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    mk_json_text(j, "kernel", uname(&u) ? "unknown" : u.release);
    mk_json_end(j);
}
