/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Start and end: when the object is loaded, by NCCL as a plugin or by LD_PRELOAD, and MK_FUSE asks for interception. */
#include "adapt.h"
#include "count.h"
#include "mk/cuda.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <dlfcn.h>
#include <string.h>

static char here;

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Does a list of LD_PRELOAD name the file that we were loaded as? */
static bool preloaded(const char *list)
{
    Dl_info self;
    if (!list || !dladdr(&here, &self) || !self.dli_fname)
        return false;
    const char *name = base_of(self.dli_fname);
    while (*list) {
        const size_t n = strcspn(list, ": ");
        const char *word = list;
        for (size_t i = 0; i < n; i++)
            if (list[i] == '/')
                word = list + i + 1;
        if ((size_t)(list + n - word) == strlen(name) && !strncmp(word, name, strlen(name)))
            return true;
        list += n + (list[n] != 0);
    }
    return false;
}

/* Not by mk_settings_load: in a process that only inherited LD_PRELOAD no other setting is anybody's business. The
 * default is off until a fused kernel serves these calls. */
static enum mk_hook_mode asked(void)
{
    const char *v = mk_env("MK_FUSE");
    if (!v || !*v || !strcmp(v, "off"))
        return MK_HOOK_OFF;
    if (!strcmp(v, "on"))
        return MK_HOOK_ON;
    if (!strcmp(v, "graph"))
        return MK_HOOK_GRAPH;
    MK_WARN("HOOK", "MK_FUSE=%.40s is not off, graph or on: nothing is intercepted", v);
    return MK_HOOK_OFF;
}

/* A library that nobody imports is called by pointers that were looked up by name. */
static void advise(void)
{
    static const char *const names[] = {"cuBLAS", "cuBLASLt", "NCCL"};
    struct mk_hook_stats s;
    mk_hook_get_stats(&s);
    for (int l = MK_HOOK_CUBLAS; l <= MK_HOOK_NCCL; l++)
        if (s.lib[l] && !s.of[l] && !s.of[MK_HOOK_LOADER])
            MK_INFO("HOOK",
                    "%s is loaded, but no object imports its functions: whoever looked them up by name is "
                    "reached "
                    "by LD_PRELOAD of this file only",
                    names[l]);
}

/* What becomes of the calls: NULL, or why they are all passed on. */
static const char *adapt(enum mk_hook_mode mode)
{
    const char *why = "the settings are wrong";
    struct mk_adapt_options options;
    struct mk_settings settings;
    memset(&options, 0, sizeof(options));
    options.ops = mk_fuse_ops(&why);
    if (options.ops && mk_settings_load(&settings, false)) {
        MK_WARN("HOOK", "%s", mk_last_error());
        options.ops = NULL;
    }
    options.graph_only = mode == MK_HOOK_GRAPH;
    options.deterministic = options.ops && settings.deterministic;
    options.proved_only = true;
    options.verify = options.ops ? (int)settings.verify : 0;
    if (options.verify)
        MK_INFO("HOOK",
                "MK_VERIFY=%d: no collective overlaps with its GEMM; what is between them is looked at",
                options.verify);
    if (mk_adapt_start(&options))
        return mk_last_error();
    return options.ops ? NULL : why;
}

__attribute__((constructor)) static void start(void)
{
    const enum mk_hook_mode mode = asked();
    if (mode == MK_HOOK_OFF)
        return;
    const bool lookups = preloaded(mk_env("LD_PRELOAD"));
    mk_cuda_behind(mk_count_original); /* what we launch is not counted */
    const char *why = adapt(mode);
    if (mk_hook_start(mode, lookups))
        MK_WARN("HOOK", "%s", mk_last_error());
    else
        MK_INFO("HOOK", "interception by %s%s%s", lookups ? "LD_PRELOAD" : "the import slots alone",
                why ? ": every call is passed on, " : "", why ? why : "");
    advise();
}

__attribute__((destructor)) static void end(void)
{
    if (mk_hook_mode() == MK_HOOK_OFF)
        return;
    mk_log_set_sink(NULL); /* NCCL's logger may be past its own end */
    mk_adapt_report();
    if (!mk_log_on(MK_LOG_INFO))
        return;
    struct mk_hook_stats s;
    mk_hook_get_stats(&s);
    mk_count_report();
    for (int id = 0; id < MK_HOOK_EVENTS; id++)
        if (mk_hook_calls((enum mk_hook_id)id))
            MK_INFO("HOOK", "%s: %llu calls", mk_hook_name((enum mk_hook_id)id),
                    (unsigned long long)mk_hook_calls((enum mk_hook_id)id));
    MK_INFO("HOOK",
            "%u slots patched in %u rounds over %u objects, %u left alone, %u lookups missed, %u set back",
            s.patched, s.sweeps, s.objects, s.left, s.missed, s.lost);
}
