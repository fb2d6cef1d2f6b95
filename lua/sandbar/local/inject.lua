-- Rules for headers that requests get on their way: checked, and put into the fields of a request. A secret stays
-- one: its header and its value meet in C, which checks what cannot be seen here.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local values = require "sandbar.values"

local inject = {}

local MAX_RULES = 32

local KEYS = { host = "string", path_prefix = "string", when_headers = "table", set_headers = "table" }

local function invalid(said, message)
  return values.invalid("network.inject", ("%s: %s"):format(said, message))
end

local function sorted(headers, said)
  local names = {}
  for name in pairs(headers) do
    if type(name) ~= "string" then
      return invalid(said, "a table of headers by their names is needed")
    end
    if #name > 128 or not name:find("^[%w!#$%%&'*+.^_`|~-]+$") then
      return invalid(said, ("%s is no name of a header"):format(errors.quoted(name)))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

-- Headers that must be there, and those that are set: behind what is in `out`.
local function add_headers(out, said, rule)
  local names, err = sorted(rule.when_headers or {}, said .. ".when_headers")
  if not names then
    return nil, err
  end
  for _, name in ipairs(names) do
    local value = rule.when_headers[name]
    if type(value) ~= "string" then
      return invalid(said .. ".when_headers", ("the value of %s is not a string"):format(name))
    end
    out[#out + 1] = ("w%s:%s"):format(name, value)
  end
  names, err = sorted(rule.set_headers, said .. ".set_headers")
  if not names then
    return nil, err
  end
  for _, name in ipairs(names) do
    local value = rule.set_headers[name]
    if core.is_secret(value) then
      audit.emit("secret", { what = "inject", name = name, host = rule.host })
    elseif type(value) ~= "string" then
      local closed = check.collected(value, ("%s.set_headers: %s"):format(said, name))
      if closed then
        return nil, closed
      end
      return invalid(said .. ".set_headers", ("the value of %s is neither a string nor a secret"):format(name))
    end
    out[#out + 1] = { ("s%s:"):format(name), value }
  end
  return true
end

local function add_rule(out, said, rule)
  if type(rule) ~= "table" then
    return invalid(said, "a table is needed")
  end
  for key, value in pairs(rule) do
    if not KEYS[key] then
      return invalid(said, ("there is no key %s"):format(errors.quoted(tostring(key))))
    elseif type(value) ~= KEYS[key] then
      return invalid(said, ("%s is a %s"):format(key, KEYS[key]))
    end
  end
  if not rule.host or core.policy_entry(rule.host) ~= "name" then
    return invalid(said, ("%s is no host name"):format(errors.quoted(tostring(rule.host))))
  end
  if not rule.set_headers or next(rule.set_headers) == nil then
    return invalid(said, "set_headers is missing")
  end
  out[#out + 1] = "h" .. rule.host
  if rule.path_prefix then
    out[#out + 1] = "p" .. rule.path_prefix
  end
  return add_headers(out, said, rule)
end

-- The field net_inject, or nil and why not; the number of rules.
function inject.check(rules)
  local out, count = {}, 0
  if type(rules) ~= "table" then
    return invalid("network.inject", "a list of rules is needed")
  end
  for key in pairs(rules) do
    if type(key) ~= "number" then
      return invalid("network.inject", "a list of rules is needed")
    end
    count = count + 1
  end
  if count > MAX_RULES then
    return invalid("network.inject", ("%d rules at most"):format(MAX_RULES))
  end
  for i = 1, count do
    local ok, err = add_rule(out, ("network.inject[%d]"):format(i), rules[i])
    if not ok then
      return nil, err
    end
  end
  return out, count
end

-- The rules as a spec has them, of what is set only the names are known; and the proxy, without who logs in there.
function inject.of(list)
  local rules, proxy = {}, nil
  for _, text in ipairs(list) do
    local kind, rest = text:sub(1, 1), text:sub(2)
    local name, value = rest:match("^([^:]*):(.*)$")
    local rule = rules[#rules]
    if kind == "h" then
      rules[#rules + 1] = { host = rest, set_headers = {} }
    elseif kind == "p" then
      rule.path_prefix = rest
    elseif kind == "w" then
      rule.when_headers = rule.when_headers or {}
      rule.when_headers[name] = value
    elseif kind == "s" then
      rule.set_headers[name] = "secret([redacted])"
    elseif kind == "u" then
      proxy = rest
    end
  end
  return rules[1] and rules, proxy
end

return inject
