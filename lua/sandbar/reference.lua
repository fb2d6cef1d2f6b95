-- References to processes: "sandbar-proc:" and base64url of what tells one process from every other
-- one: sandbox, pid, boot, start time, a fingerprint of its argument vector, cwd. Nothing secret.

local errors = require "sandbar.errors"

local PREFIX = "sandbar-proc:"
local VERSION = "1"
local FIELDS = 7
local MAX_BYTES = 16384

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
local CHARS, VALUES = {}, {}
for i = 1, #ALPHABET do
  local char = ALPHABET:sub(i, i)
  CHARS[i - 1] = char
  VALUES[char] = i - 1
end

local reference = {}

-- base64url without padding.
function reference.encode(bytes)
  local out = {}
  for i = 1, #bytes, 3 do
    local a, b, c = bytes:byte(i, i + 2)
    local n = a * 65536 + (b or 0) * 256 + (c or 0)
    out[#out + 1] = CHARS[math.floor(n / 262144)]
    out[#out + 1] = CHARS[math.floor(n / 4096) % 64]
    if b then
      out[#out + 1] = CHARS[math.floor(n / 64) % 64]
    end
    if c then
      out[#out + 1] = CHARS[n % 64]
    end
  end
  return table.concat(out)
end

-- The bytes, or nil: an alien character, a length that cannot be, bits that encode nothing.
function reference.decode(text)
  if #text % 4 == 1 then
    return nil
  end
  local out = {}
  for i = 1, #text, 4 do
    local n, count = 0, 0
    for j = i, math.min(i + 3, #text) do
      local value = VALUES[text:sub(j, j)]
      if not value then
        return nil
      end
      n = n * 64 + value
      count = count + 1
    end
    if count == 4 then
      out[#out + 1] = string.char(math.floor(n / 65536), math.floor(n / 256) % 256, n % 256)
    elseif count == 3 then
      if n % 4 ~= 0 then
        return nil
      end
      out[#out + 1] = string.char(math.floor(n / 1024), math.floor(n / 4) % 256)
    else
      if n % 16 ~= 0 then
        return nil
      end
      out[#out + 1] = string.char(math.floor(n / 16))
    end
  end
  return table.concat(out)
end

-- SHA-256 of an argument vector, each argument behind its length so that no two vectors look alike.
-- The hash comes from the module that links the crypto library, loaded when first needed.
function reference.fingerprint(args)
  local parts = {}
  for i, arg in ipairs(args) do
    parts[i] = #arg .. ":" .. arg
  end
  return require("sandbar.http").sha256(table.concat(parts))
end

-- `what`: sandbox, pid, boot, start_ns, args, cwd.
function reference.format(what)
  return PREFIX .. reference.encode(table.concat({
    VERSION,
    what.sandbox,
    ("%.0f"):format(what.pid),
    what.boot,
    ("%.0f"):format(what.start_ns),
    reference.fingerprint(what.args):gsub(".", function(char)
      return ("%02x"):format(char:byte())
    end),
    what.cwd or "",
  }, "\0"))
end

-- Is this string meant as a reference?
function reference.is(text)
  return text:sub(1, #PREFIX) == PREFIX
end

local function split(bytes)
  local out, from = {}, 1
  while true do
    local at = bytes:find("%z", from)
    if not at then
      out[#out + 1] = bytes:sub(from)
      return out
    end
    out[#out + 1] = bytes:sub(from, at - 1)
    from = at + 1
  end
end

-- Written as we write them: no reference has two spellings.
local function is_number(text, digits)
  return #text <= digits and text:match("^[1-9]%d*$") ~= nil
end

-- Back to { sandbox, pid, boot, start_ns, fingerprint, cwd }; a damaged one is NotFound: whatever it
-- once named, nothing has that name.
function reference.parse(text)
  if not reference.is(text) then
    return nil, errors.new {
      kind = "NotFound", op = "attach",
      message = ("%q is no process reference (those begin with %s); a tag is given as attach { tag = ... }"):format(
        text:sub(1, 64), PREFIX),
    }
  end
  local bytes = #text <= MAX_BYTES and reference.decode(text:sub(#PREFIX + 1))
  local fields = bytes and split(bytes) or {}
  if #fields ~= FIELDS or fields[1] ~= VERSION or not is_number(fields[3], 10) or not is_number(fields[5], 20)
    or not fields[6]:match("^[%da-f]+$") or #fields[6] ~= 64 then
    return nil, errors.new { kind = "NotFound", op = "attach", message = "this process reference is damaged" }
  end
  return {
    sandbox = fields[2],
    pid = tonumber(fields[3]),
    boot = fields[4],
    start_ns = tonumber(fields[5]),
    fingerprint = fields[6]:gsub("%x%x", function(hex)
      return string.char(tonumber(hex, 16))
    end),
    cwd = fields[7],
  }
end

-- Does the record of a process (record.process) fit the reference? Times are compared as floats:
-- not every Lua that writes or reads one has integers of 64 bits.
function reference.matches(ref, process)
  return ref.pid == process.pid
    and ref.start_ns + 0.0 == process.start_ns + 0.0
    and ref.cwd == (process.cwd or "")
    and ref.fingerprint == (process.fingerprint or reference.fingerprint(process.args))
end

return reference
