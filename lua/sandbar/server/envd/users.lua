-- Users of a sandbox and paths as they mean them.

local connect = require "sandbar.server.connect"

local MAX_PASSWD = 1048576

local users = {}

--- Who a call without a name is.
users.DEFAULT = "user"

local function unknown(name)
  return nil, connect.failure("unauthenticated", ("invalid username: '%s'"):format(name))
end

--- A user of the sandbox: { name, uid, gid, home }, or nil and a failure. Read anew each time: users come and go.
function users.find(box, name)
  local text, err = box.files:read("/etc/passwd", { user = "root", max = MAX_PASSWD })
  if not text then
    if err.kind == "NotFound" and err.path then
      return unknown(name)
    end
    return nil, err
  elseif name:find("[:\n]") then
    return unknown(name)
  end
  text = "\n" .. text -- so that a line is found by its beginning: there may be many
  local begins = ("\n%s:"):format(name)
  local _, at = text:find(begins, 1, true)
  while at do
    local uid, gid, home = text:match("^[^:\n]*:(%d+):(%d+):[^:\n]*:([^:\n]*)", at + 1)
    if uid then
      return { name = name, uid = tonumber(uid), gid = tonumber(gid), home = home ~= "" and home or "/" }
    end
    _, at = text:find(begins, at, true)
  end
  return unknown(name)
end

--- An absolute path without "." and "..": it leads nowhere above "/".
function users.clean(path)
  local parts = {}
  for part in path:gmatch("[^/]+") do
    if part == ".." then
      parts[#parts] = nil
    elseif part ~= "." then
      parts[#parts + 1] = part
    end
  end
  return "/" .. table.concat(parts, "/")
end

local clean = users.clean

--- The absolute path that `path` is for a user, or nil and a failure. `workdir`: what no path is (the home where nil).
function users.path(path, user, workdir)
  if path:find("%z") then
    return nil, connect.failure("invalid_argument", "the path contains a zero byte")
  elseif path == "" then
    return clean(workdir or user.home)
  elseif path:sub(1, 1) == "/" then
    return clean(path)
  elseif path == "~" or path:sub(1, 2) == "~/" then
    return clean(user.home .. "/" .. path:sub(2))
  elseif path:sub(1, 1) == "~" then
    return nil, connect.failure("invalid_argument", "failed to resolve path: cannot expand a user-specific home dir")
  end
  return clean(user.home .. "/" .. path)
end

local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local function unbase64(text)
  text = text:gsub("=+$", "")
  local out, bits, n = {}, 0, 0
  for i = 1, #text do
    local value = DIGITS:find(text:sub(i, i), 1, true)
    if not value then
      return nil
    end
    bits, n = bits * 64 + value - 1, n + 6
    if n >= 8 then
      n = n - 8
      out[#out + 1] = string.char(math.floor(bits / 2 ^ n))
      bits = bits % 2 ^ n
    end
  end
  return table.concat(out)
end

--- The name in a request's Authorization header (Basic, its password does not count), or the default.
function users.named(headers)
  local given = (headers:get("authorization") or ""):match("^[Bb]asic%s+(%S+)%s*$")
  local text = given and unbase64(given)
  local name = text and text:match("^([^:%z]*)")
  return name and name ~= "" and name or users.DEFAULT
end

return users
