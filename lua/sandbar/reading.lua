-- What a File reads: the formats of Lua's io files, out of a buffer that is filled a chunk ahead so that
-- lines are cheap.
--
-- Of a File's state: _pos, where it is; _ahead, bytes of the file; _used, how many of them lie before _pos;
-- _here, how much was read since the last wait.

local check = require "sandbar.check"
local errors = require "sandbar.errors"
local link = require "sandbar.link"
local openfile = require "sandbar.openfile"
local wait = require "sandbar.wait"

local CHUNK = 65536
local NUMERAL = 200 -- the longest text read("n") looks at, as in Lua
local MAX_LINE = 2 ^ 31
local HERE = 262144 -- the most that read_here takes
local TURN = 1048576 -- read without a wait, before others get their turn

local reading = {}

--- No file is longer, and every number up to here is exact.
reading.FARTHEST = 2 ^ 52

--- Of a new File: nothing is buffered, and the first read waits, so that where none can wait, none succeeds.
function reading.begin(state)
  state._ahead, state._used, state._here = "", 0, TURN
end

--- Forgets what was read ahead: the position is elsewhere now, or the file is not the same.
function reading.forget(state)
  state._ahead, state._used = "", 0
end

local function failed(state, err)
  return nil, errors.from(err, "read", { path = state.path })
end

-- Up to `n` bytes from `pos`: "" at the end, or nil and an error. Waiting costs as much as copying a chunk:
-- a program that would block in the wait reads by itself, most times.
local function bytes_at(state, pos, n, deadline)
  local timeout = link.left(deadline)
  local data, err
  if n <= HERE and state._here < TURN and not state._native.remote and wait.may_block(timeout) then
    data, err = state._native:read_here(pos, n)
    state._here = state._here + math.max(data and #data or 0, CHUNK)
  end
  if not data and not err then -- not asked yet, or nothing: it was collected
    local turn = state._here >= TURN and timeout ~= 0
    state._here = 0
    data, err = openfile.read(state._native, pos, n, timeout, "read", turn)
  end
  if err then
    return failed(state, err)
  end
  return data or ""
end

local function left_over(state)
  return #state._ahead - state._used
end

-- Makes sure that at least `n` bytes are buffered, or all up to the end. True, or nil and an error.
local function fill(state, n, deadline)
  local have = left_over(state)
  while have < n do
    local data, err = bytes_at(state, state._pos + have, math.max(n - have, CHUNK), deadline)
    if not data then
      return nil, err
    end
    if data == "" then
      return true
    end
    state._ahead = have > 0 and state._ahead:sub(state._used + 1) .. data or data
    state._used = 0
    have = have + #data
  end
  return true
end

-- The next `n` bytes, or as many as are buffered.
local function take(state, n)
  local data, from = state._ahead, state._used
  local to = math.min(from + n, #data)
  state._pos = state._pos + to - from
  if to < #data then
    state._used = to
    return data:sub(from + 1, to)
  end
  reading.forget(state)
  return from > 0 and data:sub(from + 1) or data
end

local function read_exact(state, n, deadline)
  local ok, err = fill(state, math.max(n, 1), deadline)
  if not ok then
    return nil, err
  end
  if left_over(state) == 0 then
    return nil
  end
  return take(state, n)
end

local function read_line(state, keep, deadline)
  local parts
  while true do
    local at = state._ahead:find("\n", state._used + 1, true)
    if at then
      local line = take(state, at - state._used)
      if parts then
        parts[#parts + 1] = line
        line = table.concat(parts)
      end
      return keep and line or line:sub(1, -2)
    end
    -- A long line is collected piece by piece: never copied as a whole for each chunk.
    if left_over(state) > 0 then
      parts = parts or {}
      parts[#parts + 1] = take(state, left_over(state))
      if #parts * CHUNK > MAX_LINE then
        return nil, errors.new { kind = "LimitExceeded", path = state.path, message = "the line is too long" }
      end
    end
    local ok, err = fill(state, 1, deadline)
    if not ok then
      return nil, err
    end
    if left_over(state) == 0 then
      return parts and table.concat(parts)
    end
  end
end

local function read_all(state, deadline)
  local parts = { take(state, left_over(state)) }
  while true do
    local data, err = bytes_at(state, state._pos, 1048576, deadline)
    if not data then
      return nil, err
    end
    if data == "" then
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
    local _, last_blank = state._ahead:find("^%s*", state._used + 1)
    local blanks = last_blank - state._used
    take(state, blanks)
    if blanks == 0 or left_over(state) >= NUMERAL then
      break
    end
  end
  local ahead = state._ahead:sub(state._used + 1, state._used + NUMERAL)
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
      return read_exact(state, math.min(format, reading.FARTHEST), deadline)
    end
  end
  local reader = type(format) == "string" and READERS[format:match("^%*?(%a)")]
  if not reader then
    check.fail(fname, index, "invalid format", level + 1)
  end
  return reader
end

--- Readers for `n` formats, functions of a state and a deadline: a value, nil at the end, or nil and an error.
--- Raises for what is no format; `first` is the number of the first argument, `level` counts as in check.lua.
function reading.readers(fname, first, level, n, ...)
  local readers = {}
  for i = 1, n do
    readers[i] = reader_of(fname, first + i - 1, (select(i, ...)), level + 1)
  end
  if #readers == 0 then
    readers[1] = READERS.l
  end
  return readers
end

return reading
