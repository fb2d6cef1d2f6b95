-- Tasks as coroutines, for plain scripts, sandbar.run and game loops: a queue of those that can go on. It never
-- blocks; whoever drives it (blocking.lua, which loads it when there is something to schedule) decides when to wait.

local blocking = require "sandbar.host.blocking"
local core = require "sandbar.core"
local nested = require "sandbar.nested"

local scheduler = {
  live = {}, -- context -> true of every task that has not ended
  count = 0, -- how many, or one more
}

local waits, live = blocking.waits, scheduler.live
local ready, first, last = {}, 1, 0 -- contexts that can go on
local later = {} -- contexts that yielded by themselves: they go on at the next turn
local resumed -- context whose coroutine was resumed last

-- An interrupt of the program (Ctrl-C) can raise between any two steps of what the main part does here. So
-- that it loses nobody, what is noted down last in make_ready, unpark, drain and run_ready is that something
-- is done: a step left half is taken again, and a task that is resumed once too often parks again.

local function make_ready(ctx)
  ready[last + 1] = ctx
  last = last + 1
end

--- The context of the task we are in. Second result: true in a coroutine of the program's own inside a
--- task, where a wait has no way to the scheduler.
function scheduler.context()
  local ctx, co = nested.context()
  if ctx then
    return ctx, false
  end
  return nil, co ~= nil and resumed ~= nil and coroutine.status(resumed.co) == "normal"
end

function scheduler.park(w)
  if w.posted then
    w.posted = false
    return true
  end
  w.parked = true
  local ok, why = nested.suspend()
  w.parked, w.posted = false, false
  return ok, why
end

function scheduler.unpark(w)
  if w.posted then
    return
  end
  if w.parked then
    make_ready(w.ctx)
    w.parked = false
  end
  w.posted = true
end

local function go_on(ctx)
  local outer = resumed
  resumed = ctx
  local ok, what = coroutine.resume(ctx.co, ctx)
  resumed = outer
  if not ok then -- bodies protect themselves: an interrupt that hit outside of that, or a fault of ours
    scheduler.ended(ctx)
    ctx.job.died(ctx.job, what)
  elseif coroutine.status(ctx.co) == "suspended" and not nested.is_wait(what) then
    later[#later + 1] = ctx
  end
end

--- How many tasks have not ended.
function scheduler.left()
  if scheduler.count > 0 and next(live) == nil then
    scheduler.count = 0 -- an interrupt hit between the two
  end
  return scheduler.count
end

function scheduler.ended(ctx)
  nested.leave(ctx.co)
  if live[ctx] then
    live[ctx] = nil
    scheduler.count = scheduler.count - 1
  end
end

local function run_job(ctx)
  ctx.job.run(ctx.job)
  scheduler.ended(ctx)
end

--- Starts job:run() as a task with this context; at_once: runs to its first wait now. When it raises all the
--- same, job:died(error) is called.
function scheduler.start(ctx, job, at_once)
  ctx.job = job
  ctx.co = coroutine.create(run_job)
  nested.enter(ctx.co, ctx)
  scheduler.count = scheduler.count + 1
  if not at_once then
    make_ready(ctx)
  end
  live[ctx] = true
  if at_once then
    go_on(ctx)
  end
  return true
end

local arrived, handled = {}, 0 -- ids of operations that are done; how many of them have been dealt with

--- Wakes those whose operations are done. Returns how many operations that were.
function scheduler.drain()
  core.mailbox():drain(arrived)
  while arrived[handled + 1] do
    local id = arrived[handled + 1]
    local w = waits[id]
    if w then
      w.host.unpark(w)
      waits[id] = nil
    end
    handled = handled + 1
  end
  local n = handled
  for i = n, 1, -1 do
    handled = i - 1
    arrived[i] = nil
  end
  return n
end

-- While a task ran: the main part raises it when the task comes to a wait.
function nested.interrupted(err)
  scheduler.interruption = err
end

--- Raises the interrupt that hit a task.
function scheduler.check_interruption()
  local err = scheduler.interruption
  if err ~= nil then
    scheduler.interruption = nil
    error(err, 0)
  end
end

--- Nothing can go on without something happening first.
function scheduler.idle()
  return first > last and #later == 0
end

-- Runs what is ready until `stop`. A task leaves the queue after it ran.
local function run_ready(stop)
  while first <= last do
    local ctx = ready[first]
    if live[ctx] then
      go_on(ctx)
    end
    ready[first] = nil
    first = first + 1
    if stop and core.now() >= stop then
      return false
    end
  end
  first = 1
  last = 0
  return true
end

--- Takes in what has happened and runs every task that can go on, until `stop` (core.now clock) if given.
function scheduler.turn(stop)
  scheduler.drain()
  local states = core.abandoned()
  if states then
    blocking.abandoned(states)
  end
  if later[1] then
    for _, ctx in ipairs(later) do
      make_ready(ctx)
    end
    later = {}
  end
  return run_ready(stop)
end

--- One frame's worth of work: goes on as long as completions keep arriving, at most `seconds`. Never
--- blocks. Returns how many tasks have not ended.
function scheduler.step(seconds)
  local stop = seconds and core.now() + seconds
  local in_time = scheduler.turn(stop)
  while in_time and scheduler.drain() > 0 do
    in_time = run_ready(stop)
  end
  scheduler.check_interruption()
  return scheduler.left()
end

return scheduler
