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

-- ---- patterns ----

-- A pattern is a list of what may come: sets of bytes, and these two, which are any number of them. All ways through it
-- are followed at once: names may be made for whoever tries one after the other.
local STAR, ANY = "*", "**"
local SLASH = 47

-- The bytes between brackets, or all but them. Never a slash.
local function set_of(text, others)
  local named, set, i = {}, {}, 1
  while i <= #text do
    local last = text:match("^.%-(.)", i) or text:sub(i, i)
    for byte = text:byte(i), last:byte() do
      named[byte] = true
    end
    i = i + (text:find("^.%-.", i) and 3 or 1)
  end
  for byte = 0, 255 do
    set[byte] = byte ~= SLASH and (named[byte] or false) ~= others
  end
  return set
end

local function parse(pattern)
  local out, i = {}, 1
  while i <= #pattern do
    local no, set, after = pattern:match("^%[(!?)(%]?[^%]]*)%]()", i)
    if pattern:find("^%*%*", i) then
      out[#out + 1] = ANY
      i = pattern:match("^%*%*/?()", i)
    elseif set and set ~= "" then
      out[#out + 1] = set_of(set, no ~= "")
      i = after
    else
      local c = pattern:sub(i, i)
      out[#out + 1] = c == "*" and STAR or c == "?" and set_of("", true) or { [c:byte()] = true }
      i = i + 1
    end
  end
  return out
end

-- Adds a place in the pattern, and those behind stars, which may be nothing.
local function reach(places, parts, i)
  places[i] = true
  while parts[i] == STAR or parts[i] == ANY do
    i = i + 1
    places[i] = true
  end
end

local function matches(parts, text)
  local places = {}
  reach(places, parts, 1)
  for at = 1, #text do
    local byte, following = text:byte(at), {}
    for i in pairs(places) do
      local part = parts[i]
      if part == ANY or (part == STAR and byte ~= SLASH) then
        reach(following, parts, i)
      elseif part and part ~= STAR and part[byte] then
        reach(following, parts, i + 1)
      end
    end
    places = following
  end
  return places[#parts + 1] == true
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
  local parts, whole = parse(pattern), pattern:find("/", 1, true)
  return function(path)
    return matches(parts, whole and path or path:match("[^/]*$"))
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
