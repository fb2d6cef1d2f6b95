/* Protobuf's wire format: keys, numbers, runs of bytes. Reading copies nothing; what is read belongs to whoever gave
 * the bytes. No libcurl, no Lua, any thread. */
#ifndef SB_E2B_WIRE_H
#define SB_E2B_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum sb_wire_type {
    SB_WIRE_VARINT = 0,
    SB_WIRE_64 = 1,
    SB_WIRE_BYTES = 2,
    SB_WIRE_32 = 5,
};

struct sb_wire {
    const unsigned char *at, *end;
};

/* One field as it stands on the wire. */
struct sb_wire_field {
    uint32_t number;
    enum sb_wire_type type;
    uint64_t value;       /* of a number */
    struct sb_wire bytes; /* of a run */
};

/* 1: the next field; 0: there are no more; -1: damaged, and nothing more can be read. */
int sb_wire_next(struct sb_wire *wire, struct sb_wire_field *field);

static inline int32_t sb_wire_zigzag(uint64_t value)
{
    uint32_t n = (uint32_t)value;
    return (int32_t)(n >> 1 ^ (0u - (n & 1)));
}

/* ---- writing: memory of its own, wiped when it is freed or moves, since messages carry secrets ---- */
struct sb_packed {
    unsigned char *data;
    size_t len, cap;
};
/* All give 0, or -1: out of memory, and what was written before stays. */
int sb_packed_varint(struct sb_packed *out, uint64_t value);
int sb_packed_key(struct sb_packed *out, uint32_t number, enum sb_wire_type type);
int sb_packed_bytes(struct sb_packed *out, const void *data, size_t len); /* length and bytes */
/* What was written since `from` (a former out->len) becomes a run: its length is put before it. */
int sb_packed_nest(struct sb_packed *out, size_t from);
void sb_packed_free(struct sb_packed *out);

static inline uint32_t sb_wire_unzigzag(int32_t value)
{
    return (uint32_t)value << 1 ^ (value < 0 ? UINT32_MAX : 0);
}

#endif
