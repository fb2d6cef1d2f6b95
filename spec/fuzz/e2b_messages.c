/* Messages of E2B's protocol: any bytes as any type are either refused or can be walked to the end, field by field, and
 * what is read of a field can be written and read again. */
#include <stdlib.h>
#include <string.h>

#include "../../src/e2b/message.c"
#include "../../src/e2b/wire.c"
#include "../../src/http/utf8.c"

static void walk(const ProtobufCMessageDescriptor *type, struct sb_wire wire, struct sb_packed *out)
{
    struct sb_wire_field at, again;
    while (sb_wire_next(&wire, &at) > 0) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(type, at.number);
        if (field == NULL || at.type == SB_WIRE_32 || at.type == SB_WIRE_64)
            continue;
        size_t from = out->len, len = (size_t)(at.bytes.end - at.bytes.at);
        if (sb_packed_key(out, at.number, at.type) < 0 ||
            (at.type == SB_WIRE_VARINT ? sb_packed_varint(out, at.value)
                                       : sb_packed_bytes(out, at.bytes.at, len)) < 0)
            abort();
        struct sb_wire copy = {out->data + from, out->data + out->len};
        if (sb_wire_next(&copy, &again) != 1 || again.number != at.number ||
            again.type != at.type || again.value != at.value || copy.at != copy.end ||
            (at.type == SB_WIRE_BYTES && len > 0 && memcmp(again.bytes.at, at.bytes.at, len) != 0))
            abort();
        if (sb_wire_unzigzag(sb_wire_zigzag(at.value)) != (uint32_t)at.value)
            abort();
        if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            walk(field->descriptor, at.bytes, out);
    }
    if (wire.at != wire.end)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sb_packed out = {0};
    const char *why = NULL;
    if (size == 0)
        return 0;
    const ProtobufCMessageDescriptor *type = types[data[0] % (sizeof types / sizeof *types)];
    unsigned char *copy = malloc(size); /* of its exact size, for the sanitizer */
    if (copy == NULL)
        return 0;
    memcpy(copy, data + 1, size - 1);
    struct sb_wire wire = {copy, copy + size - 1};
    if (sb_message_type(type->name) != type)
        abort();
    if (sb_message_check(type, wire, &why) == 0)
        walk(type, wire, &out);
    else if (why == NULL)
        abort();
    if (out.len > 0) { /* a run made of what was written before is one run */
        size_t from = out.len / 2;
        if (sb_packed_nest(&out, from) < 0)
            abort();
    }
    sb_packed_free(&out);
    free(copy);
    return 0;
}
