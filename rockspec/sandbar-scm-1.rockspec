rockspec_format = "3.0"
package = "sandbar"
version = "scm-1"
source = {
  -- Nothing is published yet: `luarocks make` in a checkout builds what is there.
  url = "git+file://.",
}
description = {
  summary = "Sandboxes for Lua programs: the machine's own kernel, one scope, nothing left over",
  detailed = [[
    Runs programs in sandboxes from Lua: processes, files and ports inside, released on every path. The
    local engine needs no daemon and no root; it runs on Linux.]],
  license = "MIT",
  labels = { "sandbox", "process", "linux", "openresty" },
}
supported_platforms = { "linux" }
dependencies = {
  "lua >= 5.1, < 5.5",
}
-- Libraries only: LuaRocks does not look for headers where Debian keeps them, the compiler does.
external_dependencies = {
  CURL = { library = "curl" },
  CRYPTO = { library = "crypto" },
  SSL = { library = "ssl" },
  WSLAY = { library = "wslay" },
  PROTOBUF = { library = "protobuf-c" }, -- and protoc-c at build time
  HTTP_PARSER = { library = "http_parser" },
  SECCOMP = { library = "seccomp" }, -- at build time
}
build = {
  type = "make",
  build_target = "all",
  build_variables = {
    CFLAGS = "$(CFLAGS)",
    LUA_INCDIR = "$(LUA_INCDIR)",
    LUA_BIN = "$(LUA)",
    WERROR = "",
  },
  install_target = "install",
  install_variables = {
    CFLAGS = "$(CFLAGS)",
    LUA_INCDIR = "$(LUA_INCDIR)",
    WERROR = "",
    LUA_BIN = "$(LUA)",
    INST_LUADIR = "$(LUADIR)",
    INST_LIBDIR = "$(LIBDIR)",
    INST_BINDIR = "$(BINDIR)",
  },
}
test = {
  type = "command",
  command = "make check",
}
