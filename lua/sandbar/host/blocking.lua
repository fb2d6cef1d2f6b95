-- The host of plain scripts and of game loops. The main program waits by blocking in poll(2), which also
-- runs the spawned tasks; a program that calls sandbar.step never blocks, its main part cannot wait.

local compat = require "sandbar.compat"
local context = require "sandbar.context"
local core = require "sandbar.core"

local blocking = {
  name = "blocking", stepping = false,
  waits = {}, -- operation id -> waiter: strong, nobody else may hold a parked coroutine
}

local LONGEST = 1 -- seconds of one poll

local main = context.new()
local waits = blocking.waits
local scheduler -- loaded for the first task, or the first wait that is more than one operation's

local FOREIGN = "this coroutine was started inside a task by something that does not pass waits on; "
  .. "run it with sandbar.wrap or sandbar.resume"
local STEPPING = "sandbar.step drives this program and must not block; wait inside sandbar.spawn(fn), "
  .. "or give timeout = 0 to a call that can do without waiting"
local UNYIELDABLE = "a wait cannot leave the function it is inside of (a callback of a C function, or a "
  .. "coroutine that is being closed); do the waiting outside of it"
local NEVER = "nothing is left that could end this wait: no operation is under way, no task can go on"

-- True, or nil and why there is no scheduler just now.
local function schedules()
  if not scheduler then
    local module, why = compat.load("sandbar.host.scheduler")
    if not module then
      return nil, "tasks cannot be run: " .. why
    end
    scheduler = module
  end
  return true
end

function blocking.context()
  return scheduler and (scheduler.context()) or main
end

--- True, or nil and the way out.
function blocking.can_wait()
  local ctx, foreign
  if scheduler and scheduler.count > 0 then -- else nobody is inside of a task
    ctx, foreign = scheduler.context()
  end
  if ctx then
    if core.isyieldable() == false then
      return nil, UNYIELDABLE
    end
    return true
  end
  if foreign then
    return nil, FOREIGN
  end
  if blocking.stepping then
    return nil, STEPPING
  end
  return true
end

--- Does a wait hold up the whole program, so that it may as well do work itself?
function blocking.blocks()
  return not blocking.stepping
end

function blocking.waiter(ctx)
  return { host = blocking, ctx = ctx, posted = false }
end

function blocking.unpark(w)
  if scheduler then
    scheduler.unpark(w)
  else
    w.posted = true -- the main program's
  end
end

-- Turns until done(). True, or nil and why that will never be. `ending`: an interrupt that hit a task is known.
local function drive(done, ending)
  local ready, cannot = schedules()
  if not ready then
    return nil, cannot
  end
  local mailbox = core.mailbox()
  while not done() do
    scheduler.turn()
    if not ending then
      scheduler.check_interruption()
    end
    if not done() and scheduler.idle() then
      if mailbox:pending() > 0 then
        -- Interrupted: back in Lua the interpreter's hook raises. A signal that came just before the call began
        -- to wait does not interrupt it; so it waits in pieces, here and in await().
        mailbox:poll(core.now() + LONGEST)
      elseif scheduler.drain() == 0 and scheduler.idle() then -- asked in this order: none slips through
        return nil, NEVER
      end
    end
  end
  return true
end

--- Is there nothing but the main program? What it waits for needs no scheduling then.
function blocking.alone()
  local states = core.abandoned()
  if states then
    blocking.abandoned(states) -- may start tasks
  end
  return (not scheduler or scheduler.count == 0 and scheduler.interruption == nil) and next(waits) == nil
    and not main.frame and not main.cancelled and not blocking.stepping
end

--- Waits for one operation as long as the main program is alone: true when it is done, false at the deadline,
--- nil when it is alone no more. Raises an interruption.
function blocking.await(op, deadline)
  local done
  repeat
    done = op:await(LONGEST, deadline)
  until done ~= nil or not blocking.alone()
  return done
end

--- Until unpark(w), or a spurious return. nil and a message: it cannot be. nil, nil and { error }: the
--- main program was interrupted, the error is to be raised.
function blocking.park(w)
  if w.ctx ~= main then
    return scheduler.park(w)
  end
  local ok, parked, why = pcall(drive, function()
    return w.posted
  end)
  w.posted = false
  if not ok then
    return nil, nil, { parked }
  end
  return parked, why
end

function blocking.release() end

function blocking.start(ctx, job, _, at_once)
  local ok, why = schedules()
  if not ok then
    return nil, why
  end
  return scheduler.start(ctx, job, at_once)
end

--- Says that something went wrong that nobody waits for.
function blocking.report(message)
  io.stderr:write("sandbar: ", core.redact(message), "\n")
end

--- Takes in what the collector found abandoned.
function blocking.abandoned(states)
  for _, state in ipairs(states) do
    state._abandoned(state)
  end
end

--- Inside a task, or in a coroutine a task runs?
function blocking.in_task()
  if not scheduler then
    return false
  end
  local ctx, foreign = scheduler.context()
  return ctx ~= nil or foreign
end

--- One frame of a game loop.
function blocking.step(seconds)
  local ok, why = schedules()
  if not ok then
    return nil, why
  end
  blocking.stepping = true
  return scheduler.step(seconds)
end

--- Drives until no task is left. When the program is interrupted the tasks are cancelled and get their time
--- to clean up, then the interruption is raised on; a second one does not wait.
function blocking.drive_all(cancelled)
  local function finished()
    return scheduler.left() == 0
  end
  local ok, done, why = pcall(drive, finished)
  if ok then
    return done, why
  end
  for ctx in pairs(scheduler.live) do
    context.cancel(ctx, cancelled)
  end
  drive(finished, true)
  scheduler.interruption = nil -- the same one, passed on by a scope
  error(done, 0)
end

return blocking
