/* What the files of sandbar.http's C half share. Included after lua_core.h and the runtime's api.h. */
#ifndef SB_LUA_HTTP_H
#define SB_LUA_HTTP_H

#include "../http/http.h"

/* The header lines (strings, secrets) in the table at `arg`. They stay where they are: in the table, which nobody
 * changes meanwhile, and in userdata on the stack. */
const struct sb_slice *sb_lua_check_lines(lua_State *L, int arg, size_t *count);

/* The module's table is on top of the stack and stays there. */
void sb_lua_open_recipe(lua_State *L);
void sb_lua_open_run(lua_State *L); /* adds run, input and killer */

#endif
