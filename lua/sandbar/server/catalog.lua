-- Templates and snapshots under the protocol's names: what a create may begin with. Those that this server made are in
-- its store; besides them there are "base" and every template that was built on this machine for the same root.

local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local reply = require "sandbar.server.reply"
local unlist = require "sandbar.server.unlist"

local FILE = "catalog.json"
local PREFIX = "e2b-" -- of local names, for what is in the catalog

local Catalog = {}
Catalog.__index = Catalog

local catalog = {}

--- A team's namespace.
function catalog.slug(team)
  local slug = team:lower():gsub("[^a-z0-9_-]", "-")
  return slug ~= "" and slug or "team"
end

-- Is a local name one that Catalog:expect makes?
local function is_ours(name)
  local id = name:match("^e2b%-([a-z0-9-]+)$")
  return id ~= nil and (ids.is_uuid(id) or #id == 20 and not id:find("-", 1, true))
end

-- One of the store's, by its id or its name within the team.
local function stored(self, team, name)
  for _, one in ipairs(self.list) do
    if one.team == team and (one.id == name or one.name == name) then
      return one
    end
  end
end

-- One of another team's that is everybody's, by its id or by its team's namespace and its name.
local function public(self, ref)
  for _, one in ipairs(self.list) do
    if one.public and (one.id == ref.name or ref.namespace == catalog.slug(one.team) and one.name == ref.name) then
      return one
    end
  end
end

-- The build a tag names.
local function tagged(one, tag)
  for i = #one.builds, 1, -1 do
    local build = one.builds[i]
    for _, name in ipairs(build.tags) do
      if name == tag then
        return build
      end
    end
  end
end

--- What a reference names for a team: { template_id, alias, template or snapshot (a local name), build }, or nil and a
--- refusal.
function Catalog:resolve(team, text)
  local ref, why = ids.reference(text)
  if not ref then
    return nil, reply.refusal(400, why)
  end
  local missing = reply.refusal(404, ("template '%s' not found"):format(text))
  local own = not ref.namespace or ref.namespace == catalog.slug(team)
  local one = own and stored(self, team, ref.name) or public(self, ref)
  if one then
    local build = tagged(one, ref.tag or "default")
    if not build then
      return nil, reply.refusal(404, ("template '%s' has no tag '%s'"):format(ref.name, ref.tag or "default"))
    end
    return { template_id = one.id, alias = one.name, [one.kind] = build.of, build = build, entry = one }
  elseif not own or ref.tag and ref.tag ~= "default" then
    return nil, missing
  elseif ref.name == "base" then
    return { template_id = "base", alias = "base", template = "base" }
  end
  local list, err = self.provider.templates:list()
  if not list then
    return nil, err
  end
  for _, built in ipairs(list) do
    if built.name:lower() == ref.name and not built.name:match("^e2b%-") then
      return { template_id = ref.name, alias = ref.name, template = built.name }
    end
  end
  return nil, missing
end

local function save(self)
  local list = encode.array {}
  for i, one in ipairs(self.list) do
    list[i] = one
  end
  return self.store:save(FILE, list)
end

-- These tags name no build any more.
local function untag(one, tags)
  for _, build in ipairs(one.builds) do
    for i = #build.tags, 1, -1 do
      for _, tag in ipairs(tags) do
        if build.tags[i] == tag then
          table.remove(build.tags, i)
          break
        end
      end
    end
  end
end

--- From now on the tags name this build (nil: none). True, or nil and an error.
function Catalog:tag(one, build, tags)
  untag(one, tags)
  for _, tag in ipairs(build and tags or {}) do
    build.tags[#build.tags + 1] = tag
  end
  return save(self)
end

local function new(self, fields)
  local one = { id = ids.template(), team = fields.team, name = fields.name, kind = fields.kind,
    sandbox = fields.sandbox, created = core.wall(), builds = {} }
  self.list[#self.list + 1] = one
  return one
end

--- The entry of a name, made where there is none. Nil and an error.
function Catalog:entry(team, name, kind)
  local one = stored(self, team, name)
  if one then
    return one
  end
  one = new(self, { team = team, name = name, kind = kind })
  local ok, err = save(self)
  if not ok then
    unlist(self.list, one)
    return nil, err
  end
  return one
end

--- Adds a build under a name (nil: none). The entry and the build, or nil and an error.
function Catalog:add(fields)
  local one = fields.name and stored(self, fields.team, fields.name)
  if one and one.kind ~= fields.kind then -- it has been made meanwhile
    return nil, reply.refusal(409, ("'%s' is the name of a %s"):format(one.name, one.kind))
  end
  local is_new = not one
  if is_new then
    one = new(self, fields)
  end
  untag(one, fields.tags)
  local build = { id = fields.build or ids.uuid(), of = fields.of, tags = fields.tags, created = core.wall(),
    limits = fields.limits and next(fields.limits) and fields.limits or nil }
  one.builds[#one.builds + 1] = build
  local ok, err = save(self)
  if not ok then
    unlist(one.builds, build)
    if is_new then
      unlist(self.list, one)
    end
    return nil, err
  end
  return one, build
end

--- Makes an entry everybody's, or its team's only. True, or nil and an error.
function Catalog:publish(one, public_now)
  one.public = public_now or nil
  return save(self)
end

--- A sandbox was made of it. Kept with whatever is kept next.
function Catalog.count(one)
  one.spawns, one.spawned = (one.spawns or 0) + 1, core.wall()
end

--- Takes an entry away. True, or nil and an error.
function Catalog:remove(one)
  unlist(self.list, one)
  return save(self)
end

-- The names of ours that are in a collection of the provider's and that no build has. Nil and an error.
local function strays_in(self, collection)
  local list, err = collection:list()
  if not list then
    return nil, err
  end
  local known, out = {}, {}
  for _, one in ipairs(self.list) do
    for _, build in ipairs(one.builds) do
      known[build.of] = true
    end
  end
  for _, one in ipairs(list) do
    if is_ours(one.name) and not known[one.name] and not self.coming[one.name] then
      out[#out + 1] = one.name
    end
  end
  return out
end

--- The name of a snapshot or template that is going to be made for a build. Before the first one those go that a server
--- which was killed has made, and not kept.
function Catalog:expect(id)
  local name = PREFIX .. id
  local coming = self.coming
  if coming then
    coming[name] = true
  end
  if coming and not self.clearing then
    self.clearing = true
    for _, collection in ipairs { self.provider.snapshots, self.provider.templates } do
      for _, stray in ipairs(strays_in(self, collection) or {}) do
        collection:delete(stray)
      end
    end
    self.coming = nil
  end
  return name
end

--- A team's entries of a kind ("template", "snapshot").
function Catalog:of(team, kind)
  local out = {}
  for _, one in ipairs(self.list) do
    if one.team == team and one.kind == kind then
      out[#out + 1] = one
    end
  end
  return out
end

function Catalog:find(team, name)
  return stored(self, team, name)
end

catalog.tagged = tagged

--- Opens it. Nil and an error.
function catalog.open(store, provider)
  local list, err = store:load(FILE, {})
  if not list then
    return nil, err
  end
  return setmetatable({ store = store, provider = provider, list = list, coming = {} }, Catalog)
end

return catalog
