-- Ports of hosted sandboxes: where they are, and what goes to them through the vendor's proxy, which knows requests of
-- HTTP alone (and what becomes of those that change protocols), and answers for itself what cannot be delivered.

local address = require "sandbar.e2b.address"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local http = require "sandbar.http"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local refused = require "sandbar.e2b.refused"
local wait = require "sandbar.wait"

local markers, websocket = lazy "sandbar.e2b.markers", lazy "sandbar.websocket"

local ports = {}

local TOKEN = "e2b-traffic-access-token"
local PAUSE_FIRST, PAUSE_MOST = 0.05, 0.5

-- What says which sandbox is meant, and that one may: nobody's but ours, or a visitor's headers could lead elsewhere.
local OURS = { host = true, ["e2b-sandbox-id"] = true, ["e2b-sandbox-port"] = true, [TOKEN] = true }
ports.OURS = OURS

local function fail(to, op, kind, message, clause)
  return nil, errors.new { kind = kind, op = op, id = to.id, clause = clause, message = message }
end

-- ---- the way there ----

-- An origin of its own for each port: connections are not shared between sandboxes or ports. `host`: what goes into
-- Host, where libcurl does not know by itself.
local function origin_of(to, number)
  to.ports = to.ports or {}
  local entry = to.ports[number]
  if not entry then
    local client, access = to.driver.client, to.driver.access
    local prefix, host, lines = "", address.host(number, access.vendor_id, access.domain), {}
    local url = "https://" .. host
    if client.sandbox_url then -- one place for all: told apart by headers
      url, prefix = address.split(client.sandbox_url, "sandbox_url")
      host = ("localhost:%d"):format(number)
      lines = { { "E2b-Sandbox-Id", access.vendor_id }, { "E2b-Sandbox-Port", ("%d"):format(number) } }
    end
    local proxy, err = client:proxy_for(url)
    local object
    if not err then
      object, err = http.client { url = url, proxy = proxy, ca_file = client.ca_file }
    end
    if not object then
      return nil, err
    end
    entry = { object = object, lines = lines, prefix = prefix, host = host }
    to.ports[number] = entry
  end
  return entry
end

-- The way to a port that may be used, or nil and why not.
local function way(to, number, op)
  if to:is_closed() then
    return fail(to, op, "Closed", "the sandbox's handle is closed")
  elseif to.gone then
    return nil, errors.from(select(2, to:not_running("gone")), op)
  elseif to.driver.access.private and not to.driver.access.traffic_token then
    return fail(to, op, "Unsupported",
      "the port is private, and a handle that only looked has no traffic token; resume() tells it", "public_ports")
  end
  local entry, err = origin_of(to, number)
  return entry, not entry and errors.from(err, op) or nil
end

-- The lines that every request has.
local function own_lines(to, entry)
  local lines = { { "Host", entry.host } }
  for _, line in ipairs(entry.lines) do
    lines[#lines + 1] = line
  end
  local token = to.driver.access.traffic_token
  lines[#lines + 1] = token and { TOKEN, token } or nil
  return lines
end

-- All headers of a request as http.lua takes them, and nil; or nil and why not.
local function lines_of(to, entry, given, op)
  local lines = {}
  for name, value in pairs(given or {}) do
    lines[name] = value
    local own = type(name) == "number" and type(value) == "table" and value[1] or name
    if type(own) == "string" and OURS[own:lower()] then
      if own:lower() == "host" then
        return fail(to, op, "Unsupported", "headers: the vendor finds the sandbox by Host; none can be given", "host")
      end
      return fail(to, op, "InvalidArgument", ("headers: %s says which sandbox is meant, and is set here"):format(own))
    end
  end
  local count = #lines
  for i, line in ipairs(own_lines(to, entry)) do
    lines[count + i] = line
  end
  return lines
end

-- ---- requests ----

-- The body of an answer that was read to see whose it is.
local function reader_of(text)
  return {
    read = function()
      local rest = text
      text = nil
      return rest
    end,
    close = function()
      text = nil
      return true
    end,
  }
end

local attempt

-- What a browser was shown a page for, asked by somebody else: an error, or nil.
local function ask_again(to, number, entry, status, deadline, op)
  local answer, err = attempt(to, number, entry, { method = "OPTIONS", stream = true }, deadline, op)
  if answer then
    answer.body:close()
    return nil
  end
  return err.status == status and err or nil
end

-- One exchange: the program's answer, or nil and an error. `request`: checked.
function attempt(to, number, entry, request, deadline, op)
  local asked = {}
  for key, value in pairs(request) do
    asked[key] = value
  end
  asked.wait = nil
  asked.path = entry.prefix .. (request.path or "/")
  local lines, err = lines_of(to, entry, request.headers, op)
  if not lines then
    return nil, err
  end
  asked.headers = lines
  local answer
  answer, err = http.request(entry.object, asked, link.left(deadline), op)
  if not answer then
    return nil, err
  end
  local whose = refused.may_be(answer, lines)
  if not whose then
    return answer
  elseif whose == "ask" then
    local why = ask_again(to, number, entry, answer.status, deadline, op)
    if why and request.stream then
      answer.body:close()
    end
    return not why and answer or nil, why
  end
  local body = answer.body
  if request.stream then
    local text
    text, err = body:read("a", { timeout = link.left(deadline), max = refused.MOST })
    if err and err.kind == "LimitExceeded" then -- nothing was read of it
      return answer
    elseif err then
      return nil, errors.from(err, op)
    end
    answer.body = text or ""
  end
  local why = refused.of(to, number, answer, op)
  if why then
    return nil, why
  elseif request.stream then
    answer.body = reader_of(answer.body)
  end
  return answer
end

local function too_late(op, timeout, cause)
  return errors.from(wait.timed_out(op, "timeout", timeout), op, { cause = cause })
end

-- fn() until somebody listens, for `patience` (a duration, or nil); both within the deadline.
local function patiently(patience, deadline, timeout, fn)
  local err
  if patience ~= nil then
    patience, err = duration.parse(patience, "wait")
    if err then
      return nil, err
    end
    patience = core.now() + patience
  end
  local pause, refusal = PAUSE_FIRST, nil
  while true do
    local result
    result, err = fn()
    if not result and err.kind == "Timeout" and refusal then -- the last word that was heard
      return nil, too_late(err.op, timeout, refusal)
    elseif result or err.code ~= "ECONNREFUSED" or not patience or core.now() >= patience then
      return result, link.told(err, timeout)
    end
    local nap = math.max(math.min(pause, patience - core.now(), deadline and link.left(deadline) or pause), 0)
    local ok, why = wait.sleep(nap)
    if not ok then
      return nil, why
    elseif deadline and link.left(deadline) == 0 then
      return nil, too_late(err.op, timeout, err)
    end
    refusal = err
    pause = math.min(pause * 2, PAUSE_MOST)
  end
end

-- Waits until somebody listens. What tells is a request, which the program sees: OPTIONS of "/", whatever it answers.
local function listening(to, number, entry, patience, deadline, timeout, op)
  local answer, err = patiently(patience, deadline, timeout, function()
    return attempt(to, number, entry, { method = "OPTIONS", stream = true }, deadline, op)
  end)
  if answer then
    answer.body:close()
    return true
  end
  return nil, err
end

--- As port:fetch. `request`: checked.
function ports.fetch(to, number, request, timeout)
  local deadline = link.deadline(timeout)
  local entry, err = way(to, number, "fetch")
  if not entry then
    return nil, err
  end
  local body, patience = request.body, request.wait
  if patience ~= nil and body ~= nil and type(body) ~= "string" and not core.is_secret(body) then
    local ok -- it can be sent once
    ok, err = listening(to, number, entry, patience, deadline, timeout, "fetch")
    if not ok then
      return nil, err
    end
    patience = nil
  end
  return patiently(patience, deadline, timeout, function()
    return attempt(to, number, entry, request, deadline, "fetch")
  end)
end

--- As port:wait.
function ports.wait(to, number, timeout)
  local deadline = link.deadline(timeout)
  local entry, err = way(to, number, "wait")
  if not entry then
    return nil, err
  end
  local ok
  ok, err = listening(to, number, entry, timeout or 1e9, deadline, timeout, "wait")
  if not ok and timeout and err.code == "ECONNREFUSED" then
    err = too_late("wait", timeout, err)
  end
  return ok, err
end

--- As port:websocket; its options have been checked.
function ports.websocket(to, number, path, opts, timeout)
  local deadline = link.deadline(timeout)
  local entry, err = way(to, number, "websocket")
  local asked = { protocols = opts.protocols, max_message = opts.max_message }
  if entry then
    asked.headers, err = lines_of(to, entry, opts.headers, "websocket")
  end
  if not asked.headers then
    return nil, err
  end
  return patiently(opts.wait, deadline, timeout, function()
    local opened, why, answer = websocket.open(entry.object, number, entry.prefix .. path, asked, link.left(deadline))
    if answer then
      why = refused.of(to, number, refused.plain(answer), "websocket") or why
    end
    return opened, why
  end)
end

--- A connection for a request that changes protocols: a native stream and how it is written: { host, prefix, lines (all
--- but Host), reserved, refused (the error that an answer with its body stands for, or nil) }.
function ports.dial(to, number, timeout, op)
  local entry, err = way(to, number, op)
  if not entry then
    return nil, err
  end
  local r
  r, err = wait.op(entry.object:dial(), timeout, op)
  if not r then
    return nil, err
  end
  local lines = own_lines(to, entry)
  table.remove(lines, 1)
  return r.object, {
    host = entry.host, prefix = entry.prefix, lines = lines, reserved = OURS,
    refused = function(answer)
      return refused.of(to, number, answer, op)
    end,
  }
end

--- As port:upstream: TLS and the proxy of this program are behind the socket.
function ports.upstream(to, number)
  local entry, err = way(to, number, "upstream")
  if not entry then
    return nil, err
  elseif entry.prefix ~= "" then
    return fail(to, "upstream", "Unsupported", "sandbox_url has a path, which nothing puts before those of requests",
      "sandbox_url")
  end
  local found
  found, err = http.upstream(entry.object)
  if not found then
    return nil, errors.from(err, "upstream")
  end
  local headers = {}
  for _, line in ipairs(own_lines(to, entry)) do
    headers[line[1]] = line[1] ~= "Host" and line[2] or nil
  end
  return { address = found.address, host = entry.host, headers = headers }
end

--- The vendor lets in nothing but HTTP.
function ports.connect(to)
  return fail(to, "connect", "Unsupported", "raw connections do not get through the vendor's proxy; there are fetch, "
    .. "websocket and upstream", "raw_ports")
end

--- The marker of a port, made or taken away: true, or nil and an error.
function ports.expose(to, number, on, timeout)
  return markers.set(to, number, on, timeout)
end

--- The numbers of the exposed ones.
function ports.exposed(to, timeout)
  return markers.list(to, timeout)
end

--- The public address of a port, for requests and for websockets.
function ports.url(to, number, scheme)
  return (scheme or "https") .. "://" .. address.host(number, to.driver.access.vendor_id, to.driver.access.domain)
end

--- The headers that a request to it needs: the traffic token, no other.
function ports.headers(to)
  local token = to.driver.access.traffic_token
  return token and { [TOKEN] = token } or {}
end

return ports
