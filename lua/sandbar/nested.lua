-- Coroutines inside tasks. A wait in a task yields to the scheduler that resumed it. When a program runs a
-- coroutine of its own inside a task, a wait in there would end up at whoever resumed that coroutine; so
-- waits are allowed only in coroutines known to pass them on: those run by resume, wrap and pcall here.
-- Also the protected calls: plain Lua 5.1 cannot yield out of pcall, a coroutine can.

local compat = require "sandbar.compat"

local nested = {}

local resume, yield, status = coroutine.resume, coroutine.yield, coroutine.status
local running, yields_across_pcall = compat.running, compat.yields_across_pcall
local pack, unpack = compat.pack, compat.unpack

-- What a waiting coroutine yields, for us alone to recognise.
local WAIT = setmetatable({}, { __tostring = function() return "sandbar: waiting" end })

-- coroutine -> context of the task it runs for. Entries are taken out by whoever put them in.
local contexts = {}

function nested.enter(co, ctx)
  contexts[co] = ctx
end

function nested.leave(co)
  contexts[co] = nil
end

--- The context the running coroutine works for; nil in the main thread and in an unknown coroutine. Second
--- result: the coroutine.
function nested.context()
  local co = running()
  return co and contexts[co], co
end

local BOUNDARY = "a wait cannot leave %s; do the waiting outside of it"
local WAY_OUT_51 = "on Lua 5.1 a wait cannot leave %s; use sandbar.pcall, :next(), or do the waiting outside of it"

-- On plain 5.1 the only way to see a C boundary before yielding into it is to look at the stack. (A
-- metamethod is one as well and cannot be seen: there the interpreter's own message comes.)
local function blocked_51()
  local info = debug.getinfo
  local level = 3
  while true do
    local frame = info(level, "Sn")
    if not frame then
      return nil
    end
    if frame.name == "(for generator)" then
      return WAY_OUT_51:format("the iterator of a for loop")
    end
    if frame.what == "C" and info(level + 1, "l") then
      return WAY_OUT_51:format(frame.name and "'" .. frame.name .. "'" or "a C function")
    end
    level = level + 1
  end
end

--- Yields to the scheduler. True once resumed, or nil and why it is not possible here.
function nested.suspend()
  if not yields_across_pcall then
    local why = blocked_51()
    if why then
      return nil, why
    end
    local _, passed_on = yield(WAIT)
    return passed_on == nil or nil, passed_on
  end
  local ok, _, why = pcall(yield, WAIT)
  if not ok then
    return nil, BOUNDARY:format("table.sort, string.gsub and the like")
  end
  return why == nil or nil, why
end

--- Did a resume return because of a wait, not a yield of the program's?
function nested.is_wait(value)
  return value == WAIT
end

-- `co` has just come back from a resume: passes its waits on, returns everything else.
local function pass_waits(co, before, ok, first, ...)
  if ok and first == WAIT and status(co) == "suspended" then
    local passed, why = nested.suspend()
    if passed then
      return pass_waits(co, before, resume(co, true))
    end
    return pass_waits(co, before, resume(co, nil, why))
  end
  contexts[co] = before
  return ok, first, ...
end

local function bad_argument(name, expected, got)
  error(("bad argument #1 to '%s' (%s expected, got %s)"):format(name, expected, type(got)), 3)
end

--- coroutine.resume for coroutines that wait: a wait inside suspends the whole task.
function nested.resume(co, ...)
  if type(co) ~= "thread" then
    bad_argument("resume", "coroutine", co)
  end
  local ctx = nested.context()
  if not ctx then
    return resume(co, ...)
  end
  local before = contexts[co]
  contexts[co] = ctx
  return pass_waits(co, before, resume(co, ...))
end

local function rethrow(co, ok, ...)
  if ok then
    return ...
  end
  local close = rawget(coroutine, "close")
  if close then
    close(co)
  end
  error((...), 0)
end

--- coroutine.wrap for functions that wait.
function nested.wrap(fn)
  if type(fn) ~= "function" then
    bad_argument("wrap", "function", fn)
  end
  local co = coroutine.create(fn)
  return function(...)
    return rethrow(co, nested.resume(co, ...))
  end
end

-- Passes every yield of `co` on, the program's own too: to the outside it is one coroutine with its caller.
local function pass_all(co, ok, ...)
  if status(co) == "suspended" then
    return pass_all(co, resume(co, yield(...)))
  end
  contexts[co] = nil
  return ok, ...
end

local function call_in_coroutine(fn, ...)
  local co = coroutine.create(function(...)
    return fn(...)
  end)
  contexts[co] = nested.context()
  return co, pass_all(co, resume(co, ...))
end

local function drop_first(_, ...)
  return ...
end

--- pcall, across which one can wait on every Lua.
function nested.pcall(fn, ...)
  if yields_across_pcall or not running() then
    return pcall(fn, ...)
  end
  return drop_first(call_in_coroutine(fn, ...))
end

--- Replaced by the host that runs tasks as coroutines: an interrupt was raised in one of them.
function nested.interrupted() end

local JIT = rawget(_G, "jit") ~= nil
local hits_coroutines = JIT -- elsewhere it is raised in the main program

--- Tells the host if what a coroutine raised is one. Was it?
function nested.pass_interrupt(err)
  if not hits_coroutines or not compat.is_interrupt(err) then
    return false
  end
  nested.interrupted(err)
  return true
end

local function with_traceback(err)
  if running() then
    nested.pass_interrupt(err)
  end
  return { error = err, traceback = compat.traceback("", 2) }
end

local function caught(co, ok, ...)
  if ok then
    return { ok = true, n = select("#", ...), ... }
  end
  return { ok = false, error = (...), traceback = compat.traceback(co, "") }
end

local BY_ITS_HANDLER = { ["error in error handling"] = true, ["not enough memory"] = true }

-- What xpcall says when the handler itself failed: out of memory or stack. LuaJIT has just any value for that where the
-- stack was full before.
local function of_handler(err)
  if JIT and not BY_ITS_HANDLER[err] then
    return "stack overflow (and none left for its traceback)"
  end
  return err
end

local function outcome(ok, ...)
  if ok then
    return { ok = true, n = select("#", ...), ... }
  end
  local box = ...
  if type(box) ~= "table" or not rawget(box, "traceback") then
    box = { error = of_handler(box) }
  end
  box.ok = false
  return box
end

--- Calls fn and gives a table: { ok = true, n =, … } with the results, or { ok = false, error =, traceback = }.
function nested.try(fn, ...)
  if not yields_across_pcall and running() then
    return caught(call_in_coroutine(fn, ...))
  end
  local args = pack(...)
  return outcome(xpcall(function()
    return fn(unpack(args, 1, args.n))
  end, with_traceback))
end

return nested
