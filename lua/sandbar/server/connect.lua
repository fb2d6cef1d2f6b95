-- The Connect protocol over a request: unary calls and server streams, in JSON and protobuf.
--
-- A call is { input = "process.StartRequest", output = "process.StartResponse", stream = true, run = function }. A
-- unary one's run(context, message) gives the answer's message or nil and a failure; a stream's run(context, message,
-- sink) sends with sink:send(message) and gives true or nil and a failure once nothing more comes. One whose requests
-- are a stream (`many`) has run(context, next), where next() is the next message, nil at the end, or nil and a failure;
-- it gives the answer's message. A failure is of connect.failure or an error of the contract. What is no stream of
-- answers runs as a task that ends with its client, and after the client's time; a unary one that was given none after
-- `limit` seconds, or 600. `bulk`: its requests hold
-- data; `list`: the answer's one field, which may be long.

local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local http = require "sandbar.http"
local message = require "sandbar.e2b.message"
local pace = require "sandbar.server.pace"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local MAX_MESSAGE, MAX_BULK = 4194304, 16777216 -- bytes of a request
local AT_ONCE = 100 -- elements of a long answer that are encoded at once
local READ_TIMEOUT = 60 -- seconds for the whole of a request's message
local UNARY = 600 -- seconds for what it asks for, where the client says nothing
local KEEPALIVE = 90 -- seconds between signs of life, where the client says nothing
local KEEPALIVE_LEAST = 0.01 -- what a client may ask for: a wait of no time would let nobody else have a turn

local connect = {}

local STATUS = {
  canceled = 499, unknown = 500, invalid_argument = 400, deadline_exceeded = 504, not_found = 404, already_exists = 409,
  permission_denied = 403, resource_exhausted = 429, failed_precondition = 400, aborted = 409, out_of_range = 400,
  unimplemented = 501, internal = 500, unavailable = 503, data_loss = 500, unauthenticated = 401,
}

local CODES = {
  InvalidArgument = "invalid_argument", Unsupported = "unimplemented", Unauthenticated = "unauthenticated",
  PermissionDenied = "permission_denied", NotFound = "not_found", AlreadyExists = "already_exists",
  Busy = "unavailable", NotRunning = "unavailable", LimitExceeded = "resource_exhausted",
  NoSpace = "resource_exhausted", Unavailable = "unavailable", Timeout = "deadline_exceeded", Cancelled = "canceled",
}

local TYPES = {
  ["application/json"] = { codec = "json" },
  ["application/proto"] = { codec = "proto" },
  ["application/connect+json"] = { codec = "json", stream = true },
  ["application/connect+proto"] = { codec = "proto", stream = true },
}

local ACCEPTED = {
  [false] = "application/json, application/proto", [true] = "application/connect+json, application/connect+proto",
}

function connect.failure(code, text)
  return { connect = code, message = text }
end

--- The code and the text of a failure.
function connect.code_of(failure)
  if failure.connect then
    return failure.connect, failure.message
  elseif errors.is(failure) then
    return CODES[failure.kind] or "internal", failure.message
  end
  return "internal", tostring(failure.message)
end

local function error_body(failure)
  local code, text = connect.code_of(failure)
  return { code = code, message = text }, STATUS[code]
end

-- ---- requests ----

local function type_of(request)
  local given = (request.headers:get("content-type") or ""):lower()
  return TYPES[given:match("^%s*([^;%s]*)")], given:match("^%s*([^;%s]*)")
end

--- How long the client gives the call, in seconds; nil without a limit. A header that makes no sense is none.
function connect.timeout_of(headers)
  local text = headers:get("connect-timeout-ms")
  local ms = text and text:match("^%d%d?%d?%d?%d?%d?%d?%d?%d?%d?$") and tonumber(text)
  return ms and ms / 1000
end

function connect.keepalive_of(headers)
  local seconds = tonumber(headers:get("keepalive-ping-interval") or "")
  return seconds and seconds > 0 and seconds < 86400 and math.max(seconds, KEEPALIVE_LEAST) or KEEPALIVE
end

-- The one message in a stream's request, or nil and a failure.
local function opened(body)
  local flags = body:byte(1)
  if #body < 5 then
    return nil, connect.failure("invalid_argument", "protocol error: incomplete envelope")
  elseif flags % 2 == message.COMPRESSED then
    return nil, connect.failure("internal", "protocol error: compressed without an agreed compression")
  end
  local a, b, c, d = body:byte(2, 5)
  local length = ((a * 256 + b) * 256 + c) * 256 + d
  if #body ~= length + 5 then
    return nil, connect.failure("invalid_argument", "protocol error: the envelope is not the whole body")
  end
  return body:sub(6)
end

local function read_message(request, call, codec)
  local encoding = request.headers:get(call.stream and "connect-content-encoding" or "content-encoding")
  if encoding and encoding ~= "identity" then
    return nil, connect.failure("unimplemented", ("unknown compression %q"):format(encoding))
  end
  local body, err = request:read_all(call.bulk and MAX_BULK or MAX_MESSAGE, READ_TIMEOUT)
  if not body then
    return nil, err
  end
  if call.stream then
    body, err = opened(body)
    if not body then
      return nil, err
    end
  end
  local decoded
  decoded, err = message.decode(call.input, body, codec, pace.VALUES, pace.new())
  if not decoded then
    return nil, connect.failure("invalid_argument", errors.is(err) and err.message or tostring(err))
  end
  return decoded
end

-- ---- streams ----

local Sink = {}
Sink.__index = Sink

-- Envelopes of one exchange are written one at a time, by whichever task. The first one goes with the answer's head,
-- the `last` one with its end.
local function write(self, bytes, timeout, last)
  while self._writing do
    local ok, err = wait.on(self._writing, timeout, "write")
    if not ok then
      return nil, err
    end
  end
  if self.closed then
    return nil, connect.failure("canceled", "the stream is over")
  end
  local ok, err
  self._writing, self.closed = wait.signal(), last or false
  if not self._begun then
    self._begun = true
    ok, err = self.request:begin(200, { ["content-type"] = "application/connect+" .. self.codec }, bytes)
    if ok and last then
      ok, err = self.request:finish()
    end
  elseif last then
    ok, err = self.request:finish(bytes)
  else
    ok, err = self.request:write(bytes, timeout)
  end
  self._at = core.now()
  local signal = self._writing
  self._writing = nil
  wait.fire(signal)
  return ok, err
end

--- Sends a message, and waits while the client does not read. True, or nil and why it cannot any more.
function Sink:send(value)
  local bytes, err = message.encode(self.call.output, value, self.codec)
  if not bytes then
    return nil, err
  end
  return write(self, message.envelope(0, bytes))
end

-- Sends a message that is not waited for: what is pumped may keep the client busy.
function Sink:mention(value)
  local bytes = message.encode(self.call.output, value, self.codec)
  return bytes and write(self, message.envelope(0, bytes), 0)
end

--- Sends an event with output of a process: what there is most of, without the detour over a table.
function Sink:data(name, bytes)
  if self.codec == "json" then
    local head, tail = '{"event":{"data":{"' .. name .. '":"', '"}}}'
    return write(self, message.envelope(0, head .. http.base64(bytes) .. tail))
  end
  return self:send { event = { data = { [name] = bytes } } }
end

--- What comes out of `output` goes to the client from here on, without a look of Lua's at it: a pump of pumps.lua. Nil
--- and an error.
function Sink:pump(name, output)
  while self._writing do -- the answer may just be beginning
    local ok, err = wait.on(self._writing, nil, "write")
    if not ok then
      return nil, err
    end
  end
  local native, early = stream.lend(output)
  if not native then
    return nil, early
  elseif early ~= "" then
    local ok, err = self:data(name, early)
    if not ok then
      return nil, err
    end
  end
  return self.request:start_pump_out(output, "connect+" .. self.codec, name)
end

--- The last envelope, without which a stream is broken for its client; before it a message, where there is one more.
function Sink:finish(failure, value)
  local bytes
  if value then
    bytes, failure = message.encode(self.call.output, value, self.codec)
  end
  local body = failure and encode.value { error = error_body(failure) } or "{}"
  write(self, (bytes and message.envelope(0, bytes) or "") .. message.envelope(message.END, body), nil, true)
  self.closed = true
end

--- Cuts the connection without a last envelope: what is left of a stream whose sandbox was killed.
function Sink:cut()
  if not self.closed then
    self.closed = true
    self.request:abort()
  end
end

--- Waits until the stream is over or the client has gone, and sends signs of life meanwhile: `ping` is the message of
--- one. True when it is over, false when the client has gone, nil when the deadline has passed (then nothing was sent).
function Sink:attend(ping, deadline)
  while not self.closed do
    local left = self._at + self.keepalive - core.now()
    if self._writing and left <= 0 then -- the client does not read: it has signs of life enough
      left = self.keepalive
    end
    if deadline then
      left = math.min(left, deadline - core.now())
    end
    local gone, err = self.request:gone(math.max(left, 0))
    if self.closed then
      break
    elseif gone or err and err.kind ~= "Timeout" then
      self.closed = true
      return false
    elseif deadline and core.now() >= deadline then
      return nil
    elseif core.now() >= self._at + self.keepalive and not self._writing then
      self:mention(ping)
    end
  end
  return true
end

-- What the client is told of a failure: of its sandbox's end whatever was done in that.
local function told(context, failure)
  if context.is_lost and context.is_lost(failure) then
    return connect.failure("unavailable", "the sandbox does not run")
  end
  return failure
end

local function answer_stream(request, call, kind, context)
  local decoded, failure = read_message(request, call, kind.codec)
  local sink = setmetatable({
    request = request, call = call, codec = kind.codec, keepalive = connect.keepalive_of(request.headers),
    _at = core.now(),
  }, Sink)
  local ok
  if decoded then
    ok, failure = call.run(context, decoded, sink)
  end
  if not sink.closed then
    sink:finish(not ok and told(context, failure) or nil)
  end
end

-- ---- what is over with its client, or its time ----

-- A call's run(...), for as long as the client is there, `limit` seconds at most: its answer, or nil and a failure.
local function attended(request, limit, call, ...)
  local over, result, failure = request:attend(limit, call.run, ...)
  if over then
    return result, failure
  elseif result.kind == "Timeout" then
    return nil, connect.failure("deadline_exceeded", "context deadline exceeded")
  end
  return nil, result
end

-- ---- streams of requests ----

local PIECE = 65536

-- What gives a request's messages one after the other, as they come.
local function messages(request, call, codec)
  local parser = message.parser(MAX_BULK)
  return function()
    while true do
      local flags, payload = parser:next()
      if flags then
        if flags ~= 0 then
          return nil, connect.failure("internal", "protocol error: compressed without an agreed compression")
        end
        local decoded, err = message.decode(call.input, payload, codec, pace.VALUES, pace.new())
        if not decoded then
          return nil, connect.failure("invalid_argument", errors.is(err) and err.message or tostring(err))
        end
        return decoded
      elseif payload then
        return nil, payload
      end
      local piece, err = request:read(PIECE)
      if err then
        return nil, err
      elseif not piece then
        local left = parser:left() > 0
        return nil, left and connect.failure("invalid_argument", "protocol error: incomplete envelope") or nil
      end
      parser:feed(piece)
    end
  end
end

local function answer_many(request, call, kind, context)
  local sink = setmetatable({ request = request, call = call, codec = kind.codec, _at = core.now() }, Sink)
  local value, failure
  if (request.headers:get("connect-content-encoding") or "identity") ~= "identity" then
    failure = connect.failure("unimplemented", "unknown compression")
  else
    value, failure = attended(request, context.timeout, call, context, messages(request, call, kind.codec))
  end
  sink:finish(not value and told(context, failure) or nil, value)
end

-- ---- unary calls ----

local function encode_whole(call, result, codec)
  return message.encode(call.output, result, codec)
end

-- The answer of a call whose list may be long, in pieces: a message's bytes behind another's are both, and JSON is put
-- together.
local function encode_list(call, result, codec)
  local list, out, step = result[call.list] or {}, {}, pace.new()
  local head, tail = ('{"%s":['):format(call.list), "]}"
  for first = 1, #list, AT_ONCE do
    local some = {}
    for i = first, math.min(first + AT_ONCE - 1, #list) do
      step()
      some[#some + 1] = list[i]
    end
    local bytes, err = message.encode(call.output, { [call.list] = some }, codec)
    if not bytes then
      return nil, err
    end
    out[#out + 1] = codec == "json" and bytes:sub(#head + 1, -#tail - 1) or bytes
  end
  if codec == "proto" then
    return table.concat(out)
  end
  return out[1] and head .. table.concat(out, ",") .. tail or "{}"
end

local function answer_unary(request, call, kind, context)
  local result
  local decoded, failure = read_message(request, call, kind.codec)
  if decoded then
    result, failure = attended(request, context.timeout or call.limit or UNARY, call, context, decoded)
  end
  local bytes
  if result then
    bytes, failure = (call.list and encode_list or encode_whole)(call, result, kind.codec)
  end
  if not bytes then
    local body, status = error_body(told(context, failure))
    return request:respond(status, { ["content-type"] = "application/json" }, encode.value(body))
  end
  return request:respond(200, { ["content-type"] = "application/" .. kind.codec }, bytes)
end

--- Answers a request for `call`. `context` is handed to its run, with `timeout` added.
function connect.serve(request, call, context)
  if request.method ~= "POST" then
    return request:respond(405, { allow = "POST" }, "")
  end
  local kind = type_of(request)
  local streamed = call.stream == true or call.many == true
  if not kind or (kind.stream == true) ~= streamed then
    return request:respond(415, { ["accept-post"] = ACCEPTED[streamed] }, "")
  end
  context.timeout = connect.timeout_of(request.headers)
  if call.many then
    return answer_many(request, call, kind, context)
  elseif streamed then
    return answer_stream(request, call, kind, context)
  end
  return answer_unary(request, call, kind, context)
end

return connect
