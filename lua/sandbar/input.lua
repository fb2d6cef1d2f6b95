-- Input: the end of a process's stdin pipe (and of a connection to a port), which is written to.

local check = require "sandbar.check"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local wait = require "sandbar.wait"

local WRITE_OPTIONS = { timeout = "timeout" }

local class
local input = {}

local methods = {}

function methods:write(data, opts)
  local state = core.state(self, class)
  if type(data) ~= "string" then
    error(("bad argument #1 to 'write' (string expected, got %s)"):format(type(data)), 2)
  end
  opts = check.options("write", 2, opts, WRITE_OPTIONS)
  local timeout, err = duration.timeout(opts.timeout)
  if err then
    return nil, err
  end
  if state._closed or not state._native then
    return nil, errors.new {
      kind = "Closed",
      op = "write",
      message = state._closed and "stdin is closed"
        or "this process has no open stdin; start it with stdin = \"pipe\"",
    }
  end
  if data == "" then
    return 0
  end
  if timeout == 0 then
    local taken, e = state._native:try_write(data)
    if e then
      return nil, errors.from(e, "write")
    end
    return taken, taken < #data and wait.not_now("write") or nil
  end
  local r, partial
  r, err, partial = wait.op(state._native:write(data), timeout, "write")
  if r then
    return r.number
  end
  local accepted = partial and partial.number or 0
  if err.kind == "Timeout" then
    return accepted, err
  end
  return nil, errors.from(err, "write", { accepted = accepted })
end

function methods:close()
  local state = core.state(self, class)
  if not state._closed then
    state._closed = true
    if state._finish then
      state._finish()
    elseif state._native then
      state._native:close_write()
    end
  end
  return true
end

class = core.class("Input", methods, {
  tostring = function(state)
    return ("sandbar.Input (%s)"):format(
      state._closed and "closed" or state._native and "open" or "not open")
  end,
})

-- Its program writes no more, and others may.
function input.leave(handle, open)
  local state = core.state(handle, class)
  if not state._closed then
    state._closed = true
    if state._native and not open then
      state._native:close_write()
    end
  end
end

--- The native stream, for C code that writes to it; nil and Closed. false: not an input.
function input.lend(handle)
  if not core.is(handle, class) then
    return false
  end
  local state = core.state(handle, class)
  if state._closed or not state._native then
    return nil, errors.new { kind = "Closed", op = "write", message = "stdin is closed" }
  end
  return state._native
end

-- `finish`: how its end is told, where that is more than an end of the pipe.
function input.new(native, process, finish)
  return core.handle(class, { _native = native, _process = process, _finish = finish })
end

return input
