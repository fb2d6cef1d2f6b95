-- What differs between Lua 5.1, 5.2, 5.3, 5.4 and LuaJIT and is needed here, under one name each.

local compat = {}

local select, getmetatable, type = select, getmetatable, type
local coroutine_running = coroutine.running

compat.unpack = rawget(table, "unpack") or rawget(_G, "unpack")

function compat.pack(...)
  return { n = select("#", ...), ... }
end

--- Plain Lua 5.1 cannot yield out of pcall; LuaJIT, which calls itself 5.1, can.
compat.yields_across_pcall = _VERSION ~= "Lua 5.1" or rawget(_G, "jit") ~= nil

--- The running coroutine, nil in the main thread.
function compat.running()
  local co, main = coroutine_running()
  if main then
    return nil
  end
  return co
end

--- A number without a fraction that every Lua holds exactly.
function compat.is_integer(v)
  return type(v) == "number" and v % 1 == 0 and v >= -2 ^ 53 and v <= 2 ^ 53
end

function compat.is_callable(v)
  if type(v) == "function" then
    return true
  end
  local mt = getmetatable(v)
  return type(mt) == "table" and mt.__call ~= nil
end

--- "… at …" as debug.traceback gives it, nil where there is no debug library.
function compat.traceback(...)
  local debug = rawget(_G, "debug")
  return debug and debug.traceback(...)
end

--- Ctrl-C raises the interpreters' own message. It means the program, and must not end as the failure of the
--- task, the finalizer or the loading that it hit.
function compat.is_interrupt(err)
  return type(err) == "string" and err:find("interrupted!$") ~= nil
end

--- A module, or nil and the first line of why it cannot be read just now (a program out of descriptors); the
--- next call tries again, also on Lua 5.1, whose require remembers the attempt.
function compat.load(name)
  local ok, module = pcall(require, name)
  if ok then
    return module
  end
  if type(package.loaded[name]) ~= "table" then
    package.loaded[name] = nil
  end
  if compat.is_interrupt(module) then
    error(module, 0)
  end
  return nil, tostring(module):match("^[^\n]*")
end

--- Calls fn when the Lua state is closed, if the value that this returns is kept until then.
function compat.at_close(fn)
  local newproxy = rawget(_G, "newproxy") -- where tables have no __gc
  if not newproxy then
    return setmetatable({}, { __gc = fn })
  end
  local proxy = newproxy(true)
  getmetatable(proxy).__gc = fn
  return proxy
end

return compat
