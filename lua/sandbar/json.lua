-- JSON. Objects and arrays become tables, null becomes json.null, whole numbers integers. What is nested more than a
-- hundred deep, or is no JSON, is an error. Written are tables with keys 1 to n and those of json.array as arrays, all
-- others as objects, their names in order.

local nested = require "sandbar.nested"

local json = {}

local Array = { __name = "sandbar.JSONArray" }

json.null = setmetatable({}, {
  __tostring = function()
    return "null"
  end,
})

local number_type = rawget(math, "type") -- Lua 5.3 and later

local DEPTH = 100
local ESCAPED = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }
local PLAIN = '^([^"\\%z\1-\31]*)()'
local PIECE = 65536 -- of a long string, looked at at once
local WORDS = { ["true"] = true, ["false"] = false, null = json.null }

local function fail(at, why)
  error({ at = at, why = why }, 0)
end

local function skip(text, at)
  return text:match("^[ \t\r\n]*()", at) or at -- behind the end nothing matches
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

-- What of a string needs no look, and where it ends: `close` is where the next quote is.
local function plain_at(text, at, close)
  if close - at <= PIECE then
    return text:match(PLAIN, at)
  end
  local plain, stop = text:sub(at, at + PIECE - 1):match(PLAIN)
  return plain, at + stop - 1
end

local function string_at(text, at, step)
  local parts, close = {}, at
  at = at + 1
  while true do
    if close < at then
      close = text:find('"', at, true) or #text + 1
    end
    local plain, stop = plain_at(text, at, close)
    parts[#parts + 1] = plain
    local c = text:sub(stop, stop)
    if c == '"' then
      return table.concat(parts), stop + 1
    elseif c == "\\" then
      parts[#parts + 1], at = unescape(text, stop + 1)
    elseif #plain == PIECE then
      at = stop
    else
      fail(stop, "a string without an end")
    end
    step(0)
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

local function array_at(text, at, depth, step)
  local out = {}
  return out, list_at(text, at, "]", function(from)
    local value, stop = value_at(text, from, depth, step)
    out[#out + 1] = value
    return stop
  end)
end

local function object_at(text, at, depth, step)
  local out = {}
  return out, list_at(text, at, "}", function(from)
    if text:sub(from, from) ~= '"' then
      fail(from, "a name is missing")
    end
    local name, stop = string_at(text, from, step)
    stop = skip(text, stop)
    if text:sub(stop, stop) ~= ":" then
      fail(stop, "a colon is missing")
    end
    out[name], stop = value_at(text, skip(text, stop + 1), depth, step)
    return stop
  end)
end

function value_at(text, at, depth, step)
  step(1)
  if depth > DEPTH then
    fail(at, "nested too deep")
  end
  local c = text:sub(at, at)
  if c == "{" then
    return object_at(text, at, depth + 1, step)
  elseif c == "[" then
    return array_at(text, at, depth + 1, step)
  elseif c == '"' then
    return string_at(text, at, step)
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

local function no_step() end

-- What is done for every value, and every bit of a string: counts the values, and gives others their turn.
local function counted(most, pace)
  return function(values)
    most = most - values
    if most < 0 then
      fail(1, "there are too many values in it")
    end
    pace()
  end
end

-- The value, or nil and why not. With `most`: of a text with more values than that nothing, and pace() (of pace.lua) is
-- called now and then.
function json.decode(text, most, pace)
  local step = most and counted(most, pace) or no_step
  local ok, value, at = (most and nested.pcall or pcall)(function()
    return value_at(text, skip(text, 1), 0, step)
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

-- ---- writing ----

local SHORT = {
  ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ['"'] = '\\"', ["\\"] = "\\\\",
}

local function escape(c)
  return SHORT[c] or ("\\u%04x"):format(c:byte())
end

local function quote(text)
  return '"' .. text:gsub('[%c"\\]', escape) .. '"'
end

local function number_text(n)
  if n ~= n or n == math.huge or n == -math.huge then
    fail(0, "a number that is none")
  elseif n % 1 == 0 and n >= -2 ^ 53 and n <= 2 ^ 53 then
    return ("%.0f"):format(n)
  elseif number_type and number_type(n) == "integer" then
    return ("%d"):format(n)
  end
  local text = ("%.14g"):format(n)
  return tonumber(text) == n and text or ("%.17g"):format(n)
end

--- Marks the table as an array, which an empty one does not look like; returns it.
function json.array(list)
  return setmetatable(list, Array)
end

local write

local function write_array(list, n, depth, out)
  out[#out + 1] = "["
  for i = 1, n do
    if i > 1 then
      out[#out + 1] = ","
    end
    write(list[i], depth, out)
  end
  out[#out + 1] = "]"
end

local function write_object(object, depth, out)
  local names = {}
  for name in pairs(object) do
    if type(name) ~= "string" then
      fail(0, "a table that is neither an array nor an object")
    end
    names[#names + 1] = name
  end
  table.sort(names)
  out[#out + 1] = "{"
  for i, name in ipairs(names) do
    out[#out + 1] = (i > 1 and "," or "") .. quote(name) .. ":"
    write(object[name], depth, out)
  end
  out[#out + 1] = "}"
end

function write(value, depth, out)
  local kind = type(value)
  if depth > DEPTH then
    fail(0, "nested too deep")
  elseif kind == "string" then
    out[#out + 1] = quote(value)
  elseif kind == "number" then
    out[#out + 1] = number_text(value)
  elseif kind == "boolean" or value == json.null then
    out[#out + 1] = tostring(value)
  elseif kind ~= "table" then
    fail(0, "a " .. kind)
  elseif getmetatable(value) == Array or value[1] ~= nil then
    local n, held = #value, 0
    for _ in pairs(value) do
      held = held + 1
    end
    if held ~= n then
      fail(0, "an array with gaps or names")
    end
    write_array(value, n, depth + 1, out)
  else
    write_object(value, depth + 1, out)
  end
end

--- The text, or nil and what JSON has no form for. Strings are written byte for byte.
function json.encode(value)
  local out = {}
  local ok, err = pcall(write, value, 0, out)
  if ok then
    return table.concat(out)
  elseif type(err) ~= "table" or not err.why then
    error(err, 0)
  end
  return nil, err.why
end

return json
