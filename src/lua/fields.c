/* Packs Lua tables into the fields of a message, and unpacks fields into tables. */
#include "fields.h"

#define SPARE (SB_LUA_MESSAGE_SPARE * 16u)
#define FIRST 896u /* with what is in front of a userdata still a piece that malloc has at hand */
#define TAGS 256

static const char names_key; /* in the registry: field name -> tag * 4 + kind */

enum kind { KIND_U, KIND_B, KIND_L };

static const struct {
    const char *name;
    enum kind kind;
} known[TAGS] = {
#define FIELD_ENTRY(tag, upper, lower, type) [tag] = {#lower, KIND_##type},
    SB_FIELDS(FIELD_ENTRY)
#undef FIELD_ENTRY
};

#define COUNT_ENTRY(tag, upper, lower, type) +1
enum { FIELDS = SB_FIELDS(COUNT_ENTRY) };
#undef COUNT_ENTRY

void sb_lua_open_fields(lua_State *L)
{
    lua_createtable(L, 0, FIELDS);
    for (int tag = 0; tag < TAGS; tag++)
        if (known[tag].name != NULL) {
            lua_pushinteger(L, tag * 4 + (int)known[tag].kind);
            lua_setfield(L, -2, known[tag].name);
        }
    sb_lua_rawsetp(L, LUA_REGISTRYINDEX, &names_key);
}

/* ---- fields to tables ---- */

static void push_u64(lua_State *L, uint64_t value)
{
    if (value <= INT64_MAX)
        sb_lua_pushint64(L, (int64_t)value);
    else
        lua_pushnumber(L, (lua_Number)value);
}

int sb_lua_push_fields(lua_State *L, const unsigned char *fields, size_t len)
{
    struct sb_reader r = {fields, fields + len};
    struct sb_field_view f;
    luaL_checkstack(L, 6, "fields");
    lua_createtable(L, 0, 8);
    while (sb_read_field(&r, &f) == 1) {
        if (f.tag >= TAGS || known[f.tag].name == NULL)
            continue;
        if (known[f.tag].kind == KIND_U) {
            push_u64(L, sb_field_u64(&f, 0));
        } else if (known[f.tag].kind == KIND_B) {
            lua_pushlstring(L, (const char *)f.data, f.len);
        } else {
            lua_getfield(L, -1, known[f.tag].name);
            if (lua_isnil(L, -1)) {
                lua_pop(L, 1);
                lua_newtable(L);
            }
            lua_pushlstring(L, (const char *)f.data, f.len);
            lua_rawseti(L, -2, (int)lua_rawlen(L, -2) + 1);
        }
        lua_setfield(L, -2, known[f.tag].name);
    }
    return 1;
}

/* ---- tables to fields ---- */

/* A message growing in userdata at an absolute stack index; SPARE bytes are always left at its
 * end. */
struct buffer {
    lua_State *L;
    int slot;
    unsigned char *data;
    size_t len, cap;
};

static void reserve(struct buffer *b, size_t more)
{
    size_t cap = b->cap * 2;
    unsigned char *data;
    if (b->cap - b->len >= more + SPARE)
        return;
    if (more > SB_SPILL_MAX || b->len > SB_SPILL_MAX)
        luaL_error(b->L, "the request is longer than %d bytes", (int)SB_SPILL_MAX);
    if (cap < b->len + more + SPARE)
        cap = b->len + more + SPARE;
    data = sb_lua_newuserdata(b->L, cap, 0);
    memcpy(data, b->data, b->len);
    explicit_bzero(b->data, b->len);
    lua_replace(b->L, b->slot);
    b->data = data;
    b->cap = cap;
}

static void add(struct buffer *b, const void *bytes, size_t len)
{
    reserve(b, len);
    if (len > 0 && bytes != NULL)
        memcpy(b->data + b->len, bytes, len);
    b->len += len;
}

static size_t add_head(struct buffer *b, uint16_t tag)
{
    struct {
        uint16_t tag, zero;
        uint32_t len;
    } head = {tag, 0, 0};
    add(b, &head, sizeof head);
    return b->len;
}

static void end_field(struct buffer *b, size_t from)
{
    uint32_t len = (uint32_t)(b->len - from);
    memcpy(b->data + from - sizeof len, &len, sizeof len);
}

static void add_u64(struct buffer *b, uint16_t tag, uint64_t value)
{
    size_t from = add_head(b, tag);
    add(b, &value, sizeof value);
    end_field(b, from);
}

static int bad(struct buffer *b, const char *name, const char *expected, int i)
{
    return luaL_error(b->L, "field '%s': %s expected, got %s", name, expected,
                      sb_lua_typename(b->L, i));
}

/* One value of bytes, on top of the stack: a string, a secret, or an array of both to be joined. */
static void add_bytes(struct buffer *b, uint16_t tag)
{
    lua_State *L = b->L;
    size_t from = add_head(b, tag), len;
    const char *bytes = sb_lua_tobytes(L, -1, &len);
    if (bytes != NULL) {
        add(b, bytes, len);
    } else if (lua_istable(L, -1)) {
        for (int n = 1;; n++) {
            lua_rawgeti(L, -1, n);
            if (lua_isnil(L, -1))
                break;
            bytes = sb_lua_tobytes(L, -1, &len);
            if (bytes == NULL)
                bad(b, known[tag].name, "string or secret", -1);
            add(b, bytes, len);
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    } else {
        bad(b, known[tag].name, "string or secret", -1);
    }
    end_field(b, from);
}

/* A list on top of the stack; one string by itself is a list of one. */
static void add_list(struct buffer *b, uint16_t tag)
{
    lua_State *L = b->L;
    if (!lua_istable(L, -1)) {
        add_bytes(b, tag);
        return;
    }
    for (int n = 1;; n++) {
        lua_rawgeti(L, -1, n);
        if (lua_isnil(L, -1))
            break;
        add_bytes(b, tag);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static void add_number(struct buffer *b, uint16_t tag)
{
    lua_State *L = b->L;
    int64_t n;
    if (lua_isboolean(L, -1)) {
        n = lua_toboolean(L, -1);
    } else if (!sb_lua_tointeger(L, -1, &n)) {
        lua_Number d = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : -1;
        if (!(d >= 0 && d < 9.2e18)) /* integers beyond 2^53, where Lua has only doubles */
            bad(b, known[tag].name, "non-negative integer", -1);
        n = (int64_t)d;
    }
    if (n < 0)
        bad(b, known[tag].name, "non-negative integer", -1);
    add_u64(b, tag, (uint64_t)n);
}

static void add_stages(struct buffer *b)
{
    lua_State *L = b->L;
    if (!lua_istable(L, -1))
        bad(b, "stages", "list", -1);
    for (int n = 1;; n++) {
        lua_rawgeti(L, -1, n);
        if (lua_isnil(L, -1))
            break;
        add_u64(b, SB_F_STAGE, (uint64_t)n);
        add_list(b, SB_F_ARG);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

unsigned char *sb_lua_pack_message(lua_State *L, int i, uint16_t type, size_t *len)
{
    struct buffer b = {.L = L, .cap = FIRST};
    struct sb_packer p;
    i = lua_absindex(L, i);
    luaL_checkstack(L, 10, "fields");
    b.data = sb_lua_newuserdata(L, b.cap, 0);
    b.slot = lua_gettop(L);
    sb_pack_begin(&p, b.data, b.cap, type, 0, 0);
    b.len = p.len;
    if (!lua_isnoneornil(L, i)) {
        if (!lua_istable(L, i))
            sb_lua_typeerror(L, i, "table");
        sb_lua_rawgetp(L, LUA_REGISTRYINDEX, &names_key);
        lua_pushnil(L);
        while (lua_next(L, i)) { /* slot, names, key, value */
            int code;
            lua_pushvalue(L, -2);
            lua_rawget(L, b.slot + 1);
            code = lua_isnil(L, -1) ? -1 : (int)lua_tointeger(L, -1);
            lua_pop(L, 1);
            if (code < 0) {
                if (lua_type(L, -2) != LUA_TSTRING || strcmp(lua_tostring(L, -2), "stages") != 0)
                    luaL_error(L, "unknown field '%s'",
                               lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2)
                                                              : luaL_typename(L, -2));
                add_stages(&b);
            } else if (code % 4 == KIND_U) {
                add_number(&b, (uint16_t)(code / 4));
            } else if (code % 4 == KIND_B) {
                add_bytes(&b, (uint16_t)(code / 4));
            } else {
                add_list(&b, (uint16_t)(code / 4));
            }
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
    *len = b.len;
    return b.data;
}

void sb_lua_message_add(unsigned char *msg, size_t *len, uint16_t tag, uint64_t value)
{
    struct {
        uint16_t tag, zero;
        uint32_t len;
        unsigned char value[8];
    } f = {tag, 0, sizeof value, {0}};
    memcpy(f.value, &value, sizeof value);
    memcpy(msg + *len, &f, sizeof f);
    *len += sizeof f;
}

unsigned char *sb_lua_pack_fields(lua_State *L, int i, size_t *len)
{
    unsigned char *msg = sb_lua_pack_message(L, i, 0, len);
    *len -= sizeof(struct sb_msg);
    return msg + sizeof(struct sb_msg);
}
