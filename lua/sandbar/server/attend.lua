-- Work for a request that does not outlive its client: a method of requests (http.lua).

local check = require "sandbar.check"
local compat = require "sandbar.compat"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local OP = "attend"

local attend = {}

-- Starts it, and waits until it has ended or the client has gone. True in the first case, else nil and an error.
local function watch(running, gone, seconds)
  running._on_end = function()
    if not gone:done() then
      gone:cancel()
    end
  end
  local ok, err = task.start(running, true)
  if not ok then
    gone:cancel()
    return nil, err
  end
  local r
  r, err = wait.op(gone, seconds, OP)
  if running._ended.fired or r and r.number == 0 then -- or the request has been answered: it is about to end
    return true
  elseif r then
    return nil, task.cancelled "the client has gone"
  end
  return nil, err
end

--- Adds the method to those of requests; `of` gives a request's state.
function attend.install(methods, of)
  --- Runs fn(...) as a task: when the client has gone, or after `timeout`, its waits answer Cancelled, and its end is
  --- waited for. True and what it returned; nil and Cancelled or Timeout.
  function methods:attend(timeout, fn, ...)
    local state = of(self)
    check.arg(OP, 1, timeout, "timeout?")
    check.arg(OP, 2, fn, "callable")
    local seconds, err = duration.timeout(timeout)
    if err then
      return nil, errors.from(err, OP)
    end
    local running = task.new(fn, compat.pack(...))
    local over, why = watch(running, state._native:gone(), seconds)
    if not over then
      task.cancel(running, why.message)
    end
    if running._started then
      local ended
      ended, err = task.shield(task.join, running, nil, OP)
      over = over and ended
    end
    if not over then
      return nil, why or err
    end
    return true, task.results(running)
  end
end

return attend
