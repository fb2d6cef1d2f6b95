-- Messages of E2B's protocol, and the envelopes they travel in on a stream.
--
--   local bytes, err = message.encode("process.StartRequest", { process = { cmd = "ls" }, stdin = false }, "proto")
--   local request, err = message.decode("process.StartRequest", body, "json")
--
-- In a table a field has the name JSON gives it, bytes are plain strings, enums their names (or the number of an
-- unknown one), a Timestamp is { seconds =, nanos = }. A field that has its default value (0, "", false, an empty
-- list) is absent, but for those whose absence means something else (cwd, tag, stdin, error, …: those of a oneof).
-- Both codecs give the same table for the same message. What is no such message is InvalidArgument, never raised.

local errors = require "sandbar.errors"
local http = require "sandbar.http"
local json = require "sandbar.json"
local nested = require "sandbar.nested"

local number_type, tointeger = rawget(math, "type"), rawget(math, "tointeger") -- Lua 5.3 and later

local message = {}

local MAX_ENVELOPE = 16777216
local TIMESTAMP = "filesystem.Timestamp"
local FIRST_SECOND, LAST_SECOND = -62135596800, 253402300799 -- the years 1 to 9999
local EXACT = 2 ^ 53
local LIMITS = {
  uint32 = { 0, 4294967295 }, int32 = { -2147483648, 2147483647 }, enum = { -2147483648, 2147483647 },
}

local function fail(name, why)
  error({ why = ("%s: %s"):format(name, why) }, 0)
end

local types = {}

local function described(type_name)
  local description = types[type_name] or http.describe(type_name)
  types[type_name] = description
  return description
end

-- ---- numbers and times ----

local function is_whole(value)
  return type(value) == "number" and value % 1 == 0
end

local function integer(value, kind, name)
  local limits = LIMITS[kind]
  if type(value) == "string" and value:find "^-?%d+$" then
    value = tonumber(value)
  end
  if not is_whole(value) or value < limits[1] or value > limits[2] then
    fail(name, "not an integer, or out of range")
  end
  return tointeger and tointeger(value) or value
end

local function wide_text(value, name)
  if number_type and number_type(value) == "integer" then
    return ("%d"):format(value)
  elseif is_whole(value) and value >= -EXACT and value <= EXACT then
    return ("%.0f"):format(value)
  end
  return fail(name, "not an integer, or out of range")
end

local function wide_value(value, name)
  local number = value
  if type(value) == "string" and value:find "^-?%d+$" then
    number = tonumber(value)
  end
  if number_type and number_type(number) == "integer" then
    return number
  elseif not is_whole(number) or number < -EXACT or number > EXACT then
    fail(name, "not an integer, or too large for this Lua")
  end
  return tointeger and tointeger(number) or number
end

local function time_text(value, name)
  local seconds, nanos = value.seconds or 0, value.nanos or 0
  if not is_whole(seconds) or seconds < FIRST_SECOND or seconds > LAST_SECOND or not is_whole(nanos)
    or nanos < 0 or nanos > 999999999
  then
    fail(name, "not a time between the years 1 and 9999")
  end
  local fraction = nanos == 0 and "" or (".%09.0f"):format(nanos):gsub("000$", ""):gsub("000$", "")
  local date = os.date("!*t", seconds)
  return ("%04d-%02d-%02dT%02d:%02d:%02d%sZ"):format(date.year, date.month, date.day, date.hour, date.min, date.sec,
    fraction)
end

-- Days since 1970 of a date; years begin in March, so that a leap day is the last of its year.
local function days(year, month, day)
  if month <= 2 then
    year, month = year - 1, month + 12
  end
  return 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
    + math.floor((153 * (month - 3) + 2) / 5) + day - 719469
end

local function time_value(text, name)
  local year, month, day, hour, min, sec, fraction, zone
  if type(text) == "string" then
    year, month, day, hour, min, sec, fraction, zone =
      text:match "^(%d%d%d%d)-(%d%d)-(%d%d)[Tt](%d%d):(%d%d):(%d%d)(%.?%d*)([Zz+-][%d:]*)$"
  end
  local sign, off_hour, off_min = (zone or ""):match "^([+-])(%d%d):(%d%d)$"
  local whole = fraction == "" or fraction ~= nil and fraction:find "^%.%d" and #fraction <= 10
  if not zone or not whole or not (sign or zone:find "^[Zz]$") then
    fail(name, "not a time")
  end
  local offset = sign and (off_hour * 3600 + off_min * 60) * (sign == "-" and -1 or 1) or 0
  local seconds = days(year + 0, month + 0, day + 0) * 86400 + hour * 3600 + min * 60 + sec - offset
  local nanos = tonumber((fraction:sub(2) .. "000000000"):sub(1, 9))
  return {
    seconds = seconds ~= 0 and integer(seconds, "time", name) or nil,
    nanos = nanos ~= 0 and nanos or nil,
  }
end
LIMITS.time = { FIRST_SECOND, LAST_SECOND }

-- ---- tables to what is written as JSON ----

local to_json

local function text_of(value, name)
  if type(value) ~= "string" then
    fail(name, "not a string")
  elseif not http.is_text(value) then
    fail(name, "not UTF-8, which the protocol wants")
  end
  return value
end

local writers = { string = text_of, int64 = wide_text }

function writers.bytes(value, name)
  return type(value) == "string" and http.base64(value) or fail(name, "not a string")
end

function writers.bool(value, name)
  if type(value) ~= "boolean" then
    fail(name, "not a boolean")
  end
  return value
end

function writers.enum(value, name, field)
  if type(value) == "string" and field.names[value] then
    return value
  end
  return integer(type(value) == "number" and value or nil, "enum", name)
end

function writers.map(value, name)
  if type(value) ~= "table" then
    fail(name, "not a table")
  end
  local out = {}
  for key, entry in pairs(value) do
    out[text_of(key, name)] = text_of(entry, name)
  end
  return out
end

function writers.message(value, name, field)
  if type(value) ~= "table" then
    fail(name, "not a table")
  end
  return field.message.type == TIMESTAMP and time_text(value, name) or to_json(field.message, value)
end

local function list_of(values, name)
  local n, held = type(values) == "table" and #values or -1, 0
  for _ in pairs(n >= 0 and values or {}) do
    held = held + 1
  end
  return held == n and n or fail(name, "not a list")
end

local function write_one(value, field, kind)
  local writer = writers[kind]
  if writer then
    return writer(value, field.name, field)
  end
  return integer(type(value) == "number" and value or nil, kind, field.name)
end

local function is_default(value, field)
  if field.repeated then
    return next(value) == nil
  elseif field.oneof or field.kind == "message" then
    return false
  end
  return value == 0 or value == "" or value == false or field.kind == "int64" and value == "0"
    or field.names ~= nil and field.names[value] == 0 or type(value) == "table" and next(value) == nil
end

-- What `convert` makes of each field that is there, under the name that JSON has for it.
local function fields_of(description, value, by_alias, convert)
  local out, chosen = {}, {}
  for _, field in ipairs(description) do
    local given = value[field.name]
    if given == nil and by_alias then
      given = value[field.alias]
    end
    if given ~= nil and given ~= json.null then
      if field.oneof and chosen[field.oneof] then
        fail(field.name, "beside another field that excludes it")
      end
      chosen[field.oneof or 0] = true
      local converted
      if field.repeated then
        converted = {}
        for i = 1, list_of(given, field.name) do
          converted[i] = convert(given[i], field, field.kind)
        end
      else
        converted = convert(given, field, field.kind)
      end
      if not is_default(converted, field) then
        out[field.name] = converted
      end
    end
  end
  return out
end

function to_json(description, value)
  local names = {}
  for _, field in ipairs(description) do
    names[field.name] = true
  end
  for name in pairs(value) do
    if not names[name] then
      fail(tostring(name), "there is no such field")
    end
  end
  return fields_of(description, value, false, write_one)
end

-- ---- what was read from JSON to tables ----

local readers = { string = text_of, bool = writers.bool, int64 = wide_value, map = writers.map }

function readers.bytes(value, name)
  return type(value) == "string" and http.unbase64(value) or fail(name, "not base64")
end

function readers.enum(value, name, field)
  if type(value) == "string" and field.names[value] then
    return value
  end
  local number = integer(type(value) == "number" and value or nil, "enum", name)
  for known, of in pairs(field.names) do
    if of == number then
      return known
    end
  end
  return number
end

local read_one

function readers.message(value, name, field)
  if field.message.type == TIMESTAMP then
    return time_value(value, name)
  elseif type(value) ~= "table" or value[1] ~= nil then
    fail(name, "not an object")
  end
  return fields_of(field.message, value, true, read_one)
end

function read_one(value, field, kind)
  local reader = readers[kind]
  if reader then
    return reader(value, field.name, field)
  end
  return integer(value, kind, field.name)
end

-- ---- both codecs ----

local function invalid(type_name, why)
  return nil, errors.new { kind = "InvalidArgument", message = ("%s: %s"):format(type_name, why) }
end

-- What fn gives, or nil and InvalidArgument.
local function attempt(call, type_name, fn, ...)
  local ok, value, why = call(fn, ...)
  if ok and value ~= nil then
    return value
  elseif ok then
    return invalid(type_name, why)
  elseif type(value) ~= "table" or not value.why then
    error(value, 0)
  end
  return invalid(type_name, value.why)
end

local function encode_json(type_name, value)
  return json.encode(to_json(described(type_name), value))
end

local function decode_json(type_name, text, most, pace)
  local value, why = json.decode(text, most, pace)
  if value == nil then
    return nil, why
  elseif type(value) ~= "table" or value == json.null or value[1] ~= nil then
    return nil, "not an object"
  end
  return fields_of(described(type_name), value, true, read_one)
end

local ENCODE = { proto = http.encode, json = encode_json }
local DECODE = { proto = http.decode, json = decode_json }

--- The message as bytes; codec is "proto" or "json".
function message.encode(type_name, value, codec)
  return attempt(pcall, type_name, ENCODE[codec], type_name, value)
end

--- The message's table. Fields that are not known are left out. `most`, `pace`: as of json.decode.
function message.decode(type_name, text, codec, most, pace)
  return attempt(most and nested.pcall or pcall, type_name, DECODE[codec], type_name, text, most, pace)
end

-- ---- envelopes ----

message.COMPRESSED, message.END = 1, 2

--- A payload as it stands on a stream: a byte of flags, four of length, the payload.
function message.envelope(flags, payload)
  local n = #payload
  return string.char(flags, math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256,
    n % 256) .. payload
end

local Parser = { __name = "sandbar.EnvelopeParser" }
Parser.__index = Parser

--- Takes a stream apart: parser:feed(bytes), then parser:next() until it gives nothing. A payload above `max` bytes
--- (16 MiB) is LimitExceeded.
function message.parser(max)
  return setmetatable({ max = max or MAX_ENVELOPE, buffer = "", at = 1 }, Parser)
end

function Parser:feed(bytes)
  self.buffer = self.at > #self.buffer and bytes or self.buffer:sub(self.at) .. bytes
  self.at = 1
end

--- flags, payload; nothing when more bytes are needed; nil, err.
function Parser:next()
  local flags, a, b, c, d = self.buffer:byte(self.at, self.at + 4)
  if not d then
    return nil
  end
  local length = a * 16777216 + b * 65536 + c * 256 + d
  if length > self.max then
    return nil, errors.new {
      kind = "LimitExceeded", limit = self.max, message = ("a message of %d bytes on a stream"):format(length),
    }
  end
  local from = self.at + 5
  if #self.buffer - from + 1 < length then
    return nil
  end
  self.at = from + length
  return flags, self.buffer:sub(from, self.at - 1)
end

--- How many bytes there are of a message that is not whole yet.
function Parser:left()
  return #self.buffer - self.at + 1
end

return message
