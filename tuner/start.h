/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Starting points: what start.c (the table) and start_file.c (its file) share. */
#pragma once
#include "mk/tuner.h"

#define MK_STARTS_MAX 1024

struct mk_start_entry {
    struct mk_start_key key;
    struct mk_start value;
};
struct mk_start_table {
    uint32_t count;
    struct mk_start_entry entry[MK_STARTS_MAX];
};

enum mk_start_found {
    MK_START_READ,    /* the table is what the file holds */
    MK_START_ABSENT,  /* no file, or an empty one */
    MK_START_DAMAGED, /* ours, but not whole */
    MK_START_FOREIGN, /* not ours, or no regular file */
    MK_START_OTHER,   /* ours, of another version or byte order */
    MK_START_FAILED   /* cannot be read now */
};

/* The file as bytes. */
#define MK_START_HEADER 32
#define MK_START_BYTES_MAX (MK_START_HEADER + sizeof(struct mk_start_entry) * MK_STARTS_MAX)
enum mk_start_found mk_start_parse(const uint8_t *bytes, size_t n, struct mk_start_table *out);
size_t mk_start_format(const struct mk_start_table *t, uint8_t *bytes);

/* Makes sense: ranges, text that ends. */
bool mk_start_valid(const struct mk_start_entry *e);
/* Takes e over, unless the table has more launches for that key; a full table loses the entry with the fewest, be it e. */
void mk_start_merge(struct mk_start_table *t, const struct mk_start_entry *e);

/* why: text for FAILED; of 160 bytes. */
enum mk_start_found mk_start_read_file(const char *path, struct mk_start_table *out, char *why);
/* Of the file itself, where path is a link: that one is to be locked and replaced. */
#define MK_START_PATH 1024
int mk_start_resolve(const char *path, char out[MK_START_PATH]);
/* 0, MK_ERR_AGAIN or MK_ERR_SYSTEM; *lock is to be given to mk_start_unlock. */
int mk_start_lock(const char *path, int *lock);
void mk_start_unlock(int lock);
int mk_start_write_file(const char *path, const struct mk_start_table *t);
