-- Scopes: what was acquired in one is released when it closes, newest first, however it ends. The handle;
-- the closing itself is in closing.lua.

local check = require "sandbar.check"
local closing = require "sandbar.closing"
local compat = require "sandbar.compat"
local context = require "sandbar.context"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local exit = require "sandbar.exit"
local host_of = require "sandbar.host.select"
local nested = require "sandbar.nested"
local task = require "sandbar.task"

local scope = {}

local Scope
local methods = {}

local OPTIONS = { parallel = "boolean", close_timeout = "duration", leash = "boolean" }

local Token = {
  __tostring = function()
    return "sandbar.Token"
  end,
  __metatable = false,
}

local function new(opts)
  local limit
  if opts.close_timeout ~= nil then
    local err
    limit, err = duration.positive(opts.close_timeout, "close_timeout")
    if not limit then
      return nil, err
    end
  end
  local s = closing.new(opts.parallel, limit)
  local host = host_of.current()
  if host.leash and opts.leash ~= false then
    s._leash = host.leash
  end
  return s
end

local function state_of(self)
  return core.state(self, Scope)
end

local function closed(op)
  return errors.new { kind = "Closed", op = op, message = "the scope is closed" }
end

-- ---- finalizers ----

--- Calls fn(exit) when the scope closes, and gives a token to withdraw it with. On a closed scope it is
--- called at once.
function methods:defer(fn)
  local s = state_of(self)
  check.arg("defer", 1, fn, "callable")
  if s._status ~= "open" then
    local first, err = closing.run_late(s, fn)
    if first == nil and err ~= nil then
      return nil, err
    end
    return setmetatable({}, Token)
  end
  return setmetatable(closing.add(s, { run = fn }), Token)
end

--- Withdraws a finalizer: true, or false when it has run or was withdrawn before.
function methods:forget(token)
  local s = state_of(self)
  if type(token) ~= "table" or getmetatable(token) ~= false then
    check.fail("forget", 1, "token expected, got " .. type(token))
  end
  return closing.remove(s, token)
end

--- Runs acquire(); a value it gives is released by release(value, exit) when the scope closes. Neither
--- cancellation nor closing can come in between. Returns the value, or nil and an error.
function methods:acquire(acquire, release)
  local s = state_of(self)
  check.arg("acquire", 1, acquire, "callable")
  check.arg("acquire", 2, release, "callable")
  if s._status ~= "open" then
    return nil, closed("acquire")
  end
  local cancelled = context.interrupted(host_of.current().context())
  if cancelled then
    return nil, cancelled
  end
  local results = compat.pack(task.shield(acquire))
  local value = results[1]
  if value == nil then
    return compat.unpack(results, 1, results.n)
  end
  local function run(how)
    return release(value, how)
  end
  if s._status ~= "open" then -- closed while acquire waited
    closing.run_late(s, run)
    return nil, closed("acquire")
  end
  closing.add(s, { run = run })
  return value
end

-- ---- children ----

--- A child scope: closed with this one, at its place in the order; closed by itself it takes itself out.
function methods:fork(opts)
  local s = state_of(self)
  opts = check.options("fork", 1, opts, OPTIONS)
  local child, err = new(opts)
  if not child then
    return nil, err
  end
  local handle = core.handle(Scope, child)
  if s._status == "open" then
    closing.fork(s, self, child, handle)
  else
    closing.close(child, s._exit)
  end
  return handle
end

--- Runs fn(...) as a task that ends with the scope at the latest: closing cancels it and waits for it.
function methods:spawn(fn, ...)
  local s = state_of(self)
  check.arg("spawn", 1, fn, "callable")
  local t, err = closing.spawn(s, fn, compat.pack(...))
  if not t then
    return nil, err
  end
  return task.handle(t)
end

--- Moves the release of a handle here, from wherever it was. Returns the handle, or nil and an error: then
--- nothing has moved.
function methods:adopt(handle)
  local s = state_of(self)
  local ok, state = pcall(core.state, handle)
  if not ok or type(state._finalize) ~= "function" then
    check.fail("adopt", 1, "handle expected, got " .. type(handle))
  end
  if s._status ~= "open" then
    return nil, closed("adopt")
  end
  if state._adopt then
    local adopted, err = state._adopt(handle, state)
    if not adopted then
      return nil, err
    end
  end
  scope.hold(self, handle, state)
  return handle
end

-- ---- closing ----

-- Run by coroutine.close, a __close gets nil although nothing has ended well.
local function being_closed()
  return compat.running() ~= nil and core.isyieldable() == false
end

local function exit_from(value)
  if exit.is(value) then
    if not value.ok and type(value.reasons) ~= "table" then
      return { ok = false, reasons = { exit.reason("failure", value.error) } }
    end
    return value
  end
  if value ~= nil then
    local type = errors.is(value, "Cancelled") and "interrupted" or "defect"
    return { ok = false, reasons = { exit.reason(type, value) } }
  end
  if being_closed() then
    return { ok = false, reasons = { exit.reason("interrupted", task.cancelled("its coroutine was closed")) } }
  end
  return { ok = true, n = 0 }
end

--- Closes with an exit (success when absent): true, or nil and an error with every reason. As a __close it
--- gets the error that ends the block, and raises when a finalizer fails.
function methods:close(...)
  local s = state_of(self)
  local value = ...
  local as_closer = select("#", ...) > 0 and not exit.is(value)
  local first_time = s._status == "open"
  local how = first_time and exit_from(value) or nil
  local reasons, err = closing.close(s, how)
  if not reasons then
    return nil, err
  end
  if #reasons == 0 then
    return true
  end
  if exit.interrupted(reasons) then
    error(errors.aggregate(reasons, "close"), 0)
  end
  if not as_closer then
    return nil, errors.aggregate(reasons, "close")
  end
  if first_time then
    local all = exit.merge({}, how.reasons or {})
    error(errors.aggregate(exit.merge(all, reasons), "close"), 0)
  end
  return true
end

--- How many finalizers it holds.
function methods:pending()
  return closing.count(state_of(self))
end

--- "open", "closing" or "closed".
function methods:state()
  return state_of(self)._status
end

Scope = core.class("Scope", methods, {
  abandon = true,
  tostring = function(s)
    return ("scope(%d, %s)"):format(s.id, s._status)
  end,
})

-- ---- for handles of other modules ----
-- A handle that can live in a scope has in its state: _finalize(handle, state, exit), which ends it
-- (destroys what is owned, else closes) and may wait; optionally _adopt(handle, state), asked before an adopt.

--- Is it a scope handle?
function scope.is(v)
  return core.is(v, Scope)
end

--- True, or nil and Closed: to be asked before something is acquired for a scope.
function scope.check(handle, op)
  if core.state(handle, Scope)._status ~= "open" then
    return nil, closed(op)
  end
  return true
end

--- Makes the scope hold the handle, instead of the one that held it. The two keep each other alive. Where
--- the scope has closed meanwhile the handle is ended at once: nil and Closed.
function scope.hold(scope_handle, handle, state)
  local s = core.state(scope_handle, Scope)
  scope.let_go(state)
  local function run(how)
    state._held, state._scope = nil, nil
    return state._finalize(handle, state, how)
  end
  if s._status ~= "open" then
    closing.run_late(s, run)
    return nil, closed("hold")
  end
  state._scope = scope_handle
  state._held = closing.add(s, { native = true, handle = handle, run = run })
  return true
end

--- Nobody holds it any more: it was closed, detached or moved.
function scope.let_go(state)
  local held = state._held
  if held then
    state._held, state._scope = nil, nil
    closing.remove(held.scope, held)
  end
end

-- ---- functions of the public module ----

--- An open scope; close it, or keep it in a variable with <close>.
function scope.new(opts)
  opts = check.options("new_scope", 1, opts, OPTIONS)
  local s, err = new(opts)
  if not s then
    return nil, err
  end
  return core.handle(Scope, s)
end

--- scope.run([opts,] fn): runs fn(scope), closes the scope with the exit of fn, returns what fn returned.
function scope.run(...)
  local opts, fn = ...
  local at = 2
  if select("#", ...) < 2 then
    opts, fn, at = nil, opts, 1
  end
  check.arg("scope", at, fn, "callable")
  opts = check.options("scope", 1, opts, OPTIONS)
  local s, err = new(opts)
  if not s then
    return nil, err
  end
  local handle = core.handle(Scope, s)
  local r = nested.try(fn, handle)
  local how = exit.of(r)
  local reasons = closing.close(s, how) or {}
  if #reasons == 0 then
    if not r.ok then
      errors.raised(r.error)
    end
    return exit.pass_on(r)
  end
  local failure = errors.aggregate(exit.merge(exit.merge({}, how.reasons or {}), reasons), "scope")
  if not r.ok or exit.interrupted(reasons) then
    errors.raised(failure)
    error(failure, 0)
  end
  return nil, failure
end

return scope
