-- POST /files/compose: files put together into one, in their order. They are gone afterwards.

local body = require "sandbar.server.body"
local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local reply = require "sandbar.server.reply"
local tree = require "sandbar.server.envd.tree"
local users = require "sandbar.server.envd.users"

local JOIN = 'to=$1; shift; exec cat -- "$@" >"$to"'

local function refuse(status, text, ...)
  return nil, reply.refusal(status, text:format(...))
end

-- The absolute paths of the sources, all regular files; or nil and a refusal.
local function sources_of(context, given, user, destination)
  local out = {}
  for i, path in ipairs(given) do
    local full, err = users.path(path, user, context.workdir)
    if not full then
      return refuse(400, "%s", err.message)
    elseif full == destination then
      return refuse(400, "source '%s' is the destination", full)
    end
    local entry
    entry, err = context.box.files:stat(full, tree.ROOT)
    if not entry and err.kind == "NotFound" and err.path then
      return refuse(404, "path '%s' does not exist", full)
    elseif not entry then
      return nil, err
    elseif entry.type ~= "file" then
      return refuse(400, "path '%s' is not a regular file", full)
    end
    out[i] = full
  end
  return out
end

local function join(context, sources, destination, user)
  local box = context.box
  local made, err = tree.make(box, tree.parent(destination), user)
  if made == nil then
    return nil, err
  end
  local part = ("%s.%s"):format(destination, core.uuid())
  local argv = { "/bin/sh", "-c", JOIN, "sh", part }
  for _, path in ipairs(sources) do
    argv[#argv + 1] = path
  end
  local r, ok
  r, err = box:exec(argv, { user = "root", cwd = "/" })
  if r and not r.ok then
    ok, err = nil, reply.refusal(r.stderr:find("No space", 1, true) and 507 or 500, r.stderr)
  elseif r then
    ok, err = tree.own(box, part, user)
  end
  if ok then
    ok, err = box.files:move(part, destination, tree.ROOT)
  end
  if not ok then
    box.files:remove(part, tree.ROOT)
    return nil, err
  end
  for _, path in ipairs(sources) do
    box.files:remove(path, tree.ROOT)
  end
  return true
end

-- Answers the request, or nil and a refusal or error.
return function(context, request)
  local given, err = body.read(request, { source_paths = "strings!", destination = "string!", username = "string" })
  if not given then
    return nil, err
  elseif #given.source_paths == 0 or given.destination == "" then
    return refuse(400, "source_paths and destination are needed")
  end
  local user
  user, err = users.find(context.box, (given.username or "") ~= "" and given.username or users.DEFAULT)
  if not user then
    return nil, err.connect and reply.refusal(401, err.message) or err
  end
  local destination
  destination, err = users.path(given.destination, user, context.workdir)
  if not destination then
    return refuse(400, "%s", err.message)
  end
  local sources, ok
  sources, err = sources_of(context, given.source_paths, user, destination)
  if sources then
    ok, err = join(context, sources, destination, user)
  end
  if not ok then
    return nil, err
  end
  return reply.json(request, 200, {
    path = encode.text(destination), name = encode.text(destination:match("[^/]*$")), type = "file",
  })
end
