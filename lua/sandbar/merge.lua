-- Both streams of a process at once: output() in the order of arrival, and wait{ output = true }.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local CHUNK = 65536

local merge = {}

local function take(state, data)
  if state._kept then
    return state._fd, data, state._at - #data
  end
  local offset = state._offset
  state._offset = offset + #data
  return state._fd, data, offset
end

local poll

-- What a pipe has brought, or nil at its end; or `e`.
local function arrived(state, data, e)
  local err = e and errors.from(e, "output")
  if err and not state._kept then
    return true, nil, err
  elseif not state._kept then
    state._ended = data == nil
    return true, data
  end
  local ok
  ok, err = state._kept.add(state, data, err)
  if not ok then
    return true, nil, err
  end
  return poll(state)
end

-- What is there already on one stream: true and data, true and nil at its end, false.
function poll(state)
  if state._stash ~= "" then
    local data = state._stash
    state._stash = ""
    return true, data
  end
  if state._kept then
    local data, _, err = state._kept.take(state)
    if data or err then
      return true, data, err
    end
  end
  local op = state._op
  if op then
    if not op:done() then
      return false
    end
    state._op = nil
    return arrived(state, op:bytes())
  end
  if state._ended or not state._native then
    return state._ended or not state._kept, nil -- else it needs another pipe
  end
  local done, data, e = state._native:try_read("some", CHUNK)
  if done then
    return arrived(state, data, e)
  end
  return false
end

local function output_step(it)
  while true do
    local waiting, opened = {}, false
    for _ = 1, #it do
      local state = table.remove(it, 1) -- whoever was asked first is asked last the next time
      local done, data, err = poll(state)
      if err then
        return nil, err
      end
      if not done or data then
        it[#it + 1] = state
      end
      if data then
        return take(state, data)
      end
      if not done and state._native then
        state._op = state._op or state._native:read("some", CHUNK)
        waiting[#waiting + 1] = state._op
      elseif not done then
        local ok
        ok, err = state._kept.open(state, it.timeout)
        if not ok then
          return nil, err
        end
        opened = true
      end
    end
    if #it == 0 then
      return nil
    end
    if not opened then
      for _, state in ipairs(it) do
        stream.begin_wait(state)
      end
      local ok, err = wait.any(waiting, it.timeout, "output")
      for _, state in ipairs(it) do
        stream.end_wait(state)
      end
      if not ok then
        return nil, err
      end
    end
  end
end

local function output_stop(it)
  for _, state in ipairs(it) do
    if state._op then
      state._op:cancel()
    end
  end
end

-- Is this output another handle's to read, while we have one that anybody may read?
local function left_out(state, err, handles)
  local other = handles[3 - state._fd]
  return err.kind == "Busy" and not state._reader and not state._kept and other and stream.state(other)._kept
end

-- for fd, data, offset in ...: `handles` are Outputs; fd is 1 for the first and 2 for the second.
function merge.both(handles, timeout)
  local it = { timeout = timeout }
  for fd = 1, 2 do
    if handles[fd] then
      local state = stream.state(handles[fd])
      if state._mode ~= "ignore" then
        state._fd = fd
        local ok, err = stream.ready(state, timeout)
        if ok then
          it[#it + 1] = state
        elseif not left_out(state, err, handles) then
          return iterator.failed(err)
        end
      end
    end
  end
  return iterator.new(output_step, it, output_stop)
end

-- Reads to the end of both streams, keeping what comes for later reads, at most `max` bytes. What is kept inside stays
-- there.
function merge.drain(handles, deadline, max)
  for fd = 1, 2 do
    local state = handles[fd] and stream.state(handles[fd])
    if state and state._kept and not state._ended then
      local ok, err = state._kept.wait_end(state, deadline)
      if not ok and err.kind ~= "NotFound" then -- else nothing of it is left, and nobody writes to it
        return nil, err
      end
    end
    while state and state._mode == "pipe" and not state._ended and not state._closed do
      local left = deadline and math.max(deadline - core.now(), 0)
      local data, err
      if state._reader then -- somebody else is reading: when that one is done we look again
        err = select(2, wait.on(state._reader, left, "wait"))
      else
        local ok
        ok, err = stream.ready(state, left)
        if ok then
          data, err = stream.native_read(state, "some", CHUNK, left)
        end
      end
      if err then
        return nil, err
      end
      if data then
        state._stash = state._stash .. data
        if #state._stash > max then
          return nil, stream.too_long("unread output", max)
        end
      end
    end
  end
  return true
end

return merge
