/* Which messages there are, and whether bytes are one of them. */
#include "e2b/message.h"

#include <string.h>

#include "filesystem.pb-c.h"
#include "http/websocket.h"
#include "process.pb-c.h"

static const ProtobufCMessageDescriptor *const types[] = {
    &process__list_request__descriptor,
    &process__list_response__descriptor,
    &process__start_request__descriptor,
    &process__start_response__descriptor,
    &process__connect_request__descriptor,
    &process__connect_response__descriptor,
    &process__update_request__descriptor,
    &process__update_response__descriptor,
    &process__send_input_request__descriptor,
    &process__send_input_response__descriptor,
    &process__stream_input_request__descriptor,
    &process__stream_input_response__descriptor,
    &process__send_signal_request__descriptor,
    &process__send_signal_response__descriptor,
    &process__close_stdin_request__descriptor,
    &process__close_stdin_response__descriptor,
    &filesystem__stat_request__descriptor,
    &filesystem__stat_response__descriptor,
    &filesystem__make_dir_request__descriptor,
    &filesystem__make_dir_response__descriptor,
    &filesystem__move_request__descriptor,
    &filesystem__move_response__descriptor,
    &filesystem__list_dir_request__descriptor,
    &filesystem__list_dir_response__descriptor,
    &filesystem__remove_request__descriptor,
    &filesystem__remove_response__descriptor,
    &filesystem__watch_dir_request__descriptor,
    &filesystem__watch_dir_response__descriptor,
    &filesystem__create_watcher_request__descriptor,
    &filesystem__create_watcher_response__descriptor,
    &filesystem__get_watcher_events_request__descriptor,
    &filesystem__get_watcher_events_response__descriptor,
    &filesystem__remove_watcher_request__descriptor,
    &filesystem__remove_watcher_response__descriptor,
};

const ProtobufCMessageDescriptor *sb_message_type(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i]->name, name) == 0)
            return types[i];
    return NULL;
}

void sb_message_json_name(const char *name, char out[SB_JSON_NAME_MOST])
{
    size_t n = 0;
    for (; *name != '\0' && n < SB_JSON_NAME_MOST - 1; name++) {
        char c = *name;
        if (c == '_' && name[1] >= 'a' && name[1] <= 'z')
            c = (char)(*++name - 'a' + 'A');
        out[n++] = c;
    }
    out[n] = '\0';
}

int sb_message_is_map(const ProtobufCFieldDescriptor *field)
{
    if (field->label != PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE)
        return 0;
    const ProtobufCMessageDescriptor *pair = field->descriptor;
    size_t len = strlen(pair->short_name);
    return len > 5 && strcmp(pair->short_name + len - 5, "Entry") == 0 && pair->n_fields == 2 &&
           strcmp(pair->fields[0].name, "key") == 0 && strcmp(pair->fields[1].name, "value") == 0;
}

int sb_message_check(const ProtobufCMessageDescriptor *type, struct sb_wire wire, const char **why)
{
    struct sb_wire_field at;
    int more;
    while ((more = sb_wire_next(&wire, &at)) > 0) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(type, at.number);
        if (field == NULL)
            continue; /* of a later version */
        int run = field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_BYTES ||
                  field->type == PROTOBUF_C_TYPE_MESSAGE;
        if (at.type != (run ? SB_WIRE_BYTES : SB_WIRE_VARINT)) {
            *why = "a field has another type";
            return -1;
        }
        if (field->type == PROTOBUF_C_TYPE_STRING &&
            !sb_utf8_valid(at.bytes.at, (size_t)(at.bytes.end - at.bytes.at))) {
            *why = "a string is not UTF-8";
            return -1;
        }
        /* Messages that contain themselves there are none, so this is as deep as the types are. */
        if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
            sb_message_check(field->descriptor, at.bytes, why) < 0)
            return -1;
    }
    if (more < 0)
        *why = "it is cut short or damaged";
    return more;
}
