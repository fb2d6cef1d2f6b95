-- Tasks: functions that run beside their starter. A task is cancelled at its waits, never in the middle of
-- its code; whoever waits for it gets what it returned, or the error it raised.

local check = require "sandbar.check"
local compat = require "sandbar.compat"
local context = require "sandbar.context"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local exit = require "sandbar.exit"
local host_of = require "sandbar.host.select"
local nested = require "sandbar.nested"
local wait = require "sandbar.wait"

local task = {}

local Task
local last_id = 0
local run, died -- below

-- ---- states: what scope.lua and the host work with ----

--- A task's state, not started. `frame`: the shielded frame it works in (finalizers run as tasks).
function task.new(fn, args, frame)
  last_id = last_id + 1
  local starter = host_of.current().context()
  return {
    id = last_id, _fn = fn, _args = args, _status = "running", _ended = wait.signal(),
    _ctx = context.new(frame, context.origin(starter)), _abandoned = task.abandoned, run = run, died = died,
  }
end

local function failed(t)
  return t._status == "failed" and not t._observed
end

local unheard = {} -- number -> task that has failed, and for which nobody has waited as yet

local function report(t)
  unheard[t.id] = nil
  local reason = t._exit.reasons[1]
  host_of.current().report(("task %d failed and nobody waited for it: %s%s"):format(
    t.id, tostring(reason.error), reason.traceback or ""))
end

local function finish(t, r)
  if not t._ended.fired then
    t._result, t._exit = r, exit.of(r)
    t._status = t._exit.ok and "succeeded" or t._exit.reasons[1].type == "interrupted" and "cancelled" or "failed"
    t._fn, t._args = nil, nil
    if t._on_end then
      t._on_end(t)
    elseif failed(t) then
      unheard[t.id] = t
      if t._lost then
        report(t)
      end
    end
  end
  wait.fire(t._ended)
end

function run(t)
  if context.interrupted(t._ctx) then
    return finish(t, { ok = true, n = 2, nil, t._ctx.cancelled })
  end
  local r = nested.try(t._fn, compat.unpack(t._args, 1, t._args.n))
  if not r.ok and nested.pass_interrupt(r.error) then
    t._observed = true
  end
  finish(t, r)
end

-- What happens in run() itself: an interrupt, or a fault of ours.
function died(t, err)
  t._observed = true
  if not nested.pass_interrupt(err) then
    host_of.current().report("internal error in a task: " .. tostring(err))
  end
  finish(t, { ok = false, error = err })
end

--- Starts it. `detached`: not tied to the request it was started in, where there are such; `at_once`: up
--- to its first wait before this returns. True, or nil and an error.
function task.start(t, detached, at_once)
  local ok, why = host_of.current().start(t._ctx, t, detached, at_once)
  t._started = ok
  if not ok then
    return nil, errors.new { kind = "CannotWait", op = "spawn", message = why }
  end
  return true
end

local function cancelled(reason)
  return errors.new {
    kind = "Cancelled", reason = reason,
    message = reason ~= nil and "cancelled: " .. tostring(reason) or "cancelled",
  }
end
task.cancelled = cancelled

function task.cancel(t, reason)
  if not t._ended.fired then
    context.cancel(t._ctx, cancelled(reason))
  end
end

--- It will not run (its thread is gone with its request, or it was never started): it has ended, as cancelled.
function task.bury(t, reason)
  task.cancel(t, reason)
  finish(t, { ok = true, n = 2, nil, t._ctx.cancelled })
end

--- A task that never ran, because it came too late.
function task.stillborn(reason)
  local t = task.new(nil, nil)
  finish(t, { ok = true, n = 2, nil, cancelled(reason) })
  return t
end

--- Until it has ended. True, or nil and an error.
function task.join(t, timeout, op)
  if t._ctx == host_of.current().context() and not t._ended.fired then
    return nil, errors.new { kind = "Busy", op = op, message = "a task cannot wait for itself" }
  end
  return wait.on(t._ended, timeout, op)
end

--- What it came to, once it has ended: what it returned; raises what it raised, except a cancellation.
function task.results(t)
  t._observed, unheard[t.id] = true, nil
  if t._on_observed then
    t._on_observed(t)
  end
  if t._status == "cancelled" then
    return nil, t._exit.reasons[1].error
  end
  return exit.pass_on(t._result)
end

--- The handle was collected: nobody will ask any more.
function task.abandoned(t)
  t._lost = true
  if t._ended.fired and not t._on_end and failed(t) then
    report(t)
  end
end

-- The program ends: nobody will ask any more for those whose handles it had kept.
task.at_close = compat.at_close(function()
  local left = {}
  for id in pairs(unheard) do
    left[#left + 1] = id
  end
  table.sort(left)
  for _, id in ipairs(left) do
    report(unheard[id])
  end
end)

function task.handle(t)
  return core.handle(Task, t)
end

-- ---- handles ----

local methods = {}

local TIMEOUT = { timeout = "timeout" }

--- What the task's function returned; nil and an error when it failed or was cancelled, or this wait was.
function methods:wait(opts)
  local t = core.state(self, Task)
  opts = check.options("wait", 1, opts, TIMEOUT)
  local timeout, bad = check.timeout(opts, "wait")
  if bad then
    return nil, bad
  end
  local ok, err = task.join(t, timeout, "wait")
  if not ok then
    return nil, err
  end
  return task.results(t)
end

--- From now on its waits answer Cancelled. Returns at once; :wait() tells when it has ended.
function methods:cancel(reason)
  task.cancel(core.state(self, Task), reason)
  return true
end

Task = core.class("Task", methods, {
  abandon = true,
  getters = {
    state = function(t)
      return t._status
    end,
  },
  tostring = function(t)
    return ("task(%d, %s)"):format(t.id, t._status)
  end,
})

-- ---- functions of the public module ----

--- Starts fn(...) as a task that belongs to no scope.
function task.spawn(fn, ...)
  check.arg("spawn", 1, fn, "callable")
  local t = task.new(fn, compat.pack(...))
  local ok, err = task.start(t, true)
  if not ok then
    return nil, err
  end
  return task.handle(t)
end

local function first_values(tasks)
  local results = { n = #tasks }
  for i, t in ipairs(tasks) do
    t._observed = true
    results[i] = t._result[1]
  end
  return results
end

--- Runs the functions beside each other: the array of their (first) results, or the first failure, once
--- the others have been cancelled and have ended.
function task.all(fns)
  check.list("all", 1, fns, "callable")
  local tasks, expected, ended_before, first = {}, #fns, 0, nil
  local ended = wait.signal()
  local function cancel_all(reason)
    for _, t in ipairs(tasks) do
      task.cancel(t, reason)
    end
  end
  local function on_end(t)
    if not t._exit.ok and not first then
      first = t
      cancel_all("another one failed")
    end
    while ended_before < expected and tasks[ended_before + 1]._exit do
      ended_before = ended_before + 1
    end
    if ended_before == expected then
      wait.fire(ended)
    end
  end
  for i, fn in ipairs(fns) do
    tasks[i] = task.new(fn, { n = 0 })
    tasks[i]._on_end = on_end
  end
  local start_error
  for i, t in ipairs(tasks) do
    local ok, err = task.start(t)
    if not ok then
      start_error, expected = err, i - 1
      cancel_all("another one could not be started")
      break
    end
  end
  local interrupted
  if ended_before < expected then
    local ok, err = wait.on(ended, nil, "all")
    if not ok then
      interrupted = err
      cancel_all("the one who waited was cancelled")
      local ctx = host_of.current().context()
      local frame = context.enter(ctx, context.close_timeout)
      wait.on(ended, nil, "all")
      context.leave(ctx, frame)
    end
  end
  if start_error or interrupted then
    return nil, start_error or interrupted
  end
  if first then
    return task.results(first)
  end
  return first_values(tasks)
end

--- Runs fn(...) so that a cancellation of this task does not reach its waits.
function task.shield(fn, ...)
  check.arg("shield", 1, fn, "callable")
  local ctx = host_of.current().context()
  local frame = context.enter(ctx)
  local r = nested.try(fn, ...)
  context.leave(ctx, frame)
  return exit.pass_on(r)
end

return task
