/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* One loaded object as its own tables describe it: what it defines, where its import slots are, and a store into one.
 * Only inside a callback of dl_iterate_phdr, which keeps the object mapped. Allocates nothing, calls nothing of the
 * dynamic linker. */
#pragma once
#include <link.h>
#include <stdbool.h>
#include <stdint.h>

struct mk_elf {
    const char *name; /* "" for the program */
    uintptr_t base, low, high;
    uintptr_t relro_low, relro_high; /* pages that the dynamic linker makes read-only; equal: none */
    const ElfW(Phdr) * phdr;
    int phnum;
    const ElfW(Sym) * sym;
    const char *str;
    const uint32_t *gnu_hash, *hash;
    const uint16_t *versym;
    const ElfW(Rela) * rela, *jmprel;
    size_t nrela, njmprel, nrelative;
};

/* false: it has no tables that could be read (the vdso, static programs). */
bool mk_elf_read(const struct dl_phdr_info *info, struct mk_elf *out);
static inline bool mk_elf_holds(const struct mk_elf *e, uintptr_t p)
{
    return p >= e->low && p < e->high;
}
/* In a segment with these PF_* flags. */
bool mk_elf_in(const struct mk_elf *e, uintptr_t p, uint32_t flags);
/* The address of a function that the object defines (an IFUNC is resolved); 0: none. */
uintptr_t mk_elf_find(const struct mk_elf *e, const char *name);

/* Calls visit for every slot that is filled with the address of a symbol which the object does not define itself.
 * jump: a JUMP_SLOT, which may still point at the object's own stub. */
typedef void (*mk_elf_visit)(void *ctx, const struct mk_elf *e, void **slot, const char *name, bool jump);
void mk_elf_imports(const struct mk_elf *e, mk_elf_visit visit, void *ctx);

/* Replaces `from` by `to` in a slot; its page keeps its protection. 0; MK_ERR_AGAIN: the slot is another one by now, or
 * the object is still being relocated by another thread; else the slot cannot be written. */
int mk_elf_store(const struct mk_elf *e, void **slot, void *from, void *to);

/* Calls instead(address, name) for every function that the object defines, and makes its symbol lead to what that returns
 * (NULL: as it is), for all who look it up from now on. 0, or an error: the table cannot be written, or counted. */
int mk_elf_lead(const struct mk_elf *e, void *(*instead)(void *p, const char *name));
/* Replaces `from` by `to` in a word of the object's data, whose page keeps its protection. Not while it is relocated. */
int mk_elf_write(const struct mk_elf *e, void **word, void *from, void *to);
