-- HTTP into ports of sandboxes. Loaded on first use: it brings libcurl and OpenSSL with it.
--
--   local port = http.port { engine = engine, id = "box", port = 3000 }   -- or { port = n }: this host's loopback
--   local answer, err = http.request(port, { path = "/", wait = 10 }, timeout, "fetch")
--
-- A request: method ("GET"), path ("/", raw, with its query), headers, body (string, secret, function that
-- gives piece after piece and then nil, or anything with :read), wait (seconds during which a refused
-- connection is tried again, with pauses of 5 to 50 ms), stream (a body to read instead of a string),
-- max_body (64 MiB), repeatable (it may be sent twice, whatever its method). headers: { name = value or { values } },
-- { { name, value }, … } in order, or both; values are strings, numbers, secrets.
-- An answer: status, reason, headers (see http.headers), body. Redirects are answers.

local check = require "sandbar.check"
local compat = require "sandbar.compat"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local headers = require "sandbar.headers"
local link = require "sandbar.link"
local source = require "sandbar.source"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"

local CHUNK = 65536
local MAX_BODY = 67108864

-- The C half has this module's name, so that only the searcher for C libraries finds it.
local function load_native()
  local name = "sandbar.http"
  local preloaded = package.preload["sandbar.http.native"]
  if preloaded then
    return preloaded(name)
  end
  -- Loaders of other tools may stand anywhere among the searchers, so the one for C libraries is known by
  -- what it finds: a C function, and not the one that loads this very module.
  for _, searcher in ipairs(rawget(package, "searchers") or rawget(package, "loaders")) do
    local loader, where = searcher(name)
    if type(loader) == "function" and loader ~= package.preload[name] and debug.getinfo(loader, "S").what == "C" then
      return loader(name, where)
    end
  end
  error("the C half of sandbar.http is not on package.cpath", 0)
end

local native = load_native()

local http = {}

--- What a request may hold, for check.options.
http.REQUEST = {
  method = "string", path = "string", headers = "table", body = "any", wait = "duration", stream = "boolean",
  max_body = "size",
}

--- SHA-256 of strings and secrets, up to eight, one behind the other: 32 bytes.
http.sha256 = native.sha256

-- A certificate authority: certificate and key in PEM, and the hash of its name.
http.authority = native.authority

-- Messages of E2B's protocol (see e2b/message.lua) and what JSON makes of their bytes.
http.encode, http.decode, http.describe = native.encode, native.decode, native.describe
http.base64, http.unbase64 = native.base64, native.unbase64

-- A command over a stream (e2b/run.h): run(origin, target, lines, type, message, silence, max_output, killer, token,
-- tails) -> op. What kills commands (e2b/killer.h): killer(origin, id, list target, lines, start target, lines, body,
-- where the number stands in it).
http.run, http.killer = native.run, native.killer
-- What is written to one (e2b/input.h): input(origin, send target, close target, lines, pid, terminal).
http.input = native.input

--- Headers of a list of { name, value }: an array that is also indexed by name, case-insensitively.
http.headers = headers.new

local function bad(message)
  return nil, errors.new { kind = "InvalidArgument", message = message }
end

local NO_LINES = {}

-- ---- ports ----

local PORT = { port = "!integer", engine = "userdata", id = "string" }

--- A port of a sandbox ({ engine, id, port }), or of this host's loopback ({ port }). One object stands for
--- one run of the sandbox: make a new one when it has booted again. :close() ends what is in flight.
function http.port(options)
  check.options("port", 1, options, PORT)
  return native.port(options.port, options.engine, options.id)
end

local CLIENT = {
  url = "!string", proxy = "secret", ca_file = "string", connect_timeout = "duration", http2 = "boolean",
}
local PROXIES = { http = true, https = true, socks5 = true, socks5h = true }

--- An origin on the network ({ url = "https://api.example.com" }) that takes the same requests. proxy: the URL of one,
--- through which everything goes in a tunnel; ca_file: the only certificates trusted, in PEM; connect_timeout: of name,
--- proxy, connection and TLS (5 minutes); http2: over TLS, where it is offered (true).
function http.client(options)
  check.options("client", 1, options, CLIENT)
  if not options.url:find("^https?://[^/?#%s@]+/?$") then
    return bad("an origin is http:// or https://, a host, perhaps a port")
  end
  local proxy = options.proxy
  if type(proxy) == "string" then
    if not PROXIES[proxy:match("^(%w+)://[^%s%z]+$")] then
      return bad("proxy: http://, https://, socks5:// or socks5h://, a host, perhaps a port")
    end
    proxy = core.secret(proxy) -- it may have a password
  end
  if options.ca_file and options.ca_file:find("%z") then
    return bad("ca_file contains a zero byte")
  end
  local limit, err = duration.parse(options.connect_timeout or 0, "connect_timeout")
  if not limit then
    return nil, err
  end
  return native.origin((options.url:gsub("/$", "")), proxy, options.ca_file, limit, options.http2 ~= false)
end

--- What deletes a thing (`what`: "sandbox", "API key", "snapshot") by HTTP on every path out: the recipe, and the
--- release that is to be made of it. `headers` are those of its requests. Made before the thing is; recipe:bind(target)
--- when it is known by name. Until then `find` (a target) is asked for a list; the entry in it that holds `mark` has
--- under `key` what is deleted below `prefix`. Or `early`, a target, is deleted, until it has been there.
function http.recipe(port, fields)
  local lines, err = headers.lines(fields.headers)
  if not lines then
    return nil, err
  end
  return native.recipe(port, fields.what, fields.id, lines, fields.find, fields.key, fields.prefix, fields.suffix,
    fields.mark, fields.early)
end

--- Starts a request: its operation, and what the body is written to when it comes in pieces. nil and an error
--- when it cannot be one.
function http.fetch(port, request)
  local lines, patience, max_body, err = NO_LINES, request.wait or 0, request.max_body or MAX_BODY
  if request.headers ~= nil then
    lines, err = headers.lines(request.headers)
    if not lines then
      return nil, err
    end
  end
  if patience ~= 0 then
    patience, err = duration.parse(patience, "wait")
    if not patience then
      return nil, err
    end
  end
  if not (max_body >= 0) then
    return bad(("max_body: %s is no number of bytes"):format(tostring(max_body)))
  end
  local body, upload = request.body, nil
  if body ~= nil and type(body) ~= "string" and not core.is_secret(body) then
    local closed = check.collected(body, "body")
    if closed then
      return nil, closed
    elseif not compat.is_callable(body) and not check.readable(body) then
      return bad(("body: string, secret, function or file expected, got %s"):format(type(body)))
    end
    upload = native.upload()
  end
  return port:fetch(request.method or "GET", request.path or "/", lines, upload or body, request.stream, max_body,
    patience, request.repeatable), upload
end

--- The answer of an operation that has ended, nil when it has failed.
function http.answer(op)
  local answer, object = native.answer(op, headers.metatable)
  if object then
    answer.body = stream.output("body", { native = object, mode = "pipe" })
  end
  return answer
end

--- A request and its answer, in few steps: of a main program without tasks, with nothing set that needs a closer
--- look or has a time. True and what http.request() answers; false when it is not that, and nothing was sent.
function http.plain(port, request, opname)
  local host = wait.alone()
  local op = host and port:ask(request, MAX_BODY)
  if not op then
    return false
  end
  local done, err = wait.finish(op, nil, opname, false, host)
  if not done then
    return true, nil, err
  end
  local answer = http.answer(op)
  if not answer then
    answer, err = wait.outcome(op, err, opname)
    return true, answer, err
  end
  return true, answer
end

-- Writes a body that comes in pieces to a request, `op`. True when it is out or nobody wants the rest; nil and why not.
local function feed(upload, op, body, deadline, opname)
  local next_piece = body
  if source.is(body) then
    next_piece = function()
      return body:next(op, link.left(deadline), opname)
    end
  elseif not compat.is_callable(body) then
    next_piece = function()
      return body:read(CHUNK)
    end
  end
  while true do
    local piece, err = next_piece()
    if piece == nil then
      if err == nil then
        upload:finish()
        return true
      end
      return nil, errors.from(err, opname)
    end
    if type(piece) ~= "string" then
      return nil, errors.new { kind = "InvalidArgument", op = opname,
        message = ("a piece of the body is a %s, not a string"):format(type(piece)) }
    end
    local _
    _, err = wait.op(upload:write(piece), link.left(deadline), opname)
    if err then
      return err.kind == "Closed" or nil, err
    end
  end
end

--- A request and its answer; waits. With a body in pieces, all of it is written before the answer is
--- returned, unless the other side answers without taking it all.
function http.request(port, request, timeout, opname)
  local ok, err = wait.check(opname)
  local limit = timeout
  if timeout then
    local unfit
    limit, unfit = duration.timeout(timeout)
    if unfit then
      return nil, errors.from(unfit, opname)
    end
  end
  if not ok then
    return nil, err
  end
  local deadline = link.deadline(limit)
  local op, upload = http.fetch(port, request)
  if not op then
    return nil, errors.from(upload, opname)
  end
  if upload then
    ok, err = feed(upload, op, request.body, deadline, opname)
    if not ok then
      upload:close()
      op:cancel()
      return nil, link.told(err, limit)
    end
  end
  local done, early = wait.finish(op, deadline and link.left(deadline), opname)
  if not done then
    return nil, link.told(early, limit)
  end
  local answer = http.answer(op)
  if not answer then
    answer, err = wait.outcome(op, early, opname)
  end
  return answer, link.told(err, limit)
end

--- Starts the opening of a websocket: its operation. nil and an error when the headers cannot be sent.
function http.websocket(port, path, given, max_message, patience)
  local lines, err = headers.lines(given)
  if not lines then
    return nil, err
  end
  return port:websocket(path, lines, max_message, patience)
end

--- What that operation has ended with, nil when it has failed: an answer, with `native` if it is open.
function http.answer_of_websocket(op)
  local answer, object = native.answer(op, headers.metatable)
  if answer then
    answer.native = object
  end
  return answer
end

http.message, http.is_text = native.message, native.is_text

--- Waits until somebody listens. True, or nil and an error.
function http.wait(port, timeout, opname)
  local limit, err = duration.timeout(timeout)
  if err then
    return nil, err
  end
  local r
  r, err = wait.op(port:wait(limit or 1e9), limit and limit + 1, opname)
  return r ~= nil or nil, link.told(err, limit)
end

-- One listener a port, alive as long as the port's object is: who took the address keeps nothing else.
local upstreams = setmetatable({}, { __mode = "k" })

--- A unix socket of this host that leads to the port, for proxy_pass and the like: { address = "unix:/…" }. It
--- goes away with the port.
function http.upstream(port)
  local upstream = upstreams[port]
  if not upstream then
    local err
    upstream, err = port:upstream()
    if not upstream then
      return nil, errors.from(err, "upstream")
    end
    upstreams[port] = upstream
  end
  return { address = "unix:" .. upstream:path() }
end

return http
