-- Reading JSON: the metadata of images. Objects and arrays become tables, null becomes json.null. What is nested more
-- than a hundred deep, or is no JSON, is an error.

local json = {}

json.null = setmetatable({}, {
  __tostring = function()
    return "null"
  end,
})

local DEPTH = 100
local ESCAPED = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }
local WORDS = { ["true"] = true, ["false"] = false, null = json.null }

local function fail(at, why)
  error({ at = at, why = why }, 0)
end

local function skip(text, at)
  return text:match("^[ \t\r\n]*()", at)
end

local function utf8_of(code)
  if code < 0x80 then
    return string.char(code)
  elseif code < 0x800 then
    return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64)
  elseif code < 0x10000 then
    return string.char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64,
    0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

local function unescape(text, at)
  local letter = text:sub(at, at)
  if ESCAPED[letter] then
    return ESCAPED[letter], at + 1
  end
  local digits = text:match("^u(%x%x%x%x)", at)
  if not digits then
    fail(at, "an unknown escape")
  end
  local code = tonumber(digits, 16)
  local low = code >= 0xD800 and code < 0xDC00 and text:match("^\\u([dD][c-fC-F]%x%x)", at + 5)
  if low then
    return utf8_of(0x10000 + (code - 0xD800) * 1024 + tonumber(low, 16) - 0xDC00), at + 11
  end
  return utf8_of(code), at + 5
end

local function string_at(text, at)
  local parts = {}
  at = at + 1
  while true do
    local plain, stop = text:match('^([^"\\%z\1-\31]*)()', at)
    parts[#parts + 1] = plain
    local c = text:sub(stop, stop)
    if c == '"' then
      return table.concat(parts), stop + 1
    elseif c ~= "\\" then
      fail(stop, "a string without an end")
    end
    parts[#parts + 1], at = unescape(text, stop + 1)
  end
end

local value_at

-- What stands between two brackets, each element taken by fn(at) -> where it ends.
local function list_at(text, at, close, fn)
  at = skip(text, at + 1)
  if text:sub(at, at) == close then
    return at + 1
  end
  while true do
    at = skip(text, fn(at))
    local c = text:sub(at, at)
    at = skip(text, at + 1)
    if c == close then
      return at
    elseif c ~= "," then
      fail(at, "a comma or " .. close .. " is missing")
    end
  end
end

local function array_at(text, at, depth)
  local out = {}
  return out, list_at(text, at, "]", function(from)
    local value, stop = value_at(text, from, depth)
    out[#out + 1] = value
    return stop
  end)
end

local function object_at(text, at, depth)
  local out = {}
  return out, list_at(text, at, "}", function(from)
    if text:sub(from, from) ~= '"' then
      fail(from, "a name is missing")
    end
    local name, stop = string_at(text, from)
    stop = skip(text, stop)
    if text:sub(stop, stop) ~= ":" then
      fail(stop, "a colon is missing")
    end
    out[name], stop = value_at(text, skip(text, stop + 1), depth)
    return stop
  end)
end

function value_at(text, at, depth)
  if depth > DEPTH then
    fail(at, "nested too deep")
  end
  local c = text:sub(at, at)
  if c == "{" then
    return object_at(text, at, depth + 1)
  elseif c == "[" then
    return array_at(text, at, depth + 1)
  elseif c == '"' then
    return string_at(text, at)
  end
  local word = text:match("^%a+", at)
  if WORDS[word] ~= nil then
    return WORDS[word], at + #word
  end
  local number = text:match("^-?%d+%.?%d*[eE]?[+-]?%d*", at)
  local value = number and tonumber(number)
  if not value then
    fail(at, "no value")
  end
  return value, at + #number
end

-- The value, or nil and why not.
function json.decode(text)
  local ok, value, at = pcall(function()
    return value_at(text, skip(text, 1), 0)
  end)
  if ok and skip(text, at) > #text then
    return value
  elseif ok then
    return nil, ("byte %d: something behind the end"):format(at)
  elseif type(value) ~= "table" or not value.why then
    error(value, 0)
  end
  return nil, ("byte %d: %s"):format(value.at, value.why)
end

return json
