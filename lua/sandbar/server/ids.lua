-- The protocol's names: made, and recognised.

local core = require "sandbar.core"

local ids = {}

local LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"

-- What clients of long ago called the machine; still asked for.
ids.CLIENT = "6532622b"

--- The release of the in-sandbox daemon that this server behaves like: clients enable calls by it.
ids.ENVD_VERSION = "0.6.13"

-- `n` letters at random. 252 is the largest multiple of 36 in a byte: what is above is drawn again.
local function letters(n)
  local out = {}
  while #out < n do
    for byte in core.random(n):gmatch "." do
      local value = byte:byte()
      if value < 252 and #out < n then
        local at = value % 36 + 1
        out[#out + 1] = LETTERS:sub(at, at)
      end
    end
  end
  return table.concat(out)
end

function ids.sandbox()
  return "i" .. letters(20)
end

function ids.template()
  return letters(20)
end

function ids.watcher()
  return "w" .. letters(20)
end

function ids.volume()
  return "v" .. letters(20)
end

function ids.secret()
  return "sec_" .. letters(20)
end

ids.uuid = core.uuid

--- The sandbox meant by a path segment (`id` or `id-client`), or nil.
function ids.sandbox_of(segment)
  local id = segment:match("^([^-]*)")
  return id:match("^[a-z0-9]+$") and #id <= 64 and id or nil
end

function ids.is_uuid(text)
  return text:lower():match("^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$") ~= nil
end

--- A reference to a template, `[namespace/]name[:tag]`: { namespace, name, tag }, or nil and why not.
function ids.reference(text)
  text = text:match("^%s*(.-)%s*$"):lower()
  local rest, tag = text, nil
  if text:find(":", 1, true) then
    rest, tag = text:match("^([^:]*):(.*)$")
  end
  local namespace, name = rest:match("^([^/]*)/(.*)$")
  name = name or rest
  if not name:match("^[a-z0-9_-]+$") or #name > 128 then
    return nil, ("invalid template reference '%s'"):format(text)
  elseif namespace and not namespace:match("^[a-z0-9_-]+$") then
    return nil, ("invalid namespace '%s'"):format(namespace)
  elseif tag and (not tag:match("^[a-z0-9._-]+$") or #tag > 128 or ids.is_uuid(tag)) then
    return nil, ("invalid tag '%s'"):format(tag)
  end
  return { namespace = namespace, name = name, tag = tag }
end

return ids
