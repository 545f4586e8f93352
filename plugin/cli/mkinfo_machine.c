/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The machine as the kernel and the drivers describe it. */
#include "mkinfo.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The first line of a file, without its end; "" if it cannot be read. */
static char *first_line(const char *path, char *text, size_t room)
{
    text[0] = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return text;
    if (!fgets(text, (int)room, f))
        text[0] = 0;
    fclose(f);
    text[strcspn(text, "\n")] = 0;
    return text;
}

/* The value of "KEY ...: VALUE" in a /proc file. */
static char *value_of(const char *path, const char *key, char *text, size_t room)
{
    char line[512];
    text[0] = 0;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(text, room, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (f)
        fclose(f);
    return text;
}

static void processor(struct mkinfo *f)
{
    cpu_set_t cpus;
    char text[160];
    struct utsname u;
    uname(&u);
    value_of("/proc/cpuinfo", "model name", text, sizeof(text));
    mkinfo_text(f, "machine", "processor", "%s", text[0] ? text : u.machine);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const int usable = sched_getaffinity(0, sizeof(cpus), &cpus) ? (int)online : CPU_COUNT(&cpus);
    mkinfo_number(f, "machine", "cores", usable, usable == online ? "%d" : "%d of %ld usable here", usable,
                  online);
    const double total = 1024.0 * atof(value_of("/proc/meminfo", "MemTotal", text, sizeof(text)));
    const double available = 1024.0 * atof(value_of("/proc/meminfo", "MemAvailable", text, sizeof(text)));
    mkinfo_number(f, "machine", "memory_bytes", total, "%.1f GiB, %.1f GiB available", total / 0x1p30,
                  available / 0x1p30);
    mkinfo_text(f, "machine", "system", "%s %s %s", u.sysname, u.release, u.machine);
}

/* The few driver calls that describe a GPU. */
struct cuda {
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int len, int device);
    int (*memory)(size_t *bytes, int device);
    int (*attribute)(int *value, int attribute, int device);
};

static bool load_cuda(void *so, struct cuda *c)
{
    *(void **)&c->init = dlsym(so, "cuInit");
    *(void **)&c->count = dlsym(so, "cuDeviceGetCount");
    *(void **)&c->get = dlsym(so, "cuDeviceGet");
    *(void **)&c->name = dlsym(so, "cuDeviceGetName");
    *(void **)&c->memory = dlsym(so, "cuDeviceTotalMem_v2");
    *(void **)&c->attribute = dlsym(so, "cuDeviceGetAttribute");
    return c->init && c->count && c->get && c->name && c->memory && c->attribute;
}

static void one_gpu(struct mkinfo *f, const struct cuda *c, int ordinal)
{
    enum { ATTRIBUTE_SMS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };
    char key[24], name[96] = "?";
    size_t bytes = 0;
    int device = 0, sms = 0, major = 0, minor = 0;
    snprintf(key, sizeof(key), "gpu%d", ordinal);
    if (c->get(&device, ordinal) || c->name(name, sizeof(name), device) || c->memory(&bytes, device) ||
        c->attribute(&sms, ATTRIBUTE_SMS, device) || c->attribute(&major, ATTRIBUTE_MAJOR, device) ||
        c->attribute(&minor, ATTRIBUTE_MINOR, device))
        mkinfo_text(f, "gpus", key, "cannot be asked");
    else
        mkinfo_text(f, "gpus", key, "%.90s, %.0f GiB, %d SMs, compute capability %d.%d", name,
                    (double)bytes / 0x1p30, sms, major, minor);
}

static void gpus(struct mkinfo *f)
{
    struct cuda c;
    int n = 0;
    void *so = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!so || !load_cuda(so, &c)) {
        mkinfo_text(f, "gpus", "gpus", "none: %s",
                    so ? "libcuda.so.1 is too old" : "no NVIDIA driver (libcuda.so.1)");
        return;
    }
    const int code = c.init(0);
    if (code || c.count(&n) || !n)
        mkinfo_text(f, "gpus", "gpus",
                    code ? "none: cuInit gives error %d" : "none: the driver has no device", code);
    for (int i = 0; !code && i < n; i++)
        one_gpu(f, &c, i);
}

static void one_interface(struct mkinfo *f, const char *name)
{
    char path[320], state[32], mtu[32], speed[32], rate[48] = "";
    snprintf(path, sizeof(path), "/sys/class/net/%.64s/operstate", name);
    first_line(path, state, sizeof(state));
    snprintf(path, sizeof(path), "/sys/class/net/%.64s/mtu", name);
    first_line(path, mtu, sizeof(mtu));
    snprintf(path, sizeof(path), "/sys/class/net/%.64s/speed", name); /* Mbit/s; many devices do not know */
    if (atol(first_line(path, speed, sizeof(speed))) > 0)
        snprintf(rate, sizeof(rate), ", %g Gbit/s", atof(speed) / 1000);
    /* "unknown" is what lo and many virtual devices say when they are up */
    mkinfo_text(f, "network", name, "%s%s, mtu %s", !strcmp(state, "unknown") ? "up" : state, rate, mtu);
}

static void one_rdma_port(struct mkinfo *f, const char *device, const char *port)
{
    char path[400], state[48], rate[48], layer[32], key[MKINFO_KEY];
    const char *const base = "/sys/class/infiniband";
    snprintf(path, sizeof(path), "%s/%.64s/ports/%.16s/state", base, device, port);
    first_line(path, state, sizeof(state));
    snprintf(path, sizeof(path), "%s/%.64s/ports/%.16s/rate", base, device, port);
    first_line(path, rate, sizeof(rate));
    snprintf(path, sizeof(path), "%s/%.64s/ports/%.16s/link_layer", base, device, port);
    first_line(path, layer, sizeof(layer));
    snprintf(key, sizeof(key), "%.24s port %.16s", device, port);
    mkinfo_text(f, "rdma", key, "%s, %s, %s", layer, state, rate);
}

/* Calls one(f, name, ctx) for the entries of a folder, in alphabetical order. Returns how many. */
static int each(struct mkinfo *f, const char *folder,
                void (*one)(struct mkinfo *f, const char *name, const char *ctx), const char *ctx)
{
    struct dirent **list = NULL;
    int seen = 0;
    const int n = scandir(folder, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.') {
            one(f, list[i]->d_name, ctx);
            seen++;
        }
        free(list[i]);
    }
    free(list);
    return seen;
}

static void interface(struct mkinfo *f, const char *name, const char *ctx)
{
    (void)ctx;
    one_interface(f, name);
}

static void rdma_port(struct mkinfo *f, const char *port, const char *device)
{
    one_rdma_port(f, device, port);
}

static void rdma_device(struct mkinfo *f, const char *name, const char *ctx)
{
    char folder[128];
    (void)ctx;
    snprintf(folder, sizeof(folder), "/sys/class/infiniband/%.64s/ports", name);
    each(f, folder, rdma_port, name);
}

void mkinfo_machine(struct mkinfo *f)
{
    processor(f);
    gpus(f);
    if (!each(f, "/sys/class/net", interface, NULL))
        mkinfo_text(f, "network", "interfaces", "none can be seen");
    if (!each(f, "/sys/class/infiniband", rdma_device, NULL))
        mkinfo_text(f, "rdma", "devices", "none");
}
