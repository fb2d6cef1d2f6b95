/* Header lines as Lua hands them over; part of each module that sends some. Included after lua_core.h and the runtime's
 * api.h. */
#ifndef SB_LUA_LINES_H
#define SB_LUA_LINES_H

#include "../runtime/slice.h"

/* The lines (strings, secrets) in the table at `arg`. They stay where they are: in the table, which nobody changes
 * meanwhile, and in userdata on the stack. */
const struct sb_slice *sb_lua_check_lines(lua_State *L, int arg, size_t *count);

#endif
