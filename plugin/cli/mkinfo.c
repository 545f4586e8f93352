/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "mkinfo.h"
#include "cli.h"
#include "json.h"
#include "mk/log.h"
#include "table.h"
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: mkinfo [--settings] [--json FILE]\n"
    "       mkinfo --profile FILE.. [--json FILE]\n"
    "       mkinfo --explain LOG.. [--json FILE]\n"
    "\n"
    "Says what this machine offers to mKernel: processor, GPUs, networks, libraries found or missing (and "
    "what to\n"
    "install), the speed of the matrix multiply, the settings in force, and what a job would use. Takes "
    "about a second.\n"
    "\n"
    "  --settings   lists every MK_* setting: value in force, default, meaning\n"
    "  --profile FILE..  what NCCL's collectives took, from files that MK_PROFILE made, of all ranks "
    "together: calls,\n"
    "                    time, bandwidth (as nccl-tests define it), CTAs, share overlapped\n"
    "  --explain LOG..  what became of each GEMM and collective that interception saw, and why, with advice: "
    "from logs of a\n"
    "                    job with MK_FUSE=graph or on, and MK_LOG=info (NCCL_DEBUG=INFO where NCCL's logger "
    "takes the lines);\n"
    "                    other lines are passed over\n"
    "  --json FILE  writes the same as JSON, nothing to the standard output\n"
    "  --help, --version\n"
    "\n"
    "exit status: 0; 1 the output could not be written; 2 wrong usage, a wrong MK_* setting, a damaged "
    "profile (those that are whole\n"
    "are shown), or a log that cannot be read or has no line of interception.\n"
    "\n"
    "examples:\n"
    "  mkinfo\n"
    "  MK_NET=ofi MK_OFI_PROVIDER=tcp mkinfo\n"
    "  mkinfo --settings\n"
    "  MK_PROFILE=run.%h.%p.json ... ; mkinfo --profile run.*.json\n"
    "  MK_FUSE=on MK_LOG=info ... 2>log ; mkinfo --explain log\n";

static struct mkinfo_item *add(struct mkinfo *f, const char *section, const char *key)
{
    if (f->n == f->room) {
        const int room = f->room ? 2 * f->room : 64;
        struct mkinfo_item *p = realloc(f->items, (size_t)room * sizeof(*p));
        if (!p) {
            f->failed = true;
            return NULL;
        }
        f->items = p;
        f->room = room;
    }
    struct mkinfo_item *i = &f->items[f->n++];
    memset(i, 0, sizeof(*i));
    i->section = section;
    snprintf(i->key, sizeof(i->key), "%s", key);
    return i;
}

void mkinfo_text(struct mkinfo *f, const char *section, const char *key, const char *fmt, ...)
{
    struct mkinfo_item *i = add(f, section, key);
    va_list ap;
    va_start(ap, fmt);
    if (i)
        vsnprintf(i->text, sizeof(i->text), fmt, ap);
    va_end(ap);
}

void mkinfo_number(struct mkinfo *f, const char *section, const char *key, double number, const char *fmt,
                   ...)
{
    struct mkinfo_item *i = add(f, section, key);
    va_list ap;
    va_start(ap, fmt);
    if (i) {
        vsnprintf(i->text, sizeof(i->text), fmt, ap);
        i->is_number = true;
        i->number = number;
    }
    va_end(ap);
}

/* Settings that the environment gives: the others have their defaults. */
static void settings_in_force(struct mkinfo *f)
{
    int set = 0;
#define ITEM(field, name, kind, def, owner, text)                                                            \
    if (mk_env(name) && *mk_env(name)) {                                                                     \
        mkinfo_text(f, "settings", name, "%s", mk_env(name));                                                \
        set++;                                                                                               \
    }
    MK_SETTINGS(ITEM)
#undef ITEM
    if (!set)
        mkinfo_text(f, "settings", "all", "have their defaults; mkinfo --settings lists them");
}

/* The probes report through their return values; what they log on the way would only repeat it. */
static void no_log(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)level;
    (void)subsys;
    (void)text;
}

/* "memory_bytes" is for JSON; people read "memory". */
static const char *label(const struct mkinfo_item *i, char text[MKINFO_KEY])
{
    snprintf(text, MKINFO_KEY, "%s", i->key);
    char *unit = i->is_number ? strrchr(text, '_') : NULL;
    if (unit)
        *unit = 0;
    for (char *p = text; i->is_number && *p; p++)
        *p = *p == '_' ? ' ' : *p;
    return text;
}

static int print(const struct mkinfo *f)
{
    char text[MKINFO_KEY];
    struct mk_table *t = mk_table_new("mkinfo||");
    for (int i = 0; i < f->n; i++) {
        const struct mkinfo_item *it = &f->items[i];
        const bool first = !i || strcmp(it->section, it[-1].section) != 0;
        if (first && i)
            mk_table_row(t, "%s", "");
        const char *section = !first ? "" : !strcmp(it->section, "in_use") ? "in use" : it->section;
        mk_table_row(t, "%s|%s|%s", section, label(it, text), it->text);
    }
    const int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    if (ret) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    return mk_cli_flush();
}

static int write_json(const struct mkinfo *f, const char *path)
{
    struct mk_json j;
    int ret = mk_json_open(&j, path);
    if (!ret) {
        mk_json_object(&j, NULL);
        for (int i = 0; i < f->n; i++) {
            const struct mkinfo_item *it = &f->items[i];
            if (!i || strcmp(it->section, it[-1].section)) {
                if (i)
                    mk_json_end(&j);
                mk_json_object(&j, it->section);
            }
            if (it->is_number)
                mk_json_real(&j, it->key, it->number);
            else
                mk_json_text(&j, it->key, it->text);
        }
        if (f->n)
            mk_json_end(&j);
        mk_json_end(&j);
        ret = mk_json_close(&j);
    }
    if (ret)
        mk_cli_say("%s", mk_last_error());
    return ret ? MK_EXIT_FAILED : MK_EXIT_OK;
}

static int list_settings(const struct mk_settings *s)
{
    mk_settings_print(stdout, s);
    return mk_cli_flush();
}

static int look(struct mkinfo *f, const char *json)
{
    mk_log_set_sink(no_log);
    mkinfo_machine(f);
    mkinfo_parts(f);
    settings_in_force(f);
    int ret = MK_EXIT_FAILED;
    if (f->failed)
        mk_cli_say("out of memory");
    else
        ret = json ? write_json(f, json) : print(f);
    free(f->items);
    return ret;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"settings", 0, NULL, 's'}, {"profile", 0, NULL, 'p'},
                                            {"explain", 0, NULL, 'e'},  {"json", 1, NULL, 'j'},
                                            {"help", 0, NULL, 'h'},     {"version", 0, NULL, 'V'},
                                            {NULL, 0, NULL, 0}};
    struct mkinfo f;
    const char *json = NULL;
    bool settings = false, profile = false, explain = false;
    int c;
    memset(&f, 0, sizeof(f));
    mk_cli_init("mkinfo");
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (c == 's')
            settings = true;
        else if (c == 'p')
            profile = true;
        else if (c == 'e')
            explain = true;
        else if (c == 'j')
            json = optarg;
        else if (c == 'h')
            return mk_cli_print(help);
        else if (c == 'V')
            return mk_cli_version();
        else
            return mk_cli_bad_option(c, argv);
    }
    if (profile && explain)
        return mk_cli_usage("--profile and --explain are two commands");
    if ((profile || explain) && optind == argc)
        return mk_cli_usage("%s needs a file", profile ? "--profile" : "--explain");
    if (!profile && !explain && optind < argc)
        return mk_cli_usage("%s is one argument too many", argv[optind]);
    if (mk_settings_load(&f.settings, true)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_USAGE;
    }
    if (profile)
        return mkinfo_profile(argv + optind, argc - optind, json);
    if (explain)
        return mkinfo_explain(argv + optind, argc - optind, json);
    return settings ? list_settings(&f.settings) : look(&f, json);
}
