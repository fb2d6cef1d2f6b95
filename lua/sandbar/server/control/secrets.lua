-- Secrets over the control plane. Another value, or none, holds at once for the sandboxes whose rules name it.

local body = require "sandbar.server.body"
local encode = require "sandbar.server.encode"
local naming = require "sandbar.server.control.naming"
local paging = require "sandbar.server.paging"
local reply = require "sandbar.server.reply"
local secrets_of = require "sandbar.server.secrets"
local stamp = require "sandbar.server.stamp"

local MAX_VALUE = 2048 -- bytes, as a header may have
local MAX_ENTRIES, MAX_KEY, MAX_TEXT, MAX_TOTAL = 32, 128, 1024, 8192

local secrets = {}

local refusal = reply.refusal

local function described(one)
  return {
    secretID = one.id, name = one.name, currentVersion = one.version, metadata = one.metadata or {},
    createdAt = stamp.text(one.created), updatedAt = stamp.text(one.updated),
  }
end

local function check(given)
  local count, total = 0, 0
  for name, text in pairs(given.metadata or {}) do
    count, total = count + 1, total + #name + #text
    if #name > MAX_KEY or #text > MAX_TEXT then
      return nil, refusal(400, "validation error: an entry of metadata is too long")
    end
  end
  if count > MAX_ENTRIES or total > MAX_TOTAL then
    return nil, refusal(400, "validation error: there is too much metadata")
  elseif given.value == "" or #given.value > MAX_VALUE or given.value:find("[%z\r\n]") then
    return nil, refusal(400, ("validation error: value is no text of 1 to %d bytes on one line"):format(MAX_VALUE))
  end
  return given
end

local function create(ctx)
  local given, err = body.read(ctx.request, { name = "string!", value = "string!", metadata = "texts" })
  if given then
    given, err = check(given)
  end
  if not given then
    return nil, err
  end
  local name = secrets_of.name(given.name)
  if not name then
    return nil, refusal(400, "validation error: name is no name of a secret")
  elseif ctx.server.secrets:find(ctx.team, name) then
    return nil, refusal(409, ("there is a secret '%s'"):format(name))
  end
  local one
  one, err = ctx.server.secrets:add(ctx.team, name, given.value, given.metadata)
  if not one then
    return nil, err
  end
  return 201, described(one)
end

local function list(ctx)
  local all = {}
  for i, one in ipairs(ctx.server.secrets:of(ctx.team)) do
    all[i] = described(one)
  end
  local out, headers = paging.page(all, ctx.query)
  if not out then
    return nil, headers
  end
  return 200, out, headers
end

-- The secret a request names, or nil and a refusal.
local function find(ctx)
  local one = ctx.server.secrets:find(ctx.team, ctx.params.secret)
  if not one then
    return nil, refusal(404, ("there is no secret '%s'"):format(encode.text(ctx.params.secret)))
  end
  return one
end

local function get(_, one)
  return 200, described(one)
end

-- The sandboxes whose rules name it have its value, or none, from now on. Those that sleep get it when they wake.
local function spread(ctx, name)
  local ok, err = ctx.server.spread:to(ctx.server.rules:naming(ctx.team, name))
  if not ok then
    return nil, refusal(503, ("it is changed, but a sandbox has not taken that yet (%s): it will as soon as it can")
      :format(select(2, reply.of(err))))
  end
  return true
end

local function update(ctx)
  local given, err = body.read(ctx.request, { value = "string!", metadata = "texts" })
  if given then
    given, err = check(given)
  end
  local one
  if given then
    one, err = find(ctx) -- it may have gone while the body came
  end
  local ok
  if one then
    ok, err = ctx.server.secrets:change(one, given.value, given.metadata)
  end
  if ok then
    ok, err = spread(ctx, one.name)
  end
  if not ok then
    return nil, err
  end
  return 200, described(one)
end

local function delete(ctx, one)
  local ok, err = ctx.server.secrets:remove(one)
  if ok then
    ok, err = spread(ctx, one.name)
  end
  if not ok then
    return nil, err
  end
  return 204
end

secrets.routes = {
  ["POST /secrets"] = create,
  ["GET /secrets"] = list,
  ["GET /secrets/{secret}"] = naming.with(find, get),
  ["POST /secrets/{secret}"] = update,
  ["DELETE /secrets/{secret}"] = naming.with(find, delete),
}

return secrets
