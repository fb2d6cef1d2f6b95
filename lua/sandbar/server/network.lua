-- The protocol's network settings as a policy of the contract. There what is allowed beats what is denied, here denial
-- wins: what would mean something else is refused.

local core = require "sandbar.core"
local reply = require "sandbar.server.reply"

local EVERYTHING = { ["0.0.0.0/0"] = true, ["::/0"] = true }
local MAX_RULES, MAX_HEADERS = 10, 20
local MAX_SECRETS = 32 -- of one domain
local SECRET = "%${e2b%.secrets%.([^}]*)}"

local network = {}

local function refuse(message, status)
  return nil, reply.refusal(status or 400, message)
end

local function is_cidr(text)
  local address, bits = text:match("^([^/]+)/?(%d*)$")
  if not address then
    return false
  elseif address:find(":", 1, true) then
    return address:match("^[%x:.]+$") ~= nil and (bits == "" or tonumber(bits) <= 128)
  end
  local a, b, c, d = address:match("^(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)%.(%d%d?%d?)$")
  if not a or (bits ~= "" and tonumber(bits) > 32) then
    return false
  end
  for _, part in ipairs { a, b, c, d } do
    if tonumber(part) > 255 then
      return false
    end
  end
  return true
end

local function is_name(text)
  local name = text:match("^%*%.(.*)$") or text
  return #name <= 128 and name:match("^[%w][%w.-]*$") ~= nil and name:find("%a") ~= nil
end

-- An IPv4 block as its first and last address, or nil.
local function range(text)
  local a, b, c, d, bits = text:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)/?(%d*)$")
  if not a then
    return nil
  end
  local size = 2 ^ (32 - (tonumber(bits) or 32))
  local at = ((tonumber(a) * 256 + tonumber(b)) * 256 + tonumber(c)) * 256 + tonumber(d)
  local first = at - at % size
  return first, first + size - 1
end

-- Might both have an address in common? What is not IPv4 on both sides is taken for yes when it is of one family.
local function overlap(x, y)
  local a, b = range(x)
  local c, d = range(y)
  if a and c then
    return a <= d and c <= b
  end
  return not a and not c
end

-- The two lists, checked: allowed entries, denied ones without "everything", whether everything is denied.
local function lists(config)
  local allow, deny, all, named = {}, {}, false, nil
  for _, text in ipairs(config.denyOut or {}) do
    if not is_cidr(text) then
      return refuse(("invalid denied CIDR %s"):format(text))
    elseif EVERYTHING[text] then
      all = true
    else
      deny[#deny + 1] = text
    end
  end
  for _, text in ipairs(config.allowOut or {}) do
    local lower = text:lower()
    if is_cidr(lower) then
      allow[#allow + 1] = lower
    elseif is_name(lower) then
      allow[#allow + 1], named = lower, lower
    else
      return refuse(("invalid allowed entry %s"):format(text))
    end
  end
  if named and not all then
    return refuse(("allowing the domain %s needs 0.0.0.0/0 in denyOut"):format(named))
  end
  return allow, deny, all
end

-- The headers of a domain's list of rules.
local function headers_of(list)
  local transform = type(list[1]) == "table" and list[1].transform
  return type(transform) == "table" and type(transform.headers) == "table" and transform.headers or {}
end

--- The names of secrets in rules, as a set.
function network.names(rules)
  local out = {}
  for _, list in pairs(rules or {}) do
    for _, value in pairs(headers_of(list)) do
      for name in value:gmatch(SECRET) do
        out[name:lower()] = true
      end
    end
  end
  return out
end

-- A header's value with what its secrets have in their place, or nil and a refusal; false where one is gone and that is
-- no mistake (`lost`). `used` are the names so far, by which they are counted.
local function filled(host, value, secret_of, lost, used)
  local missing
  local text = value:gsub(SECRET, function(name)
    local known = name ~= "" and not name:find("${", 1, true) and secret_of and secret_of(name)
    missing = missing or not known and name
    if not used[name:lower()] then
      used[name:lower()], used.count = true, used.count + 1
    end
    return known or ""
  end)
  if missing and lost then
    return false
  elseif missing then
    return refuse(("network.rules: there is no secret '%s'"):format(missing))
  elseif used.count > MAX_SECRETS then
    return refuse(("network.rules: more than %d secrets for %s"):format(MAX_SECRETS, host))
  end
  return text ~= value and core.secret(text) or value
end

-- Headers that requests get: { { host, set_headers }, ... }.
local function injected(rules, secret_of, lost)
  local out, count = {}, 0
  for host, list in pairs(rules or {}) do
    count = count + 1
    if type(host) ~= "string" or not is_name(host:lower()) or type(list) ~= "table" or #list > 1 then
      return refuse(("network.rules: %s is no domain with one transform"):format(tostring(host)))
    end
    local headers, set, n, used = headers_of(list), {}, 0, { count = 0 }
    for name, value in pairs(headers) do
      n = n + 1
      if type(name) ~= "string" or type(value) ~= "string" or #name > 64 or #value > 2048
        or not name:match("^[%w!#$%%&'*+.^_`|~-]+$") or value:find("[%z\r\n]") then
        return refuse(("network.rules: a header for %s is none"):format(host))
      elseif value:find("${e2b.identity.", 1, true) then
        return refuse("network.rules: identity tokens are not offered by this server")
      end
      local text, why = filled(host, value, secret_of, lost, used)
      if text == nil then
        return nil, why
      end
      set[name] = text or nil
    end
    if n > MAX_HEADERS then
      return refuse(("network.rules: more than %d headers for %s"):format(MAX_HEADERS, host))
    elseif next(set) then
      out[#out + 1] = { host = host:lower(), set_headers = set }
    end
  end
  if count > MAX_RULES then
    return refuse(("network.rules: more than %d domains"):format(MAX_RULES))
  end
  table.sort(out, function(a, b)
    return a.host > b.host -- "*." sorts before letters: the exact name is looked at first
  end)
  return out
end

--- The policy of a configuration (`internet`: allow_internet_access, nil when it was not said), or nil and a refusal.
--- `secret_of(name)` is what is in a secret, or nil; `lost`: headers whose secret is not there are left out.
function network.policy(config, internet, secret_of, lost)
  config = config or {}
  if config.egressProxy ~= nil then
    return refuse("egressProxy is not offered by this server", 403)
  elseif config.httpsPorts and next(config.httpsPorts) then
    return refuse("httpsPorts is not offered by this server")
  end
  local allow, deny, all = lists(config)
  if not allow then
    return nil, deny
  end
  all = all or internet == false
  local inject, err = injected(config.rules, secret_of, lost)
  if not inject then
    return nil, err
  end
  local rules = next(inject) and inject or nil
  if all then
    if not next(allow) and not rules then
      return "deny"
    end
    return { allow = allow, inject = rules }
  elseif not next(deny) and not rules then
    return "allow"
  end
  for _, one in ipairs(allow) do
    for _, other in ipairs(deny) do
      if overlap(one, other) then
        return refuse(("%s is allowed within %s, which is denied: this server cannot do both"):format(one, other))
      end
    end
  end
  return { allow = { "0.0.0.0/0", "::/0" }, deny = deny, inject = rules }
end

--- What the protocol says of a sandbox's policy: the configuration, or nil when everything is open.
function network.config(policy)
  if policy == "allow" then
    return nil
  elseif policy == "deny" then
    return { denyOut = { "0.0.0.0/0" } }
  end
  local open = false
  for _, one in ipairs(policy.allow) do
    open = open or EVERYTHING[one]
  end
  if open then
    return { denyOut = policy.deny }
  end
  return { allowOut = policy.allow, denyOut = { "0.0.0.0/0" } }
end

return network
