-- Volumes over the control plane: what there is, made and taken away. Their files: content.lua.

local body = require "sandbar.server.body"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local naming = require "sandbar.server.control.naming"
local reply = require "sandbar.server.reply"

local MAX_NAME = 128

local volumes = {}

local refusal = reply.refusal

local function whole(ctx, one)
  return { volumeID = one.id, name = one.name, token = ctx.server.volumes:token(one.id), domain = ctx.server.domain }
end

local function create(ctx)
  local given, err = body.read(ctx.request, { name = "string!" })
  if not given then
    return nil, err
  elseif not given.name:match("^[%w_-]+$") or #given.name > MAX_NAME then
    return nil, refusal(400, "validation error: name is no name of a volume")
  elseif ctx.server.volumes:named(ctx.team, given.name) then
    return nil, refusal(400, ("there is a volume '%s'"):format(given.name))
  end
  local one
  one, err = ctx.server.volumes:add(ctx.team, given.name)
  if not one then
    return nil, err
  end
  return 201, whole(ctx, one)
end

local function list(ctx)
  local out = encode.array {}
  for i, one in ipairs(ctx.server.volumes:of(ctx.team)) do
    out[i] = { volumeID = one.id, name = one.name }
  end
  return 200, out
end

-- The volume a request names, or nil and a refusal.
local function find(ctx)
  local id = ctx.params.volume
  local one = ids.is_uuid(id) and ctx.server.volumes:find(id:lower(), ctx.team)
  if not one then
    return nil, refusal(404, "there is no such volume")
  end
  return one
end

local function get(ctx, one)
  return 200, whole(ctx, one)
end

local function delete(ctx, one)
  local ok, err = ctx.server.volumes:remove(one)
  if not ok then
    return nil, err
  end
  return 204
end

volumes.routes = {
  ["POST /volumes"] = create,
  ["GET /volumes"] = list,
  ["GET /volumes/{volume}"] = naming.with(find, get),
  ["DELETE /volumes/{volume}"] = naming.with(find, delete),
}

return volumes
