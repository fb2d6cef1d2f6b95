-- File: an open file of a sandbox, with the methods of Lua's io files. The position is kept here; reads
-- go ahead by a chunk (reading.lua); writes go straight to the file.

local check = require "sandbar.check"
local compat = require "sandbar.compat"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local link = require "sandbar.link"
local openfile = require "sandbar.openfile"
local reading = require "sandbar.reading"

local file = {}

local class
local methods = {}

local function state_of(self)
  return core.state(self, class)
end

local function usable(state, op)
  if state._closed then
    return nil, errors.new { kind = "Closed", op = op, path = state.path, message = "the file is closed" }
  end
  return true
end

local function failed(state, err, op)
  return nil, errors.from(err, op, { path = state.path })
end

-- ---- reading ----

-- The last argument of a method may be a table of options: how many come before it and the timeout, or nil
-- and an error. `index`: of the first argument.
local function options_of(fname, index, ...)
  local n = select("#", ...)
  local last = n > 0 and select(n, ...) or nil
  if type(last) ~= "table" then
    return n, false
  end
  check.options(fname, index + n - 1, last, check.TIMEOUT, 2)
  local timeout, err = check.timeout(last, fname)
  if err then
    return nil, err
  end
  return n - 1, timeout
end

-- As io's read: one result a format, nil for the first that fails and nothing after it. A read that fails
-- has consumed nothing.
local function read(state, readers, timeout)
  local ok, err = usable(state, "read")
  if not ok then
    return nil, err
  end
  local deadline = link.deadline(timeout)
  local pos, ahead, used = state._pos, state._ahead, state._used
  local results = { n = 0 }
  for i, reader in ipairs(readers) do
    local value
    value, err = reader(state, deadline)
    if err then
      state._pos, state._ahead, state._used = pos, ahead, used
      return nil, link.told(err, timeout)
    end
    results[i], results.n = value, i
    if value == nil then
      break
    end
  end
  return compat.unpack(results, 1, results.n)
end

function methods:read(...)
  local state = state_of(self)
  local n, timeout = options_of("read", 1, ...)
  if not n then
    return nil, timeout
  end
  return read(state, reading.readers("read", 1, 1, n, ...), timeout)
end

function methods:lines(...)
  local state = state_of(self)
  local n, timeout = options_of("lines", 1, ...)
  if not n then
    return nil, timeout
  end
  local readers = reading.readers("lines", 1, 1, n, ...)
  return iterator.new(function()
    return read(state, readers, timeout)
  end, state)
end

-- ---- writing ----

function methods:write(...)
  local state = state_of(self)
  local n, timeout = options_of("write", 1, ...)
  if not n then
    return nil, timeout
  end
  local deadline = link.deadline(timeout)
  local ok, err = usable(state, "write")
  for i = 1, n do
    local data = select(i, ...)
    if type(data) == "number" then
      data = tostring(data)
    elseif type(data) ~= "string" then
      check.arg("write", i, data, "string")
    end
    if ok and data ~= "" then
      local written
      written, err = openfile.write(state._native, state._pos, data, link.left(deadline), "write")
      ok = written ~= nil
      if ok then
        reading.forget(state)
        state._pos = state._pos + written
        state._moved = true
      end
    end
  end
  if not ok then
    return failed(state, link.told(err, timeout), "write")
  end
  return self
end

local function size_of(state, timeout)
  local size, err = openfile.size(state._native, timeout, "seek")
  if not size then
    return failed(state, err, "seek")
  end
  return size
end

local function whole(n)
  if math.type and math.type(n) == "float" then -- luacheck: ignore 143
    return math.tointeger(n) or n -- luacheck: ignore 143
  end
  return n
end

function methods:seek(whence, offset, opts)
  local state = state_of(self)
  whence = check.arg("seek", 1, whence, "string?") or "cur"
  offset = check.arg("seek", 2, offset, "integer?") or 0
  opts = check.options("seek", 3, opts, check.TIMEOUT)
  local timeout, bad = check.timeout(opts, "seek")
  if bad then
    return nil, bad
  end
  local ok, err = usable(state, "seek")
  if not ok then
    return nil, err
  end
  local base
  if whence == "set" then
    base = 0
  elseif whence == "cur" then
    base = state._pos
    if state._append and state._moved then
      base, err = size_of(state, timeout)
    end
  elseif whence == "end" then
    base, err = size_of(state, timeout)
  else
    check.fail("seek", 1, ("invalid option '%s'"):format(whence))
  end
  if not base then
    return nil, err
  end
  if base + offset < 0 then
    return nil, errors.new {
      kind = "InvalidArgument", op = "seek", code = "EINVAL", path = state.path,
      message = "the position would be before the start of the file",
    }
  elseif base + offset > reading.FARTHEST then
    return nil, errors.new {
      kind = "InvalidArgument", op = "seek", code = "EINVAL", path = state.path,
      message = "the position would be beyond what a file can have",
    }
  end
  local to = whole(base + offset)
  if to ~= state._pos then
    reading.forget(state)
  end
  state._pos = to
  state._moved = false
  return to
end

-- Writes are not held back here: there is nothing to flush and no buffer to set.
function methods:flush()
  local ok, err = usable(state_of(self), "flush")
  if not ok then
    return nil, err
  end
  return self
end

function methods:setvbuf(mode)
  check.arg("setvbuf", 1, mode, "string")
  state_of(self)
  return true
end

function methods:close()
  local state = state_of(self)
  if not state._closed then
    state._closed = true
    reading.forget(state)
    state._native:close()
  end
  return true
end

class = core.class("File", methods, {
  tostring = function(state)
    return ("sandbar.File %s (%s)"):format(state.path, state._closed and "closed" or "open")
  end,
})

-- `fields`: native (a NativeFile), path, append, sandbox (kept alive by it).
function file.new(fields)
  local state = {
    path = fields.path,
    _native = fields.native,
    _append = fields.append,
    _sandbox = fields.sandbox,
    _pos = 0,
  }
  reading.begin(state)
  return core.handle(class, state)
end

function file.is(handle)
  return core.is(handle, class)
end

--- For C code that moves its bytes: the native file, where in it that begins, and what is to be told how many it moved.
--- Nil and Closed, or Unsupported: no file of this machine's.
function file.lend(handle)
  local state = state_of(handle)
  local ok, err = usable(state, "read")
  if not ok then
    return nil, err
  elseif state._native.remote then
    return nil, errors.new { kind = "Unsupported", op = "read", path = state.path,
      message = "a file of a hosted sandbox is read and written, not lent" }
  end
  return state._native, state._pos, function(n)
    reading.forget(state)
    state._pos = whole(state._pos + n)
    state._moved = true
  end
end

-- Lines of a file that is closed at the end, as io.lines does it.
function file.lines(handle, ...)
  local state = state_of(handle)
  local readers = reading.readers("lines", 2, 2, select("#", ...), ...)
  local function stop()
    handle:close()
  end
  local function step()
    local results = compat.pack(read(state, readers))
    if results[1] == nil then
      stop()
    end
    return compat.unpack(results, 1, results.n)
  end
  return iterator.new(step, state, stop)
end

-- Checks formats before there is a file; the caller's caller is blamed.
function file.check_formats(fname, first, ...)
  reading.readers(fname, first, 2, select("#", ...), ...)
end

return file
