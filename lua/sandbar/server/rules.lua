-- The network settings of sandboxes whose requests get headers, as their clients gave them: with names in the place of
-- secrets. They hold as they were given also after a resume, in copies, and once a secret has another value. Kept
-- before a sandbox is there or has them: of those that name a secret which changes none is missed.
--
-- Settings are { team, config, internet }.

local network = require "sandbar.server.network"
local reply = require "sandbar.server.reply"
local turns = require "sandbar.turns"

local FILE = "rules.json"
local PATIENCE = 20 -- seconds that a sandbox has to take a policy

local Rules = {}
Rules.__index = Rules

local rules = {}

-- Those of sandboxes that are gone are dropped. Everything may change while it is asked which there are.
local function prune(self)
  local gone = {}
  for id in pairs(self.map) do
    gone[id] = not self.coming[id] or nil
  end
  local list = next(gone) and self.provider:list()
  if not list then
    return
  end
  for _, info in ipairs(list) do
    gone[info.id] = gone[info.id] and info.state == "gone" or nil
  end
  for id in pairs(gone) do
    self.map[id] = nil
  end
end

--- Settings out of what a client gave.
function rules.settings(team, config, internet)
  return {
    team = team, internet = internet,
    config = { allowOut = config.allowOut, denyOut = config.denyOut, rules = config.rules },
  }
end

local function has_rules(own)
  return own ~= nil and own.config.rules ~= nil and next(own.config.rules) ~= nil
end

--- A sandbox's settings, or nil where it has no rules.
function Rules:of(id)
  return self.map[id]
end

-- What a sandbox has from now on. True, or nil and an error.
local function put(self, id, own)
  own = has_rules(own) and own or nil
  if not own and not self.map[id] then
    return true
  end
  self.map[id] = own
  prune(self)
  return self.store:save(FILE, self.map)
end

--- The policy of settings now, or nil and a refusal. A header whose secret is gone is in it no more.
function Rules:policy(own)
  return network.policy(own.config, own.internet, self.secrets:values(own.team), true)
end

local function apply(self, id, box, own)
  own = own or self.map[id]
  if not own then
    return true
  end
  local policy, err = self:policy(own)
  if not policy then
    return nil, err
  end
  return box:update_network(policy, { timeout = PATIENCE })
end

--- Has a sandbox keep to settings, to its own where none are given, as they are now. True, or nil and a failure. One
--- at a time: the policy that was made last has to come last.
function Rules:apply(id, box, own)
  return turns.run(self.turns, id, false, "serve", apply, self, id, box, own)
end

-- Takes away one that cannot keep to its settings: why it is not there, and whether it is there all the same.
local function undo(self, id, box, err)
  box:close()
  local ok, why = self.provider:destroy(id)
  if ok or why.kind == "NotFound" then
    return nil, err
  end
  local status, message = reply.of(err)
  return nil, reply.refusal(status, ("%s; sandbox %q goes on, since it could not be removed: %s"):format(message, id,
    why.message))
end

--- Makes a sandbox with these settings, whose policy of just now `spec` has: its handle, or nil and an error.
function Rules:create(spec, own)
  if not has_rules(own) then
    return self.provider:create(spec)
  end
  local known, box = self.secrets.changes, nil
  self.coming[spec.id] = true
  local ok, err = put(self, spec.id, own)
  if ok then
    box, err = self.provider:create(spec)
  end
  self.coming[spec.id] = nil
  if box and self.secrets.changes ~= known then
    ok, err = self:apply(spec.id, box)
    if not ok then
      return undo(self, spec.id, box, err)
    end
  elseif not box then
    self.map[spec.id] = nil
  end
  return box, err
end

local function change(self, id, box, own)
  local before = self.map[id]
  self.map[id] = own
  local ok, err = apply(self, id, box, own)
  if not ok then
    self.map[id] = before
    return nil, err
  end
  return put(self, id, own)
end

--- A running sandbox has other settings. True, or nil and a failure: then it has what it had. What it had is known once
--- it is this one's turn: another one may fail before.
function Rules:change(id, box, own)
  return turns.run(self.turns, id, false, "serve", change, self, id, box, own)
end

--- The ids of the sandboxes whose rules name a secret of a team; of all that name any where none is given.
function Rules:naming(team, name)
  local out = {}
  for id, own in pairs(self.map) do
    local names = network.names(own.config.rules)
    if not name and next(names) or name and own.team == team and names[name] then
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
  return setmetatable({
    store = store, provider = provider, secrets = secrets, map = map, coming = {}, turns = {},
  }, Rules)
end

return rules
