-- Secrets of teams: values that requests of sandboxes get on their way out, by the rules of a network. They are told to
-- nobody again. Kept in the store, which is its owner's alone, in plain text: they have to be sent.

local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local unlist = require "sandbar.server.unlist"

local FILE = "secrets.json"

-- `changes`: how often one has had another value, or none.
local Secrets = {}
Secrets.__index = Secrets

local secrets = {}

--- A name as it is kept, or nil where it is none.
function secrets.name(text)
  local name = text:lower()
  return #name <= 128 and name:match("^[a-z0-9_-]+$") and not name:match("^sec_") and name or nil
end

local function save(self)
  return self.store:save(FILE, encode.array(self.list))
end

--- A team's, by its id or name; nil where there is none.
function Secrets:find(team, text)
  local name = text:lower()
  for _, one in ipairs(self.list) do
    if one.team == team and (one.id == text or one.name == name) then
      return one
    end
  end
end

--- A team's, the oldest first.
function Secrets:of(team)
  local out = {}
  for _, one in ipairs(self.list) do
    if one.team == team then
      out[#out + 1] = one
    end
  end
  return out
end

--- What is in a secret of a team by its name: what rules ask for. Nil where there is none.
function Secrets:values(team)
  return function(name)
    local one = self:find(team, name)
    return one and one.value
  end
end

--- A new one; nil and an error.
function Secrets:add(team, name, value, metadata)
  local now = core.wall()
  local one = { id = ids.secret(), team = team, name = name, value = value, metadata = metadata, version = 1,
    created = now, updated = now }
  self.list[#self.list + 1] = one
  local ok, err = save(self)
  if not ok then
    unlist(self.list, one)
    return nil, err
  end
  return one
end

--- Another value from now on. True, or nil and an error: then it has what it had.
function Secrets:change(one, value, metadata)
  local before = { value = one.value, metadata = one.metadata, version = one.version, updated = one.updated }
  self.changes = self.changes + 1
  one.value, one.metadata = value, metadata or one.metadata
  one.version, one.updated = one.version + 1, core.wall()
  local ok, err = save(self)
  if not ok then
    for field, was in pairs(before) do
      one[field] = was
    end
    self.changes = self.changes + 1
    return nil, err
  end
  return true
end

--- True, or nil and an error.
function Secrets:remove(one)
  local at = unlist(self.list, one)
  if not at then
    return true
  end
  self.changes = self.changes + 1
  local ok, err = save(self)
  if not ok then
    self.changes = self.changes + 1
    table.insert(self.list, math.min(at, #self.list + 1), one)
  end
  return ok, err
end

--- Opens them. Nil and an error.
function secrets.open(store)
  local list, err = store:load(FILE, {})
  if not list then
    return nil, err
  end
  return setmetatable({ store = store, list = list, changes = 0 }, Secrets)
end

return secrets
