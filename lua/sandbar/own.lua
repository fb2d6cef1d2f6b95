-- Who ends what: the scope a handle lives in, and the guard that fires a native release when a handle
-- is lost. The scope's side of it is described at the end of scope.lua.

local check = require "sandbar.check"
local core = require "sandbar.core"
local scope = require "sandbar.scope"
local task = require "sandbar.task"

local own = {}

local Guard = core.class("Guard", {}, {
  tostring = function()
    return "sandbar.Guard"
  end,
})

-- Something that fires `release` when it is collected.
function own.guard(release)
  return core.handle(Guard, {}, release)
end

-- True when the scope can take something; nil and Closed. Raises for what is no scope, at the caller of
-- the function `fname`, whose options it was in.
function own.check(fname, handle, level)
  if not scope.is(handle) then
    check.fail(fname, 2, ("option 'scope': scope expected, got %s"):format(type(handle)), (level or 1) + 1)
  end
  return scope.check(handle, fname)
end

own.hold, own.let_go = scope.hold, scope.let_go

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
