-- Directories and files of the host, for upload and download. Everything below a base stays below it:
-- neither names nor links lead out (the C side opens each step without following links).

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local wait = require "sandbar.wait"

local hosttree = {}

local TYPES = { f = "file", d = "directory", l = "link", o = "other" }

-- What is at a path and below: { path (relative, "" for itself), type, mode, size, target }.
function hosttree.list(path, opname)
  local r, err = wait.op(core.host_tree(path), false, opname)
  if not r then
    return nil, errors.from(err, opname, { path = path })
  end
  local out = {}
  for head, name, target in r.bytes:gmatch("(%Z*)%z(%Z*)%z(%Z*)%z") do
    local kind, mode, size = head:match("^(%a) (%d+) (%d+)$")
    out[#out + 1] = {
      path = name,
      type = TYPES[kind],
      mode = tonumber(mode, 8),
      size = tonumber(size),
      target = target ~= "" and target or nil,
    }
  end
  return out
end

-- One action ("mkdir", "symlink", "rename", "remove", "chmod", "read", "create") at a name below a base.
-- True, or the NativeFile of read and create; nil and an error.
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

return hosttree
