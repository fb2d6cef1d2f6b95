-- Sandboxes as the control plane tells of them.

local core = require "sandbar.core"
local ids = require "sandbar.server.ids"
local json = require "sandbar.json"
local machine = require "sandbar.server.machine"
local network = require "sandbar.server.network"
local stamp = require "sandbar.server.stamp"
local encode = require "sandbar.server.encode"

local MIB = 1048576

local described = {}

local function names_of(info)
  return {
    templateID = info.own.template or info.template, sandboxID = info.id, clientID = ids.CLIENT, alias = info.own.alias,
    envdVersion = ids.ENVD_VERSION,
  }
end

--- What create and connect give: with the tokens.
function described.handed_over(server, info)
  local out = names_of(info)
  out.domain = server.domain
  if info.own.secure ~= "0" then
    out.envdAccessToken = server.boxes:token(info.id)
  end
  if info.own.private == "1" then
    out.trafficAccessToken = server.boxes:traffic_token(info.id)
  end
  return out
end

--- As a list has it.
function described.listed(info)
  local out = names_of(info)
  local cpus, memory, disk = machine.of(info)
  local started = info.started_at or info.created_at or core.wall()
  out.startedAt = stamp.text(started)
  out.endAt = stamp.text(info.ends_at or started)
  out.cpuCount, out.memoryMB, out.diskSizeMB = cpus, math.floor(memory / MIB), math.floor(disk / MIB)
  out.state = info.state == "running" and "running" or "paused"
  out.metadata = info.metadata
  out.volumeMounts = encode.array {}
  return out
end

--- With all there is.
function described.whole(server, info)
  local out = described.listed(info)
  out.domain = server.domain
  if info.own.secure ~= "0" then
    out.envdAccessToken = server.boxes:token(info.id)
  end
  out.allowInternetAccess = json.null
  if info.own.internet then
    out.allowInternetAccess = info.own.internet == "1"
  end
  local config = network.config(info.network) or {}
  if info.own.private == "1" then
    config.allowPublicTraffic = false
  end
  config.maskRequestHost = info.own.mask
  local own = server.rules:of(info.id)
  config.rules = own and own.config.rules
  out.network = next(config) and config or nil
  out.lifecycle = {
    autoResume = info.own.auto_resume == "1", onTimeout = info.on_expiry == "destroy" and "kill" or "pause",
  }
  return out
end

return described
