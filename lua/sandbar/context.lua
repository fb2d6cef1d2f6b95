-- What is known about the one who waits (a task, the main program, a request): whether it has been
-- cancelled, and what shields it. A frame is a stretch of work that cancellation does not reach: the
-- finalizers of a closing scope, or a shield. Frames end at a deadline, so nothing is shielded for ever.
--
--   context: cancelled (error), cancelled_at, frame (innermost), waiter (parked on), source (what it waits
--            for), origin (frames of whoever started it, to tell "inside a finalizer of" across tasks)
--   frame:   outer, since, deadline, scope (whose finalizers run in it)

local core = require "sandbar.core"

local context = { close_timeout = 30 }

--- `frame`: work in it from the start. `origin`: the starter's frames.
function context.new(frame, origin)
  return { frame = frame, origin = origin }
end

--- Cancellation is sticky and comes at waits: the first error stays, a parked wait is woken to see it.
function context.cancel(ctx, err)
  if not ctx.cancelled then
    ctx.cancelled = err
    ctx.cancelled_at = core.now()
  end
  local waiter = ctx.waiter
  if waiter then
    waiter.host.unpark(waiter)
  end
end

--- The error that waits have to answer with now, or nil.
function context.interrupted(ctx)
  return not ctx.frame and ctx.cancelled or nil
end

local function earlier(a, b)
  return a and b and math.min(a, b) or a or b
end

--- Enters a frame; pair with leave(ctx, the returned frame). `seconds`: its own limit, `scope`: see above.
function context.enter(ctx, seconds, scope)
  local outer = ctx.frame
  local now = core.now()
  local frame = {
    outer = outer, since = outer and outer.since or now, scope = scope,
    deadline = earlier(outer and outer.deadline, seconds and now + seconds),
  }
  ctx.frame = frame
  return frame
end

function context.leave(ctx, frame)
  ctx.frame = frame.outer
end

--- When waits in the innermost frame must end (core.now clock), or nil. A shield that was not cancelled
--- has no end; one that was gets close_timeout.
function context.limit(ctx)
  local frame = ctx.frame
  if not frame then
    return nil
  end
  local limit = frame.deadline
  if ctx.cancelled then
    limit = earlier(limit, math.max(ctx.cancelled_at, frame.since) + context.close_timeout)
  end
  return limit
end

local function chain_has(frame, test)
  while frame do
    if frame.scope and test(frame.scope) then
      return true
    end
    frame = frame.outer
  end
  return false
end

--- Does the work of `ctx`, or whoever started it, belong to a finalizer of a scope for which test(scope)?
function context.in_finalizer(ctx, test)
  return chain_has(ctx.frame, test) or chain_has(ctx.origin, test)
end

--- The frames a task started now has as its origin.
function context.origin(ctx)
  return ctx.frame or ctx.origin
end

return context
