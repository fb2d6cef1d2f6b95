-- Kept output ("spool"): it comes as frames (SB_FRAME_HEAD of the engine) through a pipe of this reader's own. They say
-- where their bytes lie in the stream, and whether it has ended: a pipe that was cut off is replaced by one that begins
-- where we are, and what was dropped before we had read it shows as a jump.
--
-- In a stream's state: `_pipe(from, timeout)` gives a pipe; `_raw` has come and was not looked at; `_at` is the offset
-- behind what was looked at, of which `_stash` (never with a jump in it) is not handed out yet.

local errors = require "sandbar.errors"
local link = require "sandbar.link"
local stream = require "sandbar.stream"

local CHUNK = 65536
local HEAD = 8
local MAX_LINE, MAX_ALL = 1048576, 67108864 -- as of other streams
local FAR = 140737488355328 -- 2^47: no stream gets there

local kept = { LIMIT = FAR }

-- The next bytes among those that have come. Nil: there are none; true as second result: there are, but behind a jump,
-- and shall be `joined` to some before.
function kept.take(state, joined)
  local raw, i, pieces = state._raw, 1, {}
  local jump
  while #raw >= i + HEAD - 1 do
    local a, b, c, d, e, f, g, h = raw:byte(i, i + HEAD - 1)
    local offset = a + b * 256 + c * 65536 + d * 16777216 + e * 4294967296 + f * 1099511627776
    local len = g + h * 256
    if len == 0 then
      state._ended, raw = true, ""
      state._native:close()
      state._native = nil
      break
    elseif #raw < i + HEAD - 1 + len then
      break
    elseif offset < state._at then
      return nil, nil, errors.new { kind = "Protocol", op = "read", message = "the kept output does not make sense" }
    elseif offset > state._at then
      jump = joined or #pieces > 0
      if jump then
        break
      end
    end
    pieces[#pieces + 1] = raw:sub(i + HEAD, i + HEAD - 1 + len)
    state._at = offset + len
    i = i + HEAD + len
  end
  state._raw = raw:sub(i)
  if #pieces > 0 then
    return table.concat(pieces)
  end
  return nil, jump
end

-- What a pipe has brought, or why nothing: true. Nil was its end: true for one that shall be replaced, or nil and an
-- error. A pipe that is a table has no frames by itself.
function kept.add(state, data, err)
  if type(state._native) == "table" then
    data, err = state._native:frames(data, err)
  end
  if err then
    return nil, err
  elseif data then
    state._raw = state._raw .. data
    state._tried = false
    return true
  end
  state._native:close()
  state._native, state._raw = nil, ""
  if state._tried then
    return nil, errors.new { kind = "OutcomeUnknown", op = "read", message = "the kept output was cut off twice" }
  end
  state._tried = true
  return true
end

-- Another pipe, from where we are: true, or nil and an error.
function kept.open(state, timeout)
  local native, err
  stream.begin_wait(state)
  native, err = state._pipe(state._at, timeout)
  stream.end_wait(state)
  state._native = native
  return native ~= nil or nil, err
end

-- Waits for the next bytes. Nil: the stream has ended, or (with `joined`) a jump comes next.
local function next_bytes(state, deadline, joined)
  while true do
    local data, jump, err = kept.take(state, joined)
    if data or jump or err or state._ended then
      return data, err
    end
    local ok = true
    if not state._native then
      ok, err = kept.open(state, link.left(deadline))
    end
    if ok then
      data, err = stream.pipe_read(state, "some", CHUNK, link.left(deadline))
      ok, err = kept.add(state, data, err)
    end
    if not ok then
      return nil, err
    end
  end
end

-- As of any stream; what is read is never put together over a jump.
function kept.read(state, format, max, timeout)
  local deadline = link.deadline(timeout)
  local pieces, have, done, err = { state._stash }, #state._stash, nil, nil
  local want = type(format) == "number" and format
  max = max or format == "a" and MAX_ALL or MAX_LINE
  repeat
    local last = pieces[#pieces]
    if want then
      done = have >= math.max(want, 1) and want
    elseif format ~= "a" then
      local at = last:find("\n", 1, true)
      done = at and have - #last + at
    end
    if not want and (done or have) > max then
      done, err = nil, stream.too_long(format == "a" and "rest" or "line", max)
    elseif not done then
      local data
      data, err = next_bytes(state, deadline, have > 0)
      pieces[#pieces + 1] = data
      have = have + #(data or "")
      done = not data and not err and have
    end
  until done or err
  local all = table.concat(pieces)
  if err then
    state._stash = all
    return nil, link.told(err, timeout)
  end
  state._stash = all:sub(done + 1)
  if have == 0 and format ~= "a" then
    return nil
  end
  return all:sub(1, done)
end

-- Waits until nothing more will be written, whatever is read meanwhile.
function kept.wait_end(state, deadline)
  local probe = { _pipe = state._pipe, _at = FAR, _raw = "" }
  local _, err = next_bytes(probe, deadline)
  if probe._native then
    probe._native:close()
  end
  return err == nil or nil, err
end

return kept
