-- Process: a started or attached command. It ends with its scope unless it was detached; its exit is
-- kept by the engine, its output by its pipes (stream.lua).

local check = require "sandbar.check"
local command = require "sandbar.command"
local copied = require "sandbar.copied"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local input = require "sandbar.input"
local iterator = require "sandbar.iterator"
local link = require "sandbar.link"
local merge = require "sandbar.merge"
local own = require "sandbar.own"
local record = require "sandbar.record"
local reference = require "sandbar.reference"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local MAX_UNREAD = 67108864 -- what wait{ output = true } keeps for later reads, a stream
local KILL_GRACE = 5
local STDIN, STDOUT, STDERR = 1, 2, 4 -- the engine's bits

local process = {}

local OUTPUT = { timeout = "timeout" }
local SIGNAL = { group = "boolean", timeout = "timeout" }
local WAIT = { timeout = "timeout", output = "boolean" }
local KILL = { signal = "string|number", grace = "duration", timeout = "timeout" }

local class
local methods = {}

local function state_of(self)
  return core.state(self, class)
end

local function fail(kind, op, message)
  return nil, errors.new { kind = kind, op = op, message = message }
end

-- ---- methods ----

function methods:output(opts)
  local state = state_of(self)
  opts = check.options("output", 1, opts, OUTPUT)
  local timeout, err = check.timeout(opts, "output")
  if err then
    return iterator.failed(err)
  end
  return merge.both({ state.stdout, state.stderr }, timeout)
end

local function signal_of(fname, signal)
  local kind = type(signal)
  if kind ~= "string" and kind ~= "number" then
    error(("bad argument #1 to '%s' (name or number of a signal expected, got %s)"):format(fname, kind), 3)
  end
  local number = record.signal_number(signal)
  if not number then
    return fail("InvalidArgument", fname, ("there is no signal %s"):format(tostring(signal)))
  end
  return number
end

function methods:signal(signal, opts)
  local state = state_of(self)
  local number, err = signal_of("signal", signal)
  opts = check.options("signal", 2, opts, SIGNAL)
  if not number then
    return nil, err
  end
  local timeout
  timeout, err = check.timeout(opts, "signal")
  if err then
    return nil, err
  end
  local r
  r, err = state._link:call("request", "signal", timeout, "signal",
    { serial = state._serial, signal = number, group = opts.group and 1 or 0 })
  if not r then
    return nil, err
  end
  return { signal = record.signal_name(number), count = r.fields and r.fields.count or 1 }
end

-- The exit as exec's record without text.
local function exit_record(state, fields)
  local all = copied({ pid = state.pid }, fields)
  state._took = state._took or state._began and core.now() - state._began
  state._exit = all
  local result = record.result(all, nil, nil, state._took)
  result.pid = state.pid
  state.dropped = result.dropped
  return result
end

-- Waits for the exit, for what is left of `timeout`: its record, or nil and an error.
local function exited(state, deadline, timeout)
  local fields = state._exit or state._native:exited()
  if fields then
    return exit_record(state, fields)
  end
  local op, err = state._native:wait(link.left(deadline))
  if not op then
    return nil, errors.from(link.told(err, timeout), "wait")
  end
  local r, partial
  r, err, partial = wait.op(op, link.left(deadline), "wait")
  if not r then
    r, err = state._link:ended(link.told(err, timeout), partial, state._serial)
    if not r then
      return nil, err
    end
  end
  return exit_record(state, r.fields)
end

-- Where what it was started with may not all have come to it, its exit is not that of a command that had it.
local function fed(state, result, err)
  local op = result and state._feed
  if not op or not op:done() then
    return result, err
  end
  local ok, why = op:result()
  if ok or why.kind == "Closed" then
    return result
  end
  return nil, errors.from(why, "wait", { result = result })
end

function methods:wait(opts)
  local state = state_of(self)
  opts = check.options("wait", 1, opts, WAIT)
  local timeout, err = check.timeout(opts, "wait")
  if err then
    return nil, err
  end
  local deadline = link.deadline(timeout)
  if opts.output then
    local ok
    ok, err = merge.drain({ state.stdout, state.stderr }, deadline, MAX_UNREAD)
    if not ok then
      return nil, errors.from(link.told(err, timeout), "wait")
    end
  end
  return fed(state, exited(state, deadline, timeout))
end

function methods:kill(opts)
  local state = state_of(self)
  opts = check.options("kill", 1, opts, KILL)
  local number, err = signal_of("kill", opts.signal == nil and "TERM" or opts.signal)
  if not number then
    return nil, err
  end
  local grace, timeout
  grace, err = duration.parse(opts.grace == nil and KILL_GRACE or opts.grace, "grace")
  if err then
    return nil, err
  end
  timeout, err = check.timeout(opts, "kill")
  if err then
    return nil, err
  end
  local deadline = link.deadline(timeout)
  local r
  r, err = state._link:call("request", "kill", timeout, "kill",
    { serial = state._serial, signal = number, grace_ms = math.ceil(grace * 1000) })
  if not r then
    return nil, err
  end
  if state._link.ends_behind then
    state._native:killed()
    if state._lease then
      state._lease:killed()
    end
  end
  local result
  result, err = exited(state, deadline, timeout)
  if result then
    result.killed = r.fields and r.fields.count
  end
  return result, err
end

-- Is its end known, without asking?
local function has_ended(state)
  return state._exit ~= nil or state._over or state._link.gone or state._native:exited() ~= nil
end

function methods:running()
  local state = state_of(self)
  return not state._closed and not core.collected(self) and not has_ended(state)
end

function methods:resize(size, opts)
  local state = state_of(self)
  check.arg("resize", 1, size, "table")
  size = check.options("resize", 1, size, command.SIZE)
  opts = check.options("resize", 2, opts, check.TIMEOUT)
  local fields, err = command.size(size, "size")
  local timeout
  if fields then
    timeout, err = check.timeout(opts, "resize")
  end
  if err then
    return nil, errors.from(err, "resize")
  end
  if state._exit or state._native:exited() then
    return fail("NotFound", "resize", ("process %d has ended, and its terminal is gone"):format(state.pid))
  end
  fields.serial = state._serial
  local r
  r, err = state._link:call("request", "resize", timeout, "resize", fields)
  return r and true, err
end

--- Its output is for others to read now, and drained until then.
function process.give_back(state)
  if state._link.readers[state._serial] == state then
    state._link.readers[state._serial] = nil
  end
  if state._lease then
    state._lease:lease_release()
  end
  state._native:lease_release()
end

function methods:detach(opts)
  local state = state_of(self)
  opts = check.options("detach", 1, opts, check.TIMEOUT)
  local timeout, err = check.timeout(opts, "detach")
  if err then
    return nil, err
  end
  local r
  r, err = state._link:call("request", "detach", timeout, "detach", { serial = state._serial })
  if not r then
    return nil, err
  end
  own.let_go(state)
  stream.let_go(state.stdout)
  stream.let_go(state.stderr)
  process.give_back(state)
  state._kill = nil
  if state._release then
    state._release:cancel()
    state._release, state._guard = nil, nil
  end
  return true
end

function methods:reference(opts)
  local state = state_of(self)
  opts = check.options("reference", 1, opts, check.TIMEOUT)
  local timeout, bad = check.timeout(opts, "reference")
  if bad then
    return nil, bad
  end
  if not state._reference then
    local found = state._record
    if not found then
      local r, err = state._link:call("attach", "reference", timeout, { serial = state._serial })
      if not r then
        return nil, err
      end
      found = record.process(r.fields)
      state._record, state._boot = found, r.fields.boot
    end
    state._reference = reference.format {
      sandbox = state._link.id,
      pid = found.pid,
      boot = state._link:boot(state._boot),
      start_ns = found.start_ns,
      args = found.args,
      cwd = found.cwd,
    }
  end
  return state._reference
end

-- What a started process owns ends with its handle: the tree is killed. An attached or detached one
-- only loses its reader.
function methods:close(opts)
  local state = state_of(self)
  opts = check.options("close", 1, opts, check.TIMEOUT)
  local timeout, err = own.close_timeout(opts)
  if err then
    return nil, err
  end
  if state._closed then
    return true
  end
  state._closed = true
  own.let_go(state)
  local release = state._release
    or state._kill and not state._link.closed and state._native:release() or nil
  state._release, state._guard = nil, nil
  local ok = true
  if release then
    ok, err = own.finish(release, timeout,
      { what = "process", op = "close", id = state._link.id, pid = state.pid })
  end
  if state.stdout then
    state.stdout:close()
  end
  if state.stderr then
    state.stderr:close()
  end
  input.leave(state.stdin, state._kept_in and state._link.feeds) -- there it is the process's own, nobody keeps another
  process.give_back(state)
  return ok, err
end

class = core.class("Process", methods, {
  on_close = function(self)
    return methods.close(self)
  end,
  tostring = function(state)
    local how = has_ended(state) and "ended" or state._closed and "closed" or "running"
    return ("sandbar.Process %s (%s)"):format(tostring(state.pid), how)
  end,
})

-- The end of its scope: as close.
local function finalize(handle)
  return handle:close()
end

-- Before a scope takes it: what nobody ended so far is killed from now on.
local function adopt(_, state)
  if state._closed then
    return fail("Closed", "adopt", "the process handle is closed")
  end
  if not state._release then
    state._release = state._native:release()
    if not state._release then
      return fail("Closed", "adopt", "the process handle is closed: it was collected")
    end
  end
  state._guard = state._guard or own.guard(state._release, "process", state._link.id)
  return true
end

-- Of its kept output: a function that gives another pipe of stream `fd`, from an offset on.
function process.spool(state, fd)
  return function(from, timeout)
    local r, err = state._link:call("spool", "read", timeout, { serial = state._serial, start_ns = state._start_ns,
      stream = fd == 1 and STDOUT or STDERR, from = from })
    if r then
      return r.object
    end
    if err.kind == "NotFound" and not err.id then
      return fail("NotFound", "read", ("process %d has ended, and what it wrote is kept no more"):format(state.pid))
    end
    return nil, err
  end
end

-- The end of its input. Of a process that others may attach to, pid 1 keeps the pipe open as well (`_kept_in`).
function process.end_input(state, native)
  native:close_write()
  if state._kept_in then
    local box = state._link.box
    state._kept_in = nil
    state._end_op = box and box:open_() and box:request("release", { serial = state._serial, streams = STDIN })
  end
end

-- Its stdin; `open`: for the program to write to.
function process.input(state, handle, open)
  local native = open and state._native:stdin() or nil
  return input.new(native, handle, native and function()
    process.end_input(state, native)
  end)
end

-- The handle of a process's state.
function process.handle(state)
  state._finalize, state._adopt = finalize, adopt
  return core.handle(class, state)
end

return process
