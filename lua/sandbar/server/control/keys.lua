-- API keys and access tokens over the control plane: a team makes, lists, names and withdraws its own.

local body = require "sandbar.server.body"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local reply = require "sandbar.server.reply"
local stamp = require "sandbar.server.stamp"

local MAX_NAME = 256

local keys = {}

local function described(one)
  return {
    id = one.id, name = one.name, mask = one.mask, createdAt = stamp.text(one.createdAt),
    lastUsed = one.lastUsed and stamp.text(one.lastUsed) or nil,
  }
end

local function name_of(ctx)
  local given, err = body.read(ctx.request, { name = "string!" })
  if given and (given.name == "" or #given.name > MAX_NAME) then
    return nil, reply.refusal(400, "validation error: name is empty or too long")
  end
  return given and given.name, err
end

local function create(ctx)
  local name, err = name_of(ctx)
  local one, key
  if name then
    one, key = ctx.server.keys:create(ctx.team, name)
    err = key
  end
  if not one then
    return nil, err
  end
  local out = described(one)
  out.key = key
  return 201, out
end

local function list(ctx)
  local out = encode.array {}
  for i, one in ipairs(ctx.server.keys:list(ctx.team)) do
    out[i] = described(one)
  end
  return 200, out
end

-- The key a request names, or nil and a failure.
local function find(ctx)
  if not ids.is_uuid(ctx.params.key) then
    return nil, reply.refusal(400, "validation error: the id of a key is a UUID")
  end
  local one = ctx.server.keys:find(ctx.team, ctx.params.key)
  if not one then
    return nil, { status = 404, text = "id not found" }
  end
  return one
end

local function rename(ctx)
  local one, err = find(ctx)
  local name
  if one then
    name, err = name_of(ctx)
  end
  local ok
  if name then
    ok, err = ctx.server.keys:rename(one, name)
  end
  if not ok then
    return nil, err
  end
  return 202
end

local function delete(ctx)
  local one, err = find(ctx)
  if not one then
    return nil, err
  end
  local ok
  ok, err = ctx.server.keys:delete(one)
  if ok == false then
    return nil, reply.refusal(400, "this key is of the server's own configuration")
  elseif not ok then
    return nil, err
  end
  return 204
end

local function teams(ctx)
  return 200, encode.array { { teamID = ctx.team_id, name = ctx.team, apiKey = "", isDefault = true } }
end

local function create_token(ctx)
  local name, err = name_of(ctx)
  local one, token
  if name then
    one, token = ctx.server.keys:create(ctx.team, name, true)
    err = token
  end
  if not one then
    return nil, err
  end
  return 201, { id = one.id, name = one.name, mask = one.mask, createdAt = stamp.text(one.createdAt), token = token }
end

local function delete_token(ctx)
  local id = ctx.params.token
  if not ids.is_uuid(id) then
    return nil, reply.refusal(400, "validation error: the id of a token is a UUID")
  end
  local one = ctx.server.keys:find(ctx.team, id, true)
  if not one then
    return nil, reply.refusal(404, "id not found")
  end
  local ok, err = ctx.server.keys:delete(one)
  if not ok then
    return nil, err
  end
  return 204
end

keys.routes = {
  ["POST /access-tokens"] = create_token,
  ["DELETE /access-tokens/{token}"] = delete_token,
  ["POST /api-keys"] = create,
  ["GET /api-keys"] = list,
  ["PATCH /api-keys/{key}"] = rename,
  ["DELETE /api-keys/{key}"] = delete,
  ["GET /teams"] = teams,
}

return keys
