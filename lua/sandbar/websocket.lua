-- WebSocket: messages to and from a program that listens in a sandbox. The connection is the I/O thread's: pings are
-- answered there, and messages arrive while nobody looks, up to 256 KiB of them.

local check = require "sandbar.check"
local context = require "sandbar.context"
local copied = require "sandbar.copied"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local http = require "sandbar.http"
local iterator = require "sandbar.iterator"
local link = require "sandbar.link"
local wait = require "sandbar.wait"

local websocket = {}

local class
local methods = {}

local TIMEOUT = check.TIMEOUT
local SEND = { binary = "boolean", timeout = "timeout" }
local CLOSE = { code = "integer", reason = "string", timeout = "timeout" }
local PATIENCE = 5 -- seconds for the other side's close
local MAX_MESSAGE = 67108864
local MAX_REASON = 123
local TOKEN = "^[%w!#$%%&'*+%-.^_`|~]+$"

local function invalid(op, message)
  return nil, errors.new { kind = "InvalidArgument", op = op, message = message }
end

-- The state, or nil and Closed.
local function open_one(self, op)
  local state = core.state(self, class)
  if state.closed then
    return nil, errors.new { kind = "Closed", op = op, message = "the websocket is closed" }
  end
  return state
end

--- Sends one message: text, or with `binary` any bytes. True once the system has taken it.
function methods:send(data, opts)
  check.arg("send", 1, data, "string")
  opts = check.options("send", 2, opts, SEND)
  local state, err = open_one(self, "send")
  if not state then
    return nil, err
  end
  local timeout
  timeout, err = check.timeout(opts, "send")
  if err then
    return nil, err
  end
  if not opts.binary and not http.is_text(data) then
    return invalid("send", "data: it is not UTF-8; binary = true sends any bytes")
  end
  if timeout == 0 then -- it is handed over, if the one before is out
    if state.sending and not state.sending:done() then
      return nil, wait.not_now("send")
    end
    state.sending = state.native:send(data, opts.binary)
    return true
  end
  local ok
  ok, err = wait.check("send")
  if not ok then
    return nil, err
  end
  local r
  r, err = wait.op(state.native:send(data, opts.binary), timeout, "send")
  return r and true, err
end

-- What a receive came to: as receive; and whether it was only given up.
local function received(state, op, early)
  local data, second, third = http.message(op)
  if data then
    return data, second and "binary" or "text"
  end
  if second then
    state.close_code, state.close_reason = second, third
    return nil
  end
  local _, err = wait.outcome(op, early, "receive")
  return nil, err, err.kind == "Cancelled"
end

--- The next message and "text" or "binary"; nil when the other side has closed: code and reason are fields then.
function methods:receive(opts)
  opts = check.options("receive", 1, opts, TIMEOUT)
  local state, err = open_one(self, "receive")
  if not state then
    return nil, err
  end
  local timeout
  timeout, err = check.timeout(opts, "receive")
  if err then
    return nil, err
  end
  if state.receiving then
    return nil, errors.new { kind = "Busy", op = "receive", message = "another receiver is at work on this websocket" }
  end
  local op = state.op -- of a call that could not wait; what it gets is the next one's
  state.op = nil
  if op and op:done() then
    local data, kind, given_up = received(state, op)
    if not given_up then
      return data, kind
    end
    op = nil
  end
  op = op or state.native:receive()
  if timeout == 0 and not op:done() then
    state.op = op
    return nil, wait.not_now("receive")
  end
  state.receiving = true
  local done, early = wait.finish(op, timeout or nil, "receive")
  state.receiving = nil
  if not done then
    state.op = op
    return nil, early
  end
  local data, kind = received(state, op, early)
  return data, kind
end

--- for data, kind in ws:messages(): until the other side closes.
function methods:messages(opts)
  opts = check.options("messages", 1, opts, TIMEOUT)
  local timeout, err = check.timeout(opts, "messages")
  if err then
    return iterator.failed(err)
  end
  return iterator.new(function()
    local data, kind = self:receive { timeout = timeout }
    return data, kind
  end)
end

--- Closes in order: tells the other side, and waits `timeout` (5 s) for its answer, then no longer. True in any case
--- that leaves nothing behind.
function methods:close(opts)
  local state = core.state(self, class)
  opts = check.options("close", 1, opts, CLOSE)
  local patience, err = check.timeout({ timeout = opts.timeout == nil and PATIENCE or opts.timeout }, "close")
  if err then
    return nil, err
  end
  local code, reason = opts.code or 1000, opts.reason or ""
  if code ~= 1000 and code ~= 1001 and (code < 3000 or code > 4999) then
    return invalid("close", ("code: %d is neither 1000, 1001 nor from 3000 to 4999"):format(code))
  end
  if #reason > MAX_REASON or not http.is_text(reason) then
    return invalid("close", ("reason: it is not UTF-8, or longer than %d bytes"):format(MAX_REASON))
  end
  if state.closed then
    return true
  end
  state.closed = true
  if patience == 0 or not wait.check("close") then
    state.native:drop()
    return true
  end
  local r
  r, err = wait.op(state.native:close(code, reason, patience or context.close_timeout), nil, "close")
  state.native:drop()
  return r and true, err
end

class = core.class("WebSocket", methods, {
  on_close = function(self)
    return methods.close(self)
  end,
  tostring = function(state)
    return ("sandbar.WebSocket to port %d (%s)"):format(state.number, state.closed and "closed" or "open")
  end,
})

-- ---- opening ----

local function protocol_line(protocols)
  for _, name in ipairs(protocols) do
    if type(name) ~= "string" or not name:find(TOKEN) then
      return invalid("websocket", ("protocols: '%s' cannot be one"):format(tostring(name)))
    end
  end
  return table.concat(protocols, ", ")
end

-- The headers to send, as a list.
local function headers_of(opts)
  local headers = copied(opts.headers)
  if opts.protocols and opts.protocols[1] then
    local line, err = protocol_line(opts.protocols)
    if not line then
      return nil, err
    end
    headers[#headers + 1] = { "Sec-WebSocket-Protocol", line }
  end
  return headers
end

-- An answer that is none, as an error.
local function refused(answer)
  return errors.new {
    kind = "Protocol", op = "websocket", status = answer.status,
    message = ("the answer is %d %s, not a websocket"):format(answer.status, answer.reason),
  }
end

local function chosen(answer, protocols)
  local name = answer.headers["sec-websocket-protocol"]
  if name == nil then
    return true
  end
  for _, offered in ipairs(protocols or {}) do
    if offered == name then
      return name
    end
  end
  return nil, errors.new {
    kind = "Protocol", op = "websocket",
    message = ("the answer chooses a protocol that was not offered: %s"):format(name),
  }
end

--- Opens one at the HTTP port `object`. `number`: the port's. `opts`: as in port.lua, checked. An answer that
--- opens none comes third.
function websocket.open(object, number, path, opts, timeout)
  local headers, err = headers_of(opts)
  local patience = 0
  if headers and opts.wait ~= nil then
    patience, err = duration.parse(opts.wait, "wait")
  end
  local most = opts.max_message or MAX_MESSAGE
  if not err and not (most >= 1) then
    headers, err = invalid("websocket", ("max_message: %s is no number of bytes"):format(tostring(most)))
  end
  if not headers or not patience then
    return nil, errors.from(err, "websocket")
  end
  local op
  op, err = http.websocket(object, path, headers, most, patience)
  if not op then
    return nil, errors.from(err, "websocket")
  end
  local done, early = wait.finish(op, timeout or nil, "websocket")
  if not done then
    return nil, early
  end
  local answer = http.answer_of_websocket(op)
  if not answer then
    local _
    _, err = wait.outcome(op, early, "websocket")
    return nil, link.told(err, timeout)
  end
  if answer.status ~= 101 then
    return nil, refused(answer), answer
  end
  local name
  name, err = chosen(answer, opts.protocols)
  if not name then
    answer.native:drop()
    return nil, err
  end
  return core.handle(class, {
    native = answer.native, number = number, headers = answer.headers, protocol = name ~= true and name or nil,
  })
end

return websocket
