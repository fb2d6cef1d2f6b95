-- Writing JSON: what the control plane and the plain endpoints answer. Names of objects come in their order, so that
-- one answer always looks the same; a table is an array when it has been marked so or has a first element.

local json = require "sandbar.json"

local encode = {}

local Array = { __name = "sandbar.Array" }

--- The table, as an array: an empty one would be an object.
function encode.array(list)
  return setmetatable(list, Array)
end

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }
local REPLACEMENT = "\239\191\189" -- U+FFFD

-- How long the UTF-8 sequence at `at` is, or nil where there is none.
local function sequence(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  local function follows(x)
    return x ~= nil and x >= 0x80 and x < 0xC0
  end
  if a < 0x80 then
    return 1
  elseif a >= 0xC2 and a < 0xE0 then
    return follows(b) and 2 or nil
  elseif a >= 0xE0 and a < 0xF0 then
    local fits = follows(b) and follows(c) and (a ~= 0xE0 or b >= 0xA0) and (a ~= 0xED or b < 0xA0)
    return fits and 3 or nil
  elseif a >= 0xF0 and a < 0xF5 then
    local fits = follows(b) and follows(c) and follows(d) and (a ~= 0xF0 or b >= 0x90) and (a ~= 0xF4 or b < 0x90)
    return fits and 4 or nil
  end
  return nil
end

-- File names and labels are bytes; a reader of JSON refuses what is no UTF-8.
local function valid(text)
  if not text:find("[\128-\255]") then
    return text
  end
  local out, at = {}, 1
  while at <= #text do
    local n = sequence(text, at)
    out[#out + 1] = n and text:sub(at, at + n - 1) or REPLACEMENT
    at = at + (n or 1)
  end
  return table.concat(out)
end

--- The text, with U+FFFD for what is no UTF-8.
encode.text = valid

local function quoted(text)
  return '"' .. valid(text):gsub('[%z\1-\31"\\\127]', function(c)
    return ESCAPES[c] or ("\\u%04x"):format(c:byte())
  end) .. '"'
end

local value_of

local function number(n)
  if n ~= n or n == math.huge or n == -math.huge then
    return "null"
  end
  return n % 1 == 0 and ("%.0f"):format(n == 0 and 0 or n) or ("%.14g"):format(n)
end

local function object(t, step)
  local names, out = {}, {}
  for name in pairs(t) do
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do
    out[i] = quoted(name) .. ":" .. value_of(t[name], step)
  end
  return "{" .. table.concat(out, ",") .. "}"
end

local function list(t, step)
  local out = {}
  for i = 1, #t do
    step()
    out[i] = value_of(t[i], step)
  end
  return "[" .. table.concat(out, ",") .. "]"
end

function value_of(value, step)
  local kind = type(value)
  if value == json.null or kind == "nil" then
    return "null"
  elseif kind == "table" then
    return (getmetatable(value) == Array or value[1] ~= nil) and list(value, step) or object(value, step)
  elseif kind == "string" then
    return quoted(value)
  elseif kind == "number" then
    return number(value)
  elseif kind == "boolean" then
    return tostring(value)
  end
  error("a " .. kind .. " has no form in JSON", 2)
end

local function no_step() end

--- The text of a value. `pace`, of pace.lua: called now and then.
function encode.value(value, pace)
  return value_of(value, pace or no_step)
end

return encode
