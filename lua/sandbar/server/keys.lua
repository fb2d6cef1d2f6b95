-- API keys and access tokens: who may ask, and whose sandboxes are whose. Keys of one team see the same sandboxes,
-- those of another do not. Of a key only its hash is kept; the text of the server's own first one is, so that its owner
-- can read it.

local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local ids = require "sandbar.server.ids"
local signature = require "sandbar.server.signature"

local PREFIX, TOKEN_PREFIX = "e2b_", "sk_e2b_"
local FILE, FIRST = "keys.json", "api-key"
local MOST = 1000 -- keys of all teams

local Keys = {}
Keys.__index = Keys

local keys = {}

local function new_key(prefix)
  return prefix .. signature.hex(core.random(20))
end

-- A UUID that is always the same for one name.
local function team_id(name)
  local digits = signature.hash("team\0" .. name)
  return ("%s-%s-4%s-a%s-%s"):format(digits:sub(1, 8), digits:sub(9, 12), digits:sub(13, 15), digits:sub(16, 18),
    digits:sub(19, 30))
end

local function mask_of(key)
  local prefix = key:match("^sk_e2b_") or key:match("^e2b_") or ""
  local value = key:sub(#prefix + 1)
  return { prefix = prefix, valueLength = #value, maskedValuePrefix = value:sub(1, 2),
    maskedValueSuffix = value:sub(-4) }
end

local function entry(key, team, name)
  return { id = ids.uuid(), hash = signature.hash(key), team = team, name = name, mask = mask_of(key),
    createdAt = core.wall() }
end

-- Keys in a file of the operator's: a key on each line, and behind it the name of its team (without one, the key is a
-- team by itself).
local function from_file(self, path)
  local file, why = io.open(path, "r")
  if not file then
    return nil, errors.new { kind = "NotFound", op = "serve", message = "the file of API keys: " .. why }
  end
  for line in file:lines() do
    local key, team = line:match("^%s*(%S+)%s*(%S*)")
    if key and key:sub(1, 1) ~= "#" then
      if #key < 16 then
        file:close()
        return nil, errors.new { kind = "InvalidArgument", op = "serve",
          message = path .. ": a key of less than 16 characters" }
      end
      local one = entry(key, team ~= "" and team or "key-" .. signature.hash(key):sub(1, 16), "file")
      one.fixed = true
      self.by_hash[one.hash] = one
    end
  end
  file:close()
  if next(self.by_hash) == nil then
    return nil, errors.new { kind = "InvalidArgument", op = "serve", message = path .. ": no key is in it" }
  end
  return true
end

-- Adds those that were made: in vain (`off`) while their team has none that the operator has given, so that who takes
-- a team's key away has not left it those that were made with that.
local function add_made(self, made)
  local teams = {}
  for _, one in pairs(self.by_hash) do
    teams[one.team] = true
  end
  for _, one in ipairs(made) do
    one.off = not teams[one.team] or nil
    self.by_hash[one.hash] = self.by_hash[one.hash] or one
  end
end

--- Opens them: those in `path` (a file of the operator's) or one of the server's own, and those that were made since.
function keys.open(store, path)
  local self = setmetatable({ store = store, by_hash = {} }, Keys)
  local ok, err
  if path then
    ok, err = from_file(self, path)
    if not ok then
      return nil, err
    end
  else
    self.first, err = store:read(FIRST)
    if err then
      return nil, err
    elseif not self.first then
      self.first = new_key(PREFIX)
      ok, err = store:write(FIRST, self.first)
      if not ok then
        return nil, err
      end
    end
    local one = entry(self.first, "default", "default")
    one.fixed = true
    self.by_hash[one.hash] = one
  end
  local made
  made, err = store:load(FILE, {})
  if not made then
    return nil, err
  end
  add_made(self, made)
  return self
end

--- Whose request it is: { team, team_id, key }, or nil. Looking a hash up tells nothing of the key by its time.
function Keys:check(headers)
  local key = headers:get("x-api-key")
  local given = key or (headers:get("authorization") or ""):match("^[Bb]earer%s+(%S+)$")
  local one = given and self.by_hash[signature.hash(given)]
  if not one or one.off or key and one.token then
    return nil
  end
  one.lastUsed = core.wall()
  return { team = one.team, team_id = team_id(one.team), key = one }
end

local function save(self)
  local list = encode.array {}
  for _, one in pairs(self.by_hash) do
    if not one.fixed then
      list[#list + 1] = one
    end
  end
  return self.store:save(FILE, list)
end

--- A new key of a team, or (token) an access token: its entry and its text, which is told once.
function Keys:create(team, name, token)
  local count = 0
  for _ in pairs(self.by_hash) do
    count = count + 1
  end
  if count >= MOST then
    return nil, errors.new { kind = "LimitExceeded", message = ("there are %d keys"):format(count) }
  end
  local key = new_key(token and TOKEN_PREFIX or PREFIX)
  local one = entry(key, team, name)
  one.token = token and true or nil
  self.by_hash[one.hash] = one
  local ok, err = save(self)
  if not ok then
    self.by_hash[one.hash] = nil
    return nil, err
  end
  return one, key
end

--- A team's keys or access tokens, the oldest first.
function Keys:list(team, token)
  local out = {}
  for _, one in pairs(self.by_hash) do
    if one.team == team and (one.token or false) == (token or false) then
      out[#out + 1] = one
    end
  end
  table.sort(out, function(a, b)
    return a.createdAt < b.createdAt or a.createdAt == b.createdAt and a.id < b.id
  end)
  return out
end

function Keys:find(team, id, token)
  for _, one in ipairs(self:list(team, token)) do
    if one.id == id:lower() then
      return one
    end
  end
end

function Keys:rename(one, name)
  one.name = name
  return save(self)
end

--- True; false for one that is not the server's to delete; nil and an error.
function Keys:delete(one)
  if one.fixed then
    return false
  end
  self.by_hash[one.hash] = nil
  return save(self)
end

return keys
