-- Tasks as coroutines, for plain scripts, sandbar.run and game loops: a queue of those that can go on, and
-- what they wait for. It never blocks; whoever drives it (blocking.lua, step) decides when to wait.

local core = require "sandbar.core"
local nested = require "sandbar.nested"

local scheduler = {
  waits = {}, -- operation id -> waiter: strong, nobody else may hold a parked coroutine
  live = {}, -- context -> true of every task that has not ended
  count = 0, -- how many
}

local waits, live = scheduler.waits, scheduler.live
local ready, first, last = {}, 1, 0 -- contexts that can go on
local later = {} -- contexts that yielded by themselves: they go on at the next turn
local resumed -- context whose coroutine was resumed last

local function make_ready(ctx)
  last = last + 1
  ready[last] = ctx
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
  w.posted = true
  if w.parked then
    w.parked = false
    make_ready(w.ctx)
  end
end

local function go_on(ctx)
  local outer = resumed
  resumed = ctx
  local ok, what = coroutine.resume(ctx.co)
  resumed = outer
  if not ok then -- bodies protect themselves: this is a fault of ours
    scheduler.ended(ctx)
    scheduler.report("internal error in a task: " .. tostring(what))
  elseif coroutine.status(ctx.co) == "suspended" and not nested.is_wait(what) then
    later[#later + 1] = ctx
  end
end

function scheduler.ended(ctx)
  nested.leave(ctx.co)
  if live[ctx] then
    live[ctx] = nil
    scheduler.count = scheduler.count - 1
  end
end

--- Starts body() (which must not raise) as a task with this context; at_once: runs to its first wait now.
function scheduler.start(ctx, body, at_once)
  ctx.co = coroutine.create(function()
    body()
    scheduler.ended(ctx)
  end)
  nested.enter(ctx.co, ctx)
  live[ctx] = true
  scheduler.count = scheduler.count + 1
  if at_once then
    go_on(ctx)
  else
    make_ready(ctx)
  end
  return true
end

--- Wakes those whose operations are done.
function scheduler.drain()
  local done = core.mailbox():drain()
  for i = 1, #done do
    local w = waits[done[i]]
    if w then
      waits[done[i]] = nil
      w.host.unpark(w)
    end
  end
  return #done
end

--- The program was interrupted while a task ran: the main part raises it when the task is done.
function scheduler.interrupt(err)
  scheduler.interruption = err
end

--- Raises what interrupt() was told.
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

-- Runs what is ready until `stop`. A task leaves the queue after it ran, not before: when an interrupt
-- raises out of here, it is resumed once too often (parking allows for that), never lost.
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
  first, last = 1, 0
  return true
end

--- Takes in what has happened and runs every task that can go on, until `stop` (core.now clock) if given.
function scheduler.turn(stop)
  scheduler.drain()
  local states = core.abandoned()
  if states then
    scheduler.abandoned(states)
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
  return scheduler.count
end

--- Replaced by what knows how: says something went wrong that nobody waits for; takes in lost scopes.
function scheduler.report(message)
  io.stderr:write("sandbar: ", core.redact(message), "\n")
end

function scheduler.abandoned(states)
  for _, state in ipairs(states) do
    state._abandoned(state)
  end
end

return scheduler
