-- Files for builds: archives by their hash, uploaded to a signed address. What one team has uploaded is there for all
-- its templates, until a build with it has ended, and no other was told that it is there; or for as long as an address.

local core = require "sandbar.core"
local hosttree = require "sandbar.hosttree"
local reply = require "sandbar.server.reply"
local signature = require "sandbar.server.signature"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local OP = "serve"
local CHUNK = 262144
local IDLE = 600 -- seconds without a byte
local VALID = 3600 -- seconds that an address is
local MOST = 8589934592 -- bytes of an archive
local PRIVATE = 384 -- 0600
local SWEEP = 60 -- seconds between two looks for archives whose time is over

local uploads = {}

local function is_hash(text)
  return #text == 64 and text:match("^[0-9a-f]+$") ~= nil
end

local function name_of(team, hash)
  return ("upload-%s-%s"):format(signature.hash(team):sub(1, 16), hash)
end

-- ---- how long they stay ----

local function remove(server, name)
  server.archives[name] = nil
  local ok, err = hosttree.at(OP, "remove", server.store.dir, name)
  if not ok and err.kind ~= "NotFound" then
    server.report(("the archive %s: %s"):format(name, err.message))
  end
end

local function is_late(one)
  return one ~= nil and one.users == 0 and one.expires < core.now()
end

-- Removes those whose time is over, as long as there are any.
local function sweep(server)
  while next(server.archives) and wait.sleep(SWEEP) do
    local late = {}
    for name, one in pairs(server.archives) do
      late[#late + 1] = is_late(one) and name or nil
    end
    for _, name in ipairs(late) do
      if is_late(server.archives[name]) then -- still, after those before it
        remove(server, name)
      end
    end
  end
  server.sweeping = nil
end

-- What is known of an archive: { expires, users (builds under way), promised = { [template] = true } }.
local function record_of(server, name)
  server.archives = server.archives or {}
  local one = server.archives[name] or { users = 0, promised = {} }
  server.archives[name], one.expires = one, core.now() + VALID
  if not server.sweeping then
    server.sweeping = task.spawn(sweep, server)
  end
  return one
end

--- The server ends: the next one removes what is there.
function uploads.stop(server)
  if server.sweeping then
    server.sweeping:cancel "the server ends"
  end
end

--- A build of a template begins, with these archives. What it gives is for uploads.release.
function uploads.hold(server, team, template, hashes)
  local names = {}
  for hash in pairs(hashes) do
    local name = name_of(team, hash)
    local one = record_of(server, name)
    one.users, one.promised[template] = one.users + 1, nil
    names[#names + 1] = name
  end
  return names
end

--- It has ended.
function uploads.release(server, names)
  for _, name in ipairs(names) do
    local one = server.archives[name]
    one.users = one.users - 1
    if one.users == 0 and not next(one.promised) then
      remove(server, name)
    end
  end
end

--- Removes what a server before this one has left: its builds have ended with it. True, or nil and an error.
function uploads.clear(store)
  return store:clear(function(name)
    return name:match("^upload%-") or name:match("^part%-")
  end)
end

-- ---- requests ----

--- The path of an archive, or nil where there is none.
function uploads.path(server, team, hash)
  if type(hash) ~= "string" or not is_hash(hash) then
    return nil
  end
  local path = server.store.dir .. "/" .. name_of(team, hash)
  local file = io.open(path, "rb")
  if file then
    file:close()
    return path
  end
  return nil
end

local function sign(server, name, expires)
  return signature.token(server.boxes.seed, ("upload:%s:%s"):format(name, expires))
end

-- GET /templates/{template}/files/{hash}
local function link(ctx)
  local hash = ctx.params.hash
  if not is_hash(hash) then
    return nil, reply.refusal(400, "validation error: the hash is not 64 hexadecimal digits")
  end
  local name, expires = name_of(ctx.team, hash), ("%d"):format(math.floor(core.wall()) + VALID)
  record_of(ctx.server, name).promised[ctx.params.template] = true
  local scheme = ctx.request.secure and "https" or "http"
  return 201, {
    present = uploads.path(ctx.server, ctx.team, hash) ~= nil,
    url = ("%s://%s/_uploads/%s?expires=%s&signature=%s"):format(scheme, ctx.request.headers:get("host"), name, expires,
      sign(ctx.server, name, expires)),
  }
end

uploads.routes = { ["GET /templates/{template}/files/{hash}"] = link }

-- The body into a file that is there when it is whole. True, or nil and a refusal or error.
local function take(server, request, name)
  local dir, part = server.store.dir, "part-" .. core.uuid()
  local file, err = hosttree.at(OP, "create", dir, part, nil, PRIVATE)
  if not file then
    return nil, err
  end
  local offset = 0
  while true do
    local piece
    piece, err = request:read(CHUNK, IDLE)
    if not piece then
      break
    elseif offset + #piece > MOST then
      err = reply.refusal(413, "the archive is too large")
      break
    end
    local ok
    ok, err = wait.op(file:write(offset, piece), false, OP)
    if not ok then
      break
    end
    offset = offset + #piece
  end
  file:close()
  local ok
  if not err then
    ok, err = hosttree.at(OP, "rename", dir, part, name)
  end
  if not ok then
    hosttree.at(OP, "remove", dir, part)
    return nil, err
  end
  record_of(server, name)
  return true
end

--- Answers a PUT to a signed address.
function uploads.serve(server, request, target)
  local name, query = target.segments[2] or "", target.query
  local expires = query.expires or ""
  if request.method ~= "PUT" or #target.segments ~= 2 or not name:match("^upload%-%x+%-%x+$") then
    return reply.failed(request, reply.refusal(404, "there is no such endpoint"))
  elseif not signature.equal(query.signature, sign(server, name, expires))
    or (tonumber(expires) or 0) < core.wall() then
    return reply.failed(request, reply.refusal(403, "the address is not valid, or not any more"))
  end
  local ok, err = take(server, request, name)
  if not ok then
    return reply.failed(request, err)
  end
  return reply.empty(request, 200)
end

return uploads
