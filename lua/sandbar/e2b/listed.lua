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
        pid = info.pid, serial = info.pid, tag = info.tag, running = 1, arg = known.args, cwd = config.cwd,
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

-- One that has ended, by what was kept of its output, else by its number only: the daemon knows its end for a while.
local function ended(calls, pid, timeout, op)
  local said, err = ask(calls, spool.find(pid), timeout, op)
  if err then
    return nil, err
  end
  local out = { pid = pid, serial = pid, running = 0, arg = {}, boot = "", start_ns = 0, kept = 0 }
  for line in (said or ""):gmatch "[^\n]+" do -- of several with this number the last one is the latest
    local token, boot, ticks, bits, fingerprint, cwd = line:match "^([%x-]+) (%S+) (%d+) ([123])%.(%x+)%.(%x*)$"
    if token and tonumber(ticks) * TICK >= out.start_ns then
      out.token, out.boot, out.start_ns = token, boot, tonumber(ticks) * TICK
      out.fingerprint, out.cwd, out.kept = unhex(fingerprint), cwd ~= "" and unhex(cwd) or nil, tonumber(bits)
    end
  end
  return out
end

-- The record of the process that is meant, by pid or tag: fields of the engine's, or nil and an error.
local function find(calls, f, timeout, op)
  local deadline = link.deadline(timeout)
  local all, err = list(calls, timeout, op)
  if not all then
    return nil, err
  end
  local pid, found = f.serial or f.pid, nil
  for _, info in ipairs(all) do
    if pid and info.pid == pid or not pid and info.tag == f.tag then
      found = info
    end
  end
  if found then
    local said
    said, err = ask(calls, helper.identify(found.pid), link.left(deadline), op)
    local boot, ticks = (said or ""):match "^(%S+) (%d+)\n$"
    if boot then
      found.boot, found.start_ns = boot, tonumber(ticks) * TICK
      return found
    elseif err then
      return nil, err
    end
  end
  if pid then
    return ended(calls, pid, link.left(deadline), op)
  end
  return nil, errors.new { kind = "NotFound", op = op, message = "there is no such process" }
end

--- The engine's attach: { fields, object }. `f`: serial, pid or tag; lease: its output comes to this program from now
--- on. What is known already is in `to`.
function listed.attach(to, calls, f, timeout, op)
  local deadline = link.deadline(timeout)
  local fields, err = to.found
  if not (f.lease and fields and fields.serial == f.serial) then
    fields, err = find(calls, f, timeout, op)
    if not fields then
      return nil, err
    end
  end
  to.found = fields
  local bits = fields.kept
  fields.out_mode = bits % 2 == 1 and SPOOL or PIPE
  fields.err_mode = bits > 1 and SPOOL or PIPE
  to.tokens[fields.serial] = bits > 0 and fields.token or nil
  if not f.lease then
    return { fields = fields, object = process.watched(to, fields) }
  end
  local running
  running, err = calls:stream("process.Process/Connect", "process.ConnectRequest",
    { process = { pid = fields.serial } }, { tails = bits })
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
  local token = to.tokens[f.serial]
  if not token then
    return nil, errors.new { kind = "NotFound", op = "read", message = "nothing is kept of this process" }
  end
  local pipe, err = spool.pipe(calls, token, f.stream == ERR and 2 or 1, f.from, timeout)
  return pipe and { object = pipe }, err
end

return listed
