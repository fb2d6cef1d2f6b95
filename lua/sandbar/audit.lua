-- The audit trail: every acquisition, release, refusal and use of a secret as one flat table of redacted
-- texts and numbers, given to a function of the program's, or written by the runtime to a descriptor.

local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local host_of = require "sandbar.host.select"
local lazy = require "sandbar.lazy"

local nested = lazy "sandbar.nested"

local audit = {}

local sink -- function(event), or nil

local function clean(value)
  if type(value) == "string" then
    return core.redact(value)
  end
  if type(value) == "number" or type(value) == "boolean" then
    return value
  end
  return core.redact(tostring(value))
end

--- Reports an event ("acquire", "release", "refuse", "secret"): fields are texts, numbers, booleans.
function audit.emit(event, fields)
  if not sink then
    return
  end
  local record = { event = event, time = core.wall() }
  for key, value in pairs(fields) do
    record[key] = clean(value)
  end
  local r, err = nested.try(sink, record)
  if not r or not r.ok then
    host_of.current().report("the audit function failed: " .. tostring(r and r.error or err))
  end
end

--- Is anybody listening? Saves the making of fields.
function audit.on()
  return sink ~= nil
end

--- Tells of the refusal of a sandbox, and returns it as the call `op` does: nil and the error.
function audit.refuse(err, op, id)
  err = errors.from(err, op)
  if audit.on() then
    audit.emit("refuse", { what = "sandbox", op = op, id = id, kind = err.kind, clause = err.clause,
      message = err.message })
  end
  return nil, err
end

--- Sees to it that a function hears of it when the handle of `state`, which carries a release, is collected:
--- then the runtime has begun with the release. A descriptor hears of such ends from the runtime itself.
function audit.collectable(state, what, id)
  if sink and sink ~= core.audit_write then
    state._abandoned = function()
      audit.emit("release", { what = what, op = "collected", id = id })
    end
  end
end

--- sandbar.audit{ fn = function(event) | fd = number }: from now on; fn = false ends it. True, or nil and
--- an error.
function audit.configure(opts)
  opts = check.options("audit", 1, opts, { fn = "callable|false", fd = "integer|false" })
  if opts.fn and opts.fd then
    return nil, errors.new { kind = "InvalidArgument", op = "audit", message = "fn and fd exclude each other" }
  end
  if opts.fd and (opts.fd < 0 or opts.fd >= 2 ^ 31) then
    return nil, errors.new {
      kind = "InvalidArgument", op = "audit", message = ("fd: %s is no descriptor"):format(opts.fd),
    }
  end
  local ok, e = core.audit(opts.fd or false)
  if not ok then
    return nil, errors.from(e, "audit")
  end
  sink = opts.fd and core.audit_write or opts.fn or nil
  return true
end

return audit
