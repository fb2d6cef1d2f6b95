/* luaopen_sandbar_core: claims the process, pins the library, opens the parts, publishes
 * the API. */
#include <string.h>

#include "../runtime/api.h"
#include "../runtime/copy.h"
#include "open.h"

#ifndef SB_VERSION
#define SB_VERSION "0.1.0"
#endif

/* What init.lua reads in the file when its Lua cannot load it. */
__attribute__((used)) static const char built_for[] = "sandbar core.so for " LUA_VERSION;

int sb_lua_push_error(lua_State *L, const struct sb_error *err)
{
    lua_newtable(L);
    lua_pushstring(L, sb_err_name(err->kind));
    lua_setfield(L, -2, "kind");
    lua_pushstring(L, err->message);
    lua_setfield(L, -2, "message");
    if (err->sys != 0) {
        sb_lua_pushinteger(L, err->sys);
        lua_setfield(L, -2, "errno");
#ifdef __GLIBC__
        const char *code = strerrorname_np(err->sys);
        if (code != NULL) {
            lua_pushstring(L, code);
            lua_setfield(L, -2, "code");
        }
#endif
    }
    if (err->step[0] != '\0') {
        lua_pushstring(L, err->step);
        lua_setfield(L, -2, "step");
    }
    if (err->path[0] != '\0') {
        lua_pushstring(L, err->path);
        lua_setfield(L, -2, "path");
    }
    return 1;
}

static const struct sb_lua_api lua_api = {
#define LUA_API_ENTRY(f) .f = f,
    SB_LUA_API_FUNCTIONS(LUA_API_ENTRY)
#undef LUA_API_ENTRY
};

const struct sb_core_api sb_core_api = {.version = SB_API_VERSION,
                                        .size = sizeof(struct sb_core_api),
                                        .release = SB_VERSION,
                                        .stream_type = &sb_stream_type,
                                        .file_type = &sb_file_type,
                                        .lua = &lua_api,
#define API_ENTRY(f) .f = f,
                                        SB_API_FUNCTIONS(API_ENTRY)
#undef API_ENTRY
};

void sb_lua_open_runtime(lua_State *L)
{
    sb_lua_open_object(L);
    sb_lua_open_mailbox(L);
    sb_lua_open_op(L);
    sb_lua_open_release(L);
    sb_lua_open_handle(L);
    sb_lua_open_secret(L);
    sb_lua_open_stream(L);
    sb_lua_open_system(L);
    sb_lua_open_leash(L);
    sb_lua_open_audit(L);
    sb_lua_open_carried(L);
    lua_pushliteral(L, SB_VERSION);
    lua_setfield(L, -2, "VERSION");
}

__attribute__((visibility("default"))) int luaopen_sandbar_core(lua_State *L);

int luaopen_sandbar_core(lua_State *L)
{
    char why[4096];
#if LUA_VERSION_NUM >= 502
    luaL_checkversion(L);
#endif
    if (sb_copy_claim(SB_VERSION, why, sizeof why) != 0)
        return luaL_error(L, "%s", why);
    sb_loop_pin();
    lua_createtable(L, 0, 64);
    sb_lua_open_runtime(L);
    sb_lua_open_engine(L);
    lua_pushlightuserdata(L, (void *)&sb_core_api);
    lua_setfield(L, LUA_REGISTRYINDEX, SB_API_KEY);
    return 1;
}
