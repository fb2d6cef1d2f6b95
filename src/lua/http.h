/* What the files of sandbar.http's C half share. Included after lua_core.h and the runtime's api.h. */
#ifndef SB_LUA_HTTP_H
#define SB_LUA_HTTP_H

#include "../http/http.h"

/* The module's table is on top of the stack and stays there. */
void sb_lua_open_recipe(lua_State *L);
void sb_lua_open_run(lua_State *L); /* adds run, input and killer */

#endif
