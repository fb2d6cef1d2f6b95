-- Port: a port inside a sandbox. HTTP goes through sandbar.http, loaded by the first call that needs it;
-- raw bytes through a dialled stream.

local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local input = require "sandbar.input"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local websocket = lazy "sandbar.websocket"

local port = {}

local class, connection_class
local http -- sandbar.http, once it is needed
local methods = {}

local function state_of(self)
  return core.state(self, class)
end

local TIMEOUT, timeout_of = check.TIMEOUT, check.timeout

local function kept_port(state)
  local to = state._link
  if to.hosted then
    return nil
  end
  local kept = to.ports and to.ports[state.number]
  return kept and kept.box == to.box and kept.box:open_() and kept.object or nil
end

-- The HTTP module and its port object for the sandbox's present run; one is shared by all handles of a
-- number, so that connections are used again, and never outlives the run.
local function http_port(state, op, timeout)
  local kept = kept_port(state)
  if kept then
    return http, kept
  end
  local to = state._link
  local box, err = to:native(timeout, op)
  if not box then
    return nil, errors.from(err, op)
  end
  http = http or require "sandbar.http"
  to.ports = to.ports or {}
  local entry = to.ports[state.number]
  if entry and entry.box ~= box then
    entry.object:close()
    entry = nil
  end
  if not entry then
    local object
    object, err = http.port { engine = to.driver:engine(), id = to.id, port = state.number }
    if not object then
      return nil, errors.from(err, op)
    end
    entry = { box = box, object = object }
    to.ports[state.number] = entry
  end
  return http, entry.object
end

-- Nothing leaves the sandbox: no path is an absolute URL.
local function check_path(op, path)
  if path:find("^/[^%z\r\n ]*$") then
    return true
  end
  return nil, errors.new {
    kind = "InvalidArgument", op = op,
    message = ("path: %q is not relative to the port (it begins with / and has no blanks)"):format(path),
  }
end

local FETCH = {
  method = "string", path = "string", headers = "table", body = "secret|callable|readable", wait = "duration",
  stream = "boolean", max_body = "size", timeout = "timeout",
}

function methods:fetch(request)
  local state = core.state(self, class)
  local kept = kept_port(state)
  if kept then
    local done, answer, err = http.plain(kept, request, "fetch")
    if done then
      return answer, err
    end
  end
  request = check.options("fetch", 1, request, FETCH)
  local timeout, err = timeout_of(request, "fetch")
  if err then
    return nil, err
  end
  local ok
  ok, err = check_path("fetch", request.path or "/")
  if not ok then
    return nil, err
  end
  local hosted = state._link.hosted
  if hosted then
    local answer
    answer, err = hosted.fetch(state._link, state.number, request, timeout)
    return answer, err
  end
  local deadline = link.deadline(timeout)
  local loaded, object = http_port(state, "fetch", timeout)
  if not loaded then
    return nil, object
  end
  local answer
  answer, err = http.request(object, request, link.left(deadline), "fetch")
  return answer, link.told(err, timeout)
end

local WEBSOCKET = {
  headers = "table", protocols = "table", max_message = "size", wait = "duration", timeout = "timeout",
}

--- A websocket at `path` ("/").
function methods:websocket(path, opts)
  local state = state_of(self)
  check.arg("websocket", 1, path, "string?")
  opts = check.options("websocket", 2, opts, WEBSOCKET)
  if opts.protocols then
    check.list("websocket", 2, opts.protocols, "string")
  end
  path = path or "/"
  local timeout, err = timeout_of(opts, "websocket")
  local ok = not err
  if ok then
    ok, err = check_path("websocket", path)
  end
  if not ok then
    return nil, err
  end
  local opened
  local hosted = state._link.hosted
  if hosted then
    opened, err = hosted.websocket(state._link, state.number, path, opts, timeout)
    return opened, err
  end
  local deadline = link.deadline(timeout)
  local loaded, object = http_port(state, "websocket", timeout)
  if not loaded then
    return nil, object
  end
  opened, err = websocket.open(object, state.number, path, opts, link.left(deadline))
  return opened, link.told(err, timeout)
end

function methods:wait(opts)
  local state = state_of(self)
  opts = check.options("wait", 1, opts, TIMEOUT)
  local timeout, err = timeout_of(opts, "wait")
  if err then
    return nil, err
  end
  local ok
  local hosted = state._link.hosted
  if hosted then
    ok, err = hosted.wait(state._link, state.number, timeout)
    return ok, err
  end
  local deadline = link.deadline(timeout)
  local loaded, object = http_port(state, "wait", timeout)
  if not loaded then
    return nil, object
  end
  ok, err = http.wait(object, link.left(deadline), "wait")
  if not ok and err.kind == "Unavailable" and timeout then
    return nil, errors.new {
      kind = "Timeout", op = "wait", clock = "timeout", limit = timeout, cause = err,
      message = ("nobody listened on port %d within timeout = %g s"):format(state.number, timeout),
    }
  end
  return ok, link.told(err, timeout)
end

-- ---- raw bytes ----

local connection = {}

function connection:read(...)
  return core.state(self, connection_class)._output:read(...)
end

function connection:lines(...)
  return core.state(self, connection_class)._output:lines(...)
end

function connection:write(...)
  return core.state(self, connection_class)._input:write(...)
end

-- The other side sees the end; what it still sends can be read.
function connection:close_write()
  return core.state(self, connection_class)._input:close()
end

function connection:close()
  return core.state(self, connection_class)._output:close()
end

connection_class = core.class("Connection", connection, {
  tostring = function(state)
    return ("sandbar.Connection to port %d"):format(state.number)
  end,
})

local function connection_of(state, native)
  return core.handle(connection_class, {
    number = state.number,
    _output = stream.output("the connection", { native = native, mode = "pipe" }),
    _input = input.new(native),
    _link = state._link,
  })
end

function methods:connect(opts)
  local state = state_of(self)
  opts = check.options("connect", 1, opts, TIMEOUT)
  local timeout, err = timeout_of(opts, "connect")
  if err then
    return nil, err
  end
  local r
  local hosted = state._link.hosted
  if hosted then
    r, err = hosted.connect(state._link)
    return r, err
  end
  r, err = state._link:call("dial", "connect", timeout, state.number)
  if not r then
    return nil, err
  end
  return connection_of(state, r.object)
end

--- A connection for a request that changes protocols, and of a hosted port how that is written (see e2b/ports.lua).
function port.dial(handle, op)
  local state = core.state(handle, class)
  local hosted = state._link.hosted
  if not hosted then
    return handle:connect()
  end
  local native, how = hosted.dial(state._link, state.number, nil, op)
  if not native then
    return nil, how
  end
  return connection_of(state, native), how
end

--- Writes to a connection what may be a secret.
function port.send(handle, data)
  local native, err = input.lend(core.state(handle, connection_class)._input)
  if not native then
    return nil, err
  end
  return wait.op(native:write(data), nil, "write")
end

--- The headers by which a hosted port is found, as a set of names that no visitor may give; nil of a local one.
function port.reserved(handle)
  local hosted = core.state(handle, class)._link.hosted
  return hosted and hosted.OURS
end

-- Whatever is there of a connection, waiting for at least a byte; nil at its end.
function port.some(handle, timeout)
  return stream.some(core.state(handle, connection_class)._output, timeout)
end

--- As stream.lend, of a connection. false: none.
function port.lend(handle)
  if not core.is(handle, connection_class) then
    return false
  end
  return stream.lend(core.state(handle, connection_class)._output)
end

-- ---- exposing ----

local function expose(self, op, on, opts)
  local state = state_of(self)
  opts = check.options(op, 1, opts, TIMEOUT, 2)
  local timeout, err = timeout_of(opts, op)
  if err then
    return nil, err
  end
  local to = state._link
  if to:is_closed() then
    return nil, errors.new { kind = "Closed", op = op, id = to.id, message = "the sandbox's handle is closed" }
  end
  if to.hosted then
    return to.hosted.expose(to, state.number, on, timeout)
  end
  return to.driver:expose(to.id, state.number, on, timeout)
end

function methods:expose(opts)
  local ok, err = expose(self, "expose", true, opts) -- no tail call: it would hide the caller
  return ok, err
end

function methods:unexpose(opts)
  local ok, err = expose(self, "unexpose", false, opts)
  return ok, err
end

-- Where a proxy of this host sends requests for it, for as long as the sandbox's handle is open.
function methods:upstream(opts)
  local state = state_of(self)
  opts = check.options("upstream", 1, opts, TIMEOUT)
  local timeout, err = timeout_of(opts, "upstream")
  if err then
    return nil, err
  end
  local found
  local hosted = state._link.hosted
  if hosted then
    found, err = hosted.upstream(state._link, state.number)
    return found, err
  end
  local loaded, object = http_port(state, "upstream", timeout)
  if not loaded then
    return nil, object
  end
  found, err = http.upstream(object)
  if not found then
    return nil, errors.from(err, "upstream")
  end
  return { address = found.address, host = ("localhost:%d"):format(state.number), headers = {} }
end

-- Nothing of its own to let go of; its connections belong to the sandbox's handle.
function methods:close()
  state_of(self)
  return true
end

class = core.class("Port", methods, {
  tostring = function(state)
    return ("sandbar.Port %d of %s"):format(state.number, state._link.id)
  end,
})

-- A port of a sandbox's link. Locally it has no urls, and requests need no headers; `hosted` of a link makes them.
function port.new(to, number)
  local hosted = to.hosted
  return core.handle(class, { number = number, headers = hosted and hosted.headers(to) or {},
    url = hosted and hosted.url(to, number) or nil,
    websocket_url = hosted and hosted.url(to, number, "wss") or nil, _link = to })
end

return port
