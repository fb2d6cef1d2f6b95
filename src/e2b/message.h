/* The messages of E2B's two services, as their descriptors have them. Only these are taken from protobuf-c: its own
 * unpacking copies every byte and ends strings at a zero byte. No Lua, any thread. */
#ifndef SB_E2B_MESSAGE_H
#define SB_E2B_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "e2b/wire.h"

/* "process.StartRequest"; NULL: there is none of that name. */
const ProtobufCMessageDescriptor *sb_message_type(const char *name);

/* "exit_code" as JSON spells it: "exitCode". */
#define SB_JSON_NAME_MOST 64
void sb_message_json_name(const char *name, char out[SB_JSON_NAME_MOST]);

/* A map<string, string>, which protobuf-c knows only as a list of pairs. */
int sb_message_is_map(const ProtobufCFieldDescriptor *field);
static inline int sb_message_is_oneof(const ProtobufCFieldDescriptor *field)
{
    return (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

/* Whether the bytes are a message of this type: 0, or -1 and in *why what is wrong. */
int sb_message_check(const ProtobufCMessageDescriptor *type, struct sb_wire wire, const char **why);

#endif
