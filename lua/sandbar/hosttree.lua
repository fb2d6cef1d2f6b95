-- Directories and files of the host, for upload and download. Everything below a base stays below it:
-- neither names nor links lead out (the C side opens each step without following links).

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local wait = require "sandbar.wait"

local hosttree = {}

local TYPES = { f = "file", d = "directory", l = "link", o = "other" }

-- What is at a path and below: { path (relative, "" for itself), type, mode, size, uid, gid, target }.
function hosttree.list(path, opname, timeout)
  local r, err = wait.op(core.host_tree(path), timeout, opname)
  if not r then
    return nil, errors.from(err, opname, { path = path })
  end
  local out = {}
  for head, name, target in r.bytes:gmatch("(%Z*)%z(%Z*)%z(%Z*)%z") do
    local kind, mode, size, uid, gid = head:match("^(%a) (%d+) (%d+) (%d+) (%d+)$")
    out[#out + 1] = {
      path = name,
      type = TYPES[kind],
      mode = tonumber(mode, 8),
      size = tonumber(size),
      uid = tonumber(uid),
      gid = tonumber(gid),
      target = target ~= "" and target or nil,
    }
  end
  return out
end

-- One action ("mkdir", "symlink", "rename", "remove", "chmod", "read", "create"; "sync": of the directory that holds
-- it) at a name below a base. True, or the NativeFile of read and create; nil and an error.
function hosttree.at(opname, action, base, name, other, mode)
  local r, err = wait.op(core.host_at(action, base, name, other or "", mode or 0), false, opname)
  if not r then
    return nil, errors.from(err, opname, { path = base .. "/" .. name })
  end
  return r.object or true
end

-- The directory a path is in, and its last component.
function hosttree.split(path)
  path = path:gsub("/+$", "")
  local dir, name = path:match("^(.*)/([^/]*)$")
  if not dir then
    return ".", path
  end
  return dir == "" and "/" or dir, name
end

-- A shell pattern (* ? [set], ** across directories) as a predicate; without a / it is about the name.
function hosttree.matcher(pattern)
  if pattern == nil then
    return function()
      return true
    end
  elseif type(pattern) == "function" then
    return pattern
  end
  local lua = pattern:gsub("[%^%$%(%)%%%.%+%-]", "%%%0")
  lua = lua:gsub("%*%*/?", "\1"):gsub("%*", "[^/]*"):gsub("\1", ".*"):gsub("%?", "[^/]")
  lua = lua:gsub("%[(!?)(%]?[^%]]*)(%]?)", function(no, set, close)
    if close == "" then -- never closed: it stands for itself
      return "%[" .. no .. set:gsub("%[", "%%[")
    end
    return "[" .. (no ~= "" and "^" or "") .. set .. close
  end)
  lua = "^" .. lua .. "$"
  local whole = pattern:find("/", 1, true)
  return function(path)
    return (whole and path or path:match("[^/]*$")):match(lua) ~= nil
  end
end

-- Does a link with this text, at this path below the target, stay below it? Behind a name ".." may lead anywhere: the
-- name may be that of another link.
function hosttree.stays_inside(path, target)
  if target == nil or target == "" or target:sub(1, 1) == "/" then
    return false
  end
  local _, depth = path:gsub("/", "")
  local named = false
  for part in target:gmatch("[^/]+") do
    if part == ".." then
      depth = depth - 1
      if named or depth < 0 then
        return false
      end
    elseif part ~= "." then
      named = true
    end
  end
  return true
end

return hosttree
