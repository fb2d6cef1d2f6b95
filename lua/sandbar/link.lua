-- The way from a handle to its sandbox: the connection to pid 1, got again when it has been lost, and
-- what its failures mean. A link belongs to one Sandbox handle; processes, files and ports share it.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local wait = require "sandbar.wait"

local link = {}

local Link = {}
Link.__index = Link

-- A moment, from a timeout; and what is left of it then. No timeout, no moment: false.
function link.deadline(timeout)
  return timeout and core.now() + timeout
end

function link.left(deadline)
  return deadline and math.max(deadline - core.now(), 0)
end

-- The error (or nil) of a wait that had only the rest of `timeout`: it names the whole, which is what the caller gave.
function link.told(err, timeout)
  if timeout and err and err.kind == "Timeout" and err.clock == "timeout" and err.limit ~= timeout then
    return wait.timed_out(err.op, "timeout", timeout)
  end
  return err
end

-- `fields`: id, driver (the provider's private side), box (a NativeBox or nil), limits, scope, owned.
function link.new(fields)
  -- Which process handle reads which process, so that a second one of the same connection is Busy too.
  fields.readers = setmetatable({}, { __mode = "v" })
  return setmetatable(fields, Link)
end

function Link:fail(kind, message)
  return nil, errors.new { kind = kind, id = self.id, message = message }
end

-- What a sandbox that has no running pid 1 is.
function Link:not_running(state)
  if state == "gone" then
    return self:fail("NotFound", ("sandbox %s is gone"):format(self.id))
  end
  return self:fail("NotRunning", ("sandbox %s is %s; resume() wakes it"):format(self.id, state))
end

-- Was the handle closed? Or collected: in the finalizers that run after that it is closed as well.
function Link:is_closed()
  return self.closed or self.handle ~= nil and core.collected(self.handle)
end

-- The supervisor said this of the sandbox. NotFound without an errno means that there is none (any more).
function Link:heard(err)
  if err and err.kind == "NotFound" and not err.errno and self.lost then
    self.lost()
  end
  return err
end

-- Which run of the sandbox the connection is to.
function Link:boot()
  return self.box:boot()
end

-- Takes over what connect or resume has answered: the record, and the connection where there is none yet. One that
-- a pause has kept goes on with the epoch in the record.
function Link:take(r)
  if self.seen then
    self.seen(r.fields)
  end
  if self.closed then -- meanwhile, by another coroutine
    if r.object then
      r.object:close()
    end
    return
  end
  local box = self.box
  if not (box and box:open_()) then
    self.box = r.object or box
  elseif r.object then
    box:thaw(r.fields.epoch)
    r.object:close()
  end
end

-- The connection to pid 1, or nil and NotRunning, NotFound, Closed.
function Link:native(timeout, opname)
  if self:is_closed() then
    return self:fail("Closed", ("the handle of sandbox %s is closed"):format(self.id))
  end
  local box = self.box
  if box and box:open_() and not box:frozen() then
    return box
  end
  if self.gone then
    return self:not_running("gone")
  end
  local deadline = link.deadline(timeout)
  local r, err = self.driver:connect(self.id, {}, timeout, opname)
  if r and not r.object and r.fields.auto_resume == 1 and (r.fields.state or {})[1] == "paused" then
    r, err = self.driver:resume(self.id, nil, link.left(deadline))
  end
  if not r then
    return nil, self:heard(err)
  end
  self:take(r)
  if not r.object then
    return self:not_running((r.fields.state or {})[1] or "paused")
  end
  if self.closed then
    return self:fail("Closed", ("the handle of sandbox %s is closed"):format(self.id))
  end
  return self.box
end

-- A pause came before the request was looked at: it was not carried out and never will be. When the sandbox runs
-- again, or may be resumed for it, it is sent once more: on the connection that is returned.
function Link:again(err, deadline, opname)
  return err.kind == "NotRunning" and err.step == "epoch" and not self:is_closed()
    and self:native(link.left(deadline), opname) or nil
end

-- What a call that failed with `err` answers: when the sandbox has gone for good, that.
function Link:judge(err)
  if (err.kind ~= "NotRunning" and err.kind ~= "OutcomeUnknown") or self:is_closed() then
    return err
  end
  local r, why = self.driver:info(self.id, 5)
  if r and self.seen then
    self.seen(r.fields)
  end
  self:heard(why)
  if not r and why.kind == "NotFound" or r and (r.fields.state or {})[1] == "gone" then
    self.gone = true
    local _
    _, why = self:not_running("gone")
    why.op, why.cause = err.op, err
    return why
  end
  return err
end

-- What became of a command whose operation failed; `partial`: what there was of it. The result, or nil and an error.
function Link:ended(err)
  return nil, self:judge(err)
end

-- `held`, if there is one, knows what is to be ended when a request ends.
local function ended(op, held)
  if held then
    held.op = op
  end
  return wait.op(op, nil, "exec")
end

-- A command from its start to its end, its output kept up to `max` bytes a stream: r, or nil, an error and, when the
-- time was over, what there was by then.
function Link:exec(fields, stdin, timeout, max, grace, held)
  local deadline = link.deadline(timeout)
  local box, err = self:native(timeout, "exec")
  if not box then
    return nil, errors.from(err, "exec")
  end
  local r, partial
  r, err, partial = ended(box:exec(fields, stdin, timeout or nil, max, grace), held)
  box = not r and self:again(err, deadline, "exec")
  if box then
    r, err, partial = ended(box:exec(fields, stdin, timeout or nil, max, grace), held)
  end
  if r then
    return r
  elseif err.kind == "ExecTimedOut" or err.kind == "Timeout" then
    return nil, err, partial or {}
  end
  return nil, errors.from(self:judge(err), "exec")
end

-- One operation on the connection: its result, or nil and an error.
function Link:call(method, opname, timeout, ...)
  local deadline = link.deadline(timeout)
  local box, err = self:native(timeout, opname)
  if not box then
    return nil, errors.from(err, opname)
  end
  local r
  r, err = wait.op(box[method](box, ...), link.left(deadline), opname)
  box = not r and self:again(err, deadline, opname)
  if box then
    r, err = wait.op(box[method](box, ...), link.left(deadline), opname)
  end
  if r then
    return r
  end
  return nil, errors.from(self:judge(link.told(err, timeout)), opname)
end

function Link:close()
  self.closed = true
  for _, entry in pairs(self.ports or {}) do
    entry.object:close()
  end
  self.ports = nil
  for native in pairs(self.watches or {}) do
    native:close()
  end
  self.watches = nil
  if self.box then
    self.box:close()
    self.box = nil
  end
end

return link
