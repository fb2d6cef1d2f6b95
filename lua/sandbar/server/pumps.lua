-- Bytes between a request and a process, a connection or a file that never pass Lua: methods of requests (http.lua).

local check = require "sandbar.check"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local file = require "sandbar.file"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local pumps = {}

local request = {}
local state_of -- of a request

local function invalid(op, message)
  return nil, errors.new { kind = "InvalidArgument", op = op, message = message }
end

local function failed(err, op)
  return nil, errors.from(err, op)
end

-- The native stream of what is given, and what was read of it already; nil and an error.
local function lent(from, op, index, lenders)
  if type(from) == "userdata" then
    for _, name in ipairs(lenders) do
      local native, second = require("sandbar." .. name).lend(from)
      if native ~= false then
        return native, second
      end
    end
  end
  check.fail(op, index, "a stream of a process, a connection or a file expected", 2)
end

-- ---- one that has been started ----

local Pump = {}
Pump.__index = Pump

--- Waits until all has been moved: how many bytes, or nil and an error. Ending the wait ends the pump.
function Pump:wait(timeout)
  local r, err, partial = wait.op(self.op, timeout, self.name)
  if self.reading then
    stream.end_wait(self.reading)
  end
  r = r or partial
  return not err and r.number or nil, err, r and r.number
end

--- Ends it, on which wait() gives Cancelled. Nothing is lost: what it took from its source is on its way.
function Pump:stop()
  self.op:cancel()
end

local function started(op, name, reading)
  if reading then
    stream.begin_wait(reading)
  end
  return setmetatable({ op = op, name = name, reading = reading }, Pump)
end

--- pump_out that is not waited for.
function request:start_pump_out(source, framing, kind)
  local state = state_of(self)
  local from, early = lent(source, "pump_out", 1, { "stream", "port" })
  if not from then
    return failed(early, "pump_out")
  elseif early ~= "" then
    return invalid("pump_out", "some of the source was read already")
  end
  return started(state._native:pump_out(from, framing or "raw", kind or "stdout"), "pump_out",
    stream.is(source) and stream.state(source) or nil)
end

-- ---- methods ----

-- Moves between the request and a file, from where that is: how many bytes. `start(native, position)` gives the
-- operation.
local function with_file(handle, op, timeout, start)
  local native, at, moved = file.lend(handle)
  if not native then
    return failed(at, op)
  end
  local n, err, partial = started(start(native, at), op):wait(timeout)
  moved(n or partial or 0)
  return n, err
end

--- What comes out of `source` (output of a process, a connection to a port) becomes body of the answer, which has
--- begun, without a look of Lua's at it. `framing`: "raw", "connect+json" or "connect+proto" (data events of E2B's
--- protocol, of the `kind` "stdout", "stderr" or "pty"). Returns how many bytes once it has ended; finish() follows.
function request:pump_out(source, framing, kind)
  state_of(self)
  check.arg("pump_out", 2, framing, "string?")
  check.arg("pump_out", 3, kind, "string?")
  local pump, err = self:start_pump_out(source, framing, kind)
  if not pump then
    return nil, err
  end
  local n
  n, err = pump:wait()
  return n, err
end

--- What an open file has, from where it is on, becomes body of the answer: `count` bytes, or all. Returns how many it
--- had.
function request:send_file(handle, count)
  local state = state_of(self)
  check.arg("send_file", 2, count, "size?")
  if not file.is(handle) then
    check.fail("send_file", 1, "an open file expected")
  end
  return with_file(handle, "send_file", nil, function(native, at)
    return state._native:send_file(native, at, count)
  end)
end

--- The body goes into `target` (stdin of a process, a connection to a port, an open file at its position), which is
--- not closed by that. Returns how many bytes.
function request:pump_in(target, timeout)
  local state = state_of(self)
  check.arg("pump_in", 2, timeout, "timeout?")
  local seconds, err = duration.timeout(timeout)
  if err then
    return failed(err, "pump_in")
  end
  if file.is(target) then
    return with_file(target, "pump_in", seconds, function(native, at)
      return state._native:take_file(native, at)
    end)
  end
  local to
  to, err = lent(target, "pump_in", 1, { "input", "port" })
  if not to then
    return failed(err, "pump_in")
  end
  local n
  n, err = started(state._native:pump_in(to), "pump_in"):wait(seconds)
  return n, err
end

--- The body, up to where the bytes `delimiter` begin, which are read next, goes into an open file. `early`: what of the
--- body was read already, and did not have them. Returns how many bytes the file got.
function request:take_part(handle, delimiter, early)
  local state = state_of(self)
  check.arg("take_part", 2, delimiter, "string")
  check.arg("take_part", 3, early, "string")
  if not file.is(handle) then
    check.fail("take_part", 1, "an open file expected")
  end
  return with_file(handle, "take_part", nil, function(native, at)
    return state._native:take_file(native, at, delimiter, early)
  end)
end

--- From here on the connection is no HTTP: `head` (an answer's head, or nothing) is sent as it is, then client and
--- `connection` (to a port) are each other's until both have closed. What of the body was not read goes on as it came.
--- True when both have closed in order. Ending the wait cuts both.
function request:upgrade(connection, head)
  local state = state_of(self)
  check.arg("upgrade", 2, head, "string?")
  local to, early = lent(connection, "upgrade", 1, { "port" })
  if not to then
    return failed(early, "upgrade")
  end
  state._begun = true
  local n, err = started(state._native:tunnel(to, (head or "") .. early), "upgrade"):wait()
  return n and true, err
end

--- Adds the methods to those of requests; `of` gives a request's state.
function pumps.install(methods, of)
  state_of = of
  for name, method in pairs(request) do
    methods[name] = method
  end
end

return pumps
