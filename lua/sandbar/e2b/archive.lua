-- A file or tree of the host as a tar archive, piece by piece: what is uploaded for a step of a build. Its length is
-- known before the first byte. Long names and links are in extended headers (pax); owners are left to the other side.

local core = require "sandbar.core"
local hosttree = require "sandbar.hosttree"
local link = require "sandbar.link"
local errors = require "sandbar.errors"
local wait = require "sandbar.wait"

local archive = {}

local BLOCK, CHUNK = 512, 65536
local MOST_SIZE = 8589934591 -- eleven octal digits
local FLAGS = { file = "0", directory = "5", link = "2" }

local function padded(text)
  local rest = #text % BLOCK
  return rest == 0 and text or text .. ("\0"):rep(BLOCK - rest)
end

local function field(text, size)
  return text .. ("\0"):rep(size - #text)
end

local function octal(number, size)
  return ("%0" .. size - 1 .. "o"):format(number) .. "\0"
end

local function header(name, target, flag, mode, size)
  local before = field(name:sub(1, 100), 100) .. octal(mode, 8) .. octal(0, 8) .. octal(0, 8) .. octal(size, 12)
    .. octal(0, 12)
  local after = flag .. field(target:sub(1, 100), 100) .. "ustar\00000" .. field("root", 32) .. field("root", 32)
    .. octal(0, 8) .. octal(0, 8) .. ("\0"):rep(167)
  local sum = 8 * 32
  for _, part in ipairs { before, after } do
    for i = 1, #part do
      sum = sum + part:byte(i)
    end
  end
  return before .. octal(sum, 7) .. " " .. after
end

-- "length key=value\n", where the length counts itself.
local function pax_line(key, value)
  local rest = (" %s=%s\n"):format(key, value)
  local length = #rest + 1
  while #tostring(length) + #rest ~= length do
    length = #tostring(length) + #rest
  end
  return length .. rest
end

-- Everything of an entry that comes before its bytes.
local function head_of(name, entry)
  local target, extended = entry.target or "", ""
  if #name > 100 then
    extended = extended .. pax_line("path", name)
  end
  if #target > 100 then
    extended = extended .. pax_line("linkpath", target)
  end
  local out = ""
  if extended ~= "" then
    out = header("pax", "", "x", 420, #extended) .. padded(extended)
  end
  local size = entry.type == "file" and entry.size or 0
  return out .. header(name, target, FLAGS[entry.type], entry.mode % 4096, size), size
end

local function rounded(size)
  return math.ceil(size / BLOCK) * BLOCK
end

--- What is at a path of the host, named `name` in the archive: { length, pieces }. pieces() gives string after
--- string, then nil; or nil and an error.
function archive.of(path, name, deadline, op)
  local entries, err = hosttree.list(path, op, link.left(deadline))
  if not entries then
    return nil, err
  end
  local length, kept = 2 * BLOCK, {}
  for _, entry in ipairs(entries) do
    if not FLAGS[entry.type] or entry.size > MOST_SIZE then
      return nil, errors.new { kind = "Unsupported", op = op, path = path .. "/" .. entry.path,
        message = entry.type == "file" and "a file of more than 8 GiB" or "neither a file, a directory nor a link" }
    end
    local own = name .. (entry.path ~= "" and "/" .. entry.path or "")
    local head, size = head_of(own .. (entry.type == "directory" and "/" or ""), entry)
    kept[#kept + 1] = { entry = entry, head = head, size = size }
    length = length + #head + rounded(size)
  end
  local dir, base = hosttree.split(path)
  local at, file, offset = 0, nil, 0

  -- The next bytes of the file that is open; one that has become shorter or longer is not what was announced.
  local function from_file()
    local item = kept[at]
    if offset == item.size then
      file:close()
      file = nil
      return ("\0"):rep(rounded(item.size) - item.size)
    end
    local data, why = wait.bytes(file:read(offset, math.min(CHUNK, item.size - offset)), link.left(deadline), op)
    if not data or data == "" then
      return nil, why or errors.new { kind = "Busy", op = op, path = path .. "/" .. item.entry.path,
        message = "the file has become shorter meanwhile" }
    end
    offset = offset + #data
    return data
  end

  local function next_head()
    at = at + 1
    local item = kept[at]
    if not item then
      return at == #kept + 1 and ("\0"):rep(2 * BLOCK) or nil
    end
    if item.size > 0 then
      local within = item.entry.path
      local why
      if within == "" then
        file, why = hosttree.at(op, "read", dir, base)
      else
        file, why = hosttree.at(op, "read", path, within)
      end
      if not file then
        return nil, why
      end
      offset = 0
    end
    return item.head
  end

  return {
    length = length,
    pieces = function()
      if file then
        local data, why = from_file()
        if data ~= "" then
          return data, why
        end
      end
      return next_head()
    end,
    close = function()
      if file and not core.collected(file) then
        file:close()
      end
    end,
  }
end

return archive
