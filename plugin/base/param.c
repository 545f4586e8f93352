/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Settings: the one parser and the only getenv of the project. */
#include "mk/param.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum kind { KIND_STR, KIND_INT, KIND_BOOL, KIND_SEC, KIND_SIZE, KIND_GBPS, KIND_USEC, KIND_WORD };

struct row {
    const char *name;
    enum kind kind;
    const char *def;
    const char *owner;
    const char *text;
    size_t offset;
};

static const struct row rows[] = {
#define ROW(field, name, kind, def, owner, text)                                                             \
    {name, KIND_##kind, def, #owner, text, offsetof(struct mk_settings, field)},
    MK_SETTINGS(ROW)
#undef ROW
};
#define NROWS (sizeof(rows) / sizeof(rows[0]))

static const char *const kind_hint[] = {
    "text shorter than 256 characters", "an integer",       "0 or 1",       "seconds",
    "a size in bytes, with K, M or G",  "a rate in Gbit/s", "microseconds", "one of the words",
};

const char *mk_env(const char *name)
{
    return getenv(name);
}

static bool parse_real(const char *v, double *out)
{
    char *end;
    errno = 0;
    const double d = strtod(v, &end);
    if (end == v || *end || errno || !isfinite(d) || d < 0)
        return false;
    *out = d;
    return true;
}

static bool parse_size(const char *v, size_t *out)
{
    char *end;
    errno = 0;
    if (*v < '0' || *v > '9')
        return false;
    unsigned long long n = strtoull(v, &end, 10);
    int shift = 0;
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    if (errno || (shift ? end[1] : end[0]) || n > (SIZE_MAX >> shift) || n > (1ull << 46 >> shift))
        return false;
    *out = (size_t)n << shift;
    return true;
}

/* Is v one of the words before the colon (or the end) of the row's sentence? */
static bool parse_word(const struct row *r, const char *v, char out[16])
{
    const char *end = strchr(r->text, ':');
    const char *p = r->text;
    if (!end)
        end = p + strlen(p);
    while (p < end) {
        const char *q = p;
        while (q < end && *q != '|')
            q++;
        if ((size_t)(q - p) == strlen(v) && !strncmp(p, v, (size_t)(q - p))) {
            snprintf(out, 16, "%s", v);
            return true;
        }
        p = q + 1;
    }
    return false;
}

static bool parse(const struct row *r, const char *v, void *field)
{
    char *end;
    switch (r->kind) {
    case KIND_STR:
        if (strlen(v) > 255)
            return false;
        snprintf(field, 256, "%s", v);
        return true;
    case KIND_WORD:
        return parse_word(r, v, field);
    case KIND_INT: {
        errno = 0;
        const long long n = strtoll(v, &end, 10);
        if (end == v || *end || errno || n < INT32_MIN || n > INT32_MAX)
            return false;
        *(int64_t *)field = n;
        return true;
    }
    case KIND_BOOL:
        if (strcmp(v, "0") && strcmp(v, "1"))
            return false;
        *(bool *)field = *v == '1';
        return true;
    case KIND_SEC:
    case KIND_GBPS:
    case KIND_USEC:
        return parse_real(v, field);
    case KIND_SIZE:
        return parse_size(v, field);
    }
    return false;
}

static const struct row *find(const char *name, size_t len)
{
    for (size_t i = 0; i < NROWS; i++)
        if (strlen(rows[i].name) == len && !strncmp(rows[i].name, name, len))
            return &rows[i];
    return NULL;
}

/* Unknown MK_* names: an error for commands, one WARN a name and process for the library. */
static int check_unknown(bool strict)
{
    static bool warned;
    for (char **e = environ; e && *e; e++) {
        const char *eq = strchr(*e, '=');
        if (strncmp(*e, "MK_", 3) || !eq || find(*e, (size_t)(eq - *e)))
            continue;
        if (strict)
            return mk_fail_quiet(MK_ERR_INVALID, "unknown setting %.*s (mkinfo --settings lists them)",
                                 (int)(eq - *e), *e);
        if (!__atomic_load_n(&warned, __ATOMIC_RELAXED))
            MK_WARN("BASE", "unknown setting %.*s is ignored", (int)(eq - *e), *e);
    }
    __atomic_store_n(&warned, true, __ATOMIC_RELAXED);
    return 0;
}

int mk_settings_load(struct mk_settings *out, bool strict)
{
    struct mk_settings s;
    memset(&s, 0, sizeof(s));
    for (size_t i = 0; i < NROWS; i++) {
        const char *v = getenv(rows[i].name);
        if (!v || !*v)
            v = rows[i].def;
        if (!parse(&rows[i], v, (char *)&s + rows[i].offset))
            return mk_fail_quiet(MK_ERR_INVALID, "setting %s=%.60s is not %s%s%s", rows[i].name, v,
                                 kind_hint[rows[i].kind], rows[i].kind == KIND_WORD ? ": " : "",
                                 rows[i].kind == KIND_WORD ? rows[i].text : "");
    }
    if (s.batch < 1 || s.batch > 8)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_BATCH=%lld is not 1 to 8", (long long)s.batch);
    if (s.devices < 0 || s.devices > 16)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_DEVICES=%lld is not 0 to 16", (long long)s.devices);
    if (s.qps < 1 || s.qps > 8)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_QPS=%lld is not 1 to 8", (long long)s.qps);
    if (s.threads < 0 || s.threads > 1024)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_THREADS=%lld is not 0 to 1024",
                             (long long)s.threads);
    if (s.r < 1)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_R=%lld is not at least 1", (long long)s.r);
    if (s.blocks < 0 || s.blocks > INT32_MAX)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_BLOCKS=%lld is no number of blocks",
                             (long long)s.blocks);
    if (s.comm_blocks < -1 || s.comm_blocks > INT32_MAX)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_COMM_BLOCKS=%lld is no number of blocks, nor -1",
                             (long long)s.comm_blocks);
    if (s.timeout < 0.1)
        return mk_fail_quiet(MK_ERR_INVALID, "setting MK_TIMEOUT=%g is not at least 0.1 seconds", s.timeout);
    const int ret = check_unknown(strict);
    if (ret)
        return ret;
    *out = s;
    return 0;
}

static void take_int(int64_t *field, const char *name)
{
    const char *v = getenv(name);
    char *end;
    if (*field >= 0 || !v || !*v)
        return;
    const long long n = strtoll(v, &end, 10);
    if (!*end && n >= 0 && n <= INT32_MAX)
        *field = n;
}

const char *mk_settings_launcher(struct mk_settings *s)
{
    static const struct {
        const char *who, *rank, *nranks, *local_rank, *local_nranks;
    } known[] = {
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (!getenv(known[i].rank) || !getenv(known[i].nranks))
            continue;
        take_int(&s->rank, known[i].rank);
        take_int(&s->nranks, known[i].nranks);
        take_int(&s->local_rank, known[i].local_rank);
        take_int(&s->local_nranks, known[i].local_nranks);
        return known[i].who;
    }
    return NULL;
}

bool mk_settings_master(char host[256], char port[16])
{
    const char *h = getenv("MASTER_ADDR"), *p = getenv("MASTER_PORT");
    if (!h || !p || !*h || !*p || strlen(h) >= 256 || strlen(p) >= 16)
        return false;
    snprintf(host, 256, "%s", h);
    snprintf(port, 16, "%s", p);
    return true;
}

static void print_value(FILE *out, const struct row *r, const void *field)
{
    char text[300];
    switch (r->kind) {
    case KIND_STR:
    case KIND_WORD:
        snprintf(text, sizeof(text), "%s", *(const char *)field ? (const char *)field : "-");
        break;
    case KIND_INT:
        snprintf(text, sizeof(text), "%lld", (long long)*(const int64_t *)field);
        break;
    case KIND_BOOL:
        snprintf(text, sizeof(text), "%d", *(const bool *)field);
        break;
    case KIND_SIZE:
        snprintf(text, sizeof(text), "%zu", *(const size_t *)field);
        break;
    default:
        snprintf(text, sizeof(text), "%g", *(const double *)field);
    }
    fprintf(out, "%-20s %-16s %-8s %-6s %s\n", r->name, text, *r->def ? r->def : "-", r->owner, r->text);
}

void mk_settings_print(FILE *out, const struct mk_settings *s)
{
    fprintf(out, "%-20s %-16s %-8s %-6s %s\n", "setting", "in force", "default", "owner", "meaning");
    for (size_t i = 0; i < NROWS; i++)
        print_value(out, &rows[i], (const char *)s + rows[i].offset);
}
