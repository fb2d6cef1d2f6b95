-- Attaching to a process by pid, tag or reference: nothing is touched before it is sure to be the one
-- that is meant.

local check = require "sandbar.check"
local errors = require "sandbar.errors"
local link = require "sandbar.link"
local process = require "sandbar.process"
local record = require "sandbar.record"
local reference = require "sandbar.reference"
local stream = require "sandbar.stream"

local SPOOL = 5 -- as the engine's mode of an output
local BEYOND = 140737488355328 -- 2^47: no offset is that large

local TARGET = { tag = "!string" }
check.advise(TARGET, { pid = "a number is given as it is: attach(pid)" })
local OPTIONS = { expect = "table", from = "integer|table", timeout = "timeout" }
local FROM = { stdout = "integer", stderr = "integer" }
local EXPECT = { sandbox = "string", labels = "table", cwd = "string" }

local attach = {}

local function fail(kind, message, id)
  return nil, errors.new { kind = kind, op = "attach", id = id, message = message }
end

-- Where the reading of both outputs begins, by `from`: a table, or nil and an error.
local function begin_of(from)
  local at = type(from) == "table" and { from.stdout, from.stderr } or { from, from }
  for fd = 1, 2 do
    if at[fd] and (at[fd] < 0 or at[fd] >= BEYOND) then
      return fail("InvalidArgument", ("from: %s is no offset in a stream"):format(tostring(at[fd])))
    end
  end
  return at
end

-- Is every output that `from` names kept, at least one?
local function are_kept(from, kept)
  if type(from) == "table" then
    return (not from.stdout or kept[1]) and (not from.stderr or kept[2])
  end
  return not from or kept[1] or kept[2]
end

local function matches(ref, expect, to)
  if ref.sandbox ~= to.id then
    return false
  end
  return expect.sandbox == nil or expect.sandbox == to.id
end

local function labels_match(wanted, to, deadline)
  local r, err = to.driver:info(to.id, link.left(deadline))
  if not r then
    return nil, err
  end
  local labels = record.labels(r.fields.label)
  for key, value in pairs(wanted) do
    if labels[key] ~= value then
      return false
    end
  end
  return true
end

-- The engine's record of the process meant, by pid, tag or reference, or NotFound.
local function find(to, target, expect, deadline)
  local not_found = "there is no such process in sandbox " .. to.id
  local ref
  local fields = {}
  if type(target) == "number" then
    fields.pid = target
  elseif type(target) == "table" then
    fields.tag = target.tag
  else
    local err
    ref, err = reference.parse(target)
    if not ref then
      return nil, err
    end
    if not matches(ref, expect, to) then
      return fail("NotFound", "this reference is not of sandbox " .. to.id)
    end
    fields.pid = ref.pid
  end
  if expect.sandbox ~= nil and expect.sandbox ~= to.id then
    return fail("NotFound", "expect.sandbox does not match")
  end
  if expect.labels then
    local same, err = labels_match(expect.labels, to, deadline)
    if err then
      return nil, err
    end
    if not same then
      return fail("NotFound", "expect.labels do not match")
    end
  end
  local r, err = to:call("attach", "attach", link.left(deadline), fields)
  if not r and err.kind == "NotFound" and not err.id and not ref then -- with an id it is about the sandbox
    local which = fields.tag and ("the tag %q"):format(fields.tag) or ("pid %d"):format(fields.pid)
    return fail("NotFound", ("there is no process with %s in sandbox %s"):format(which, to.id))
  end
  if not r then
    return nil, err
  end
  local found = record.process(r.fields)
  if ref and (ref.boot ~= to:boot(r.fields.boot) or not reference.matches(ref, found)) then
    return fail("NotFound", not_found)
  end
  if expect.cwd and expect.cwd ~= found.cwd then
    return fail("NotFound", "expect.cwd does not match")
  end
  return r
end

-- Who reads the process on this connection. One that has closed both ends for good makes way.
local function reader_of(to, serial)
  local taken = to.readers[serial]
  if taken and stream.is_closed(taken.stdout) and stream.is_closed(taken.stderr) then
    process.give_back(taken)
  end
  return to.readers[serial]
end

-- A process somebody else was reading when we attached: ask again.
local function open_lease(state)
  return function(timeout)
    local readers = state._link.readers
    local taken = reader_of(state._link, state._serial)
    local r, err, out, errs
    if not taken or taken == state then
      r, err = state._link:call("attach", "read", timeout, { serial = state._serial, lease = 1 })
      if not r then
        return nil, err
      end
      out, errs = r.object:stdout(), r.object:stderr()
    end
    if not out and not errs and (not r or r.fields.lease ~= 1 and (r.fields.running or 0) ~= 0) then
      return nil, errors.new {
        kind = "Busy", op = "read", id = state._link.id,
        message = ("the output of process %d belongs to another handle, started or attached, until that one is closed"
          ):format(state.pid),
      }
    end
    readers[state._serial] = state
    state._lease = r.object
    local tails = record.tails(r.parts)
    stream.supply(state.stdout, out, tails[1])
    if state.stderr then
      stream.supply(state.stderr, errs, tails[2])
    end
    return true
  end
end

--- The options of attach and its timeout, or nil and an error. Misuse is raised for the caller of who calls this.
function attach.given(target, opts)
  if type(target) == "table" then
    check.options("attach", 1, target, TARGET, 2)
  else
    check.arg("attach", 1, target, "integer|string", 2)
  end
  opts = check.options("attach", 2, opts, OPTIONS, 2)
  check.options("attach", 2, opts.expect, EXPECT, 2)
  if type(opts.from) == "table" then
    check.options("attach", 2, opts.from, FROM, 2)
  end
  check.map("attach", 2, "expect.labels", opts.expect and opts.expect.labels, "string", 2)
  local timeout, err = check.timeout(opts, "attach")
  if err then
    return nil, err
  end
  return opts, timeout
end

-- `opts`: expect = { sandbox, labels, cwd }, from. The output comes to us when nobody else is reading it.
function attach.attach(to, target, opts, timeout)
  local deadline = link.deadline(timeout)
  if type(target) == "number" and target < 1 then
    return fail("InvalidArgument", ("%d is no pid"):format(target), to.id)
  end
  local from, err = begin_of(opts.from)
  if not from then
    return nil, err
  end
  local r
  r, err = find(to, target, opts.expect or {}, deadline)
  if not r then
    return nil, link.told(err, timeout)
  end
  local serial = r.fields.serial
  local kept = { r.fields.out_mode == SPOOL, r.fields.err_mode == SPOOL }
  if not are_kept(opts.from, kept) then
    return fail("InvalidArgument", ("from: this output of process %d is not kept; start it with \"spool\""):format(
      r.fields.pid))
  end
  local free = reader_of(to, serial) == nil
  if free then -- else what find brought will do: the record and a handle that can wait
    r, err = to:call("attach", "attach", link.left(deadline), { serial = serial, lease = 1 })
    if not r then
      return nil, link.told(err, timeout)
    end
  end
  local state = {
    pid = r.fields.pid,
    tag = r.fields.tag ~= "" and r.fields.tag or nil,
    dropped = (r.fields.dropped or 0) + (r.fields.dropped_err or 0),
    _link = to,
    _native = r.object,
    _serial = serial,
    _start_ns = r.fields.start_ns,
    _record = record.process(r.fields),
    _boot = r.fields.boot,
    _sandbox = to.handle,
    _attached = true,
    _over = (r.fields.running or 0) == 0,
  }
  local handle = process.handle(state)
  local tails = record.tails(r.parts)
  local running = (r.fields.running or 0) ~= 0
  for fd, name in ipairs(state._record.pty and { "out" } or { "out", "err" }) do
    local native = r.object["std" .. name](r.object)
    state["std" .. name] = stream.output("std" .. name, {
      native = native,
      mode = kept[fd] and "spool" or "pipe",
      open = not kept[fd] and open_lease(state) or nil,
      kept = kept[fd] and require "sandbar.kept" or nil,
      pipe = kept[fd] and process.spool(state, fd) or nil,
      from = from[fd],
      stash = free and tails[fd] or "",
      ended = not kept[fd] and not native and free and (not running or r.fields.lease == 1),
      process = handle,
    })
  end
  if r.object:stdout() or r.object:stderr() then
    to.readers[serial] = state
  end
  state._kept_in = r.object:stdin() ~= nil
  state.stdin = process.input(state, handle, true)
  return handle
end

return attach
