-- Volumes: directories with files that outlive sandboxes. Each lies in a sandbox of its own that no client sees, so
-- that what is in it, links and all, leads nowhere else; it sleeps on the disk while nobody uses it.

local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local ids = require "sandbar.server.ids"
local signature = require "sandbar.server.signature"
local turns = require "sandbar.turns"
local unlist = require "sandbar.server.unlist"

local OP = "serve"
local FILE = "volumes.json"
local LABEL = "sandbar.serve/volume"
local LIFETIME = 3600 -- seconds that it stays awake after it was asked for last: as long as a transfer may take

-- Of one volume a single task makes, opens or removes the sandbox: who asks for one that is being made finds it whole,
-- and nobody closes a handle that another task has just opened.
local Volumes = {}
Volumes.__index = Volumes

local volumes = { ROOT = "/volume" }

local function save(self)
  return self.store:save(FILE, encode.array(self.list))
end

--- What opens a volume's files.
function Volumes:token(id)
  return signature.token(self.store.seed, "volume:" .. id)
end

--- One by its id, of this team where one is given; or of a team by its name.
function Volumes:find(id, team)
  for _, one in ipairs(self.list) do
    if one.id == id and (not team or one.team == team) then
      return one
    end
  end
end

function Volumes:named(team, name)
  for _, one in ipairs(self.list) do
    if one.team == team and one.name == name then
      return one
    end
  end
end

--- A team's, the oldest first.
function Volumes:of(team)
  local out = {}
  for _, one in ipairs(self.list) do
    if one.team == team then
      out[#out + 1] = one
    end
  end
  return out
end

local function remove(self, one)
  self:forget(one)
  local ok, err = self.provider:destroy(one.sandbox)
  if not ok and err.kind ~= "NotFound" then
    return nil, err
  end
  unlist(self.list, one)
  return save(self)
end

local function make(self, one)
  local ok, err = save(self)
  local box, made
  if ok then
    box, err = self.provider:create { id = one.sandbox, lifetime = LIFETIME, on_expiry = "pause_disk",
      labels = { [LABEL] = one.id } }
  end
  if box then
    made, err = box.files:mkdir(volumes.ROOT, { user = "root", mode = "755" })
    box:close()
  end
  if made ~= nil then
    one.making = nil
    ok, err = save(self)
    if ok then
      return one
    end
  end
  remove(self, one)
  return nil, err
end

-- Adds it to the list before anything is made: of two with one name the second finds the first.
function Volumes:add(team, name)
  local one = { id = ids.uuid(), team = team, name = name, sandbox = ids.volume(), created = core.wall(),
    making = true }
  self.list[#self.list + 1] = one
  return turns.run(self.turns, one.id, false, "serve", make, self, one)
end

--- True, or nil and an error.
function Volumes:remove(one)
  return turns.run(self.turns, one.id, false, "serve", remove, self, one)
end

function Volumes:forget(one)
  local box = self.boxes[one.id]
  self.boxes[one.id] = nil
  if box then
    box:close()
  end
end

local function open(self, one)
  local box = self.boxes[one.id]
  if not self:find(one.id) then
    return nil, errors.new { kind = "NotFound", op = OP, message = "the volume has been removed" }
  elseif box and box:set_lifetime(LIFETIME) then
    return box
  end
  self:forget(one)
  local err
  if one.making then -- a server has ended before it was there: nobody has put anything into it
    local ok
    ok, err = self.provider:destroy(one.sandbox)
    if not ok and err.kind ~= "NotFound" then
      return nil, err
    end
    ok, err = make(self, one)
    if not ok then
      return nil, err
    end
  end
  box, err = self.provider:connect(one.sandbox, { resume = true, lifetime = LIFETIME })
  self.boxes[one.id] = box
  return box, err
end

--- The sandbox it lies in, awake. Nil and an error.
function Volumes:open(one)
  return turns.run(self.turns, one.id, false, "serve", open, self, one)
end

--- Lets go of all handles.
function Volumes:shut()
  for _, one in ipairs(self.list) do
    self:forget(one)
  end
end

--- Opens them. Nil and an error.
function volumes.open(store, provider)
  local list, err = store:load(FILE, {})
  if not list then
    return nil, err
  end
  return setmetatable({ store = store, provider = provider, list = list, boxes = {}, turns = {} }, Volumes)
end

return volumes
