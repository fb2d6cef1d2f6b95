-- The control plane's calls about single sandboxes. A handler gets a context (server, request, query, params, team, v2)
-- and gives status, value (nil: an empty answer) and headers, or nil and a failure.

local body = require "sandbar.server.body"
local boxes = require "sandbar.server.boxes"
local described = require "sandbar.server.control.described"
local errors = require "sandbar.errors"
local ids = require "sandbar.server.ids"
local network = require "sandbar.server.network"
local reply = require "sandbar.server.reply"
local rules = require "sandbar.server.rules"

local MAX_HOURS = 24
local PROCESSES, COMMANDS = 4096, 2048 -- of one sandbox
local RESERVED = { "E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID" }

local sandboxes = {}

local refusal = reply.refusal

-- ---- what many share ----

--- The sandbox of a request: its info, or nil and a failure.
local function find(ctx)
  local id = ids.sandbox_of(ctx.params.id)
  if not id then
    return nil, refusal(400, "Invalid sandbox ID")
  end
  local info, err = ctx.server.boxes:info(id, ctx.team)
  if not info then
    return nil, err or refusal(404, ("sandbox %q doesn't exist or you don't have access to it"):format(id))
  end
  return info
end

sandboxes.find = find

--- The same of one that runs: its entry. `status`: of the refusal of another.
function sandboxes.find_running(ctx, status)
  local info, err = find(ctx)
  if not info then
    return nil, err
  elseif info.state ~= "running" then
    return nil, refusal(status, ("sandbox %q is not running"):format(info.id))
  end
  local entry
  entry, err = ctx.server.boxes:running(info.id)
  if not entry then
    return nil, err or refusal(404, ("sandbox %q is not running"):format(info.id))
  end
  return entry
end

local function check_timeout(seconds)
  if seconds <= 0 then
    return nil, refusal(400, "validation error: timeout must be above 0")
  elseif seconds > MAX_HOURS * 3600 then
    return nil, refusal(400, ("Timeout cannot be greater than %d hours"):format(MAX_HOURS))
  end
  return seconds
end

sandboxes.check_timeout = check_timeout
sandboxes.V2_TIMEOUT, sandboxes.V1_TIMEOUT = 300, 15 -- seconds, where a request names none

-- ---- create ----

local CREATE = {
  templateID = "string!", timeout = "integer", metadata = "texts", envVars = "texts", autoPause = "boolean",
  autoPauseMemory = "boolean", autoResume = "object", allow_internet_access = "boolean", network = "object",
  iam = "object", mcp = "object", volumeMounts = "array", secure = "boolean",
}
local NETWORK = {
  allowOut = "strings", denyOut = "strings", allowPublicTraffic = "boolean", maskRequestHost = "string",
  rules = "object", egressProxy = "object", httpsPorts = "array",
}

-- What cannot be had here is refused, so that nobody relies on it.
local function check_offered(given)
  local tokens = given.iam and given.iam.tokens
  if tokens and (type(tokens) ~= "table" or next(tokens)) then
    return nil, refusal(400, "iam is not offered by this server")
  elseif given.volumeMounts and given.volumeMounts[1] then
    return nil, refusal(403, "volumes cannot be mounted by this server")
  elseif given.autoPauseMemory == false and not given.autoPause then
    return nil, refusal(400, "autoPauseMemory: false needs autoPause: true")
  elseif given.autoPauseMemory == false and given.autoResume and given.autoResume.enabled == true then
    return nil, refusal(400, "autoPauseMemory: false cannot be combined with autoResume")
  end
  for name in pairs(given.metadata or {}) do
    if name:sub(1, #boxes.PREFIX) == boxes.PREFIX or name == "" then
      return nil, refusal(400, ("metadata: %q is no name for a label"):format(name))
    end
  end
  return true
end

-- Labels: the caller's, and what the server must know after a restart of its own.
local function labels_of(ctx, given, config, found)
  local labels = {}
  for name, value in pairs(given.metadata or {}) do
    labels[name] = value
  end
  local function put(name, value)
    labels[boxes.PREFIX .. name] = value
  end
  put("team", ctx.team)
  put("template", found.template_id)
  put("alias", found.alias)
  put("timeout", ("%d"):format(given.timeout))
  if not ctx.v2 and given.secure ~= true then
    put("secure", "0")
  end
  if given.autoResume and given.autoResume.enabled == true then
    put("auto_resume", "1")
  end
  if config.allowPublicTraffic == false then
    put("private", "1")
  end
  put("mask", config.maskRequestHost)
  if given.allow_internet_access ~= nil then
    put("internet", given.allow_internet_access and "1" or "0")
  end
  return labels
end

local function env_of(given, id, template)
  local env = {}
  for name, value in pairs(given.envVars or {}) do
    env[name] = value
  end
  local own = { "true", id, template }
  for i, name in ipairs(RESERVED) do
    env[name] = own[i]
  end
  return env
end

-- The spec of a create and what it begins with (of the catalog), or nil and a failure.
local function spec_of(ctx, given)
  local ok, err = check_offered(given)
  if not ok then
    return nil, err
  end
  local config
  config, err = body.check(given.network or {}, NETWORK, "network.")
  if not config then
    return nil, err
  end
  given.network = config
  if config.maskRequestHost and not config.maskRequestHost:find "^[!-~]+$" then
    return nil, refusal(400, "validation error: network.maskRequestHost is no host")
  elseif config.allowPublicTraffic == false and not ctx.v2 and given.secure ~= true then
    return nil, refusal(400, "network.allowPublicTraffic: false needs secure: true")
  end
  local found
  found, err = ctx.server.catalog:resolve(ctx.team, given.templateID)
  if not found then
    return nil, err
  end
  local policy -- the last thing, so that it has what is in the secrets just before the sandbox is made
  policy, err = network.policy(config, given.allow_internet_access, ctx.server.secrets:values(ctx.team))
  if not policy then
    return nil, err
  end
  local id = ids.sandbox()
  local limits = found.build and found.build.limits or {}
  return {
    id = id, template = found.template, snapshot = found.snapshot, lifetime = given.timeout,
    on_expiry = not given.autoPause and "destroy" or given.autoPauseMemory == false and "pause_disk" or "pause",
    labels = labels_of(ctx, given, config, found), env = env_of(given, id, found.template_id), network = policy,
    limits = {
      processes = PROCESSES, max_concurrent_execs = COMMANDS, cpus = limits.cpus, memory = limits.memory,
    },
  }, found
end

local SIZED = { env = true, labels = true }

-- Too much of what is limited by the machine is 429, too much in the request itself is the request's mistake.
local function refused(err)
  if errors.is(err, "LimitExceeded") and SIZED[err.clause or err.step or ""] then
    return refusal(400, err.message)
  end
  return err
end

local function create(ctx)
  local given, err = body.read(ctx.request, CREATE)
  if not given then
    return nil, err
  end
  given.timeout = given.timeout or (ctx.v2 and sandboxes.V2_TIMEOUT or sandboxes.V1_TIMEOUT)
  local ok
  ok, err = check_timeout(given.timeout)
  if not ok then
    return nil, err
  end
  local spec, found
  spec, found = spec_of(ctx, given)
  err = found
  if not spec then
    return nil, err
  end
  local box
  box, err = ctx.server.rules:create(spec, rules.settings(ctx.team, given.network, given.allow_internet_access))
  if not box then
    return nil, refused(err)
  end
  box:close()
  ctx.server.boxes:count(ctx.team)
  if found.entry then
    ctx.server.catalog.count(found.entry)
  end
  local info
  info, err = ctx.server.boxes:info(spec.id, ctx.team)
  if not info then
    return nil, err or refusal(500, "the sandbox ended before it could be told of")
  end
  ctx.server.boxes.journal:note(spec.id, "sandbox created", { template = found.alias or found.template_id })
  return 201, described.handed_over(ctx.server, info)
end

local function get(ctx)
  local info, err = find(ctx)
  if not info then
    return nil, err
  end
  return 200, described.whole(ctx.server, info)
end

local function kill(ctx)
  local info, err = find(ctx)
  if not info then
    return nil, err
  end
  local ok
  ok, err = ctx.server.boxes:destroy(info.id)
  if not ok then
    return nil, err
  end
  return 204
end

-- ---- network ----

local UPDATE = {
  allowOut = "strings", denyOut = "strings", rules = "object", egressProxy = "object",
  allow_internet_access = "boolean",
}

local function update_network(ctx)
  local given, err = body.read(ctx.request, UPDATE)
  local entry
  if given then
    entry, err = sandboxes.find_running(ctx, 409)
  end
  if not entry then
    return nil, err
  end
  local policy
  policy, err = network.policy(given, given.allow_internet_access, ctx.server.secrets:values(ctx.team))
  local ok
  if policy then
    ok, err = ctx.server.rules:change(entry.id, entry.box,
      rules.settings(ctx.team, given, given.allow_internet_access))
  end
  if not ok then
    return nil, err
  end
  entry.note "network changed"
  return 204
end

sandboxes.routes = {
  ["POST /sandboxes"] = create,
  ["GET /sandboxes/{id}"] = get,
  ["DELETE /sandboxes/{id}"] = kill,
  ["PUT /sandboxes/{id}/network"] = update_network,
}

--- Those of the second generation: other defaults.
sandboxes.routes_v2 = {
  ["POST /v2/sandboxes"] = create,
}

return sandboxes
