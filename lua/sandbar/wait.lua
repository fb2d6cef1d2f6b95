-- The one way to wait: for an operation, for any of several, for a signal another task fires, for time.
-- Suspends the task by the host's means; looks at cancellation and at the deadlines of shields and
-- finalizers before and during every wait.

local context = require "sandbar.context"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local host_of = require "sandbar.host.select"

local wait = {}

--- The error of a wait of the call `op` that took longer than the option `clock` = `limit` seconds allows.
function wait.timed_out(op, clock, limit)
  return errors.new {
    kind = "Timeout", op = op, clock = clock, limit = limit,
    message = ("not done within %s = %g s"):format(clock, limit),
  }
end

--- The error of a call that may not wait and has nothing yet.
function wait.not_now(op)
  return context.interrupted(host_of.current().context()) or wait.timed_out(op, "timeout", 0)
end

local function taken(op)
  return errors.new { kind = "Busy", op = op, message = "another task waits for this operation already" }
end

local function cannot(op, why)
  return errors.new { kind = "CannotWait", op = op, message = why }
end

--- True, or nil and a CannotWait error: to be asked before something is submitted that would be lost.
function wait.check(op)
  local ok, why = host_of.current().can_wait()
  if not ok then
    return nil, cannot(op, why)
  end
  return true
end

--- May the caller do something short by itself instead of waiting for it? Only where a wait blocks the whole
--- program, and would neither be refused nor end early.
function wait.may_block(timeout)
  local host = host_of.current()
  if timeout == 0 or not host.blocks or not host.blocks() then
    return false
  end
  local ctx = host.context()
  local limit = context.limit(ctx)
  return not context.interrupted(ctx) and not (limit and core.now() >= limit) and host.can_wait() == true
end

-- A timer operation that wakes `w` at `at`.
local function alarm(host, w, at)
  local timer = core.timer(math.max(at - core.now(), 0))
  host.waits[timer:id()] = w
  return timer
end

local function disarm(host, timer)
  if timer then
    host.waits[timer:id()] = nil
    if not timer:done() then
      timer:cancel()
    end
  end
end

-- Parks until source:done(). When the wait must end early (cancelled, a deadline passed) source:stop()
-- asks for that: true means the source will still come to an end of its own and is waited for.
-- Returns true when done; nil and an error after an early end (the source may be done all the same); nil,
-- an error and true when the wait was refused before it began. `timeout_at`: when a wait for that long began
-- earlier.
local function suspend(source, timeout, op, timeout_at)
  local host = host_of.current()
  local ctx = host.context()
  local early = context.interrupted(ctx)
  if early then
    source:stop()
    return nil, early, true
  end
  local must_park = source.must_park -- others get their turn, even if it is done already
  if source:done() and not must_park then
    return true
  end
  if timeout == 0 then
    source:stop()
    return nil, wait.timed_out(op, "timeout", 0), true
  end
  local ok, why, raised = host.can_wait()
  if not ok then
    source:stop()
    return nil, cannot(op, why), true
  end

  if source:taken(host.waits) then -- who came first keeps its place
    return nil, taken(op), true
  end

  local w = host.waiter(ctx)
  local outer, outer_source = ctx.waiter, ctx.source
  timeout_at = timeout_at or timeout and core.now() + timeout
  local timer, timer_at
  source:arm(host.waits, w)
  ctx.waiter, ctx.source = w, source
  while true do
    if not early then
      local limit, now = context.limit(ctx), core.now()
      early = context.interrupted(ctx)
      if not early and limit and now >= limit then
        early = wait.timed_out(op, "close_timeout", context.close_timeout)
      elseif not early and timeout_at and now >= timeout_at then
        early = wait.timed_out(op, "timeout", timeout)
      end
      if early and not source:stop() then
        break
      end
      local at = not early and (limit and timeout_at and math.min(limit, timeout_at) or limit or timeout_at)
      if at and (at ~= timer_at or timer:done()) then
        disarm(host, timer)
        timer, timer_at = alarm(host, w, at), at
      end
    end
    if source:done() and not must_park then
      break
    end
    must_park = false
    ok, why, raised = host.park(w)
    if not ok then
      source:stop()
      break
    end
    if source:done() then
      break
    end
  end
  ctx.waiter, ctx.source = outer, outer_source
  disarm(host, timer)
  source:disarm(host.waits, w)
  host.release(w)
  if raised then
    error(raised[1], 0)
  end
  if not ok then
    return nil, cannot(op, why)
  end
  if early then
    return nil, early
  end
  return true
end

-- ---- operations ----

local Operation = {}
Operation.__index = Operation

function Operation:done()
  return self.op:done()
end

function Operation:stop()
  self.op:cancel()
  return true
end

function Operation:taken(waits)
  return waits[self.op:id()] ~= nil
end

function Operation:arm(waits, w)
  waits[self.op:id()] = w
end

function Operation:disarm(waits)
  waits[self.op:id()] = nil
end

local function of_op(op)
  return setmetatable({ op = op }, Operation)
end

--- The host, when there is nothing but a main program that may wait; else nil.
function wait.alone()
  local host = host_of.current()
  return host.alone and host.alone() and host or nil
end

-- suspend() for an operation. A main program without tasks has nothing to schedule and waits in C.
local function suspend_for(op, timeout, opname, must_park, alone)
  local host = alone or host_of.current()
  if timeout == 0 or not alone and not (host.alone and host.alone()) then
    local source = of_op(op)
    source.must_park = must_park
    return suspend(source, timeout, opname)
  end
  local deadline, early = timeout and core.now() + timeout or nil, nil
  local ok, done = pcall(host.await, op, deadline)
  if ok and done == false then
    early = wait.timed_out(opname, "timeout", timeout)
    op:cancel()
    ok, done = pcall(host.await, op)
  end
  if not ok then -- interrupted
    op:cancel()
    error(done, 0)
  end
  if early then
    if not done then
      suspend(of_op(op), nil, opname)
    end
    return nil, early
  end
  if not done then -- there are tasks now
    return suspend(of_op(op), timeout, opname, deadline)
  end
  return true
end

--- Runs fn() while an operation that will be waited for is under way: a main program without tasks would only
--- sleep then. Elsewhere fn is not called, the time is the others'.
function wait.meanwhile(op, fn)
  local host = host_of.current()
  if not host.alone or not host.alone() then
    return
  end
  local ok, raised = pcall(op.await, op, 0) -- its request goes out
  if ok then
    ok, raised = pcall(fn)
  end
  if not ok then -- interrupted
    op:cancel()
    error(raised, 0)
  end
end

--- Waits until an operation has ended: true, and the error of a wait that ended early; or nil and an error.
--- A wait that ends early cancels the operation and waits for its end, which comes soon. With `must_park` the others
--- get a turn even if it has ended by now. `alone`: what wait.alone() has just answered.
function wait.finish(op, timeout, opname, must_park, alone)
  local limit = timeout
  if timeout then
    local bad
    limit, bad = duration.timeout(timeout)
    if bad then
      op:cancel()
      return nil, bad
    end
  end
  local done, early, refused = suspend_for(op, limit, opname, must_park, alone)
  if done or not refused and op:done() then
    return true, early
  end
  return nil, early
end

-- Why the operation failed with `e`: because the wait for it ended `early`, or by itself.
local function reason(early, e, opname)
  if early and (e.kind == "Cancelled" or e.kind == "Timeout") then
    return early
  end
  return errors.from(e, opname)
end

--- What an operation that finish() has waited for came to: r, or nil, an error and (where it got somewhere) a
--- partial r. What it achieved before a wait ended early counts, so that nothing acquired is lost.
function wait.outcome(op, early, opname)
  local ok, r, partial = op:result()
  if ok then
    return r
  end
  return nil, reason(early, r, opname), partial
end

--- Both.
function wait.op(op, timeout, opname)
  local done, early = wait.finish(op, timeout, opname)
  if not done then
    return nil, early
  end
  return wait.outcome(op, early, opname)
end

--- The bytes of a read: data, nil at the end, or nil and an error. Nothing else refers to them afterwards: an
--- operation lives for one more cycle of the collector, what hangs on it too.
function wait.bytes(op, timeout, opname, must_park)
  local done, early = wait.finish(op, timeout, opname, must_park)
  if not done then
    return nil, early
  end
  local data, e = op:bytes()
  if e then
    return nil, reason(early, e, opname)
  end
  return data
end

--- Until one of the operations is done. None is cancelled, whatever happens: true, or nil and an error.
function wait.any(ops, timeout, opname)
  local limit, bad = duration.timeout(timeout)
  if bad then
    return nil, bad
  end
  return suspend({
    done = function()
      for _, op in ipairs(ops) do
        if op:done() then
          return true
        end
      end
      return false
    end,
    stop = function()
      return false
    end,
    taken = function(_, waits)
      for _, op in ipairs(ops) do
        if waits[op:id()] then
          return true
        end
      end
      return false
    end,
    arm = function(_, waits, w)
      for _, op in ipairs(ops) do
        waits[op:id()] = w
      end
    end,
    disarm = function(_, waits)
      for _, op in ipairs(ops) do
        waits[op:id()] = nil
      end
    end,
  }, limit, opname)
end

--- Waits that long; with 0 the others get a turn. True, or nil and an error.
function wait.sleep(seconds)
  return suspend_for(core.timer(seconds), false, "sleep", true)
end

-- ---- signals: something that happens once in Lua ----

function wait.signal()
  return { fired = false, waiters = {} }
end

--- Wakes all who wait for it; later waits return at once. May be done again, if an interrupt left it half done.
function wait.fire(signal)
  signal.fired = true
  for w in pairs(signal.waiters) do
    w.host.unpark(w)
  end
  signal.waiters = {}
end

--- Until the signal has fired. True, or nil and an error.
function wait.on(signal, timeout, opname)
  return suspend({
    done = function()
      return signal.fired
    end,
    stop = function()
      return false
    end,
    taken = function()
      return false
    end,
    arm = function(_, _, w)
      signal.waiters[w] = true
    end,
    disarm = function(_, _, w)
      signal.waiters[w] = nil
    end,
  }, timeout, opname)
end

return wait
