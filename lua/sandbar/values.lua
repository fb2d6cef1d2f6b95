-- Values that a spec and single calls share, checked and put into the engine's form: ids, labels,
-- environments, lifetimes.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"

local record = lazy "sandbar.record"

local MAX_LIFETIME = 315360000 -- ten years: the engine takes no more
local MAX_ID = 128

local values = {}

local function invalid(clause, message)
  return nil, errors.new { kind = "InvalidArgument", clause = clause, message = message }
end

local function unsupported(clause, message)
  return nil, errors.new { kind = "Unsupported", clause = clause, message = message }
end

values.invalid, values.unsupported = invalid, unsupported

-- A sandbox id (or what is named like one), or nil and InvalidArgument.
function values.check_id(id, what)
  what = what or "id"
  if #id < 1 or #id > MAX_ID or not id:match("^%w[%w._-]*$") then
    return invalid(what, ("%s %s is not 1 to 128 of A-Z a-z 0-9 . _ - with the first one alphanumeric"
      ):format(what, errors.quoted(id)))
  end
  return id
end

local function no_zero(what, value)
  if value:find("%z") then
    return invalid(what, what .. " contains a zero byte")
  end
  return true
end
values.no_zero = no_zero

-- Labels as the engine wants them: a list of texts, in the order of their keys.
function values.check_labels(labels, what)
  local keys, list = {}, {}
  for key, value in pairs(labels) do
    if type(key) ~= "string" or type(value) ~= "string" then
      return invalid("labels", what .. ": keys and values are strings")
    end
    if key == "" then
      return invalid("labels", what .. ": a key is empty")
    end
    local ok, err = no_zero("labels", key)
    if ok then
      ok, err = no_zero("labels", value)
    end
    if not ok then
      return nil, err
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  for i, key in ipairs(keys) do
    local text, err = record.label(key, labels[key])
    if not text then
      return nil, err
    end
    list[i] = text
  end
  return list
end

-- Environment entries for the wire. A secret stays one: its name and value meet in C.
function values.check_env(env, max)
  local names, list, total = {}, {}, 0
  for name, value in pairs(env) do
    if type(name) ~= "string" then
      return invalid("env", "env: names are strings")
    end
    if name == "" or name:find("[=%z]") then
      return invalid("env", ("env: %s is no name of a variable (empty, or with = or a zero byte)"
        ):format(errors.quoted(name)))
    end
    if type(value) == "string" then
      if value:find("%z") then
        return invalid("env", ("env: the value of %s contains a zero byte"):format(name))
      end
      total = total + #name + #value + 2
    elseif core.is_secret(value) then
      total = total + #name + 2
      audit.emit("secret", { what = "env", name = name })
    else
      local closed = check.collected(value, "env: " .. name)
      if closed then
        return nil, closed
      end
      return invalid("env", ("env: the value of %s is neither a string nor a secret"):format(name))
    end
    names[#names + 1] = name
  end
  if total > max then
    return nil, errors.new {
      kind = "LimitExceeded",
      limit = "max_env",
      clause = "env",
      message = ("env: %d bytes are more than limits.max_env = %d"):format(total, max),
    }
  end
  table.sort(names)
  for i, name in ipairs(names) do
    local value = env[name]
    if type(value) == "string" then
      list[i] = name .. "=" .. value
    else
      list[i] = { name .. "=", value }
    end
  end
  return list
end

-- A lifetime in milliseconds; what is positive never becomes 0.
function values.check_lifetime(value, what)
  what = what or "lifetime"
  if value == false then
    return invalid(what, what .. ": a sandbox always has one; give a positive time")
  end
  local seconds, err = duration.parse(value, what)
  if not seconds then
    return nil, err
  end
  if seconds <= 0 or seconds > MAX_LIFETIME then
    return invalid(what, ("%s: %s s is not above 0 and at most %d s"):format(what,
      tostring(seconds), MAX_LIFETIME))
  end
  return math.max(math.ceil(seconds * 1000), 1)
end

return values
