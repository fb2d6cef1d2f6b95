-- Templates over the control plane: what there is, under which names and tags, and their end.

local body = require "sandbar.server.body"
local catalog = require "sandbar.server.catalog"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local machine = require "sandbar.server.machine"
local reply = require "sandbar.server.reply"
local stamp = require "sandbar.server.stamp"

local MIB = 1048576

local templates = {}

local refusal = reply.refusal

-- What every template has; `created` in seconds.
local function described(id, name, build, created, builds)
  local whole = machine.get()
  return {
    templateID = id, buildID = build, buildStatus = "ready", cpuCount = whole.cpus,
    memoryMB = math.floor(whole.memory / MIB), diskSizeMB = 0, public = false, aliases = encode.array { name },
    names = encode.array { name }, createdAt = stamp.text(created), updatedAt = stamp.text(created), spawnCount = 0,
    buildCount = builds, envdVersion = ids.ENVD_VERSION,
  }
end

-- A build's id that is the same as long as the template is.
local function build_of(digest)
  local d = digest .. ("0"):rep(32)
  return ("%s-%s-4%s-a%s-%s"):format(d:sub(1, 8), d:sub(9, 12), d:sub(13, 15), d:sub(16, 18), d:sub(19, 30))
end

local function list(ctx)
  local out = encode.array {}
  local built, err = ctx.server.provider.templates:list()
  if not built then
    return nil, err
  end
  for _, one in ipairs(built) do
    local name = one.name:lower()
    if not name:match("^e2b%-") then -- those are of the catalog, and each of one team
      out[#out + 1] = described(name, name, build_of(one.digest), one.created_at, 1)
    end
  end
  for _, one in ipairs(ctx.server.catalog:of(ctx.team, "template")) do
    local last = one.builds[#one.builds]
    if last then
      out[#out + 1] = described(one.id, one.name, last.id, one.created, #one.builds)
    end
  end
  return 200, out
end

local function alias(ctx)
  local found, err = ctx.server.catalog:resolve(ctx.team, ctx.params.template)
  if not found then
    return nil, err
  end
  return 200, { templateID = found.template_id, public = false }
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
  ["GET /templates"] = list,
  ["GET /v2/templates"] = list,
  ["GET /templates/aliases/{template}"] = alias,
  ["DELETE /templates/{template}"] = delete,
  ["GET /templates/{template}/tags"] = tags,
  ["POST /templates/tags"] = add_tags,
  ["DELETE /templates/tags"] = remove_tags,
}

return templates
