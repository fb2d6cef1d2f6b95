-- What a build is made of, as hashes: a step's key is that of its text, of the contents of its inputs and of the key
-- before it.

local hosttree = require "sandbar.hosttree"
local http = require "sandbar.http"
local link = require "sandbar.link"
local wait = require "sandbar.wait"

local CHUNK = 1048576

local digest = {}

local function hex(bytes)
  return (bytes:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end))
end

-- Of bytes, as images name their blobs.
function digest.hex(bytes)
  return hex(http.sha256(bytes))
end

-- Of a list of texts, each behind its length so that no two lists look alike.
function digest.of(texts)
  local parts = {}
  for i, text in ipairs(texts) do
    text = tostring(text)
    parts[i] = #text .. ":" .. text
  end
  return hex(http.sha256(table.concat(parts)))
end

-- Of a file's bytes: the hash of the hashes of its pieces, so that no file is in memory whole.
local function of_bytes(file, deadline, op)
  local parts, offset = {}, 0
  while true do
    local data, err = wait.bytes(file:read(offset, CHUNK), link.left(deadline), op)
    if err then
      return nil, err
    end
    if data == nil or data == "" then
      return digest.of(parts)
    end
    parts[#parts + 1] = http.sha256(data)
    offset = offset + #data
  end
end

-- Of a file or tree of the host: names, types, modes, owners, targets of links, bytes. A file that this user may not
-- read counts as that: nothing of it can be copied either.
function digest.tree(path, deadline, op)
  local entries, err = hosttree.list(path, op, link.left(deadline))
  if not entries then
    return nil, err
  end
  local dir, name = hosttree.split(path)
  local parts = {}
  for _, entry in ipairs(entries) do
    local bytes = ""
    if entry.type == "file" then
      local base, rest = path, entry.path
      if rest == "" then
        base, rest = dir, name
      end
      local file
      file, err = hosttree.at(op, "read", base, rest)
      if file then
        bytes, err = of_bytes(file, deadline, op)
        file:close()
      elseif err.kind == "PermissionDenied" then
        bytes = "closed"
      else
        bytes = nil
      end
      if not bytes then
        return nil, err
      end
    end
    for _, part in ipairs { entry.path, entry.type, entry.mode, entry.uid, entry.gid, entry.target or "", bytes } do
      parts[#parts + 1] = part
    end
  end
  return digest.of(parts), entries
end

return digest
