-- Output: the ends of a process's pipes that are read (stdin: input.lua). Bytes wait in C; what is kept here is only
-- what was taken off a pipe and not handed out yet (`_stash`): the tail an attach brought along, and what an abandoned
-- output() had already asked for (`_op`). Of a spool (`_kept`: kept.lua) the pipe brings frames.

local check = require "sandbar.check"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local wait = require "sandbar.wait"

local CHUNK = 65536
local MAX_LINE = 1048576 -- a longer line is LimitExceeded
local MAX_ALL = 67108864 -- the same for read("a")

local READ_OPTIONS = { timeout = "timeout", max = "size" }

local stream = {}

local output_class

-- One reader waits at a time. `_reader` is fired when it has ended.
local function busy(state)
  if state._reader then
    return errors.new { kind = "Busy", message = "another reader is at work on this stream" }
  end
end

local function begin_wait(state)
  state._reader = wait.signal()
end

local function end_wait(state)
  local signal = state._reader
  state._reader = nil
  wait.fire(signal)
end

-- Takes what an abandoned read brought, once it is done. True, or nil and why not.
local function absorb(state, timeout)
  local op = state._op
  if not op then
    return true
  end
  begin_wait(state)
  local data, err = wait.bytes(op, timeout, "read")
  end_wait(state)
  if op:done() then
    state._op = nil
  end
  if state._kept and not (err and err.kind == "Cancelled") then
    return state._kept.add(state, data, err)
  end
  if data then
    state._stash = state._stash .. data
    return true
  end
  if err and err.kind ~= "Cancelled" then
    return nil, err
  end
  if err and not op:done() then
    return nil, err
  end
  if not err then
    state._ended = true
  end
  return true
end

-- One read of the pipe at hand: data, nil at its end, nil and an error.
local function pipe_read(state, mode, n, timeout)
  local done, data, e = state._native:try_read(mode, n)
  if done then
    return data, e and errors.from(e, "read")
  end
  if timeout == 0 then -- a read that is given up at once could still take bytes off the pipe
    return nil, wait.not_now("read")
  end
  local err
  begin_wait(state)
  data, err = wait.bytes(state._native:read(mode, n), timeout, "read")
  end_wait(state)
  return data, err
end

-- The same, which remembers the end.
local function native_read(state, mode, n, timeout)
  if state._ended or not state._native then
    return nil
  end
  local data, err = pipe_read(state, mode, n, timeout)
  state._ended = data == nil and not err
  return data, err
end

local function too_long(what, max)
  return errors.new {
    kind = "LimitExceeded",
    limit = max,
    message = ("the %s is longer than max = %d bytes; nothing was consumed"):format(what, max),
  }
end

-- What was put by, emptied, and what has come after it; nil when there is neither.
local function after_stash(state, rest)
  local stash = state._stash
  if stash == "" then
    return rest
  end
  state._stash = ""
  return stash .. (rest or "")
end

-- A line with its newline (or the rest at the end). What is stashed comes first.
local function read_line(state, max, timeout)
  local stash = state._stash
  local at = stash:find("\n", 1, true)
  if at then
    if at > max then
      return nil, too_long("line", max)
    end
    state._stash = stash:sub(at + 1)
    return stash:sub(1, at)
  end
  if #stash >= max then
    return nil, too_long("line", max)
  end
  local rest, err = native_read(state, "line", max - #stash, timeout)
  if err then
    return nil, err
  end
  return after_stash(state, rest)
end

local function read_exact(state, n, timeout)
  local stash = state._stash
  if #stash >= n and n > 0 then
    state._stash = stash:sub(n + 1)
    return stash:sub(1, n)
  end
  local rest, err = native_read(state, n == 0 and "some" or "exact", math.max(n - #stash, 1), timeout)
  if err then
    return nil, err
  end
  if n == 0 then -- only asks whether the end has come
    state._stash = stash .. (rest or "")
    return state._stash ~= "" and "" or nil
  end
  return after_stash(state, rest)
end

local function read_all(state, max, timeout)
  if #state._stash > max then
    return nil, too_long("rest", max)
  end
  local rest, err = native_read(state, "all", max - #state._stash, timeout)
  if err then
    return nil, err
  end
  local data = state._stash .. (rest or "")
  state._stash = ""
  state._ended = true
  return data
end

local function read_some(state, n, timeout)
  if state._stash ~= "" then
    local data = state._stash:sub(1, n)
    state._stash = state._stash:sub(n + 1)
    return data
  end
  return native_read(state, "some", n, timeout)
end

-- Why nothing can be read here, or nil. An attached process whose output somebody else is reading
-- asks again: the other reader may be gone by now.
local function ready(state, timeout)
  if state._closed then
    return nil, errors.new { kind = "Closed", op = "read", message = ("%s is closed"):format(state._name) }
  end
  if state._mode == "ignore" then
    return nil, errors.new {
      kind = "InvalidArgument",
      op = "read",
      message = ("%s of this process is not read: it was started with \"ignore\""):format(
        state._name),
    }
  end
  local taken = busy(state)
  if taken then
    return nil, taken
  end
  if not state._native and not state._ended and state._open then
    local ok, err = state._open(timeout)
    if not ok then
      return nil, err
    end
  end
  return absorb(state, timeout)
end

local FORMATS = { l = "l", L = "L", a = "a" }

local function format_of(what)
  if what == nil then
    return "l"
  end
  if type(what) == "number" then
    if what >= 0 and what % 1 == 0 and what < 2 ^ 31 then
      return what
    end
  elseif type(what) == "string" then
    local format = FORMATS[what:match("^%*?(%a)$")]
    if format then
      return format
    end
  end
  error("bad argument #1 to 'read' (a count of bytes, \"l\", \"L\" or \"a\" expected)", 3)
end

local function read(state, format, max, timeout)
  local ok, err = ready(state, timeout)
  if not ok then
    return nil, err
  end
  local line
  if state._kept then
    line, err = state._kept.read(state, format, max, timeout)
  elseif type(format) == "number" then
    return read_exact(state, format, timeout)
  elseif format == "a" then
    return read_all(state, max or MAX_ALL, timeout)
  else
    line, err = read_line(state, max or MAX_LINE, timeout)
  end
  if line and format == "l" then
    line = line:gsub("\n$", "")
  end
  return line, err
end

local output = {}

function output:read(what, opts)
  local state = core.state(self, output_class)
  local format = format_of(what)
  opts = check.options("read", 2, opts, READ_OPTIONS)
  local timeout, err = duration.timeout(opts.timeout)
  if err then
    return nil, err
  end
  return read(state, format, opts.max, timeout)
end

function output:lines(what, opts)
  local state = core.state(self, output_class)
  local format = format_of(what)
  opts = check.options("lines", 2, opts, READ_OPTIONS)
  local timeout, err = duration.timeout(opts.timeout)
  if err then
    return iterator.failed(err)
  end
  return iterator.new(function()
    local data, why = read(state, format, opts.max, timeout)
    if data == "" and format == "a" then
      return nil
    end
    return data, why
  end, state)
end

function output:close()
  local state = core.state(self, output_class)
  if not state._closed then
    state._closed = true
    state._stash, state._raw = "", ""
    if state._native then
      state._native:close()
    end
  end
  return true
end

output_class = core.class("Output", output, {
  tostring = function(state)
    return ("sandbar.Output (%s, %s)"):format(state._name,
      state._closed and "closed" or state._ended and "ended" or "open")
  end,
})

-- `fields`: native (a NativeStream or nil), mode, open (a function that gets the stream later),
-- stash, process (kept alive by this stream). Of a spool: kept (the module), pipe, from.
function stream.output(name, fields)
  return core.handle(output_class, {
    _name = name,
    _native = fields.native,
    _mode = fields.mode,
    _open = fields.open,
    _stash = fields.stash or "",
    _ended = fields.ended or false,
    _process = fields.process,
    _offset = 0,
    _kept = fields.kept,
    _pipe = fields.pipe,
    _at = fields.from or 0,
    _raw = "",
  })
end

-- What is there, at least a byte; nil at the end.
function stream.some(handle, timeout)
  local state = core.state(handle, output_class)
  local ok, err = ready(state, timeout)
  if not ok then
    return nil, err
  end
  return read_some(state, CHUNK, timeout)
end

--- The native stream, for C code that goes on with it, and what was taken off it already; nil and an error when it
--- cannot be lent. false: not an output.
function stream.lend(handle)
  if not core.is(handle, output_class) then
    return false
  end
  local state = core.state(handle, output_class)
  local ok, err = ready(state)
  if ok and state._op then
    ok, err = absorb(state)
  end
  if not ok then
    return nil, err
  elseif state._kept or not state._native then
    return nil, errors.new { kind = "Unsupported", op = "read", message = state._name .. " is no plain pipe" }
  end
  return state._native, after_stash(state) or ""
end

function stream.is(handle)
  return core.is(handle, output_class)
end

function stream.state(handle)
  return core.state(handle, output_class)
end

-- What has come can still be read, the rest goes elsewhere.
function stream.let_go(handle)
  local state = handle and core.state(handle, output_class)
  if state and state._native and not state._kept then
    state._native:end_reading()
  end
end

-- Closed by its program? One that never was counts as closed.
function stream.is_closed(handle)
  return handle == nil or core.state(handle, output_class)._closed == true
end

-- For open functions: the stream has been got, or what there is came as a whole.
function stream.supply(handle, native, stash)
  local state = core.state(handle, output_class)
  state._native = native
  state._stash = state._stash .. (stash or "")
  state._ended = native == nil
end

-- For merge.lua and kept.lua.
stream.ready, stream.native_read, stream.pipe_read, stream.too_long = ready, native_read, pipe_read, too_long
stream.begin_wait, stream.end_wait = begin_wait, end_wait

return stream
