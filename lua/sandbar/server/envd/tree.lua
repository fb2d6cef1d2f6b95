-- What the file calls of the protocol share: entries in its form, directories made with their owner, ownership.
-- Everything is done with the rights of the sandbox's root; the user of a call only owns what it makes.

local connect = require "sandbar.server.connect"
local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local filecall = require "sandbar.filecall"
local pace = require "sandbar.server.pace"
local record = require "sandbar.record"

local ROOT = { user = "root" }
local AT = { user = "root", nofollow = true }
local PREFIX = "user.e2b."
-- Of each argument the place a link leads to in the end, or nothing.
local RESOLVE = 'for p; do readlink -zf -- "$p" || printf "\\0"; done'
local AT_ONCE = 200 -- links of one command

local tree = { ROOT = ROOT, AT = AT, PREFIX = PREFIX }

local failure = connect.failure

local LETTERS = { file = "-", directory = "d", link = "L", fifo = "p", socket = "S", block = "D", char = "Dc" }
local TYPES = { file = "FILE_TYPE_FILE", directory = "FILE_TYPE_DIRECTORY" }

-- "-rwxr-xr-x" of a type and an octal mode.
local function permissions(kind, mode)
  local bits = tonumber(mode or "0", 8)
  local special, out = math.floor(bits / 512), {}
  local first = LETTERS[kind] or ""
  for i, letter in ipairs { "u", "g", "t" } do
    if math.floor(special / 2 ^ (3 - i)) % 2 == 1 then
      first = (first == "-" and "" or first) .. letter
    end
  end
  for i = 8, 0, -1 do
    local letter = ({ [0] = "x", "w", "r" })[i % 3]
    out[#out + 1] = math.floor(bits / 2 ^ i) % 2 == 1 and letter or "-"
  end
  return first .. table.concat(out)
end

local function time_of(seconds)
  local whole = math.floor(seconds)
  return { seconds = whole, nanos = math.floor((seconds - whole) * 1000000) * 1000 }
end

--- The protocol's metadata among extended attributes, or nil where there is none.
function tree.metadata(xattrs)
  local out
  for name, value in pairs(xattrs or {}) do
    if name:sub(1, #PREFIX) == PREFIX then
      out = out or {}
      out[encode.text(name:sub(#PREFIX + 1))] = encode.text(value)
    end
  end
  return out
end

-- Where links lead: { [path] = place }. What leads nowhere is absent.
local function targets(box, paths)
  local out = {}
  for first = 1, #paths, AT_ONCE do
    local argv = { "/bin/sh", "-c", RESOLVE, "sh" }
    for i = first, math.min(first + AT_ONCE - 1, #paths) do
      argv[#argv + 1] = paths[i]
    end
    local r, err = box:exec(argv, { user = "root", cwd = "/" })
    if not r then
      return nil, err
    end
    local i = first
    for place in r.stdout:gmatch("(%Z*)%z") do
      out[paths[i] or ""] = place ~= "" and place or nil
      i = i + 1
    end
  end
  return out
end

local function entry_of(e, path)
  return {
    name = encode.text(e.name), type = TYPES[e.type], path = encode.text(path), size = e.size,
    mode = tonumber(e.mode or "0", 8) % 512, permissions = permissions(e.type, e.mode), owner = encode.text(e.owner),
    group = encode.text(e.group), modifiedTime = e.mtime and time_of(e.mtime) or nil,
  }
end

-- A link's entry has the type and mode of where it leads; one that leads nowhere names itself.
local function follow(box, out, place)
  local to = place and box.files:stat(place, AT)
  out.symlinkTarget = to and encode.text(place) or out.path
  out.type = to and TYPES[to.type] or nil
  out.mode = to and tonumber(to.mode, 8) % 512 or 0
end

--- Entries of the contract as the protocol has them; `paths[i]` is the path of the i-th. Nil and an error.
function tree.entries(box, list, paths)
  local out, links, step = {}, {}, pace.new()
  for i, e in ipairs(list) do
    step()
    out[i] = entry_of(e, paths[i])
    if e.type == "link" then
      links[#links + 1] = paths[i]
    end
  end
  if #links > 0 then
    local places, err = targets(box, links)
    if not places then
      return nil, err
    end
    for i, e in ipairs(list) do
      if e.type == "link" then
        follow(box, out[i], places[paths[i]])
      end
    end
  end
  return out
end

--- What files:list gives, in pieces: there may be a hundred thousand. Nil and an error.
function tree.list(box, path, depth, step)
  local state = core.state(box.files, filecall.class)
  local r, err = filecall.request(state, "list", false, filecall.OP.LIST, { path = path, user = "root", depth = depth },
    true)
  if not r then
    return nil, err
  end
  local out, parts = {}, r.parts or ""
  local part, at = core.part(parts, 0)
  while part do
    step()
    out[#out + 1] = record.entry(part)
    part, at = core.part(parts, at)
  end
  return out
end

--- The entry of one path, with its metadata. Nil and an error.
function tree.entry(box, path)
  local e, err = box.files:stat(path, AT)
  if not e then
    return nil, err
  end
  e.name = path:match("[^/]*$")
  if e.name == "" then
    e.name = "/"
  end
  local list
  list, err = tree.entries(box, { e }, { path })
  if not list then
    return nil, err
  end
  if e.type ~= "link" then
    local with = box.files:stat(path, { user = "root", xattrs = true })
    list[1].metadata = with and tree.metadata(with.xattrs)
  end
  return list[1]
end

--- The directory an absolute path is in.
function tree.parent(path)
  return (path:match("^(.*)/[^/]*$"):gsub("^$", "/"))
end

--- Gives a path to a user.
function tree.own(box, path, user)
  local state = core.state(box.files, filecall.class)
  return filecall.request(state, "chown", false, filecall.OP.CHOWN,
    { path = path, user = "root", owner = ("%d:%d"):format(user.uid, user.gid) })
end

--- Puts metadata (as extended attributes) in the place of what a file has. Where the file system has none, that is no
--- failure.
function tree.mark(box, path, xattrs)
  local state = core.state(box.files, filecall.class)
  local list = record.list(xattrs)
  local function set()
    return filecall.request(state, "setxattr", false, filecall.OP.SETXATTR,
      { path = path, user = "root", xattr = list })
  end
  list[#list + 1] = PREFIX -- without a value: those that begin so go
  local ok, err = set()
  if not ok and err.kind == "InvalidArgument" then -- a sandbox of an earlier release takes none away
    list[#list] = nil
    ok, err = true, nil
    if list[1] then
      ok, err = set()
    end
  end
  if not ok and err.code ~= "EOPNOTSUPP" and err.code ~= "ENOTSUP" then
    return nil, err
  end
  return true
end

--- Makes a directory and what is missing above it; all new ones are the user's. Whether it made it, or nil and an
--- error.
function tree.make(box, path, user)
  if path == "/" then
    return false
  end
  local files = box.files
  local made, err = files:mkdir(path, { user = "root", parents = false, mode = "755" })
  if made then
    local ok
    ok, err = tree.own(box, path, user)
    return ok and true, err
  elseif made == false or err.code ~= "ENOENT" then
    return made, err
  end
  made, err = tree.make(box, tree.parent(path), user)
  if made == nil then
    return nil, err
  end
  made, err = files:mkdir(path, { user = "root", parents = false, mode = "755" })
  if made then
    local ok
    ok, err = tree.own(box, path, user)
    return ok and true, err
  end
  return made, err
end

--- What an error of a file call is in the protocol, where it is about the path.
function tree.failure(err, path)
  if err.kind == "NotFound" and err.path then
    return failure("not_found", ("file not found: %s"):format(encode.text(path)))
  elseif err.code == "ENOTDIR" then
    return failure("invalid_argument", ("not a directory: %s"):format(encode.text(path)))
  elseif err.code == "ELOOP" then
    return failure("failed_precondition", ("too many links: %s"):format(encode.text(path)))
  end
  return err
end

return tree
