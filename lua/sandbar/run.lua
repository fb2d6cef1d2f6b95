-- sandbar.run and sandbar.step: the two ways a program lets tasks go on without waiting for something itself.

local check = require "sandbar.check"
local compat = require "sandbar.compat"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local host_of = require "sandbar.host.select"
local task = require "sandbar.task"

local run = {}

--- Runs fn(...) as a task and returns, once it and every task it started have ended, what it returned.
--- Inside a task, and where the host runs the tasks (OpenResty), it is a plain call.
function run.run(fn, ...)
  check.arg("run", 1, fn, "callable")
  local host = host_of.current()
  if not host.drive_all or host.in_task() then
    return fn(...)
  end
  local t = task.new(fn, compat.pack(...))
  t._observed = true
  local ok, err = task.start(t)
  if not ok then
    return nil, err
  end
  local done, why = host.drive_all(task.cancelled("the program was interrupted"))
  if not done and not t._ended.fired then
    return nil, errors.new { kind = "CannotWait", op = "run", message = why }
  end
  return task.results(t)
end

--- One frame of a game loop: lets every task go on that can, at most `seconds` long. Never blocks. Returns
--- how many tasks have not ended.
function run.step(seconds)
  check.arg("step", 1, seconds, "duration?")
  local err
  if type(seconds) == "string" then
    seconds, err = duration.parse(seconds, "seconds")
    if err then
      return nil, errors.from(err, "step")
    end
  end
  local host = host_of.current()
  if not host.step then
    return nil, errors.new {
      kind = "Unsupported", op = "step", message = ("the %s host runs the tasks by itself"):format(host.name),
    }
  end
  if host.in_task() then
    return nil, errors.new { kind = "CannotWait", op = "step", message = "sandbar.step was called inside a task" }
  end
  return host.step(seconds)
end

return run
