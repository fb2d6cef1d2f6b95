/* Between the files of the binding that open sandbar.core. Each sb_lua_open_* adds its functions to
 * the table on top of the stack and registers its metatables. */
#ifndef SB_LUA_OPEN_H
#define SB_LUA_OPEN_H

#include "lua_core.h"

void sb_lua_open_object(lua_State *L); /* first: the others register classes */
void sb_lua_open_mailbox(
    lua_State *L); /* before all that makes userdata, so that it is finalized last */
void sb_lua_open_op(lua_State *L);
void sb_lua_open_release(lua_State *L);
void sb_lua_open_handle(lua_State *L);
void sb_lua_open_secret(lua_State *L);
void sb_lua_open_stream(lua_State *L);
void sb_lua_open_system(lua_State *L);
void sb_lua_open_leash(lua_State *L);
void sb_lua_open_audit(lua_State *L);
void sb_lua_open_carried(lua_State *L);

/* Anybody can call a metamethod with anything, by debug.getmetatable: each checks what it got, __gc does
 * nothing for what is not its own or was finalized before. */

/* A metatable "sandbar.X" with metamethods, __index = methods (may be NULL), __name, __metatable =
 * false. Nothing is left on the stack. */
void sb_lua_new_metatable(lua_State *L, const char *name, const luaL_Reg *meta,
                          const luaL_Reg *methods);

/* Has the collector finalized this native object? */
int sb_lua_is_collected(lua_State *L, int i);

/* Seconds as nanoseconds: never negative, at most some three hundred years. Raises for NaN. */
uint64_t sb_lua_check_ns(lua_State *L, int arg);

/* Tells the collector about native memory behind new userdata; small amounts are not worth the
 * call. */
void sb_lua_weigh(lua_State *L, size_t bytes);

#endif
