-- The files of volumes: /volumecontent/{volume}/path, dir and file, for who has the volume's token. Everything is done
-- with the rights of root in the sandbox the volume lies in. Errors are { code, message } with a text as code.

local body = require "sandbar.server.body"
local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local pace = require "sandbar.server.pace"
local reply = require "sandbar.server.reply"
local signature = require "sandbar.server.signature"
local stamp = require "sandbar.server.stamp"
local tree = require "sandbar.server.envd.tree"
local users = require "sandbar.server.envd.users"
local volumes = require "sandbar.server.volumes"

local CHUNK = 262144
local IDLE = 600 -- seconds a client may be silent within a body
local OWNER = 1000 -- of what is made without one: the user of sandboxes
local MAX_ID, MAX_MODE, MAX_DEPTH = 65535, 4095, 1000
local FORMAT = ("%y %s %m %U %G %A@ %T@ %C@ %l %P "):gsub(" ", "\\0")
local FIELDS = ("(%Z*)%z"):rep(10)
local TYPES = { f = "file", d = "directory", l = "symlink" }
local CHANGE = '[ -z "$2" ] || chown -h -- "$2" "$1" && { [ -z "$3" ] || chmod -- "$3" "$1"; }'

local content = {}

local CODES = {
  [400] = "invalid_argument", [401] = "unauthenticated", [404] = "not_found", [405] = "unimplemented",
  [409] = "already_exists", [507] = "resource_exhausted",
}

local function refuse(status, message)
  return nil, reply.refusal(status, message)
end

local function missing(path)
  return refuse(404, ("path '%s' does not exist"):format(encode.text(path)))
end

-- ---- what there is ----

-- What is at a path of the volume and `depth` levels below it, that itself first; or nil and a failure.
local function entries(box, path, depth)
  local argv = { "/usr/bin/find", volumes.ROOT .. path, "-maxdepth", ("%d"):format(depth), "-printf", FORMAT }
  local r, err = box:exec(argv, { user = "root", cwd = "/" })
  if not r then
    return nil, err
  end
  local out, step = {}, pace.new()
  for kind, size, mode, uid, gid, atime, mtime, ctime, target, below in r.stdout:gmatch(FIELDS) do
    step()
    local full = below == "" and path or (path == "/" and "" or path) .. "/" .. below
    out[#out + 1] = {
      name = encode.text(full:match("[^/]*$")), type = TYPES[kind] or "unknown", path = encode.text(full),
      size = tonumber(size), mode = tonumber(mode, 8), uid = tonumber(uid), gid = tonumber(gid),
      atime = stamp.text(tonumber(atime)), mtime = stamp.text(tonumber(mtime)), ctime = stamp.text(tonumber(ctime)),
      target = target ~= "" and encode.text(target) or nil,
    }
  end
  if not out[1] then
    return missing(path)
  end
  return pace.sorted(out, function(a, b)
    return a.path < b.path
  end, step)
end

local function entry(box, path)
  local list, err = entries(box, path, 0)
  return list and list[1], err
end

-- ---- what is asked for ----

local function number_of(query, name, most)
  local text = query[name]
  if text == nil then
    return nil
  end
  local n = text:match("^%d+$") and tonumber(text)
  if not n or n > most then
    return nil, reply.refusal(400, ("%s is no number up to %d"):format(name, most))
  end
  return n
end

-- Owner and mode a query asks for: { uid, gid, mode, force }, or nil and a refusal.
local function given_in(query)
  local out = { force = query.force == "true" }
  for name, most in pairs { uid = MAX_ID, gid = MAX_ID, mode = MAX_MODE } do
    local err
    out[name], err = number_of(query, name, most)
    if err then
      return nil, err
    end
  end
  out.uid, out.gid = out.uid or OWNER, out.gid or OWNER
  return out
end

local function octal(mode)
  return ("%o"):format(mode)
end

-- ---- calls ----

local calls = {}

calls["GET path"] = function(box, path)
  local one, err = entry(box, path)
  return one and 200, one or err
end

calls["PATCH path"] = function(box, path, _, request)
  local given, err = body.read(request, { uid = "integer", gid = "integer", mode = "integer" })
  if not given then
    return nil, err
  end
  for name, most in pairs { uid = MAX_ID, gid = MAX_ID, mode = MAX_MODE } do
    if given[name] and (given[name] < 0 or given[name] > most) then
      return refuse(400, ("%s is no number up to %d"):format(name, most))
    end
  end
  local there
  there, err = entry(box, path)
  if not there then
    return nil, err
  end
  local owner = (given.uid and ("%d"):format(given.uid) or "") .. (given.gid and (":%d"):format(given.gid) or "")
  local r
  local mode = given.mode and octal(given.mode) or ""
  r, err = box:exec({ "/bin/sh", "-c", CHANGE, "sh", volumes.ROOT .. path, owner, mode }, { user = "root", cwd = "/" })
  if not r then
    return nil, err
  elseif r.exit_code ~= 0 then
    return refuse(500, "the file could not be changed")
  end
  return calls["GET path"](box, path)
end

calls["DELETE path"] = function(box, path)
  if path == "/" then
    return refuse(400, "the volume's own directory cannot be removed")
  end
  local there, err = entry(box, path)
  local ok
  if there then
    ok, err = box.files:remove(volumes.ROOT .. path, { user = "root", recursive = true })
  end
  if not ok then
    return nil, err
  end
  return 204
end

calls["GET dir"] = function(box, path, query)
  local depth, err = number_of(query, "depth", MAX_DEPTH)
  if err or depth == 0 then
    return refuse(400, "depth is no number from 1 on")
  end
  local list
  list, err = entries(box, path, depth or 1)
  if not list then
    return nil, err
  elseif list[1].type ~= "directory" then
    return refuse(400, ("path '%s' is not a directory"):format(list[1].path))
  end
  table.remove(list, 1)
  return 200, encode.array(list)
end

calls["POST dir"] = function(box, path, query)
  local given, err = given_in(query)
  if not given then
    return nil, err
  end
  local full, made = volumes.ROOT .. path
  if given.force then
    made, err = tree.make(box, full, given)
  else
    made, err = box.files:mkdir(full, { user = "root", parents = false, mode = "755" })
    if made then
      local ok
      ok, err = tree.own(box, full, given)
      made = ok or nil
    end
  end
  if made == nil then
    return nil, err
  elseif not made and not given.force then
    return refuse(409, ("path '%s' exists"):format(encode.text(path)))
  end
  if made and given.mode then
    local ok
    ok, err = box.files:chmod(full, octal(given.mode), { user = "root" })
    if not ok then
      return nil, err
    end
  end
  local one
  one, err = entry(box, path)
  return one and 201, one or err
end

calls["GET file"] = function(box, path, _, request)
  local there, err = entry(box, path)
  local file
  if there and there.type == "file" then
    file, err = box.files:open(volumes.ROOT .. path, "r", { user = "root" })
  elseif there then
    return refuse(400, ("path '%s' is not a regular file"):format(there.path))
  end
  if not file then
    return nil, err
  end
  local left = there.size
  request:begin(200, { ["content-type"] = "application/octet-stream", ["content-length"] = ("%.0f"):format(left) })
  while left > 0 do
    local data = file:read(math.min(left, CHUNK))
    if not data or not request:write(data, IDLE) then
      request:abort()
      break
    end
    left = left - #data
  end
  request:finish()
  file:close()
  return true
end

calls["PUT file"] = function(box, path, query, request)
  local given, err = given_in(query)
  if not given then
    return nil, err
  end
  local there = entry(box, path)
  local above
  above, err = entry(box, tree.parent(path))
  if not above then
    return nil, err
  elseif there and there.type ~= "file" or above.type ~= "directory" then
    return refuse(400, ("path '%s' is not a regular file"):format(encode.text(path)))
  elseif there and not given.force then
    return refuse(409, ("path '%s' exists"):format(encode.text(path)))
  end
  local written
  written, err = box.files:write(volumes.ROOT .. path, function()
    return request:read(CHUNK, IDLE)
  end, { user = "root", owner = ("%d:%d"):format(given.uid, given.gid), mode = octal(given.mode or 420) })
  if not written then
    return nil, err
  end
  local one
  one, err = entry(box, path)
  return one and 201, one or err
end

local METHODS = { path = "GET, PATCH, DELETE", dir = "GET, POST", file = "GET, PUT" }

-- ---- requests ----

local function failed(request, failure)
  local status, message = reply.of(failure)
  if errors.is(failure) and failure.path and failure.kind == "InvalidArgument" then
    status = 400
  end
  return reply.json(request, status, { code = CODES[status] or "internal", message = message })
end

--- Answers a request for a volume's files.
function content.serve(server, request, target)
  local id, kind = target.segments[2] or "", target.segments[3] or ""
  local given = (request.headers:get("authorization") or ""):match("^[Bb]earer%s+(%S+)$")
  local one = signature.equal(given, server.volumes:token(id)) and server.volumes:find(id)
  if not one then
    return failed(request, reply.refusal(401, "the token is not this volume's"))
  elseif #target.segments ~= 3 or not METHODS[kind] then
    return failed(request, reply.refusal(404, "there is no such endpoint"))
  end
  local call = calls[request.method .. " " .. kind]
  if not call then
    return reply.json(request, 405, { code = CODES[405], message = "this method is not offered here" },
      { allow = METHODS[kind] })
  elseif (target.query.path or "") == "" then
    return failed(request, reply.refusal(400, "path is missing"))
  end
  local box, err = server.volumes:open(one)
  if not box then
    return failed(request, err)
  end
  local status, value = call(box, users.clean(target.query.path), target.query, request)
  if status == true then
    return true
  elseif not status then
    return failed(request, value)
  elseif value == nil then
    return reply.empty(request, status)
  end
  return reply.json(request, status, value)
end

return content
