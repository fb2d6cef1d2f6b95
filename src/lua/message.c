/* Messages of E2B's protocol to Lua tables and back. A field has the name JSON gives it; a field with its default value
 * is absent, but for members of a oneof. bytes and strings are strings, enums their names, maps tables. */
#include "message.h"

#include <stdio.h>
#include <stdlib.h>

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "../http/websocket.h"

#define EXACT_MOST 9007199254740992 /* 2^53: what a double counts to without gaps */

/* ---- from Lua ---- */

struct packing {
    lua_State *L;
    struct sb_packed *out;
    char *why;
};

/* -1, for returning. */
static int wrong(struct packing *p, const char *name, const char *what)
{
    snprintf(p->why, SB_WHY_MOST, "%s: %s", name, what);
    return -1;
}

static int no_memory(struct packing *p)
{
    p->why[0] = '\0';
    return -1;
}

static int pack_table(struct packing *p, int i, const ProtobufCMessageDescriptor *type);

static int is_zero_integer(const ProtobufCFieldDescriptor *field, int64_t value)
{
    return value == 0 && !sb_message_is_oneof(field);
}

static int pack_integer(struct packing *p, const ProtobufCFieldDescriptor *field, const char *name,
                        int64_t value)
{
    uint64_t wire = (uint64_t)value;
    int64_t least = 0, most = UINT32_MAX;
    switch (field->type) {
    case PROTOBUF_C_TYPE_SINT32:
        wire = sb_wire_unzigzag((int32_t)value); /* fall through */
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        least = INT32_MIN, most = INT32_MAX;
        break;
    case PROTOBUF_C_TYPE_INT64:
        least = INT64_MIN, most = INT64_MAX;
        break;
    default:
        break;
    }
    if (value < least || value > most)
        return wrong(p, name, "out of range");
    if (is_zero_integer(field, value))
        return 0;
    return sb_packed_key(p->out, field->id, SB_WIRE_VARINT) < 0 ||
                   sb_packed_varint(p->out, wire) < 0
               ? no_memory(p)
               : 0;
}

static int pack_enum(struct packing *p, const ProtobufCFieldDescriptor *field, const char *name)
{
    int64_t number;
    if (sb_lua_tointeger(p->L, -1, &number))
        return pack_integer(p, field, name, number);
    const ProtobufCEnumValue *value = NULL;
    if (lua_type(p->L, -1) == LUA_TSTRING)
        value =
            protobuf_c_enum_descriptor_get_value_by_name(field->descriptor, lua_tostring(p->L, -1));
    if (value == NULL)
        return wrong(p, name, "no name of this enumeration");
    return pack_integer(p, field, name, value->value);
}

static int pack_bytes(struct packing *p, const ProtobufCFieldDescriptor *field, const char *name)
{
    size_t len;
    const char *data = lua_type(p->L, -1) == LUA_TNUMBER ? NULL : sb_lua_tobytes(p->L, -1, &len);
    if (data == NULL)
        return wrong(p, name, "not a string");
    if (field->type == PROTOBUF_C_TYPE_STRING && !sb_utf8_valid(data, len))
        return wrong(p, name, "not UTF-8, which the protocol wants");
    if (len == 0 && field->label != PROTOBUF_C_LABEL_REPEATED && !sb_message_is_oneof(field))
        return 0;
    return sb_packed_key(p->out, field->id, SB_WIRE_BYTES) < 0 ||
                   sb_packed_bytes(p->out, data, len) < 0
               ? no_memory(p)
               : 0;
}

/* The value on top of the stack; it stays there. */
static int pack_value(struct packing *p, const ProtobufCFieldDescriptor *field, const char *name)
{
    int64_t number;
    size_t from;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
        return pack_bytes(p, field, name);
    case PROTOBUF_C_TYPE_BOOL:
        if (lua_type(p->L, -1) != LUA_TBOOLEAN)
            return wrong(p, name, "not a boolean");
        return pack_integer(p, field, name, lua_toboolean(p->L, -1));
    case PROTOBUF_C_TYPE_ENUM:
        return pack_enum(p, field, name);
    case PROTOBUF_C_TYPE_MESSAGE:
        if (lua_type(p->L, -1) != LUA_TTABLE)
            return wrong(p, name, "not a table");
        if (sb_packed_key(p->out, field->id, SB_WIRE_BYTES) < 0)
            return no_memory(p);
        from = p->out->len;
        if (pack_table(p, lua_gettop(p->L), field->descriptor) < 0)
            return -1;
        return sb_packed_nest(p->out, from) < 0 ? no_memory(p) : 0;
    default:
        if (!sb_lua_tointeger(p->L, -1, &number))
            return wrong(p, name, "not an integer");
        return pack_integer(p, field, name, number);
    }
}

static int pack_map(struct packing *p, const ProtobufCFieldDescriptor *field, const char *name)
{
    lua_State *L = p->L;
    const ProtobufCMessageDescriptor *pair = field->descriptor;
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            return wrong(p, name, "a key is not a string");
        if (sb_packed_key(p->out, field->id, SB_WIRE_BYTES) < 0)
            return no_memory(p);
        size_t from = p->out->len;
        lua_pushvalue(L, -2);
        int rc = pack_value(p, &pair->fields[0], name);
        lua_pop(L, 1);
        if (rc < 0 || pack_value(p, &pair->fields[1], name) < 0)
            return -1;
        if (sb_packed_nest(p->out, from) < 0)
            return no_memory(p);
    }
    return 0;
}

static int pack_list(struct packing *p, const ProtobufCFieldDescriptor *field, const char *name)
{
    size_t n = lua_rawlen(p->L, -1), held = 0;
    for (lua_pushnil(p->L); lua_next(p->L, -2); lua_pop(p->L, 1))
        held++;
    if (held != n)
        return wrong(p, name, "not a list");
    for (size_t i = 1; i <= n; i++) {
        lua_rawgeti(p->L, -1, (int)i);
        if (pack_value(p, field, name) < 0)
            return -1;
        lua_pop(p->L, 1);
    }
    return 0;
}

static int pack_field(struct packing *p, const ProtobufCFieldDescriptor *field, const char *name)
{
    if (field->label != PROTOBUF_C_LABEL_REPEATED)
        return pack_value(p, field, name);
    if (lua_type(p->L, -1) != LUA_TTABLE)
        return wrong(p, name, "not a table");
    return sb_message_is_map(field) ? pack_map(p, field, name) : pack_list(p, field, name);
}

/* Of the members of one oneof only one may be there. */
static int is_second(const ProtobufCMessageDescriptor *type, unsigned at, const char *present)
{
    const ProtobufCFieldDescriptor *field = &type->fields[at];
    if (!sb_message_is_oneof(field))
        return 0;
    for (unsigned i = 0; i < at; i++)
        if (present[i] && sb_message_is_oneof(&type->fields[i]) &&
            type->fields[i].quantifier_offset == field->quantifier_offset)
            return 1;
    return 0;
}

/* Some key is no field's name: which. */
static int unknown(struct packing *p, int i, const ProtobufCMessageDescriptor *type)
{
    lua_State *L = p->L;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        unsigned at = 0;
        char name[SB_JSON_NAME_MOST];
        if (lua_type(L, -2) != LUA_TSTRING)
            return wrong(p, type->short_name, "a key is not a string");
        for (; at < type->n_fields; at++) {
            sb_message_json_name(type->fields[at].name, name);
            if (strcmp(name, lua_tostring(L, -2)) == 0)
                break;
        }
        if (at == type->n_fields) {
            snprintf(name, sizeof name, "%s", lua_tostring(L, -2));
            return wrong(p, name, "there is no such field");
        }
    }
    return 0;
}

#define FIELDS_MOST 16 /* of one message; EntryInfo, the longest, has eleven */

static int pack_table(struct packing *p, int i, const ProtobufCMessageDescriptor *type)
{
    lua_State *L = p->L;
    char present[FIELDS_MOST] = {0};
    size_t found = 0, held = 0;
    luaL_checkstack(L, 8, "a message is nested too deep");
    for (unsigned at = 0; at < type->n_fields && at < FIELDS_MOST; at++) {
        char name[SB_JSON_NAME_MOST];
        sb_message_json_name(type->fields[at].name, name);
        lua_pushstring(L, name);
        lua_rawget(L, i);
        if (!lua_isnil(L, -1)) {
            if (is_second(type, at, present))
                return wrong(p, name, "beside another field that excludes it");
            present[at] = 1;
            found++;
            if (pack_field(p, &type->fields[at], name) < 0)
                return -1;
        }
        lua_pop(L, 1);
    }
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1))
        held++;
    return held == found ? 0 : unknown(p, i, type);
}

int sb_lua_pack_message(lua_State *L, int i, const ProtobufCMessageDescriptor *type,
                        struct sb_packed *out, char why[SB_WHY_MOST])
{
    struct packing p = {L, out, why};
    i = lua_absindex(L, i);
    int top = lua_gettop(L), rc = pack_table(&p, i, type);
    lua_settop(L, top);
    return rc;
}

/* ---- to Lua ---- */

/* A string, number or boolean; 0, or -1 and nothing pushed: this Lua has no such number. */
static int push_scalar(lua_State *L, const ProtobufCFieldDescriptor *field,
                       const struct sb_wire_field *at)
{
    const ProtobufCEnumValue *name;
    int64_t wide = (int64_t)at->value;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
        lua_pushlstring(L, (const char *)at->bytes.at, (size_t)(at->bytes.end - at->bytes.at));
        return 0;
    case PROTOBUF_C_TYPE_BOOL:
        lua_pushboolean(L, at->value != 0);
        return 0;
    case PROTOBUF_C_TYPE_SINT32:
        sb_lua_pushinteger(L, sb_wire_zigzag(at->value));
        return 0;
    case PROTOBUF_C_TYPE_INT32:
        sb_lua_pushinteger(L, (int32_t)at->value);
        return 0;
    case PROTOBUF_C_TYPE_ENUM:
        name = protobuf_c_enum_descriptor_get_value(field->descriptor, (int32_t)at->value);
        if (name != NULL)
            lua_pushstring(L, name->name);
        else
            sb_lua_pushinteger(L, (int32_t)at->value);
        return 0;
    case PROTOBUF_C_TYPE_INT64:
#if LUA_VERSION_NUM < 503
        if (wide > EXACT_MOST || wide < -EXACT_MOST)
            return -1;
#endif
        sb_lua_pushint64(L, wide);
        return 0;
    default:
        sb_lua_pushinteger(L, (uint32_t)at->value);
        return 0;
    }
}

static int is_default(const ProtobufCFieldDescriptor *field, const struct sb_wire_field *at)
{
    return field->label != PROTOBUF_C_LABEL_REPEATED && !sb_message_is_oneof(field) &&
           field->type != PROTOBUF_C_TYPE_MESSAGE &&
           (at->type == SB_WIRE_BYTES ? at->bytes.at == at->bytes.end : at->value == 0);
}

/* The field's table, which a former occurrence may have made: pushed. */
static void push_table_of(lua_State *L, int i, const char *name)
{
    lua_pushstring(L, name);
    lua_rawget(L, i);
    if (lua_type(L, -1) == LUA_TTABLE)
        return;
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushstring(L, name);
    lua_pushvalue(L, -2);
    lua_rawset(L, i);
}

/* The last member of a oneof is the one that counts. */
static void drop_others(lua_State *L, int i, const ProtobufCMessageDescriptor *type,
                        const ProtobufCFieldDescriptor *field)
{
    for (unsigned k = 0; k < type->n_fields; k++) {
        const ProtobufCFieldDescriptor *other = &type->fields[k];
        char name[SB_JSON_NAME_MOST];
        if (other == field || !sb_message_is_oneof(other) ||
            other->quantifier_offset != field->quantifier_offset)
            continue;
        sb_message_json_name(other->name, name);
        lua_pushstring(L, name);
        lua_pushnil(L);
        lua_rawset(L, i);
    }
}

static void take_pair(lua_State *L, int i, const ProtobufCMessageDescriptor *pair,
                      struct sb_wire wire)
{
    struct sb_wire_field at, key = {.type = SB_WIRE_BYTES}, value = {.type = SB_WIRE_BYTES};
    while (sb_wire_next(&wire, &at) > 0)
        *(at.number == pair->fields[0].id ? &key : &value) = at;
    lua_pushlstring(L, key.bytes.at != NULL ? (const char *)key.bytes.at : "",
                    (size_t)(key.bytes.end - key.bytes.at));
    lua_pushlstring(L, value.bytes.at != NULL ? (const char *)value.bytes.at : "",
                    (size_t)(value.bytes.end - value.bytes.at));
    lua_rawset(L, i);
}

static int take_fields(lua_State *L, int i, const ProtobufCMessageDescriptor *type,
                       struct sb_wire wire);

/* One occurrence of a field, into the table at `i`. */
static int take_field(lua_State *L, int i, const ProtobufCFieldDescriptor *field, const char *name,
                      const struct sb_wire_field *at)
{
    int repeated = field->label == PROTOBUF_C_LABEL_REPEATED, rc = 0;
    if (sb_message_is_map(field)) {
        push_table_of(L, i, name);
        take_pair(L, lua_gettop(L), field->descriptor, at->bytes);
    } else if (repeated) {
        push_table_of(L, i, name);
        int list = lua_gettop(L);
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            lua_newtable(L);
            rc = take_fields(L, list + 1, field->descriptor, at->bytes);
        } else {
            rc = push_scalar(L, field, at);
        }
        if (rc == 0)
            lua_rawseti(L, list, (int)lua_rawlen(L, list) + 1);
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        push_table_of(L, i, name);
        rc = take_fields(L, lua_gettop(L), field->descriptor, at->bytes);
    } else {
        lua_pushstring(L, name);
        if (is_default(field, at))
            lua_pushnil(L);
        else
            rc = push_scalar(L, field, at);
        if (rc == 0)
            lua_rawset(L, i);
    }
    lua_settop(L, i);
    return rc;
}

/* The table at `i` is on top of the stack, and so again afterwards. */
static int take_fields(lua_State *L, int i, const ProtobufCMessageDescriptor *type,
                       struct sb_wire wire)
{
    struct sb_wire_field at;
    luaL_checkstack(L, 8, "a message is nested too deep");
    while (sb_wire_next(&wire, &at) > 0) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(type, at.number);
        char name[SB_JSON_NAME_MOST];
        if (field == NULL)
            continue;
        if (sb_message_is_oneof(field))
            drop_others(L, i, type, field);
        sb_message_json_name(field->name, name);
        if (take_field(L, i, field, name, &at) < 0)
            return -1;
    }
    return 0;
}

int sb_lua_push_message(lua_State *L, const ProtobufCMessageDescriptor *type, struct sb_wire wire)
{
    int top = lua_gettop(L);
    luaL_checkstack(L, 8, "a message");
    lua_newtable(L);
    if (take_fields(L, top + 1, type, wire) == 0)
        return 0;
    lua_settop(L, top);
    return -1;
}

/* ---- what Lua calls ---- */

static const ProtobufCMessageDescriptor *check_type(lua_State *L, int arg)
{
    const ProtobufCMessageDescriptor *type = sb_message_type(luaL_checkstring(L, arg));
    luaL_argcheck(L, type != NULL, arg, "there is no message of that name");
    return type;
}

struct packing_call {
    const ProtobufCMessageDescriptor *type;
    struct sb_packed *out;
    int rc;
};

static int protected_pack(lua_State *L)
{
    struct packing_call *call = lua_touserdata(L, 1);
    char why[SB_WHY_MOST];
    call->rc = sb_lua_pack_message(L, 2, call->type, call->out, why);
    if (call->rc < 0)
        lua_pushstring(L, why[0] != '\0' ? why : "not enough memory");
    return call->rc < 0;
}

int sb_lua_try_pack_message(lua_State *L, int i, const ProtobufCMessageDescriptor *type,
                            struct sb_packed *out)
{
    struct packing_call call = {type, out, 0};
    i = lua_absindex(L, i);
    int top = lua_gettop(L);
    lua_pushcfunction(L, protected_pack);
    lua_pushlightuserdata(L, &call);
    lua_pushvalue(L, i);
    if (lua_pcall(L, 2, LUA_MULTRET, 0) == LUA_OK && call.rc == 0) {
        lua_settop(L, top);
        return 0;
    }
    sb_packed_free(out);
    return -1;
}

static int push_packed(lua_State *L)
{
    const struct sb_packed *packed = lua_touserdata(L, 1);
    lua_pushlstring(L, packed->data != NULL ? (const char *)packed->data : "", packed->len);
    return 1;
}

/* encode(type, table) -> bytes | nil, why */
static int encode(lua_State *L)
{
    const ProtobufCMessageDescriptor *type = check_type(L, 1);
    struct sb_packed out = {0};
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    luaL_checkstack(L, 8, "a message");
    lua_pushcfunction(L, push_packed);
    lua_pushlightuserdata(L, &out);
    if (sb_lua_try_pack_message(L, 2, type, &out) < 0) {
        lua_pushnil(L);
        lua_insert(L, -2);
        return 2;
    }
    int raised = lua_pcall(L, 1, 1, 0);
    sb_packed_free(&out);
    return raised == LUA_OK ? 1 : lua_error(L);
}

/* decode(type, bytes) -> table | nil, why */
static int decode(lua_State *L)
{
    const ProtobufCMessageDescriptor *type = check_type(L, 1);
    size_t len;
    const unsigned char *data = (const unsigned char *)luaL_checklstring(L, 2, &len);
    struct sb_wire wire = {data, data + len};
    const char *why = "a number is too large for this Lua";
    lua_settop(L, 2);
    if (sb_message_check(type, wire, &why) == 0 && sb_lua_push_message(L, type, wire) == 0)
        return 1;
    lua_pushnil(L);
    lua_pushstring(L, why);
    return 2;
}

static void push_description(lua_State *L, const ProtobufCMessageDescriptor *type);

static const char *kind_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        return "string";
    case PROTOBUF_C_TYPE_BYTES:
        return "bytes";
    case PROTOBUF_C_TYPE_BOOL:
        return "bool";
    case PROTOBUF_C_TYPE_ENUM:
        return "enum";
    case PROTOBUF_C_TYPE_MESSAGE:
        return sb_message_is_map(field) ? "map" : "message";
    case PROTOBUF_C_TYPE_INT64:
        return "int64";
    case PROTOBUF_C_TYPE_UINT32:
        return "uint32";
    default:
        return "int32";
    }
}

static void push_field(lua_State *L, const ProtobufCFieldDescriptor *field)
{
    char name[SB_JSON_NAME_MOST];
    sb_message_json_name(field->name, name);
    lua_newtable(L);
    lua_pushstring(L, name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, field->name);
    lua_setfield(L, -2, "alias");
    lua_pushstring(L, kind_of(field));
    lua_setfield(L, -2, "kind");
    lua_pushboolean(L, field->label == PROTOBUF_C_LABEL_REPEATED && !sb_message_is_map(field));
    lua_setfield(L, -2, "repeated");
    if (sb_message_is_oneof(field)) {
        sb_lua_pushinteger(L, field->quantifier_offset);
        lua_setfield(L, -2, "oneof");
    }
    if (field->type == PROTOBUF_C_TYPE_ENUM) {
        const ProtobufCEnumDescriptor *names = field->descriptor;
        lua_newtable(L);
        for (unsigned i = 0; i < names->n_values; i++) {
            lua_pushstring(L, names->values[i].name);
            sb_lua_pushinteger(L, names->values[i].value);
            lua_rawset(L, -3);
        }
        lua_setfield(L, -2, "names");
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE && !sb_message_is_map(field)) {
        push_description(L, field->descriptor);
        lua_setfield(L, -2, "message");
    }
}

static void push_description(lua_State *L, const ProtobufCMessageDescriptor *type)
{
    luaL_checkstack(L, 8, "a message is nested too deep");
    lua_newtable(L);
    lua_pushstring(L, type->name);
    lua_setfield(L, -2, "type");
    for (unsigned i = 0; i < type->n_fields; i++) {
        push_field(L, &type->fields[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
}

/* describe(type) -> { type =, { name =, alias = proto's spelling, kind =, repeated =, oneof = which, names =,
 * message = description }, ... } */
static int describe(lua_State *L)
{
    push_description(L, check_type(L, 1));
    return 1;
}

void sb_lua_open_message(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"encode", encode}, {"decode", decode}, {"describe", describe}, {NULL, NULL}};
    luaL_setfuncs(L, functions, 0);
}
