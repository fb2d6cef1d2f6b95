-- An HTTP/1.1 server: requests and their answers. Connections, parsing, limits and clocks are the I/O thread's; what is
-- here makes handles of what it gives.
--
--   local listener = assert(http.listen { address = "127.0.0.1", port = 3000 })
--   http.serve(listener, function(request)
--     request:respond(200, { ["Content-Type"] = "text/plain" }, "hello\n")
--   end)
--
-- Requests of one connection come one after another: the next when the one before has been answered. A request that
-- nobody answers (its handler fails, it is collected) is answered 500; one whose answer has begun is cut.

local attend = require "sandbar.server.attend"
local check = require "sandbar.check"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local headers = require "sandbar.headers"
local native = require "sandbar.server"
local nested = require "sandbar.nested"
local pumps = require "sandbar.server.pumps"
local source = require "sandbar.source"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local http = {}

local PIECE = 65536
local NOTHING = {}

local LISTEN = {
  address = "string", port = "integer", path = "string", max_connections = "integer", header_limit = "size",
  header_timeout = "duration", idle_timeout = "duration", body_timeout = "duration", write_timeout = "duration",
  stream_timeout = "duration", tunnel_timeout = "duration", tls_cert = "string", tls_key = "string",
}

-- What is not said, and the most that can be.
local DEFAULTS = { max_connections = 1024, header_limit = 65536 }
local MOST = { max_connections = 1000000, header_limit = 65536, port = 65535 }
local CLOCKS = {
  header_timeout = 10, idle_timeout = 60, body_timeout = 30, write_timeout = 30, stream_timeout = 600,
  tunnel_timeout = 620,
}

local function invalid(op, message)
  return nil, errors.new { kind = "InvalidArgument", op = op, message = message }
end

local function failed(err, op)
  return nil, errors.from(err, op)
end

-- The seconds of a positional timeout, false for none.
local function seconds_of(timeout, op, index)
  check.arg(op, index, timeout, "timeout?", 2)
  local seconds, err = duration.timeout(timeout)
  if err then
    return failed(err, op)
  end
  return seconds
end

-- ---- requests ----

local request_class
local request = {}

-- "Name: value" lines of the headers of an answer.
local function lines_of(given)
  if given == nil then
    return NOTHING
  end
  return headers.lines(given)
end

--- A piece of the body: what has come, at most `n` bytes (64 KiB); with "a" all of it, at most 64 MiB. nil at the end.
function request:read(n, timeout)
  local state = core.state(self, request_class)
  if n == "a" then
    return self:read_all(nil, timeout)
  end
  check.arg("read", 1, n, "integer?")
  if n and n < 1 then
    return invalid("read", ("%d is no number of bytes to read"):format(n))
  end
  local seconds, err = seconds_of(timeout, "read", 2)
  if err then
    return nil, err
  end
  return wait.bytes(state._native:read("some", n or PIECE), seconds, "read")
end

--- The body for a request that passes it on: `n` bytes at most in a piece, `timeout` seconds for each.
function request:pieces(n, timeout)
  local state = core.state(self, request_class)
  return source.new(function()
    return state._native:read("some", n)
  end, function(op)
    return wait.bytes(op, timeout, "read")
  end)
end

--- The whole body, "" when there is none; LimitExceeded when it is longer than `max` bytes (64 MiB).
function request:read_all(max, timeout)
  local state = core.state(self, request_class)
  check.arg("read_all", 1, max, "size?")
  local seconds, err = seconds_of(timeout, "read_all", 2)
  if err then
    return nil, err
  end
  if max and not (max >= 0) then
    return invalid("read_all", ("max: %s is no number of bytes"):format(tostring(max)))
  end
  local data
  data, err = wait.bytes(state._native:read("all", max or 67108864), seconds, "read_all")
  if err then
    return nil, err
  end
  return data or ""
end

-- Starts an answer.
local function answer(self, op, status, given, body, first)
  local state = core.state(self, request_class)
  check.arg(op, 1, status, "integer", 2)
  check.arg(op, 2, given, "table?", 2)
  local lines, err = lines_of(given)
  if not lines then
    return failed(err, op)
  end
  local ok
  ok, err = wait.op(state._native:answer(status, lines, body, first), nil, op)
  if not ok then
    return nil, err
  end
  state._begun = true
  return true
end

--- The whole answer. True when it is on its way.
function request:respond(status, given, body)
  check.arg("respond", 3, body, "secret?")
  return answer(self, "respond", status, given, body or "")
end

--- Begins an answer whose body is written piece by piece: in chunks, or as long as a Content-Length in `given` says.
--- `first`: a piece that goes with the head.
function request:begin(status, given, first)
  check.arg("begin", 3, first, "secret?")
  return answer(self, "begin", status, given, nil, first)
end

--- A piece of the body. Waits while the client does not take what is there for it. When that takes longer than
--- `timeout` the piece is still on its way.
function request:write(data, timeout)
  local state = core.state(self, request_class)
  check.arg("write", 1, data, "secret")
  local seconds, err = seconds_of(timeout, "write", 2)
  if err then
    return nil, err
  end
  local ok
  ok, err = wait.op(state._native:write(data), seconds, "write")
  return ok and true, err
end

--- The end of a body that was written piece by piece, with its last one if there is.
function request:finish(last)
  local state = core.state(self, request_class)
  check.arg("finish", 1, last, "secret?")
  local ok, err = wait.op(state._native:finish(last), nil, "finish")
  return ok and true, err
end

--- Cuts the connection, so that the client sees that something is missing. Nothing happens when it has been answered.
function request:abort()
  core.state(self, request_class)._native:close()
  return true
end

--- Waits until the client has gone away (true) or the request has been answered (false).
function request:gone(timeout)
  local state = core.state(self, request_class)
  local seconds, err = seconds_of(timeout, "gone", 1)
  if err then
    return nil, err
  end
  local r
  r, err = wait.op(state._native:gone(), seconds, "gone")
  if not r then
    return nil, err
  end
  return r.number == 1
end

local function state_of(self)
  return core.state(self, request_class)
end

pumps.install(request, state_of)
attend.install(request, state_of)

request_class = core.class("ServerRequest", request, {
  tostring = function(state)
    return ("sandbar.ServerRequest(%s %s)"):format(state.method, state.target)
  end,
})

-- ---- listeners ----

local listener_class
local listener = {}

--- Where it listens: { address, port } or { path }.
function listener:address()
  local state = core.state(self, listener_class)
  local address, port = state._native:address()
  if port then
    return { address = address, port = port }
  end
  return { path = address }
end

--- The next request of any client. Closed after close().
function listener:accept(timeout)
  local state = core.state(self, listener_class)
  local seconds, err = seconds_of(timeout, "accept", 1)
  if err then
    return nil, err
  end
  local op = state._native:accept()
  local done, early = wait.finish(op, seconds, "accept")
  if not done then
    return nil, early
  end
  local fields, object = native.request(op, headers.metatable)
  if not fields then
    local _
    _, err = wait.outcome(op, early, "accept")
    return nil, err
  end
  fields._native = object
  return core.handle(request_class, fields)
end

--- No more connections and requests. What is being answered goes on.
function listener:close()
  core.state(self, listener_class)._native:close()
  return true
end

--- Waits until no connection is left. True, or nil and an error.
function listener:drain(timeout)
  local state = core.state(self, listener_class)
  local seconds, err = seconds_of(timeout, "drain", 1)
  if err then
    return nil, err
  end
  local ok
  ok, err = wait.op(state._native:drain(), seconds, "drain")
  return ok and true, err
end

--- Closes it and cuts every connection at once.
function listener:cut()
  core.state(self, listener_class)._native:cut()
  return true
end

listener_class = core.class("ServerListener", listener, {
  tostring = function(state)
    local address, port = state._native:address()
    return ("sandbar.ServerListener(%s%s)"):format(address, port and ":" .. port or "")
  end,
})

-- The options for the C half, or nil and why not.
local function settle(opts)
  local options = {
    address = opts.address, port = opts.port, path = opts.path, tls_cert = opts.tls_cert, tls_key = opts.tls_key,
  }
  if (opts.tls_cert == nil) ~= (opts.tls_key == nil) then
    return invalid("listen", "tls_cert and tls_key go together")
  end
  if (opts.path == nil) == (opts.address == nil) then
    return invalid("listen", "either an address and a port, or a path")
  elseif opts.address then
    options.port = opts.port or 0
    options.address = opts.address == "localhost" and "127.0.0.1" or opts.address
  elseif opts.port then
    return invalid("listen", "a path has no port")
  end
  for name, default in pairs(DEFAULTS) do
    options[name] = opts[name] or default
  end
  for name, most in pairs(MOST) do
    local least = name == "port" and 0 or 1
    if options[name] and not (options[name] >= least and options[name] <= most) then
      return invalid("listen", ("%s: from %d to %d, not %s"):format(name, least, most, tostring(options[name])))
    end
  end
  for name, default in pairs(CLOCKS) do
    local seconds, err = duration.positive(opts[name] or default, name)
    if not seconds then
      return failed(err, "listen")
    end
    options[name] = seconds
  end
  return options
end

--- Listens: address and port (0: any free one), or path of a unix socket that only this user may connect to; with TLS
--- by tls_cert and tls_key, PEM files (the certificate with those that lead to it; the key without a pass phrase).
--- Limits: max_connections (1024), header_limit (64 KiB). Clocks, in seconds: header_timeout (10) for a whole head,
--- idle_timeout (60) between two requests, body_timeout (30) without a byte of a body that is read, write_timeout (30)
--- without the client taking a byte of a whole answer, stream_timeout (600) of one that is written piece by piece or of
--- an upgraded connection, tunnel_timeout (620) of the latter without a byte either way.
function http.listen(opts)
  opts = check.options("listen", 1, opts, LISTEN)
  local options, err = settle(opts)
  if not options then
    return nil, err
  end
  local object
  object, err = native.listen(options)
  if not object then
    return failed(err, "listen")
  end
  return core.handle(listener_class, { _native = object })
end

-- Runs a handler for one request. Whatever it does, the client has an answer or sees that there is none.
local function handle(one, handler, on_error)
  local ok, err = nested.pcall(handler, one)
  local state = core.state(one, request_class)
  if not state._begun then
    one:respond(500, nil, "")
  end
  state._native:close() -- cuts an answer that has not been finished
  if ok then
    return
  elseif not on_error then
    error(err, 0) -- the task's, reported by the host
  end
  on_error(err, one)
end

--- Runs handler(request) in a task of its own for every request, until the listener is closed. on_error(err, request)
--- hears of handlers that raise.
function http.serve(at, handler, on_error)
  core.state(at, listener_class)
  check.arg("serve", 2, handler, "callable")
  check.arg("serve", 3, on_error, "callable?")
  while true do
    local one, err = at:accept()
    if not one then
      if err.kind == "Closed" then
        return true
      end
      return nil, err
    end
    local ok
    ok, err = task.spawn(handle, one, handler, on_error)
    if not ok then
      one:respond(503, nil, "")
      return nil, err
    end
  end
end

return http
