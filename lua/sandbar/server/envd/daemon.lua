-- What answers on a sandbox's port 49983: the calls of the in-sandbox daemon. Who may call, which method it is, what a
-- sandbox that does not run says.

local compose = require "sandbar.server.envd.compose"
local connect = require "sandbar.server.connect"
local core = require "sandbar.core"
local filesystem = require "sandbar.server.envd.filesystem"
local machine = require "sandbar.server.machine"
local open_to = require "sandbar.server.envd.origin"
local process = require "sandbar.server.envd.process"
local refuse = require "sandbar.server.refuse"
local reply = require "sandbar.server.reply"
local router = require "sandbar.server.router"
local signature = require "sandbar.server.signature"
local transfer = require "sandbar.server.envd.transfer"

local daemon = { PORT = 49983 }

local SERVICES = { ["process.Process"] = process.calls, ["filesystem.Filesystem"] = filesystem.calls }

-- What only the machine's own management calls.
local INTERNAL = {
  init = true, freeze = true, unfreeze = true, collapse = true, fsfreeze = true, fsthaw = true, upgrade = true,
}

local MIB = 1048576

local function run_metrics(context, request)
  local m, err = context.box:metrics()
  if not m then
    return nil, err
  end
  local cpus, memory, disk = machine.of(context.entry.info)
  return reply.json(request, 200, {
    ts = math.floor(m.at), cpu_count = cpus, cpu_used_pct = math.min((m.cpu_percent or 0) / cpus, 100),
    mem_total = memory, mem_used = m.memory or 0, mem_total_mib = math.floor(memory / MIB),
    mem_used_mib = math.floor((m.memory or 0) / MIB), mem_cache = 0, disk_used = m.disk or 0, disk_total = disk,
  })
end

local function run_envs(context, request)
  local r, err = context.box:exec({ "/usr/bin/env", "-0" }, { cwd = "/" })
  if not r then
    return nil, err
  end
  local out = {}
  for name, value in r.stdout:gmatch("([^=%z]+)=(%Z*)%z") do
    out[name] = value
  end
  return reply.json(request, 200, out)
end

local plain = router.new {
  ["GET /metrics"] = run_metrics,
  ["GET /envs"] = run_envs,
  ["GET /files"] = transfer.get,
  ["HEAD /files"] = transfer.get,
  ["POST /files"] = transfer.post,
  ["POST /files/compose"] = compose,
}

local FILE_OPS = { GET = "read", HEAD = "read", POST = "write" }

-- May this be asked? True, or nil and the refusal's text.
local function allowed(request, target, token, is_file)
  local given = request.headers:get("x-access-token")
  if not token then
    return true
  elseif is_file then
    return signature.check(target.query, FILE_OPS[request.method], given, token, core.wall())
  elseif not given then
    return nil, "unauthorized access, please provide a valid access token or method signing if supported"
  end
  return signature.equal(given, token) or nil, "unauthorized access, the access token is not valid"
end

--- May traffic wake this sandbox? `secured`: only with the daemon's token.
local function token_of(server, info)
  return info.own.secure ~= "0" and server.boxes:token(info.id) or nil
end

daemon.token_of = token_of

local function health(server, request, id, info)
  info = info or server.boxes:info(id)
  if info and info.state == "running" then
    return reply.empty(request, 204, { ["cache-control"] = "no-store" })
  end
  return refuse.not_found(request, id)
end

local function dispatch(context, request, target)
  local first, second = target.segments[1] or "", target.segments[2]
  local service = SERVICES[first]
  if service then
    local call = #target.segments == 2 and service[second]
    if not call then
      return reply.text(request, 404, "404 page not found\n")
    end
    return connect.serve(request, call, context)
  end
  local handler, more = plain:find(request.method, target.segments)
  if handler == nil then
    return reply.text(request, 404, "404 page not found\n")
  elseif not handler then
    return reply.empty(request, 405, { allow = more })
  end
  local done, err = handler(context, request, target.query)
  if done == nil and err then
    if context.is_lost(err) then
      return refuse.not_found(request, context.entry.id)
    end
    return reply.failed(request, err)
  end
  return true
end

--- Answers a request for the daemon of sandbox `id`. `info`: of boxes:info, just now.
function daemon.serve(server, request, target, id, info)
  local segments = target.segments
  request = open_to(request)
  if request.method == "OPTIONS" then
    return reply.preflight(request)
  elseif #segments == 1 and INTERNAL[segments[1]] then
    return reply.json(request, 404, { message = "not found", path = target.path, code = 404 })
  elseif request.method == "GET" and #segments == 1 and segments[1] == "health" then
    return health(server, request, id, info)
  end
  local entry, err = server.boxes:running(id, info)
  if err then
    return reply.failed(request, err)
  elseif not entry then
    return refuse.not_found(request, id)
  end
  local is_file = #segments == 1 and segments[1] == "files" and FILE_OPS[request.method] ~= nil
  local ok, why = allowed(request, target, token_of(server, entry.info), is_file)
  if not ok then
    return reply.failed(request, reply.refusal(401, why))
  end
  return dispatch({
    box = entry.box, entry = entry, boxes = server.boxes, headers = request.headers, workdir = entry.info.cwd,
    is_lost = function(failure)
      return server.boxes.is_lost(entry, failure)
    end,
  }, request, target)
end

return daemon
