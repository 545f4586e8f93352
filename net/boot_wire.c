/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The bytes of the bootstrap: pure functions, fuzzed by tests/fuzz/hello.c. */
#include "boot_wire.h"
#include "mk/err.h"
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <string.h>

uint64_t mk_boot_hash(const void *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3ull;
    return h ^ h >> 29;
}

/* Do the n bytes there are (at most 8 count) agree with the magic? */
static int magic_fits(const void *buf, size_t n, uint64_t magic)
{
    const uint64_t wire = htole64(magic);
    return !memcmp(buf, &wire, n < 8 ? n : 8);
}

/* The first 16 bytes, common to all versions of hello and answer. */
static enum mk_boot_parse parse_head(const void *buf, size_t n, uint64_t magic, uint32_t *version)
{
    if (n && !magic_fits(buf, n, magic))
        return MK_BOOT_ALIEN;
    if (n < 16)
        return MK_BOOT_MORE;
    memcpy(version, (const uint8_t *)buf + 8, 4);
    *version = le32toh(*version);
    return *version == MK_BOOT_VERSION ? MK_BOOT_PARSED : MK_BOOT_OTHER;
}

enum mk_boot_parse mk_boot_parse_hello(const void *buf, size_t n, struct mk_boot_hello *out)
{
    struct mk_boot_hello h;
    const enum mk_boot_parse head = parse_head(buf, n, MK_BOOT_HELLO_MAGIC, &out->version);
    if (head != MK_BOOT_PARSED)
        return head;
    if (n < sizeof(h))
        return MK_BOOT_MORE;
    memcpy(&h, buf, sizeof(h));
    out->magic = le64toh(h.magic);
    out->size = le32toh(h.size);
    out->key = le64toh(h.key);
    out->token = le64toh(h.token);
    out->nranks = le32toh(h.nranks);
    out->rank = le32toh(h.rank);
    out->wait_ms = le32toh(h.wait_ms);
    out->reserved = le32toh(h.reserved);
    return out->size == sizeof(h) ? MK_BOOT_PARSED : MK_BOOT_ALIEN;
}

enum mk_boot_parse mk_boot_parse_answer(const void *buf, size_t n, struct mk_boot_answer *out)
{
    struct mk_boot_answer a;
    const enum mk_boot_parse head = parse_head(buf, n, MK_BOOT_ANSWER_MAGIC, &out->version);
    if (head == MK_BOOT_ALIEN || head == MK_BOOT_MORE)
        return head;
    memcpy(&a, buf, 16);
    out->magic = le64toh(a.magic);
    out->kind = le32toh(a.kind);
    if (head == MK_BOOT_OTHER)
        return head;
    if (n < sizeof(a))
        return MK_BOOT_MORE;
    memcpy(&a, buf, sizeof(a));
    out->code = (int32_t)le32toh((uint32_t)a.code);
    out->length = le32toh(a.length);
    if (out->kind < MK_BOOT_WELCOME || out->kind > MK_BOOT_BUSY || out->length > MK_BOOT_MAX_TEXT ||
        out->code > 0)
        return MK_BOOT_ALIEN;
    return MK_BOOT_PARSED;
}

static int length_fits(const struct mk_boot_frame *f, int to_root, uint32_t nranks)
{
    if (to_root) {
        switch (f->type) {
        case MK_BOOT_GATHER:
            return f->length <= MK_BOOT_MAX_BYTES && (uint64_t)f->length * nranks <= MK_BOOT_MAX_TOTAL;
        case MK_BOOT_ABORT:
            return f->length >= MK_BOOT_VERDICT_HEAD && f->length <= MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT;
        case MK_BOOT_BYE:
            return f->length == 0;
        case MK_BOOT_SAY:
            return f->length <= MK_BOOT_MAX_SAY && f->seq <= nranks;
        default:
            return 0;
        }
    }
    switch (f->type) {
    case MK_BOOT_MET:
        return f->length == sizeof(struct mk_boot_met);
    case MK_BOOT_GATHERED:
        return f->length <= MK_BOOT_MAX_TOTAL && f->length % nranks == 0 &&
               f->length / nranks <= MK_BOOT_MAX_BYTES;
    case MK_BOOT_GATHER_BAD:
    case MK_BOOT_EVENT:
        return f->length >= MK_BOOT_VERDICT_HEAD && f->length <= MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT;
    case MK_BOOT_LEFT:
        return f->length == 0 && f->seq < nranks;
    case MK_BOOT_SAID:
        return f->length <= MK_BOOT_MAX_SAY && f->seq < nranks;
    default:
        return 0;
    }
}

enum mk_boot_parse mk_boot_parse_frame(const void *buf, size_t n, int to_root, uint32_t nranks,
                                       struct mk_boot_frame *out)
{
    struct mk_boot_frame f;
    if (n < sizeof(f))
        return MK_BOOT_MORE;
    memcpy(&f, buf, sizeof(f));
    out->type = le32toh(f.type);
    out->length = le32toh(f.length);
    out->seq = le64toh(f.seq);
    return nranks && length_fits(out, to_root, nranks) ? MK_BOOT_PARSED : MK_BOOT_ALIEN;
}

enum mk_boot_parse mk_boot_parse_met(const void *buf, size_t n, struct mk_boot_met *out)
{
    struct mk_boot_met m;
    if (n != sizeof(m))
        return MK_BOOT_ALIEN;
    memcpy(&m, buf, sizeof(m));
    out->root_rank = (int32_t)le32toh((uint32_t)m.root_rank);
    out->nranks = le32toh(m.nranks);
    out->token = le64toh(m.token);
    if (out->nranks > MK_BOOT_MAX_RANKS || out->root_rank < -1 || out->root_rank >= (int32_t)out->nranks)
        return MK_BOOT_ALIEN;
    return MK_BOOT_PARSED;
}

enum mk_boot_parse mk_boot_parse_verdict(const void *buf, size_t n, struct mk_boot_verdict *out)
{
    uint32_t word[2];
    if (n < MK_BOOT_VERDICT_HEAD || n > MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT)
        return MK_BOOT_ALIEN;
    memcpy(word, buf, sizeof(word));
    out->code = (int32_t)le32toh(word[0]);
    out->rank = (int32_t)le32toh(word[1]);
    n -= MK_BOOT_VERDICT_HEAD;
    memcpy(out->text, (const uint8_t *)buf + MK_BOOT_VERDICT_HEAD, n);
    out->text[n] = 0;
    for (char *c = out->text; *c; c++) /* the text goes to logs and terminals of others */
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    return out->code < 0 && out->rank >= -1 ? MK_BOOT_PARSED : MK_BOOT_ALIEN;
}

enum mk_boot_parse mk_boot_parse_id(const mk_unique_id_t *id, struct mk_boot_id *out)
{
    struct mk_boot_id w;
    memcpy(&w, id, sizeof(w));
    if (le64toh(w.magic) != MK_BOOT_ID_MAGIC)
        return MK_BOOT_ALIEN;
    memcpy(out, &w, sizeof(w));
    out->magic = MK_BOOT_ID_MAGIC;
    out->version = le32toh(w.version);
    if (out->version != MK_BOOT_VERSION)
        return MK_BOOT_OTHER;
    out->family = le16toh(w.family);
    out->port = le16toh(w.port);
    out->scope = le32toh(w.scope);
    out->key = le64toh(w.key);
    out->check = le64toh(w.check);
    if (out->check != mk_boot_hash(&w, offsetof(struct mk_boot_id, check)))
        return MK_BOOT_ALIEN;
    return (out->family == 4 || out->family == 6) && out->port ? MK_BOOT_PARSED : MK_BOOT_ALIEN;
}

void mk_boot_put_hello(const struct mk_boot_hello *h, uint8_t buf[sizeof(struct mk_boot_hello)])
{
    struct mk_boot_hello w;
    w.magic = htole64(MK_BOOT_HELLO_MAGIC);
    w.version = htole32(h->version);
    w.size = htole32(sizeof(w));
    w.key = htole64(h->key);
    w.token = htole64(h->token);
    w.nranks = htole32(h->nranks);
    w.rank = htole32(h->rank);
    w.wait_ms = htole32(h->wait_ms);
    w.reserved = 0;
    memcpy(buf, &w, sizeof(w));
}

void mk_boot_put_answer(const struct mk_boot_answer *a, uint8_t buf[sizeof(struct mk_boot_answer)])
{
    struct mk_boot_answer w;
    w.magic = htole64(MK_BOOT_ANSWER_MAGIC);
    w.version = htole32(a->version);
    w.kind = htole32(a->kind);
    w.code = (int32_t)htole32((uint32_t)a->code);
    w.length = htole32(a->length);
    memcpy(buf, &w, sizeof(w));
}

void mk_boot_put_frame(const struct mk_boot_frame *f, uint8_t buf[sizeof(struct mk_boot_frame)])
{
    struct mk_boot_frame w;
    w.type = htole32(f->type);
    w.length = htole32(f->length);
    w.seq = htole64(f->seq);
    memcpy(buf, &w, sizeof(w));
}

void mk_boot_put_met(const struct mk_boot_met *m, uint8_t buf[sizeof(struct mk_boot_met)])
{
    struct mk_boot_met w;
    w.root_rank = (int32_t)htole32((uint32_t)m->root_rank);
    w.nranks = htole32(m->nranks);
    w.token = htole64(m->token);
    memcpy(buf, &w, sizeof(w));
}

size_t mk_boot_put_verdict(int code, int rank, const char *text,
                           uint8_t buf[MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT])
{
    const uint32_t word[2] = {htole32((uint32_t)code), htole32((uint32_t)rank)};
    const size_t n = strnlen(text, MK_BOOT_MAX_TEXT);
    memcpy(buf, word, sizeof(word));
    memcpy(buf + sizeof(word), text, n);
    return sizeof(word) + n;
}

void mk_boot_put_id(const struct mk_boot_id *in, mk_unique_id_t *id)
{
    struct mk_boot_id w;
    memset(&w, 0, sizeof(w));
    w.magic = htole64(MK_BOOT_ID_MAGIC);
    w.version = htole32(MK_BOOT_VERSION);
    w.family = htole16(in->family);
    w.port = htole16(in->port);
    memcpy(w.addr, in->addr, sizeof(w.addr));
    w.scope = htole32(in->scope);
    w.key = htole64(in->key);
    w.check = htole64(mk_boot_hash(&w, offsetof(struct mk_boot_id, check)));
    memcpy(id, &w, sizeof(w));
}

int mk_boot_id_addr(const struct mk_boot_id *id, struct sockaddr_storage *out, socklen_t *len)
{
    memset(out, 0, sizeof(*out));
    if (id->family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons(id->port);
        memcpy(&in->sin_addr, id->addr, 4);
        *len = sizeof(*in);
        return 0;
    }
    if (id->family == 6) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(id->port);
        in6->sin6_scope_id = id->scope;
        memcpy(&in6->sin6_addr, id->addr, 16);
        *len = sizeof(*in6);
        return 0;
    }
    return mk_fail_quiet(MK_ERR_INVALID, "unique id of address family %d", id->family);
}

int mk_boot_addr_id(const struct sockaddr *sa, struct mk_boot_id *id)
{
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
        id->family = 4;
        id->port = ntohs(in->sin_port);
        memcpy(id->addr, &in->sin_addr, 4);
        return 0;
    }
    if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;
        id->family = 6;
        id->port = ntohs(in6->sin6_port);
        id->scope = in6->sin6_scope_id;
        memcpy(id->addr, &in6->sin6_addr, 16);
        return 0;
    }
    return mk_fail_quiet(MK_ERR_INVALID, "address family %d", sa->sa_family);
}
