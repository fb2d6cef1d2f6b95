-- The network settings of sandboxes whose requests get headers, as their clients gave them: with names in the place of
-- secrets. They hold as they were given also after a resume, in copies, and once a secret has another value.

local network = require "sandbar.server.network"

local FILE = "rules.json"

local Rules = {}
Rules.__index = Rules

local rules = {}

-- Those of sandboxes that are gone are dropped.
local function prune(self)
  for id in pairs(self.map) do
    local info, err = self.provider:info(id)
    if not info and err.kind == "NotFound" or info and info.state == "gone" then
      self.map[id] = nil
    end
  end
end

--- A sandbox's settings: { team, config, internet }, or nil where it has no rules.
function Rules:of(id)
  return self.map[id]
end

--- What a sandbox has from now on. True, or nil and an error.
function Rules:put(id, team, config, internet)
  local has = config and config.rules and next(config.rules) ~= nil
  if not has and not self.map[id] then
    return true
  end
  prune(self)
  self.map[id] = has and {
    team = team, internet = internet,
    config = { allowOut = config.allowOut, denyOut = config.denyOut, rules = config.rules },
  } or nil
  return self.store:save(FILE, self.map)
end

--- The policy of a sandbox's settings now, or nil and a refusal. A header whose secret is gone is in it no more.
function Rules:policy(own)
  return network.policy(own.config, own.internet, self.secrets:values(own.team), true)
end

--- Has a sandbox keep to its settings as they are now. True, or nil and a failure.
function Rules:apply(id, box)
  local own = self.map[id]
  if not own then
    return true
  end
  local policy, err = self:policy(own)
  if not policy then
    return nil, err
  end
  return box:update_network(policy)
end

--- The ids of a team's sandboxes whose rules name a secret.
function Rules:naming(team, name)
  local out = {}
  for id, own in pairs(self.map) do
    if own.team == team and network.names(own.config.rules)[name] then
      out[#out + 1] = id
    end
  end
  return out
end

--- Opens them. Nil and an error.
function rules.open(store, provider, secrets)
  local map, err = store:load(FILE, {})
  if not map then
    return nil, err
  end
  return setmetatable({ store = store, provider = provider, secrets = secrets, map = map }, Rules)
end

return rules
