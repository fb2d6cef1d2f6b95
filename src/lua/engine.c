/* core.engine: the supervisor of a state root, as userdata; and what core has of the engine
 * beside it. */
#include "engine.h"

#include "../engine/images.h"
#include "../engine/lifecycle.h"
#include "../engine/relay/upstream.h"
#include "fields.h"

/* Names of requests and their message types. */
static const char *const names[] = {
    "hello",   "info",     "list",           "destroy",         "lifetime",       "pause",
    "expose",  "advance",  "stats",          "snapshot",        "list_snapshots", "delete_snapshot",
    "network", "template", "list_templates", "delete_template", "keep",           "metrics",
    NULL};
static const uint16_t types[] = {
    SB_S_HELLO,   SB_S_INFO,     SB_S_LIST,      SB_S_DESTROY,    SB_S_LIFETIME,  SB_S_PAUSE,
    SB_S_EXPOSE,  SB_S_ADVANCE,  SB_S_STATS,     SB_S_SNAPSHOT,   SB_S_SNAPSHOTS, SB_S_UNSNAPSHOT,
    SB_S_NETWORK, SB_S_TEMPLATE, SB_S_TEMPLATES, SB_S_UNTEMPLATE, SB_S_KEEP,      SB_S_METRICS};

struct sb_engine *sb_lua_check_engine(lua_State *L, int arg)
{
    return sb_lua_check_object(L, arg, &sb_engine_type);
}

static int request(lua_State *L)
{
    struct sb_engine *engine = sb_lua_check_engine(L, 1);
    uint16_t type = types[luaL_checkoption(L, 2, NULL, names)];
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    size_t len;
    unsigned char *fields = sb_lua_pack_fields(L, 3, &len);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_engine_request(engine, mailbox, type, fields, len);
    explicit_bzero(fields, len);
    return sb_lua_op_made(L, slot);
}

static int open_box(lua_State *L, uint16_t type)
{
    struct sb_engine *engine = sb_lua_check_engine(L, 1);
    struct sb_mailbox *mailbox = sb_lua_mailbox(L);
    size_t len;
    unsigned char *fields = sb_lua_pack_fields(L, 2, &len);
    struct sb_op **slot = sb_lua_new_op(L);
    *slot = sb_engine_open(engine, mailbox, type, fields, len);
    explicit_bzero(fields, len);
    return sb_lua_op_made(L, slot);
}

static int create(lua_State *L)
{
    return open_box(L, SB_S_CREATE);
}

static int connect(lua_State *L)
{
    return open_box(L, SB_S_CONNECT);
}

static int resume(lua_State *L)
{
    return open_box(L, SB_S_RESUME);
}

static const luaL_Reg methods[] = {
    {"request", request}, {"create", create}, {"connect", connect},
    {"resume", resume},   {NULL, NULL},
};
static const char *const plain[] = {NULL};
static const struct sb_lua_class class = {
    .type = &sb_engine_type, .name = "sandbar.NativeEngine", .methods = methods, .plain = plain};

/* engine{ root = path, linger = seconds }: no I/O */
static int new_engine(lua_State *L)
{
    struct sb_engine *engine;
    size_t len;
    const char *root;
    lua_Number linger = 60;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_getfield(L, 1, "linger");
    if (!lua_isnil(L, -1))
        linger = luaL_checknumber(L, -1);
    lua_getfield(L, 1, "root");
    if (lua_type(L, -1) != LUA_TSTRING)
        return luaL_error(L, "engine: root: string expected");
    root = lua_tolstring(L, -1, &len);
    if (len == 0 || len > 3000 || strlen(root) != len)
        return luaL_error(L, "engine: root is no path");
    if (!(linger >= 0))
        return luaL_error(L, "engine: linger is negative");
    engine = sb_engine_new(root, linger < 1e12 ? (uint64_t)(linger * 1000) : (uint64_t)1e15);
    if (engine == NULL)
        return luaL_error(L, "not enough memory");
    struct sb_object *object = &engine->object;
    sb_lua_push_object(L, &object);
    return 1;
}

/* policy_entry(text) -> "name", "address", nil: what it is as an entry of a network policy */
static int policy_entry(lua_State *L)
{
    size_t len;
    const char *text = luaL_checklstring(L, 1, &len);
    enum sb_entry what = sb_policy_entry(text, len);
    if (what == SB_ENTRY_NONE)
        lua_pushnil(L);
    else
        lua_pushstring(L, what == SB_ENTRY_NAME ? "name" : "address");
    return 1;
}

/* policy_proxy(url) -> whether the string or secret is a URL of a proxy that a network policy can name */
static int policy_proxy(lua_State *L)
{
    size_t len;
    struct sb_upstream u;
    const char *url = sb_lua_tobytes(L, 1, &len);
    lua_pushboolean(L, url != NULL && sb_upstream_read(&u, url, len));
    explicit_bzero(&u, sizeof u);
    return 1;
}

/* unpacker() -> the program that unpacks archives inside a sandbox, as bytes */
static int unpacker(lua_State *L)
{
    size_t n;
    const unsigned char *bytes = sb_image_unpack(&n);
    lua_pushlstring(L, (const char *)bytes, n);
    return 1;
}

void sb_lua_open_engine(lua_State *L)
{
    sb_lua_open_fields(L);
    sb_lua_register(L, &class);
    lua_pushcfunction(L, new_engine);
    lua_setfield(L, -2, "engine");
    lua_pushcfunction(L, policy_entry);
    lua_setfield(L, -2, "policy_entry");
    lua_pushcfunction(L, policy_proxy);
    lua_setfield(L, -2, "policy_proxy");
    lua_pushcfunction(L, unpacker);
    lua_setfield(L, -2, "unpacker");
    sb_lua_open_box(L);
    sb_lua_open_process(L);
    sb_lua_open_file(L);
}
