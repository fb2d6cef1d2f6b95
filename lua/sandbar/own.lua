-- Who ends what: the scope a handle lives in, and the guard that fires a native release when a handle
-- is lost. The scope's side of it is described at the end of scope.lua.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local context = require "sandbar.context"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local host_of = require "sandbar.host.select"
local lazy = require "sandbar.lazy"
local wait = require "sandbar.wait"

local scope, task = lazy "sandbar.scope", lazy "sandbar.task"

local own = {}

local Guard = core.class("Guard", {}, {
  tostring = function()
    return "sandbar.Guard"
  end,
})

-- Something that fires `release` when it is collected. `what` and `id` name it for the audit trail, if it
-- belongs there.
function own.guard(release, what, id)
  local state = {}
  if what then
    audit.collectable(state, what, id)
  end
  return core.handle(Guard, state, release)
end

--- What waits in a request of nginx's is not told when that ends, as when a visitor leaves. Where there can be such an
--- end: a table for what is to be ended then, with which lost(held) is called, and a function to be called when all is
--- over.
function own.tied(lost)
  local host = host_of.current()
  if not host.leash or not host.can_wait() then
    return nil
  end
  local held = {}
  return held, host.leash(held, lost)
end

local function nothing()
end

local function fire(held)
  held.release:fire()
end

--- What keeps `release` while something is made of what it ends: it is fired when its keeper is lost, collected or with
--- the request that it was kept in. After keeper.settled() the request's end means nothing to it any more. It is to be
--- held as long as the release.
function own.keeper(release)
  local guard = own.guard(release)
  local held, let_go = own.tied(fire)
  if held then
    held.release = release
  end
  return { guard = guard, settled = let_go or nothing }
end

-- True when the scope can take something; nil and Closed. Raises for what is no scope, at the caller of
-- the function `fname`, whose options it was in.
function own.check(fname, handle, level)
  if not scope.is(handle) then
    check.fail(fname, 2, ("option 'scope': scope expected, got %s"):format(type(handle)), (level or 1) + 1)
  end
  return scope.check(handle, fname)
end

-- Makes the scope hold the handle; see there.
function own.hold(scope_handle, handle, state)
  return scope.hold(scope_handle, handle, state)
end

-- Whichever scope holds it does so no more.
function own.let_go(state)
  if state._held then
    scope.let_go(state)
  end
end

-- How long a close may take: what its options say, else close_timeout.
function own.close_timeout(opts)
  if opts.timeout == nil then
    return context.close_timeout
  end
  return check.timeout(opts, "close")
end

-- Fires a release and waits for its end, which goes to the audit trail as `event`. True; or nil and Timeout
-- when that takes longer: then it goes on by itself, tried again and reported by the runtime.
function own.finish(release, timeout, event)
  local op = release:op()
  if not op then -- collected with its handle, which has fired it and told so
    return true
  end
  local _, err = wait.op(op, timeout, event.op)
  event.error = err
  audit.emit("release", event)
  if err and err.kind == "Timeout" and err.clock then -- of the wait, not of the release
    return nil, errors.new {
      kind = "Timeout", op = event.op, clock = err.clock, limit = err.limit, id = event.id,
      message = ("the release of the %s is not done within %s = %g s; it goes on"):format(event.what, err.clock,
        err.limit),
    }
  end
  return true
end

-- Runs fn() beside the program, ended with the scope if there is one. True, or nil and an error.
function own.background(scope_handle, fn)
  local started, err
  if scope_handle then
    started, err = scope_handle:spawn(fn)
  else
    started, err = task.spawn(fn)
  end
  return started and true, err
end

return own
