/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "slots.h"
#include "mk/err.h"
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static uintptr_t page_size(void)
{
    const long n = sysconf(_SC_PAGESIZE);
    return n > 0 ? (uintptr_t)n : 4096;
}

static const ElfW(Dyn) * segments(const struct dl_phdr_info *info, struct mk_elf *e)
{
    const ElfW(Dyn) *dyn = NULL;
    const uintptr_t page = page_size();
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uintptr_t at = info->dlpi_addr + p->p_vaddr, end = at + p->p_memsz;
        if (p->p_type == PT_LOAD) {
            e->low = at < e->low ? at : e->low;
            e->high = end > e->high ? end : e->high;
        } else if (p->p_type == PT_DYNAMIC) {
            dyn = (const ElfW(Dyn) *)at;
        } else if (p->p_type == PT_GNU_RELRO) {
            e->relro_low = at & ~(page - 1); /* whole pages only, as the dynamic linker does it */
            e->relro_high = end & ~(page - 1);
        }
    }
    return dyn;
}

/* The dynamic linker adds the base to the pointers in this table before others see the object. Where it did not (the
 * vdso) the pointer is outside, and the object is not read. */
static const void *table(const struct mk_elf *e, ElfW(Addr) p)
{
    return mk_elf_holds(e, p) ? (const void *)p : NULL;
}

bool mk_elf_read(const struct dl_phdr_info *info, struct mk_elf *out)
{
    struct mk_elf e;
    bool rela_jumps = false;
    memset(&e, 0, sizeof(e));
    e.name = info->dlpi_name ? info->dlpi_name : "";
    e.base = info->dlpi_addr;
    e.phdr = info->dlpi_phdr;
    e.phnum = info->dlpi_phnum;
    e.low = UINTPTR_MAX;
    const ElfW(Dyn) *dyn = segments(info, &e);
    if (!dyn || !mk_elf_holds(&e, (uintptr_t)dyn))
        return false;
    for (; dyn->d_tag != DT_NULL; dyn++) {
        const ElfW(Addr) p = dyn->d_un.d_ptr;
        switch (dyn->d_tag) {
        case DT_SYMTAB:
            e.sym = table(&e, p);
            break;
        case DT_STRTAB:
            e.str = table(&e, p);
            break;
        case DT_GNU_HASH:
            e.gnu_hash = table(&e, p);
            break;
        case DT_HASH:
            e.hash = table(&e, p);
            break;
        case DT_VERSYM:
            e.versym = table(&e, p);
            break;
        case DT_RELA:
            e.rela = table(&e, p);
            break;
        case DT_RELASZ:
            e.nrela = dyn->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_RELACOUNT:
            e.nrelative = dyn->d_un.d_val;
            break;
        case DT_JMPREL:
            e.jmprel = table(&e, p);
            break;
        case DT_PLTRELSZ:
            e.njmprel = dyn->d_un.d_val / sizeof(ElfW(Rela));
            break;
        case DT_PLTREL:
            rela_jumps = dyn->d_un.d_val == DT_RELA;
            break;
        default:
            break;
        }
    }
    if (!rela_jumps)
        e.jmprel = NULL;
    if (!e.sym || !e.str)
        return false;
    *out = e;
    return true;
}

bool mk_elf_in(const struct mk_elf *e, uintptr_t p, uint32_t flags)
{
    for (int i = 0; i < e->phnum; i++) {
        const uintptr_t at = e->base + e->phdr[i].p_vaddr;
        if (e->phdr[i].p_type == PT_LOAD && p >= at && p < at + e->phdr[i].p_memsz)
            return (e->phdr[i].p_flags & flags) == flags;
    }
    return false;
}

static bool is_it(const struct mk_elf *e, uint32_t i, const char *name)
{
    const ElfW(Sym) *s = &e->sym[i];
    const int type = ELF64_ST_TYPE(s->st_info), bind = ELF64_ST_BIND(s->st_info);
    return s->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC) &&
           (bind == STB_GLOBAL || bind == STB_WEAK) && !(e->versym && e->versym[i] & 0x8000) &&
           !strcmp(e->str + s->st_name, name);
}

static uint32_t find_gnu(const struct mk_elf *e, const char *name)
{
    uint32_t h = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        h = h * 33 + *c;
    const uint32_t nbuckets = e->gnu_hash[0], first = e->gnu_hash[1], words = e->gnu_hash[2];
    const uint32_t shift = e->gnu_hash[3];
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(e->gnu_hash + 4);
    const uint32_t *buckets = (const uint32_t *)(bloom + words), *chain = buckets + nbuckets;
    const uint32_t bits = 8 * sizeof(*bloom);
    if (!nbuckets || !words)
        return 0;
    const ElfW(Addr) word = bloom[h / bits % words];
    if (!(word >> (h % bits) & word >> ((h >> shift) % bits) & 1))
        return 0;
    uint32_t i = buckets[h % nbuckets];
    if (i < first)
        return 0;
    for (;; i++) {
        const uint32_t c = chain[i - first];
        if ((c | 1) == (h | 1) && is_it(e, i, name))
            return i;
        if (c & 1)
            return 0;
    }
}

static uint32_t find_sysv(const struct mk_elf *e, const char *name)
{
    uint32_t h = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        h = (h << 4) + *c;
        h = (h ^ (h >> 24 & 0xf0)) & 0x0fffffff;
    }
    const uint32_t nbuckets = e->hash[0], nchain = e->hash[1];
    if (!nbuckets)
        return 0;
    for (uint32_t i = e->hash[2 + h % nbuckets]; i && i < nchain; i = e->hash[2 + nbuckets + i])
        if (is_it(e, i, name))
            return i;
    return 0;
}

uintptr_t mk_elf_find(const struct mk_elf *e, const char *name)
{
    const uint32_t i = e->gnu_hash ? find_gnu(e, name) : e->hash ? find_sysv(e, name) : 0;
    if (!i)
        return 0;
    const uintptr_t p = e->base + e->sym[i].st_value;
    if (ELF64_ST_TYPE(e->sym[i].st_info) != STT_GNU_IFUNC)
        return p;
    void *(*resolve)(void);
    memcpy(&resolve, &p, sizeof(p));
    return (uintptr_t)resolve();
}

static void imports_of(const struct mk_elf *e, const ElfW(Rela) * r, size_t n, mk_elf_visit visit, void *ctx)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t type = ELF64_R_TYPE(r[i].r_info), index = ELF64_R_SYM(r[i].r_info);
        const uintptr_t slot = e->base + r[i].r_offset;
        if (!index || (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64))
            continue;
        if ((type == R_X86_64_64 && r[i].r_addend) || e->sym[index].st_shndx != SHN_UNDEF)
            continue;
        if (slot % sizeof(void *) == 0 && mk_elf_in(e, slot, PF_R | PF_W))
            visit(ctx, e, (void **)slot, e->str + e->sym[index].st_name, type == R_X86_64_JUMP_SLOT);
    }
}

void mk_elf_imports(const struct mk_elf *e, mk_elf_visit visit, void *ctx)
{
    if (e->rela && e->nrela > e->nrelative) /* the relative ones come first, and are most */
        imports_of(e, e->rela + e->nrelative, e->nrela - e->nrelative, visit, ctx);
    if (e->jmprel)
        imports_of(e, e->jmprel, e->njmprel, visit, ctx);
}

/* Can this process write there now? The kernel adds nothing to the word, atomically, or says EFAULT. 1, 0, or -1 if
 * it cannot be asked. */
static int writable(void **slot)
{
    uint32_t nobody = 0;
    if (syscall(SYS_futex, &nobody, FUTEX_WAKE_OP_PRIVATE, 0, 0L, slot,
                FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)) >= 0)
        return 1;
    return errno == EFAULT ? 0 : -1;
}

int mk_elf_store(const struct mk_elf *e, void **slot, void *from, void *to)
{
    const uintptr_t page = (uintptr_t)slot & ~(page_size() - 1);
    const bool relro = (uintptr_t)slot >= e->relro_low && (uintptr_t)slot < e->relro_high;
    if (relro) {
        /* Still writable: its relocation goes on in another thread, whose next store would meet the protection that
         * we would leave behind. */
        const int w = writable(slot);
        if (w)
            return w > 0 ? MK_ERR_AGAIN : MK_ERR_UNSUPPORTED;
        if (mprotect((void *)page, page_size(), PROT_READ | PROT_WRITE))
            return MK_ERR_SYSTEM;
    }
    const bool done = __atomic_compare_exchange_n(slot, &from, to, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    if (relro)
        mprotect((void *)page, page_size(), PROT_READ);
    return done ? 0 : MK_ERR_AGAIN;
}

/* ---- words that are no slots ---- */

static int protection(const struct mk_elf *e, uintptr_t p)
{
    int prot = 0;
    for (int i = 0; i < e->phnum; i++) {
        const uintptr_t at = e->base + e->phdr[i].p_vaddr;
        if (e->phdr[i].p_type == PT_LOAD && p >= at && p < at + e->phdr[i].p_memsz)
            prot = (e->phdr[i].p_flags & PF_R ? PROT_READ : 0) |
                   (e->phdr[i].p_flags & PF_W ? PROT_WRITE : 0) | (e->phdr[i].p_flags & PF_X ? PROT_EXEC : 0);
    }
    return p >= e->relro_low && p < e->relro_high ? prot & ~PROT_WRITE : prot;
}

/* [from, to) is of one protection. What runs there meanwhile goes on. */
static int open_pages(const struct mk_elf *e, uintptr_t from, uintptr_t to, bool open)
{
    const uintptr_t page = page_size(), at = from & ~(page - 1);
    const int prot = protection(e, from);
    if (prot & PROT_WRITE)
        return 0;
    return mprotect((void *)at, ((to + page - 1) & ~(page - 1)) - at, open ? prot | PROT_WRITE : prot)
               ? MK_ERR_SYSTEM
               : 0;
}

int mk_elf_write(const struct mk_elf *e, void **word, void *from, void *to)
{
    const uintptr_t at = (uintptr_t)word;
    if (open_pages(e, at, at + sizeof(*word), true))
        return MK_ERR_SYSTEM;
    const bool done = __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    open_pages(e, at, at + sizeof(*word), false);
    return done ? 0 : MK_ERR_AGAIN;
}

/* How many symbols there are: nothing says it but the tables for finding them. */
static size_t symbols(const struct mk_elf *e)
{
    if (e->hash)
        return e->hash[1];
    if (!e->gnu_hash)
        return 0;
    const uint32_t nbuckets = e->gnu_hash[0], first = e->gnu_hash[1];
    const uint32_t *buckets = e->gnu_hash + 4 + e->gnu_hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = buckets + nbuckets;
    uint32_t last = 0;
    for (uint32_t i = 0; i < nbuckets; i++)
        last = buckets[i] > last ? buckets[i] : last;
    if (last < first)
        return 0;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

int mk_elf_lead(const struct mk_elf *e, void *(*instead)(void *p, const char *name))
{
    const size_t n = symbols(e);
    const uintptr_t from = (uintptr_t)e->sym, to = from + n * sizeof(*e->sym);
    bool indirect = false;
    if (!n || !mk_elf_holds(e, to - 1))
        return MK_ERR_UNSUPPORTED;
    if (open_pages(e, from, to, true))
        return MK_ERR_SYSTEM;
    for (size_t i = 1; i < n; i++) {
        ElfW(Sym) *s = (ElfW(Sym) *)(uintptr_t)&e->sym[i];
        const int type = ELF64_ST_TYPE(s->st_info);
        if (s->st_shndx == SHN_UNDEF || s->st_shndx == SHN_ABS || (type != STT_FUNC && type != STT_GNU_IFUNC))
            continue;
        void *p = instead((void *)(e->base + s->st_value), e->str + s->st_name);
        indirect |= p && type == STT_GNU_IFUNC;
        if (p && type == STT_FUNC) /* the linker adds the base again, modulo 2^64 */
            __atomic_store_n(&s->st_value, (uintptr_t)p - e->base, __ATOMIC_RELEASE);
    }
    open_pages(e, from, to, false);
    return indirect ? MK_ERR_UNSUPPORTED : 0;
}
