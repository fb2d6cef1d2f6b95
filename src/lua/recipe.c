/* Recipes as userdata, and the releases made of them. */
#include <stdlib.h>

#include "lua_core.h"

#define SB_API_CLIENT
#include "../runtime/api.h"

#include "../http/recipe.h"
#include "http.h"
#include "lines.h"

/* recipe(port, what, id, lines, find | nil, key | nil, prefix | nil, suffix | nil, mark | nil, early | nil) -> recipe,
 * release */
static int new_recipe(lua_State *L)
{
    static const char *const whats[] = {
        [SB_RECIPE_SANDBOX] = "sandbox",
        [SB_RECIPE_KEY] = "API key",
        [SB_RECIPE_SNAPSHOT] = "snapshot",
        NULL,
    };
    struct sb_port *port = sb_lua_check_object(L, 1, &sb_port_type);
    struct sb_recipe_options options = {
        .what = (enum sb_recipe_what)luaL_checkoption(L, 2, NULL, whats),
        .id = luaL_checkstring(L, 3),
        .find = luaL_optstring(L, 5, NULL),
        .key = luaL_optstring(L, 6, "id"),
        .prefix = luaL_optstring(L, 7, "/"),
        .suffix = luaL_optstring(L, 8, ""),
        .mark = luaL_optstring(L, 9, NULL),
        .early = luaL_optstring(L, 10, NULL),
    };
    lua_settop(L, 10);
    options.headers = sb_lua_check_lines(L, 4, &options.header_count);
    struct sb_error err = {SB_OK};
    struct sb_release *release = NULL;
    struct sb_recipe *recipe = sb_recipe_new(port, &options, &release, &err);
    if (recipe == NULL) {
        lua_pushnil(L);
        sb_lua_push_error(L, &err);
        return 2;
    }
    struct sb_object *object = (struct sb_object *)recipe;
    sb_lua_push_object(L, &object);
    sb_lua_push_release(L, &release);
    return 2;
}

static int recipe_bind(lua_State *L)
{
    struct sb_recipe *recipe = sb_lua_check_object(L, 1, &sb_recipe_type);
    if (sb_recipe_bind(recipe, luaL_checkstring(L, 2)) < 0)
        return luaL_error(L, "not enough memory");
    return 0;
}

static const luaL_Reg methods[] = {{"bind", recipe_bind}, {NULL, NULL}};
static const char *const plain[] = {"bind", NULL};
static const struct sb_lua_class class = {
    &sb_recipe_type, "sandbar.NativeRecipe", methods, plain, 1024, NULL};

void sb_lua_open_recipe(lua_State *L)
{
    sb_lua_register(L, &class);
    lua_pushcfunction(L, new_recipe);
    lua_setfield(L, -2, "recipe");
}
