-- The way to a sandbox's ports: to its daemon on 49983, to its own servers on every other. A sandbox that sleeps is
-- woken here, when it was made so that traffic may.

local daemon = require "sandbar.server.envd.daemon"
local refuse = require "sandbar.server.refuse"
local signature = require "sandbar.server.signature"
local stream = require "sandbar.stream"
local upgrade = require "sandbar.server.upgrade"

local IDLE = 620 -- seconds without a byte
local WAIT = 1 -- seconds for a server inside that is just starting
local CHUNK = 65536
local DEFAULT_LIFETIME = 300
local PATIENCE = 60 -- seconds for a sandbox that is being paused or woken
local TOKEN = "e2b-traffic-access-token"

-- Of one connection only, or not for a server inside.
local HOP = {
  connection = true, ["keep-alive"] = true, ["proxy-connection"] = true, ["transfer-encoding"] = true, te = true,
  trailer = true, upgrade = true, ["proxy-authorization"] = true, forwarded = true, ["x-forwarded-for"] = true,
  ["x-forwarded-host"] = true, ["x-forwarded-proto"] = true,
}

local proxy = {}

local function lists(headers, extra)
  local drop = {}
  for name in ((headers:get("connection") or "") .. "," .. (extra or "")):gmatch("[^%s,]+") do
    drop[name:lower()] = true
  end
  return drop
end

-- The headers that go in, with Host as it came or as the sandbox's mask has it.
local function headers_in(request, info, port)
  local drop = lists(request.headers, "host")
  local host = request.headers:get("host")
  local out = {}
  if info.own.mask then
    out[1] = { "Host", (info.own.mask:gsub("%${PORT}", ("%d"):format(port))) }
    out[2] = { "X-Forwarded-Host", host }
  else
    out[1] = { "Host", host }
  end
  for _, pair in ipairs(request.headers) do
    local name = pair[1]:lower()
    if not HOP[name] and not drop[name] and name ~= TOKEN then
      out[#out + 1] = { pair[1], pair[2] }
    end
  end
  return out
end

local function headers_out(headers)
  local drop, out = lists(headers), {}
  for _, pair in ipairs(headers) do
    local name = pair[1]:lower()
    if not HOP[name] and not drop[name] then
      out[#out + 1] = { pair[1], pair[2] }
    end
  end
  return out
end

-- The request's body for the server inside, or nil where it has none.
local function body_of(request)
  if not request.headers:get("transfer-encoding") and (request.headers:get("content-length") or "0") == "0" then
    return nil
  end
  return request:pieces(CHUNK, IDLE)
end

-- Another protocol on the connection, from here on bytes; cut with the sandbox.
local function switch(server, request, entry, port)
  local connection, err = entry.box:port(port):connect()
  if not connection then
    if server.boxes.is_lost(entry, err) then
      return refuse.not_found(request, entry.id)
    end
    return refuse.closed(request, entry.id, port)
  end
  local open = {
    cut = function()
      request:abort()
    end,
  }
  server.boxes:open(entry, open)
  local done = upgrade.serve(request, connection, headers_in(request, entry.info, port), headers_out)
  server.boxes:close(entry, open)
  return done or refuse.closed(request, entry.id, port)
end

-- The request and its answer, up to the last byte.
local function pass(server, request, entry, port)
  local to = entry.box:port(port)
  local list = headers_in(request, entry.info, port)
  list[#list + 1] = { "Connection", "close" } -- a kept one would hold up a server that has them one after the other
  local answer, err = to:fetch {
    method = request.method, path = request.target, headers = list,
    body = body_of(request), stream = true, wait = WAIT,
  }
  if not answer then
    if server.boxes.is_lost(entry, err) then
      return refuse.not_found(request, entry.id)
    end
    return refuse.closed(request, entry.id, port)
  end
  request:begin(answer.status, headers_out(answer.headers))
  while true do
    local data, why = stream.some(answer.body)
    if not data then
      if why then
        request:abort()
      else
        request:finish()
      end
      break
    elseif not request:write(data, IDLE) then
      break
    end
  end
  answer.body:close()
  return true
end

-- What was asked for the client inside ends when the client goes.
local function forward(server, request, entry, port)
  if upgrade.is_asked(request) then
    return switch(server, request, entry, port)
  end
  request:attend(nil, pass, server, request, entry, port)
  return true
end

-- What could not be done with a sandbox is reported, and answered as far as it is the caller's business.
local function failed(server, request, id, err)
  if err then
    server.report(("port of sandbox %s: %s"):format(id, tostring(err)))
  end
  return refuse.failed(request, id, err)
end

-- Wakes a sandbox that traffic may wake: its info then; nil and a failure if there is one; false and a refusal.
local function wake(server, request, info, port)
  if info.own.auto_resume ~= "1" or info.kept ~= "memory" then
    return nil
  end
  local token = daemon.token_of(server, info)
  if port == daemon.PORT and token and not signature.equal(request.headers:get("x-access-token"), token) then
    return false, "access token is missing or wrong: the sandbox is not resumed"
  end
  return server.resume(info, tonumber(info.own.timeout) or DEFAULT_LIFETIME, PATIENCE)
end

--- Answers a request for a port of a sandbox.
function proxy.serve(server, request, target, id, port)
  local info, err = server.boxes:info(id)
  if not info then
    return failed(server, request, id, err)
  end
  if info.own.private == "1" and port ~= daemon.PORT then
    local given = request.headers:get(TOKEN)
    if not given then
      return refuse.with(request, 403, id, ("the header %s is missing"):format(TOKEN))
    elseif not signature.equal(given, server.boxes:traffic_token(id)) then
      return refuse.with(request, 403, id, ("the token in the header %s is invalid"):format(TOKEN))
    end
  end
  if info.state ~= "running" then
    info, err = wake(server, request, info, port)
    if info == false then
      return refuse.with(request, 403, id, err)
    elseif not info then
      return failed(server, request, id, err)
    end
  end
  if port == daemon.PORT then
    return daemon.serve(server, request, target, id, info)
  end
  local entry
  entry, err = server.boxes:running(id, info)
  if not entry then
    return failed(server, request, id, err)
  end
  return forward(server, request, entry, port)
end

return proxy
