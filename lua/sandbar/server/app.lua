-- One request from its head to its answer: whom it is for, who asks, which handler.

local builds = require "sandbar.server.control.builds"
local content = require "sandbar.server.content"
local daemon = require "sandbar.server.envd.daemon"
local errors = require "sandbar.errors"
local lifecycle = require "sandbar.server.control.lifecycle"
local listing = require "sandbar.server.control.listing"
local logs = require "sandbar.server.control.logs"
local keys = require "sandbar.server.control.keys"
local nested = require "sandbar.nested"
local open_to = require "sandbar.server.envd.origin"
local page = require "sandbar.server.page"
local proxy = require "sandbar.server.proxy"
local reply = require "sandbar.server.reply"
local router = require "sandbar.server.router"
local sandboxes = require "sandbar.server.control.sandboxes"
local secrets = require "sandbar.server.control.secrets"
local signature = require "sandbar.server.signature"
local snapshots = require "sandbar.server.control.snapshots"
local teams = require "sandbar.server.control.teams"
local templates = require "sandbar.server.control.templates"
local uploads = require "sandbar.server.control.uploads"
local volumes = require "sandbar.server.control.volumes"

local app = {}

local OFF = "this server does not offer it"

-- Of the protocol, and not of this server: said so, instead of "no such thing". Whole branches, and the builds of old
-- clients, which push an image to a registry that comes with the service.
local ABSENT = { nodes = true, admin = true }
local ABSENT_ROUTES = {
  "POST /v2/templates", "POST /templates", "POST /templates/{template}", "POST /templates/{template}/builds/{build}",
}

local function absent()
  return nil, reply.refusal(501, "there is no registry to push an image to; POST /v3/templates builds from steps")
end

-- All routes of the control plane. The value of each is { handler, v2 }.
local function collect()
  local all = {}
  for _, route in ipairs(ABSENT_ROUTES) do
    all[route] = { absent, false }
  end
  for _, module in ipairs { sandboxes, lifecycle, listing, logs, keys, secrets, snapshots, teams, templates, builds,
    uploads, volumes } do
    for route, handler in pairs(module.routes) do
      all[route] = { handler, false }
    end
    for route, handler in pairs(module.routes_v2 or {}) do
      all[route] = { handler, true }
    end
  end
  return router.new(all)
end

local routes = collect()

local NO_KEY = "Invalid API key: the header X-API-Key has to be one of the server's screen or its file of keys"

local function missing(request, segments)
  local first = segments[1] == "v2" and segments[2] or segments[1]
  if ABSENT[first or ""] then
    return reply.failed(request, reply.refusal(501, ("%s: %s"):format(first, OFF)))
  end
  return reply.failed(request, reply.refusal(404, "there is no such endpoint"))
end

local function control(server, request, target)
  if router.is_foreign(request.headers:get("host"), request.headers) then
    return reply.failed(request, reply.refusal(403, "requests from other origins are refused"))
  elseif request.method == "GET" and target.path == "/health" then
    return reply.text(request, 200, "Health check successful")
  elseif page.is_asked(request, target) then
    return page.serve(server, request)
  end
  if target.segments[1] == "_uploads" then
    return uploads.serve(server, request, target)
  elseif target.segments[1] == "volumecontent" then
    return content.serve(server, request, target)
  end
  local who = server.keys:check(request.headers)
  if not who then
    return reply.failed(request, reply.refusal(401, NO_KEY))
  end
  local found, more = routes:find(request.method, target.segments)
  if found == nil then
    return missing(request, target.segments)
  elseif not found then
    return reply.json(request, 405, { code = 405, message = "this method is not offered here" }, { allow = more })
  end
  local status, value, headers = found[1] {
    server = server, request = request, query = target.query, params = more, team = who.team, team_id = who.team_id,
    v2 = found[2],
  }
  if not status then
    if value.text then
      return reply.text(request, value.status, value.text)
    end
    return reply.failed(request, value)
  elseif value == nil then
    return reply.empty(request, status, headers)
  end
  return reply.json(request, status, value, headers)
end

-- A file link that names no sandbox: the one whose token has signed it.
local function signed(server, request, target)
  request = open_to(request)
  if request.method == "OPTIONS" then -- which the link is not signed for
    return reply.preflight(request)
  end
  local list, err = server.provider:list { state = "running" }
  if not list then
    return reply.failed(request, err)
  end
  local op = request.method == "POST" and "write" or "read"
  local query = target.query
  local expiration = query.signature_expiration ~= "" and query.signature_expiration or nil
  for _, info in ipairs(list) do
    local right = signature.of(query.path or "", op, query.username or "", server.boxes:token(info.id), expiration)
    if signature.equal(query.signature, right) and server.boxes:info(info.id) then
      return daemon.serve(server, request, target, info.id)
    end
  end
  return reply.failed(request, reply.refusal(401, "invalid signature"))
end

local function route(server, request)
  local target = router.target(request.target)
  if not target then
    return reply.failed(request, reply.refusal(400, "the request's target makes no sense"))
  end
  local place = router.place(request.headers:get("host"), request.headers, target, server.domain_name)
  if place.status then
    return reply.text(request, place.status, place.text)
  elseif place.to == "sandbox" then
    return proxy.serve(server, request, target, place.id, place.port)
  elseif place.to == "signed" then
    return signed(server, request, target)
  end
  return control(server, request, target)
end

--- Answers a request. Whatever goes wrong in a handler is this request's failure only.
function app.handle(server, request)
  local ok, err = nested.pcall(route, server, request)
  if not ok then
    server.report(("%s %s: %s"):format(request.method, (request.target:gsub("%?.*", "")), tostring(err)))
    local failure = errors.new { kind = "Internal", message = "an error of the server's" }
    local answered = nested.pcall(reply.failed, request, failure)
    if not answered then
      request:abort()
    end
  end
end

return app
