/* Between the files of the engine's binding. */
#ifndef SB_LUA_ENGINE_H
#define SB_LUA_ENGINE_H

#include "lua_core.h"

void sb_lua_open_box(lua_State *L);
void sb_lua_open_process(lua_State *L);
void sb_lua_open_file(lua_State *L); /* adds host_open, host_tree, host_at, pump */

struct sb_engine *sb_lua_check_engine(lua_State *L, int arg);

#endif
