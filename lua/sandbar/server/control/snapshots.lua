-- Snapshots and copies of sandboxes. Both are of what is on the disk: processes are not in them.

local body = require "sandbar.server.body"
local boxes = require "sandbar.server.boxes"
local catalog = require "sandbar.server.catalog"
local described = require "sandbar.server.control.described"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local paging = require "sandbar.server.paging"
local reply = require "sandbar.server.reply"
local sandboxes = require "sandbar.server.control.sandboxes"
local taking = require "sandbar.local.snapshots"

local MOST_COPIES = 100
local FORK_TIMEOUT = 15

local snapshots = {}

local refusal = reply.refusal

local function named(one, tag)
  local slug = catalog.slug(one.team)
  local name = one.name and slug .. "/" .. one.name
  return { snapshotID = (name or one.id) .. ":" .. tag, names = encode.array { name } }
end

-- The name and the tag of a request, both nil where it has none; or nil, nil and a refusal.
local function name_of(ctx, text)
  if not text then
    return nil, "default"
  end
  local ref, why = ids.reference(text)
  if not ref then
    return nil, nil, refusal(400, why)
  elseif ref.namespace and ref.namespace ~= catalog.slug(ctx.team) then
    return nil, nil, refusal(400, ("the namespace '%s' is not yours"):format(ref.namespace))
  end
  local there = ctx.server.catalog:find(ctx.team, ref.name)
  if ref.name == "base" or there and there.kind ~= "snapshot" then
    return nil, nil, refusal(409, ("'%s' is the name of a template"):format(ref.name))
  end
  return ref.name, ref.tag or "default"
end

local function create(ctx)
  local given, err = body.read(ctx.request, { name = "string" })
  local name, tag
  if given then
    name, tag, err = name_of(ctx, given.name)
  end
  local entry
  if tag then
    entry, err = sandboxes.find_running(ctx, 409)
  end
  if not entry then
    return nil, err
  end
  local of
  of, err = entry.box:snapshot(ctx.server.catalog:expect(ids.template()))
  if not of then
    return nil, err
  end
  local one, build = ctx.server.catalog:add { team = ctx.team, name = name, kind = "snapshot", of = of, tags = { tag },
    sandbox = entry.id }
  if not one then
    ctx.server.provider.snapshots:delete(of)
    return nil, build
  end
  return 201, named(one, tag)
end

local function list(ctx)
  local want, tag
  if ctx.query.name and ctx.query.name ~= "" then
    local ref, why = ids.reference(ctx.query.name)
    if not ref then
      return nil, refusal(400, why)
    end
    want, tag = ref.name, ref.tag
  end
  local all = {}
  for _, one in ipairs(ctx.server.catalog:of(ctx.team, "snapshot")) do
    local sandbox = ctx.query.sandboxID
    if (not want or one.name == want or one.id == want) and (not sandbox or one.sandbox == sandbox) then
      for _, build in ipairs(one.builds) do
        for _, name in ipairs(build.tags) do
          if not tag or tag == name then
            all[#all + 1] = { created = build.created, value = named(one, name) }
          end
        end
      end
    end
  end
  table.sort(all, function(a, b)
    return a.created > b.created or a.created == b.created and a.value.snapshotID < b.value.snapshotID
  end)
  for i, one in ipairs(all) do
    all[i] = one.value
  end
  local out, headers = paging.page(all, ctx.query)
  if not out then
    return nil, headers
  end
  return 200, out, headers
end

-- One copy out of a snapshot: what the protocol says of it, or of why there is none.
local function copy(ctx, entry, of, timeout)
  local info, id = entry.info, ids.sandbox()
  local own, policy, err = ctx.server.rules:of(info.id), info.network
  if own then -- what is told of a sandbox's headers is not what is in them
    policy, err = ctx.server.rules:policy(own)
    if not policy then
      local status, message = reply.of(err)
      return { error = { code = status, message = message } }
    end
  end
  local labels = {}
  for name, value in pairs(info.labels) do
    labels[name] = value
  end
  labels[boxes.PREFIX .. "timeout"] = ("%d"):format(timeout)
  local box
  box, err = ctx.server.rules:create({
    id = id, snapshot = of, lifetime = timeout, on_expiry = info.on_expiry, labels = labels, network = policy,
    env = { E2B_SANDBOX_ID = id },
  }, own)
  local made
  if box then
    box:close()
    ctx.server.boxes:count(ctx.team)
    made, err = ctx.server.boxes:info(id, ctx.team)
  end
  if not made then
    local status, message = reply.of(err or refusal(500, "the copy ended at once"))
    return { error = { code = status, message = message } }
  end
  return { sandbox = described.handed_over(ctx.server, made) }
end

local function fork(ctx)
  local given, err = body.read(ctx.request, { timeout = "integer", count = "integer" })
  local timeout, count
  if given then
    count = given.count or 1
    timeout, err = sandboxes.check_timeout(given.timeout or FORK_TIMEOUT)
    if timeout and (count < 1 or count > MOST_COPIES) then
      timeout, err = nil, refusal(400, "validation error: count is not between 1 and 100")
    end
  end
  local entry
  if timeout then
    entry, err = sandboxes.find_running(ctx, 409)
  end
  local of, drop
  if entry then
    of, drop = taking.take_temporary(entry.box)
    err = drop
  end
  if not of then
    return nil, err
  end
  local out = encode.array {}
  for i = 1, count do
    out[i] = copy(ctx, entry, of, timeout)
  end
  drop()
  return 201, out
end

snapshots.routes = {
  ["POST /sandboxes/{id}/snapshots"] = create,
  ["GET /snapshots"] = list,
  ["POST /sandboxes/{id}/fork"] = fork,
}

return snapshots
