-- How a piece of work ended: { ok = true, n =, value, … } or { ok = false, reasons = { … } }. A reason is
-- { type = "failure" (it returned nil and an error) | "defect" (it raised) | "interrupted", error =,
-- traceback = of a defect, task = the number of the task that nobody waited for }.

local compat = require "sandbar.compat"
local errors = require "sandbar.errors"

local exit = {}

function exit.reason(type, err, traceback)
  return { type = type, error = err, traceback = traceback }
end

--- The exit of an outcome of nested.try.
function exit.of(r)
  if r.ok then
    if r[1] ~= nil or r[2] == nil then
      local e = { ok = true, n = r.n }
      for i = 1, r.n do
        e[i] = r[i]
      end
      return e
    end
    local type = errors.is(r[2], "Cancelled") and "interrupted" or "failure"
    return { ok = false, reasons = { exit.reason(type, r[2]) } }
  end
  local type = errors.is(r.error, "Cancelled") and "interrupted" or "defect"
  return { ok = false, reasons = { exit.reason(type, r.error, r.traceback) } }
end

--- The reasons of a task that nobody waited for: each says of which.
function exit.from_task(t)
  for _, reason in ipairs(t._exit.reasons) do
    reason.task = t.id
  end
  return t._exit.reasons
end

--- Hands an outcome of nested.try on: returns what was returned, raises what was raised.
function exit.pass_on(r)
  if r.ok then
    return compat.unpack(r, 1, r.n)
  end
  error(r.error, 0)
end

--- Is it one of ours (and not an error value)?
function exit.is(v)
  return type(v) == "table" and type(rawget(v, "ok")) == "boolean"
end

--- Is the program's interruption (Ctrl-C) among the reasons?
function exit.interrupted(reasons)
  for _, reason in ipairs(reasons) do
    local err = reason.error
    if compat.is_interrupt(err) or errors.is(err, "Aggregate") and exit.interrupted(err.reasons) then
      return true
    end
  end
  return false
end

--- Adds to `all` the reasons of `more` whose error is not there yet.
function exit.merge(all, more)
  for _, reason in ipairs(more) do
    local new = true
    for _, known in ipairs(all) do
      if known == reason or (reason.error ~= nil and rawequal(known.error, reason.error)) then
        new = false
      end
    end
    if new then
      all[#all + 1] = reason
    end
  end
  return all
end

return exit
