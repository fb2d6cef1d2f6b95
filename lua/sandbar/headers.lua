-- Headers of HTTP: as they come (a list that is also indexed by name), and as they are given (to lines).

local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local iterator = require "sandbar.iterator"

local TOKEN = "^[%w!#$%%&'*+%-.^_`|~]+$"

local headers = {}

local Headers = { __name = "sandbar.Headers" }
local methods = {}

--- The first value of a header, or nil. headers.name does the same.
function methods:get(name)
  name = name:lower()
  for i = 1, #self do
    if self[i][1]:lower() == name then
      return self[i][2]
    end
  end
end

--- All values of a header, in order.
function methods:all(name)
  local values = {}
  name = name:lower()
  for i = 1, #self do
    if self[i][1]:lower() == name then
      values[#values + 1] = self[i][2]
    end
  end
  return values
end

--- for name, value in headers:each(): in order, repeats included.
function methods:each()
  local i = 0
  return iterator.new(function()
    i = i + 1
    if self[i] then
      return self[i][1], self[i][2]
    end
  end)
end

function Headers.__index(list, key)
  if type(key) == "string" then
    return methods[key] or methods.get(list, key)
  end
end

function Headers.__pairs(list)
  return methods.each(list)
end

--- What a list of { name, value } becomes.
headers.metatable = Headers

--- Headers of a list of { name, value }: an array that is also indexed by name, case-insensitively.
function headers.new(list)
  local made = {}
  for i, pair in ipairs(list or {}) do
    made[i] = { pair[1], pair[2] }
  end
  return setmetatable(made, Headers)
end

local function bad(message)
  return nil, errors.new { kind = "InvalidArgument", message = message }
end

-- One "Name: value" line; values untouched by Lua where they are secret.
local function add_line(lines, name, value)
  if type(name) ~= "string" or not name:find(TOKEN) then
    return bad(("'%s' cannot be the name of a header"):format(tostring(name)))
  end
  if core.is_secret(value) then
    lines[#lines + 1] = value:prefixed(name .. ": ")
  elseif type(value) == "string" or type(value) == "number" then
    lines[#lines + 1] = name .. ": " .. value -- string.format would end at a zero byte on 5.1
  else
    local closed = check.collected(value, ("header '%s'"):format(name))
    if closed then
      return nil, closed
    end
    return bad(("header '%s': string or secret expected, got %s"):format(name, check.type_name(value)))
  end
  return true
end

--- "Name: value" lines of { name = value or { values } }, of { { name, value }, … } in order, or of both. nil and
--- an error when they cannot be headers.
function headers.lines(given)
  local lines, names = {}, {}
  for i, pair in ipairs(given) do
    if type(pair) ~= "table" then
      return bad(("header %d is not a pair of name and value"):format(i))
    end
    local ok, err = add_line(lines, pair[1], pair[2])
    if not ok then
      return nil, err
    end
  end
  for name in next, given do
    if type(name) == "string" then
      names[#names + 1] = name
    elseif type(name) ~= "number" then
      return bad("headers are a list of pairs, or a table of names")
    end
  end
  if check.holed(given) then
    return bad("the list of headers has a hole")
  end
  table.sort(names) -- one program, one request
  for _, name in ipairs(names) do
    local value = rawget(given, name)
    if type(value) == "table" and check.holed(value) then
      return bad(("header '%s': the list of its values has a hole"):format(name))
    end
    for _, one in ipairs(type(value) == "table" and value or { value }) do
      local ok, err = add_line(lines, name, one)
      if not ok then
        return nil, err
      end
    end
  end
  return lines
end

return headers
