/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The list of the driver's functions: its order, what must be counted whatever the list says, and every cu* symbol of a
 * real library: `driver_calls`, `driver_calls stub FILE` (the CUDA toolkit's), `driver_calls real` (this machine's). */
#include "mk/driver_calls.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* What puts work on a stream by its very name, and what does not although it looks so. */
static const char works[] =
    "Launch|Async($|_)|Memcpy|Memset|(Write|Wait)Value|BatchMemOp($|_)|RecordEvent|EventRecord(WithFlags)?($|"
    "_)|"
    "WaitEvent|HostFunc|AddCallback|Upload|Prefetch|MapResources|MemFree|MemUnmap|Instantiate";
static const char only_asks[] = "^cu[A-Za-z0-9]*Node(Get|Set)[A-Za-z0-9_]*$|^cuGraphExec|^cuGraphAdd";
/* What a framework calls between a GEMM and its collective, or from a thread that watches: were it counted, nothing
 * would ever overlap. */
static const char *const harmless[] = {"cuStreamIsCapturing",
                                       "cuStreamGetCaptureInfo_v2",
                                       "cuStreamGetCaptureInfo_v3_ptsz",
                                       "cuEventQuery",
                                       "cuEventCreate",
                                       "cuCtxGetCurrent",
                                       "cuCtxSetCurrent",
                                       "cuCtxPushCurrent_v2",
                                       "cuCtxPopCurrent_v2",
                                       "cuStreamGetCtx",
                                       "cuStreamGetId",
                                       "cuPointerGetAttribute",
                                       "cuDeviceGetAttribute",
                                       "cuDevicePrimaryCtxGetState",
                                       "cuThreadExchangeStreamCaptureMode",
                                       "cuStreamQuery",
                                       "cuMemGetInfo_v2"};

static bool matches(const char *pattern, const char *name)
{
    regex_t re;
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    const bool yes = !regexec(&re, name, 0, NULL, 0);
    regfree(&re);
    return yes;
}

/* Base name of a variant: without _v2, _ptsz, _ptds. */
static void base_of(const char *name, char *base, size_t bytes)
{
    snprintf(base, bytes, "%s", name);
    for (char *cut;
         (cut = strrchr(base, '_')) && (!strcmp(cut, "_ptsz") || !strcmp(cut, "_ptds") ||
                                        (cut[1] == 'v' && cut[2] >= '2' && cut[2] <= '9' && !cut[3]));)
        *cut = '\0';
}

static void test_order(void **state)
{
    char name[96], before[96] = "";
    enum mk_driver_call last = MK_DRIVER_QUIET;
    size_t n[5] = {0};
    (void)state;
    for (size_t i = 0; mk_driver_call_name(i, name, sizeof(name)); i++) {
        const enum mk_driver_call call = mk_driver_call(name);
        assert_true(call == MK_DRIVER_QUIET || call == MK_DRIVER_ENQUEUES);
        if (call == last && strcmp(before, name) >= 0)
            fail_msg("%s stands after %s", name, before);
        assert_true(call >= last); /* a name on both lists would be found on the first one only */
        last = call;
        n[call]++;
        snprintf(before, sizeof(before), "%s", name);
    }
    assert_true(n[MK_DRIVER_QUIET] > 150 && n[MK_DRIVER_ENQUEUES] > 400);
    assert_false(mk_driver_call_name(n[1] + n[2], name, sizeof(name)));
    assert_false(mk_driver_call_name(0, name, 5));
}

static void test_kinds(void **state)
{
    char name[96], base[96];
    (void)state;
    for (size_t i = 0; mk_driver_call_name(i, name, sizeof(name)); i++) {
        const enum mk_driver_call call = mk_driver_call(name);
        if (matches(works, name) && !matches(only_asks, name) && !strstr(name, "Get") &&
            call != MK_DRIVER_ENQUEUES)
            fail_msg("%s works on a stream and is not counted", name);
        base_of(name, base, sizeof(base));
        if (mk_driver_call(base) != MK_DRIVER_UNKNOWN && mk_driver_call(base) != call)
            fail_msg("%s and %s differ", name, base);
    }
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
        if (mk_driver_call(harmless[i]) != MK_DRIVER_QUIET)
            fail_msg("%s is counted", harmless[i]);
    assert_int_equal(mk_driver_call("cuLaunchKernelEx_ptsz"), MK_DRIVER_ENQUEUES);
    assert_int_equal(mk_driver_call("cuGraphLaunch"), MK_DRIVER_ENQUEUES);
    assert_int_equal(mk_driver_call("cuGetProcAddress"), MK_DRIVER_LOOKUP);
    assert_int_equal(mk_driver_call("cuGetProcAddress_v2"), MK_DRIVER_LOOKUP);
    assert_int_equal(mk_driver_call("cuGetExportTable"), MK_DRIVER_ENDS);
    const char *unknown[] = {
        "", " ", "cuStream", "cuLaunchKernelE", "cuLaunchKernelEx_v9", "cuMemcpy cuMemcpy2D"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        assert_int_equal(mk_driver_call(unknown[i]), MK_DRIVER_UNKNOWN);
}

/* Defined dynamic symbols cu[A-Z]* of a 64-bit object. Returns how many there are; -1: no such object. */
static int each_symbol(const unsigned char *file, size_t bytes, int *unknown)
{
    const Elf64_Ehdr *head = (const void *)file;
    int n = 0;
    if (bytes < sizeof(*head) || memcmp(head->e_ident, ELFMAG, SELFMAG) ||
        head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_shoff > bytes ||
        (bytes - head->e_shoff) / sizeof(Elf64_Shdr) < head->e_shnum)
        return -1;
    const Elf64_Shdr *section = (const void *)(file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (section[i].sh_type != SHT_DYNSYM || section[i].sh_link >= head->e_shnum)
            continue;
        const Elf64_Shdr *names = &section[section[i].sh_link];
        if (section[i].sh_offset + section[i].sh_size > bytes || names->sh_offset + names->sh_size > bytes)
            return -1;
        const Elf64_Sym *symbol = (const void *)(file + section[i].sh_offset);
        for (size_t s = 0; s < section[i].sh_size / sizeof(*symbol); s++) {
            if (symbol[s].st_shndx == SHN_UNDEF || symbol[s].st_name >= names->sh_size)
                continue;
            const char *name = (const char *)file + names->sh_offset + symbol[s].st_name;
            if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
                continue;
            n++;
            if (mk_driver_call(name) == MK_DRIVER_UNKNOWN) {
                fprintf(stderr, "%s is on no list of fused/driver_calls.c\n", name);
                ++*unknown;
            }
        }
    }
    return n;
}

static int library(const char *what, const char *path)
{
    struct stat st;
    int unknown = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 1;
    }
    void *file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return 1;
    const int n = each_symbol(file, (size_t)st.st_size, &unknown);
    munmap(file, (size_t)st.st_size);
    printf("%s: %d driver functions, %d of them on no list\n", what, n, unknown);
    return n < 300 || unknown; /* fewer: not what it is taken for */
}

static int real(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    struct link_map *map;
    if (!driver || dlinfo(driver, RTLD_DI_LINKMAP, &map)) {
        printf("skip: unit.driver_calls.real: no libcuda.so.1\n");
        return 77;
    }
    return library("libcuda.so.1", map->l_name);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_kinds)};
    if (argc == 3 && !strcmp(argv[1], "stub"))
        return library("the toolkit's libcuda.so", argv[2]);
    if (argc == 2 && !strcmp(argv[1], "real"))
        return real();
    return cmocka_run_group_tests_name("driver_calls", tests, NULL, NULL);
}
