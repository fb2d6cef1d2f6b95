-- File: an open file of a sandbox, with the methods of Lua's io files. The position is kept here; reads
-- go ahead by a chunk so that lines are cheap; writes go straight to the file.

local check = require "sandbar.check"
local compat = require "sandbar.compat"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local link = require "sandbar.link"
local wait = require "sandbar.wait"

local CHUNK = 65536
local NUMERAL = 200 -- the longest text read("n") looks at, as in Lua
local MAX_LINE = 2 ^ 31

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

-- Makes sure that at least `n` bytes are buffered, or all up to the end. True, or nil and an error.
local function fill(state, n, deadline)
  while #state._ahead < n do
    local want = math.max(n - #state._ahead, CHUNK)
    local data, err = wait.bytes(state._native:read(state._pos + #state._ahead, want), link.left(deadline), "read")
    if err then
      return failed(state, err, "read")
    end
    if data == nil or data == "" then
      return true
    end
    state._ahead = state._ahead .. data
  end
  return true
end

local function take(state, n)
  local data = state._ahead:sub(1, n)
  state._ahead = state._ahead:sub(n + 1)
  state._pos = state._pos + #data
  return data
end

local function read_exact(state, n, deadline)
  local ok, err = fill(state, math.max(n, 1), deadline)
  if not ok then
    return nil, err
  end
  if state._ahead == "" then
    return nil
  end
  return take(state, n)
end

local function read_line(state, keep, deadline)
  local from, parts = 1, nil
  while true do
    local at = state._ahead:find("\n", from, true)
    if at then
      local line = take(state, at)
      if parts then
        parts[#parts + 1] = line
        line = table.concat(parts)
      end
      return keep and line or line:sub(1, -2)
    end
    -- A long line is collected piece by piece: never copied as a whole for each chunk.
    if state._ahead ~= "" then
      parts = parts or {}
      parts[#parts + 1] = take(state, #state._ahead)
      if #parts * CHUNK > MAX_LINE then
        return nil, errors.new { kind = "LimitExceeded", path = state.path, message = "the line is too long" }
      end
    end
    local ok, err = fill(state, 1, deadline)
    if not ok then
      return nil, err
    end
    if state._ahead == "" then
      return parts and table.concat(parts)
    end
  end
end

local function read_all(state, deadline)
  local parts = { take(state, #state._ahead) }
  while true do
    local data, err = wait.bytes(state._native:read(state._pos, 1048576), link.left(deadline), "read")
    if err then
      return failed(state, err, "read")
    end
    if data == nil or data == "" then
      return table.concat(parts)
    end
    parts[#parts + 1] = data
    state._pos = state._pos + #data
  end
end

local NUMBER_PATTERNS = {
  "^[+-]?0[xX]%x*%.?%x*[pP][+-]?%d+",
  "^[+-]?0[xX]%x*%.?%x*",
  "^[+-]?%d*%.?%d*[eE][+-]?%d+",
  "^[+-]?%d*%.?%d*",
}

local function read_number(state, deadline)
  while true do
    local ok, err = fill(state, NUMERAL, deadline)
    if not ok then
      return nil, err
    end
    local blank = state._ahead:match("^%s*")
    take(state, #blank)
    if blank == "" or #state._ahead >= NUMERAL then
      break
    end
  end
  local ahead = state._ahead:sub(1, NUMERAL)
  for _, pattern in ipairs(NUMBER_PATTERNS) do
    local text = ahead:match(pattern)
    if text and tonumber(text) then
      take(state, #text)
      return tonumber(text)
    end
  end
  return nil
end

local READERS = {
  l = function(state, deadline) return read_line(state, false, deadline) end,
  L = function(state, deadline) return read_line(state, true, deadline) end,
  a = read_all,
  n = read_number,
}

-- Raises for what is no format; `index` and `level` tell whose argument it was.
local function reader_of(fname, index, format, level)
  if type(format) == "number" and format >= 0 and format % 1 == 0 then
    return function(state, deadline)
      return read_exact(state, format, deadline)
    end
  end
  local reader = type(format) == "string" and READERS[format:match("^%*?(%a)")]
  if not reader then
    check.fail(fname, index, "invalid format", level + 1)
  end
  return reader
end

-- Readers for `n` formats.
local function readers_of(fname, first, level, n, ...)
  local readers = {}
  for i = 1, n do
    readers[i] = reader_of(fname, first + i - 1, (select(i, ...)), level + 1)
  end
  if #readers == 0 then
    readers[1] = READERS.l
  end
  return readers
end

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
  local pos, ahead = state._pos, state._ahead
  local results = { n = 0 }
  for i, reader in ipairs(readers) do
    local value
    value, err = reader(state, deadline)
    if err then
      state._pos, state._ahead = pos, ahead
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
  return read(state, readers_of("read", 1, 1, n, ...), timeout)
end

function methods:lines(...)
  local state = state_of(self)
  local n, timeout = options_of("lines", 1, ...)
  if not n then
    return nil, timeout
  end
  local readers = readers_of("lines", 1, 1, n, ...)
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
      local r
      r, err = wait.op(state._native:write(state._pos, data), link.left(deadline), "write")
      ok = r ~= nil
      if ok then
        state._ahead = ""
        state._pos = state._pos + r.number
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
  local r, err = wait.op(state._native:size(), timeout, "seek")
  if not r then
    return failed(state, err, "seek")
  end
  return r.number
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
  end
  local to = whole(base + offset)
  if to ~= state._pos then
    state._ahead = ""
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
    state._ahead = ""
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
  return core.handle(class, {
    path = fields.path,
    _native = fields.native,
    _append = fields.append,
    _sandbox = fields.sandbox,
    _pos = 0,
    _ahead = "",
  })
end

-- Lines of a file that is closed at the end, as io.lines does it.
function file.lines(handle, ...)
  local state = state_of(handle)
  local readers = readers_of("lines", 2, 2, select("#", ...), ...)
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
  readers_of(fname, first, 2, select("#", ...), ...)
end

return file
