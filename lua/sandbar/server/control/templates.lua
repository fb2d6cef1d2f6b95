-- Templates over the control plane: what there is, under which names and tags, and their end.

local body = require "sandbar.server.body"
local catalog = require "sandbar.server.catalog"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local builds = require "sandbar.server.control.builds"
local json = require "sandbar.json"
local paging = require "sandbar.server.paging"
local reply = require "sandbar.server.reply"
local size = require "sandbar.server.size"
local stamp = require "sandbar.server.stamp"

local templates = {}

local refusal = reply.refusal

-- What every template has. `fields`: id, name, names, created (seconds), updated, spawns, spawned, public.
local function described(fields)
  return {
    templateID = fields.id, public = fields.public or false, aliases = encode.array { fields.name },
    names = encode.array { fields.full or fields.name }, createdAt = stamp.text(fields.created),
    updatedAt = stamp.text(fields.updated or fields.created), spawnCount = fields.spawns or 0,
    lastSpawnedAt = fields.spawned and stamp.text(fields.spawned) or json.null,
  }
end

-- The same as lists have it: with its last build.
local function listed(fields, build, count)
  local out = described(fields)
  out.cpuCount, out.memoryMB = size.told(build.limits)
  out.buildID, out.buildStatus, out.buildCount, out.diskSizeMB = build.id, "ready", count, 0
  out.envdVersion, out.createdBy = ids.ENVD_VERSION, json.null
  return out
end

-- A build's id that is the same as long as the template is.
local function build_of(digest)
  local d = digest .. ("0"):rep(32)
  return ("%s-%s-4%s-a%s-%s"):format(d:sub(1, 8), d:sub(9, 12), d:sub(13, 15), d:sub(16, 18), d:sub(19, 30))
end

-- Of one that was built on this machine, not by the server.
local function of_machine(one)
  local name = one.name:lower()
  return { id = name, name = name, created = one.created_at }, { id = build_of(one.digest) }
end

-- Of one of the catalog's.
local function of_entry(one)
  local last = one.builds[#one.builds]
  return {
    id = one.id, name = one.name or one.id, full = one.name and catalog.slug(one.team) .. "/" .. one.name,
    created = one.created, updated = last and last.created, spawns = one.spawns, spawned = one.spawned,
    public = one.public,
  }, last
end

-- All that a team may see, or nil and an error.
local function all(ctx)
  local out = encode.array {}
  local built, err = ctx.server.provider.templates:list()
  if not built then
    return nil, err
  end
  for _, one in ipairs(built) do
    if not one.name:lower():match("^e2b%-") then -- those are of the catalog, and each of one team
      local fields, build = of_machine(one)
      out[#out + 1] = listed(fields, build, 1)
    end
  end
  for _, one in ipairs(ctx.server.catalog:of(ctx.team, "template")) do
    local fields, build = of_entry(one)
    if build then
      out[#out + 1] = listed(fields, build, #one.builds)
    end
  end
  return out
end

-- Of the first generation: no pages.
local function list_old(ctx)
  local out, err = all(ctx)
  if not out then
    return nil, err
  end
  return 200, out
end

local function list(ctx)
  local every, err = all(ctx)
  if not every then
    return nil, err
  end
  local out, headers = paging.page(every, ctx.query)
  if not out then
    return nil, headers
  end
  return 200, out, headers
end

local function alias(ctx)
  local found, err = ctx.server.catalog:resolve(ctx.team, ctx.params.template)
  if not found then
    return nil, err
  end
  return 200, { templateID = found.template_id, public = found.entry ~= nil and found.entry.public == true }
end

-- An entry of this server's own by its id or name, or nil and a failure.
local function find(ctx, text)
  local ref, why = ids.reference(text)
  if not ref then
    return nil, refusal(400, why)
  end
  local own = not ref.namespace or ref.namespace == catalog.slug(ctx.team)
  local one = own and ctx.server.catalog:find(ctx.team, ref.name)
  if not one then
    return nil, refusal(404, ("template '%s' not found"):format(text))
  end
  return one, ref
end

-- A build as its template tells of it. `fields`: id, status, created, ended, limits.
local function described_build(fields)
  local out = {
    buildID = fields.id, status = fields.status, createdAt = stamp.text(fields.created),
    updatedAt = stamp.text(fields.ended or fields.created), diskSizeMB = 0, envdVersion = ids.ENVD_VERSION,
    finishedAt = fields.ended and stamp.text(fields.ended) or nil,
  }
  out.cpuCount, out.memoryMB = size.told(fields.limits)
  return out
end

-- The builds of an entry, the newest first: those that it is made of, and those that this server has seen and that
-- came to nothing, or have not yet.
local function builds_of(server, one)
  local every = {}
  for _, build in ipairs(one.builds) do
    every[#every + 1] = { id = build.id, status = "ready", created = build.created, ended = build.created,
      limits = build.limits }
  end
  for _, build in ipairs(builds.of(server, one.id)) do
    if build.status ~= "ready" then
      every[#every + 1] = build
    end
  end
  table.sort(every, function(a, b)
    return a.created > b.created or a.created == b.created and a.id < b.id
  end)
  for i, build in ipairs(every) do
    every[i] = described_build(build)
  end
  return every
end

-- One that is not the catalog's: the base, or what was built on this machine. Its fields and its build, or nil and a
-- failure.
local function find_of_machine(ctx)
  local found, err = ctx.server.catalog:resolve(ctx.team, ctx.params.template)
  if not found then
    return nil, err
  end
  local built
  built, err = ctx.server.provider.templates:list()
  for _, one in ipairs(built or {}) do
    if one.name == found.template then
      return of_machine(one)
    end
  end
  if not built then
    return nil, err
  end
  return { id = "base", name = "base", created = 0 }, { id = build_of("ba5e") }
end

local function get(ctx)
  local one, err = find(ctx, ctx.params.template)
  local fields, every
  if one then
    fields, every = of_entry(one), builds_of(ctx.server, one)
  elseif err.status == 404 then
    local build
    fields, build = find_of_machine(ctx)
    if not fields then
      return nil, build
    end
    every = { described_build { id = build.id, status = "ready", created = fields.created, ended = fields.created } }
  else
    return nil, err
  end
  local page, headers = paging.page(every, ctx.query)
  if not page then
    return nil, headers
  end
  local out = described(fields)
  out.builds = page
  return 200, out, headers
end

local function update(ctx)
  local given, err = body.read(ctx.request, { public = "boolean" })
  local one
  if given then
    one, err = find(ctx, ctx.params.template)
  end
  if not one then
    return nil, err
  end
  local ok
  if given.public ~= nil then
    ok, err = ctx.server.catalog:publish(one, given.public)
    if not ok then
      return nil, err
    end
  end
  return 200, { names = encode.array { of_entry(one).full } }
end

local function delete(ctx)
  local one, err = find(ctx, ctx.params.template)
  if not one then
    return nil, err
  end
  local store = one.kind == "snapshot" and ctx.server.provider.snapshots or ctx.server.provider.templates
  for _, build in ipairs(one.builds) do
    local ok
    ok, err = store:delete(build.of)
    if not ok and err.kind ~= "NotFound" then
      return nil, err.kind == "Busy" and refusal(400, err.message) or err
    end
  end
  local ok
  ok, err = ctx.server.catalog:remove(one)
  if not ok then
    return nil, err
  end
  return 204
end

local function tags(ctx)
  local one, err = find(ctx, ctx.params.template)
  if not one then
    return nil, err
  end
  local out = encode.array {}
  for _, build in ipairs(one.builds) do
    for _, tag in ipairs(build.tags) do
      out[#out + 1] = { tag = tag, buildID = build.id, createdAt = stamp.text(build.created) }
    end
  end
  return 200, out
end

local function check_tags(list_of)
  if #list_of == 0 then
    return nil, refusal(400, "validation error: no tags")
  end
  for _, tag in ipairs(list_of) do
    if not tag:match("^[a-z0-9._-]+$") or ids.is_uuid(tag) then
      return nil, refusal(400, ("invalid tag '%s'"):format(tag))
    end
  end
  return true
end

local function add_tags(ctx)
  local given, err = body.read(ctx.request, { target = "string!", tags = "strings!" })
  local ok = given
  if ok then
    ok, err = check_tags(given.tags)
  end
  local one, ref
  if ok then
    one, ref = find(ctx, given.target)
    err = ref
  end
  if not one then
    return nil, err
  end
  local build = catalog.tagged(one, ref.tag or "default")
  if not build then
    return nil, refusal(404, ("template '%s' has no tag '%s'"):format(ref.name, ref.tag or "default"))
  end
  ok, err = ctx.server.catalog:tag(one, build, given.tags)
  if not ok then
    return nil, err
  end
  return 201, { buildID = build.id, tags = encode.array(given.tags) }
end

local function remove_tags(ctx)
  local given, err = body.read(ctx.request, { name = "string!", tags = "strings!" })
  local ok = given
  if ok then
    ok, err = check_tags(given.tags)
  end
  local one, ref
  if ok then
    one, ref = find(ctx, given.name)
    err = ref
  end
  if not one then
    return nil, err
  elseif ref.tag then
    return nil, refusal(400, "validation error: name has a tag")
  end
  for _, tag in ipairs(given.tags) do
    if tag == "default" then
      return nil, refusal(400, "the tag 'default' cannot be removed")
    end
  end
  ok, err = ctx.server.catalog:tag(one, nil, given.tags)
  if not ok then
    return nil, err
  end
  return 204
end

templates.routes = {
  ["GET /templates"] = list_old,
  ["GET /v2/templates"] = list,
  ["GET /templates/aliases/{template}"] = alias,
  ["GET /templates/{template}"] = get,
  ["PATCH /templates/{template}"] = update,
  ["PATCH /v2/templates/{template}"] = update,
  ["DELETE /templates/{template}"] = delete,
  ["GET /templates/{template}/tags"] = tags,
  ["POST /templates/tags"] = add_tags,
  ["DELETE /templates/tags"] = remove_tags,
}

return templates
