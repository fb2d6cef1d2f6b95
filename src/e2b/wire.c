/* Reading and writing of fields. */
#include "e2b/wire.h"

#include <stdlib.h>
#include <string.h>

#define VARINT_MOST 10

static int take_varint(struct sb_wire *wire, uint64_t *value)
{
    uint64_t n = 0;
    for (unsigned shift = 0; shift < VARINT_MOST * 7 && wire->at < wire->end; shift += 7) {
        unsigned char c = *wire->at++;
        n |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80) {
            *value = n;
            return 0;
        }
    }
    return -1;
}

static int take_run(struct sb_wire *wire, uint64_t len, struct sb_wire *run)
{
    if (len > (size_t)(wire->end - wire->at))
        return -1;
    run->at = wire->at;
    run->end = wire->at += len;
    return 0;
}

int sb_wire_next(struct sb_wire *wire, struct sb_wire_field *field)
{
    uint64_t key, len;
    struct sb_wire run = {0};
    if (wire->at == wire->end)
        return 0;
    *field = (struct sb_wire_field){0};
    if (take_varint(wire, &key) < 0 || key >> 3 == 0 || key > UINT32_MAX)
        return -1;
    field->number = (uint32_t)(key >> 3);
    switch (key & 7) {
    case SB_WIRE_VARINT:
        field->type = SB_WIRE_VARINT;
        return take_varint(wire, &field->value) < 0 ? -1 : 1;
    case SB_WIRE_BYTES:
        field->type = SB_WIRE_BYTES;
        if (take_varint(wire, &len) < 0)
            return -1;
        return take_run(wire, len, &field->bytes) < 0 ? -1 : 1;
    case SB_WIRE_64:
    case SB_WIRE_32: /* E2B has none: only for stepping over what newer peers send */
        field->type = (key & 7) == SB_WIRE_64 ? SB_WIRE_64 : SB_WIRE_32;
        return take_run(wire, field->type == SB_WIRE_64 ? 8 : 4, &run) < 0 ? -1 : 1;
    default: /* groups, which proto3 has not */
        return -1;
    }
}

static int reserve(struct sb_packed *out, size_t more)
{
    if (more <= out->cap - out->len)
        return 0;
    if (more > SIZE_MAX / 2 - out->len)
        return -1;
    size_t cap = (out->len + more) * 2;
    unsigned char *data = malloc(cap);
    if (data == NULL)
        return -1;
    if (out->len > 0)
        memcpy(data, out->data, out->len);
    size_t len = out->len;
    sb_packed_free(out);
    out->data = data;
    out->len = len;
    out->cap = cap;
    return 0;
}

static size_t write_varint(unsigned char *at, uint64_t value)
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        at[n++] = (unsigned char)(value | 0x80);
    at[n++] = (unsigned char)value;
    return n;
}

int sb_packed_varint(struct sb_packed *out, uint64_t value)
{
    if (reserve(out, VARINT_MOST) < 0)
        return -1;
    out->len += write_varint(out->data + out->len, value);
    return 0;
}

int sb_packed_key(struct sb_packed *out, uint32_t number, enum sb_wire_type type)
{
    return sb_packed_varint(out, (uint64_t)number << 3 | (unsigned)type);
}

int sb_packed_bytes(struct sb_packed *out, const void *data, size_t len)
{
    if (sb_packed_varint(out, len) < 0 || reserve(out, len) < 0)
        return -1;
    if (len > 0)
        memcpy(out->data + out->len, data, len);
    out->len += len;
    return 0;
}

int sb_packed_nest(struct sb_packed *out, size_t from)
{
    unsigned char head[VARINT_MOST];
    size_t len = out->len - from, n = write_varint(head, len);
    if (reserve(out, n) < 0)
        return -1;
    memmove(out->data + from + n, out->data + from, len);
    memcpy(out->data + from, head, n);
    out->len += n;
    return 0;
}

void sb_packed_free(struct sb_packed *out)
{
    if (out->data != NULL)
        explicit_bzero(out->data, out->len);
    free(out->data);
    *out = (struct sb_packed){0};
}
