-- The processes of a hosted sandbox that this program has not started, or has let go of: listed, found, connected to.
-- The daemon knows number, tag and command; which run of the sandbox it is and when a process began tells a helper.

local errors = require "sandbar.errors"
local helper = require "sandbar.e2b.helper"
local link = require "sandbar.link"
local process = require "sandbar.e2b.process"
local request = require "sandbar.e2b.request"
local spool = require "sandbar.e2b.spool"

local listed = {}

local PIPE, SPOOL = 1, 5 -- modes of an output
local OUT, ERR = 2, 4 -- the engine's bits of streams
local TICK = 10000000 -- ns
local SAID = 65536 -- bytes of what a helper says

-- The daemon's list as the engine's: { fields }, or nil and an error.
local function list(calls, timeout, op)
  local r, err = calls:call("process.Process/List", {}, timeout, op)
  if not r then
    return nil, err
  end
  local out = {}
  for _, info in ipairs(r.processes or {}) do
    if info.tag ~= helper.TAG then
      local config = info.config or {}
      local known = request.read(config)
      out[#out + 1] = {
        pid = info.pid, tag = info.tag, running = 1, arg = known.args, cwd = config.cwd,
        token = known.token, terminal = known.pty, kept = known.kept,
      }
    end
  end
  return out
end

--- Those that run: { parts }, or nil and an error.
function listed.all(calls, timeout, op)
  local parts, err = list(calls, timeout, op)
  return parts and { parts = parts }, err
end

-- What a helper says; nil: it failed; nil and an error.
local function ask(calls, message, timeout, op)
  local running, err = calls:stream("process.Process/Start", "process.StartRequest", message,
    { user = "root", max = SAID })
  local r
  if running then
    r, err = calls:wait(running, timeout, op)
  end
  if not r then
    return nil, err
  end
  return r.fields.status == 0 and r.bytes or nil
end

local function unhex(text)
  return (text:gsub("%x%x", function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

--- Which run of the sandbox this is, and when the process with this number began (ticks); nil: there is none; nil and
--- an error.
function listed.identify(calls, pid, timeout, op)
  local said, err = ask(calls, helper.identify(pid), timeout, op)
  local run, ticks = (said or ""):match "^(%S+) (%d+)\n$"
  return run, ticks or err
end

local function missing(op)
  return nil, errors.new { kind = "NotFound", op = op, message = "there is no such process" }
end

--- The error of a process that an earlier run of the sandbox had.
function listed.of_earlier_run(op)
  return errors.new { kind = "NotRunning", op = op,
    message = "the process ended with an earlier run of the sandbox, before it was started anew" }
end

--- The number of the process with this token; nil: none has it; nil and an error.
function listed.pid_of(calls, token, timeout, op)
  local all, err = list(calls, timeout, op)
  for _, info in ipairs(all or {}) do
    if info.token == token then
      return info.pid
    end
  end
  return nil, err
end

-- One that has ended, by what was kept of its output, else by its number only: the daemon knows its end for a while.
-- `who`: what is known of it, or nil.
local function ended(calls, pid, who, timeout, op)
  local said, err = ask(calls, spool.find(pid), timeout, op)
  if err then
    return nil, err
  end
  local out = { pid = pid, running = 0, arg = {}, boot = "", start_ns = 0, kept = 0 }
  local run = (said or ""):match "^([^\n]*)\n"
  if who and who.run and who.run ~= "" and run and run ~= who.run then
    return nil, listed.of_earlier_run(op)
  end
  out.run = run or "?"
  for line in (said or ""):gmatch "[^\n]+" do -- of several with this number the last one is the latest
    local token, boot, ticks, bits, fingerprint, cwd = line:match "^([%x-]+) (%S+) (%d+) ([123])%.(%x+)%.(%x*)$"
    if token and tonumber(ticks) * TICK >= out.start_ns and (not who or not who.token or who.token == token) then
      out.token, out.boot, out.run, out.start_ns = token, boot, boot, tonumber(ticks) * TICK
      out.fingerprint, out.cwd, out.kept = unhex(fingerprint), cwd ~= "" and unhex(cwd) or nil, tonumber(bits)
    end
  end
  return out
end

-- Which of the list is meant, and whether somebody else has its number.
local function pick(all, who, f)
  local found, taken
  for _, info in ipairs(all) do
    local same
    if who and who.token then
      same = info.token == who.token
    elseif who or f.pid then
      same = info.pid == (who or f).pid and not (who and info.token)
    else
      same = info.tag == f.tag
    end
    if same then
      found = info
    elseif info.pid == (who or f).pid then
      taken = true
    end
  end
  return found, taken
end

--- Is it there: true, or false when it has ended and its number is nobody's; nil and an error, NotRunning where the
--- sandbox has been started anew since. `who`: see link.lua.
function listed.is_there(calls, who, timeout, op)
  local deadline = link.deadline(timeout)
  local all, err = list(calls, timeout, op)
  if not all then
    return nil, err
  end
  local found, taken = pick(all, who)
  if found and who.token then
    return true
  end
  local run, ticks = listed.identify(calls, found and who.pid or 1, link.left(deadline), op)
  if not run and type(ticks) == "table" then
    return nil, ticks
  elseif run and who.run ~= "" and run ~= who.run then
    return nil, listed.of_earlier_run(op)
  elseif taken or found and ticks ~= who.ticks then
    return missing(op)
  end
  return found ~= nil
end

-- The record of the process that is meant, by serial, pid or tag: fields of the engine's, or nil and an error.
local function find(to, calls, f, timeout, op)
  local deadline = link.deadline(timeout)
  local all, err = list(calls, timeout, op)
  if not all then
    return nil, err
  end
  local who = f.serial and to.known[f.serial]
  if f.serial and not who then
    return missing(op)
  end
  local found, taken = pick(all, who, f)
  if found then
    local run, ticks = listed.identify(calls, found.pid, link.left(deadline), op)
    if run and (not who or who.token or who.run == run and who.ticks == ticks) then
      found.boot, found.start_ns = run, tonumber(ticks) * TICK
      found.who = to:know { pid = found.pid, token = found.token, run = run, ticks = ticks }
    elseif run then
      return missing(op)
    elseif ticks then
      return nil, ticks
    else
      found = nil
    end
  end
  if not found and (taken or not who and not f.pid) then
    return missing(op)
  elseif not found then
    found, err = ended(calls, (who or f).pid, who, link.left(deadline), op)
    if not found then
      return nil, err
    end
    found.who = who or to:know { pid = found.pid, token = found.token, run = found.run, ticks = "-" }
  end
  found.serial = found.who.serial
  return found
end

--- The engine's attach: { fields, object }. `f`: serial, pid or tag; lease: its output comes to this program from now
--- on. What is known already is in `to`.
function listed.attach(to, calls, f, timeout, op)
  local deadline = link.deadline(timeout)
  local fields, err = to.found
  if not (f.lease and fields and fields.serial == f.serial) then
    fields, err = find(to, calls, f, timeout, op)
    if not fields then
      return nil, err
    end
  end
  to.found = not f.lease and to.readers[fields.serial] == nil and fields or nil -- for the lease that follows
  local bits = fields.kept
  fields.out_mode = bits % 2 == 1 and SPOOL or PIPE
  fields.err_mode = bits > 1 and SPOOL or PIPE
  fields.who.kept = bits > 0 and fields.token or nil
  if not f.lease then
    return { fields = fields, object = process.watched(to, fields) }
  end
  local running
  running, err = calls:stream("process.Process/Connect", "process.ConnectRequest",
    { process = { pid = fields.pid } }, { tails = bits })
  local r
  if running then
    r, err = calls:wait(running, link.left(deadline), op)
  end
  if not r and err.kind == "NotFound" and bits > 0 then -- what it wrote outlives it
    return { fields = fields, object = process.watched(to, fields) }
  elseif not r then
    return nil, err
  end
  fields.lease = 1
  return { fields = fields, object = process.new(to, r.object, fields) }
end

--- What is kept in this program of the outputs of a process that it has started ("tail").
function listed.tails(native)
  return { fields = {}, parts = {
    { stream = OUT, data = native:tail(1) }, { stream = ERR, data = native:tail(2) },
  } }
end

--- A pipe of kept output. `f`: serial, stream (a bit), from.
function listed.spool(to, calls, f, timeout)
  local token = (to.known[f.serial] or {}).kept
  if not token then
    return nil, errors.new { kind = "NotFound", op = "read", message = "nothing is kept of this process" }
  end
  local pipe, err = spool.pipe(calls, token, f.stream == ERR and 2 or 1, f.from, timeout)
  return pipe and { object = pipe }, err
end

return listed
