#!/usr/bin/env lua5.4
-- The `sandbar` program: runs a Lua script with the library loaded and a root scope around it, so that
-- whatever the script acquires in that scope is released when it ends, fails, or is interrupted (Ctrl-C).
-- A termination signal is not caught here: scoped sandboxes are then destroyed by their supervisor.

local prefix = nil -- filled in by `make install`

local usage = [[
usage: sandbar run SCRIPT [ARGUMENTS]   run a Lua script (- is the standard input); it sees `sandbar` and
                                        `scope` (the root scope)
       sandbar template build [--no-cache] FILE|DIR
                                        build what FILE (or template.lua in DIR) returns for templates:build;
                                        paths that it copies start beside it
       sandbar template list            names, digests and times of the templates
       sandbar template delete NAME...
       sandbar serve [--listen 127.0.0.1:3000] [--api-key-file FILE] [--domain NAME]
                     [--tls-cert FILE --tls-key FILE]
                                        serve the E2B protocol: see docs/server.md
       sandbar --version                versions of sandbar and of this Lua
       sandbar --help
       template and serve take --root DIR: where the state is kept, as `root` of sandbar.open. --OPTION=VALUE is
       taken for --OPTION VALUE
]]

local function readable(path)
  local f = io.open(path, "r")
  return f ~= nil and f:close() ~= nil
end

-- Where the library is when the paths do not say: where it was installed, or beside this program (a prefix
-- that was moved, a tree of LuaRocks), or in the tree that it was built in.
local function find_library()
  local version = _VERSION:match("%d%.%d")
  local places = { prefix }
  local tree = arg[0]:match("^(.*)/lib/luarocks/[^/]+/sandbar/[^/]+/bin/[^/]+$") or arg[0]:match("^(.*)/bin/[^/]+$")
  if tree then
    places[#places + 1] = { lua = tree .. "/share/lua/" .. version, c = tree .. "/lib/lua/" .. version }
  end
  for _, place in ipairs(places) do
    if readable(place.lua .. "/sandbar/init.lua") then
      package.path = place.lua .. "/?.lua;" .. place.lua .. "/?/init.lua;" .. package.path
      package.cpath = place.c .. "/?.so;" .. package.cpath
      return
    end
  end
  local source = ("/" .. arg[0]):match("^(.*/)src/main/[^/]+$")
  if source then -- behind what is installed, and behind what the environment says
    source = source:sub(2)
    local abi = type(jit) == "table" and "luajit" or version
    package.path = ("%s;%slua/?.lua;%slua/?/init.lua"):format(package.path, source, source)
    package.cpath = ("%s;%sbuild/%s/?.so"):format(package.cpath, source, abi)
  end
end

find_library()

local function quit(code, message)
  if message then
    io.stderr:write("sandbar: ", message, "\n")
  end
  os.exit(code, true)
end

local function library()
  local ok, sandbar = pcall(require, "sandbar")
  if not ok then
    quit(1, sandbar)
  end
  return sandbar
end

local function version()
  print(("sandbar %s, %s"):format(library().version, type(jit) == "table" and jit.version or _VERSION))
end

-- Ends the program as chunk(...) does, in the root scope.
local function guarded(chunk, ...)
  local sandbar = library()
  local args, n = { ... }, select("#", ...)
  _G.sandbar = sandbar
  local unpack = table.unpack or unpack
  local interrupted, trace = false, nil
  -- As the interpreter's own handler of SIGINT raises it, with a position or without.
  local function is_interrupt(e)
    return type(e) == "string" and (e == "interrupted!" or e:find(":%d+: interrupted!$") ~= nil)
  end
  -- Closing the scope unwinds what raised: where that was is noted first.
  local function script_failed(e)
    interrupted = is_interrupt(e)
    local where = type(e) == "table" and rawget(e, "where")
    trace = type(e) == "string" and debug.traceback(e, 2) or where and ("%s: %s"):format(where, tostring(e)) or nil
    return e
  end
  local ok, failure, detail = pcall(sandbar.scope, function(scope)
    _G.scope = scope
    local results = {
      xpcall(function()
        return chunk(unpack(args, 1, n))
      end, script_failed),
    }
    if not results[1] then
      error(results[2], 0)
    end
    return results[2], results[3]
  end)
  if interrupted or not ok and is_interrupt(failure) then
    quit(130, "interrupted")
  elseif not ok then
    quit(1, trace or tostring(failure))
  elseif failure == nil and detail ~= nil then
    quit(1, tostring(detail))
  end
  quit(0)
end

local function run(script, ...)
  local chunk, err = loadfile(script ~= "-" and script or nil)
  if not chunk then
    quit(1, err)
  end
  _G.arg = { [0] = script, ... }
  guarded(chunk, ...)
end

-- What a command with operands does, as a function, or nil and what is wrong with them.
local function parsed(command, ...)
  library() -- first of all: it says for which Lua it was built
  if command == "template" then
    return require("sandbar.program").template(...)
  elseif command == "serve" then
    return require("sandbar.server.program").parse(...)
  end
  return nil, command == "run" and "run: which script?" or ("unknown command %s"):format(command)
end

local HELP = { ["--help"] = true, ["-h"] = true }
local command = arg[1]
if command == nil then
  io.stderr:write(usage)
  os.exit(2)
elseif command == "--version" then
  version()
elseif command == "help" or HELP[command] or HELP[arg[2]] then
  io.write(usage)
elseif command == "run" and arg[2] then
  run(arg[2], (table.unpack or unpack)(arg, 3))
else
  local job, why = parsed((table.unpack or unpack)(arg))
  if not job then
    quit(2, why .. "; sandbar --help says how it is used")
  end
  guarded(job)
end
