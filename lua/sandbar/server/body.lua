-- Requests' bodies in JSON, checked field by field.

local json = require "sandbar.json"
local pace = require "sandbar.server.pace"
local reply = require "sandbar.server.reply"

local MAX = 4194304 -- bytes
local TIMEOUT = 60 -- seconds

local body = {}

local function is_array(value)
  local n = 0
  for key in pairs(value) do
    n = n + 1
    if type(key) ~= "number" then
      return false
    end
  end
  return n == #value
end

local is = {
  string = function(v) return type(v) == "string" end,
  boolean = function(v) return type(v) == "boolean" end,
  integer = function(v) return type(v) == "number" and v % 1 == 0 and v >= -2147483648 and v <= 2147483647 end,
  object = function(v) return type(v) == "table" and v[1] == nil end,
  array = function(v) return type(v) == "table" and is_array(v) end,
  strings = function(v)
    if type(v) ~= "table" or not is_array(v) then
      return false
    end
    for _, one in ipairs(v) do
      if type(one) ~= "string" then
        return false
      end
    end
    return true
  end,
  texts = function(v) -- { name = text }
    if type(v) ~= "table" then
      return false
    end
    for name, text in pairs(v) do
      if type(name) ~= "string" or type(text) ~= "string" then
        return false
      end
    end
    return true
  end,
}

--- A table as `schema` ({ name = kind, or kind.."!" where it must be there }) wants it: without nulls; what the schema
--- does not name is left out. Or nil and a refusal.
function body.check(value, schema, where)
  local out = {}
  for name, kind in pairs(schema) do
    local one = value[name]
    if one == json.null then
      one = nil
    end
    local plain = kind:match("^(%l+)")
    if one == nil and kind ~= plain then
      return nil, reply.refusal(400, ("validation error: %s%s is missing"):format(where or "", name))
    elseif one ~= nil and not is[plain](one) then
      return nil, reply.refusal(400, ("validation error: %s%s is not of the right type"):format(where or "", name))
    end
    out[name] = one
  end
  return out
end

--- The request's body as `schema` wants it. No body is an empty object.
function body.read(request, schema)
  local text, err = request:read_all(MAX, TIMEOUT)
  if not text then
    if err and err.kind == "LimitExceeded" then
      return nil, reply.refusal(413, "the request's body is too large")
    end
    return nil, err
  end
  local value = {}
  if text:find("%S") then
    local why
    value, why = json.decode(text, pace.VALUES, pace.new())
    if type(value) ~= "table" or value == json.null or value[1] ~= nil then
      return nil, reply.refusal(400, "the request's body is no JSON object" .. (why and ": " .. why or ""))
    end
  end
  return body.check(value, schema)
end

return body
