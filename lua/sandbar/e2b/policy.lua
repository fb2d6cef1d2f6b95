-- The network policy of a spec in the vendor's words, where those mean the same; else what cannot be enforced is named.
-- There, what is allowed beats what is denied, rules for headers know hosts alone, and only IPv4 is spoken of.

local audit = require "sandbar.audit"
local body = require "sandbar.e2b.body"
local check = require "sandbar.check"
local core = require "sandbar.core"
local values = require "sandbar.values"

local policy = {}

local EVERYTHING = "0.0.0.0/0"
local MOST_ENTRIES, MOST_HOSTS, MOST_HEADERS, MOST_NAME, MOST_VALUE = 256, 10, 20, 64, 2048
local KEYS = { allow = "table", deny = "table", inject = "table", upstream_proxy = "any" }
local RULE = { host = "string", path_prefix = "string", when_headers = "table", set_headers = "table" }

local invalid, unsupported = values.invalid, values.unsupported

-- A list of what may be reached, or may not, for the wire.
local function entries(list, clause, names)
  local out = body.list {}
  for key, value in pairs(list) do
    if type(key) ~= "number" or type(value) ~= "string" then
      return invalid(clause, clause .. ": a list of strings is needed")
    end
    local what = core.policy_entry(value)
    if not what or what == "name" and not names then
      return invalid(clause, ("%s: %q is neither %san address nor a CIDR"):format(clause, value,
        names and "a host name, " or ""))
    end
  end
  if check.holed(list) then
    return invalid(clause, clause .. ": the list has a hole")
  end
  for i, value in ipairs(list) do
    if value:find(":", 1, true) then
      return unsupported(clause, ("%s: %s: the vendor knows addresses of IPv4 only"):format(clause, value))
    end
    out[i] = value
  end
  if #out > MOST_ENTRIES then
    return invalid(clause, ("%s: %d entries at most"):format(clause, MOST_ENTRIES))
  end
  return out
end

-- The headers of one rule.
local function headers_of(rule, clause)
  local out, count = {}, 0
  for name, value in pairs(rule.set_headers) do
    if type(name) ~= "string" or #name > MOST_NAME or not name:find("^[%w!#$%%&'*+.^_`|~-]+$") then
      return invalid(clause, ("%s: %q is no name of a header"):format(clause, tostring(name)))
    end
    if core.is_secret(value) then
      audit.emit("secret", { what = "inject", name = name, host = rule.host })
    elseif type(value) ~= "string" then
      local closed = check.collected(value, clause)
      if closed then
        return nil, closed
      end
      return invalid(clause, ("%s: the value of %s is neither a string nor a secret"):format(clause, name))
    elseif #value > MOST_VALUE or value:find("[%z\r\n]") or value:find("${e2b.", 1, true) then
      return invalid(clause, ("%s: the value of %s is too long, has a line break, or a placeholder of the vendor's"
        ):format(clause, name))
    end
    out[name], count = value, count + 1
  end
  if count == 0 or count > MOST_HEADERS then
    return invalid(clause, ("%s: set_headers has %d headers, 1 to %d are needed"):format(clause, count, MOST_HEADERS))
  end
  return out
end

local function add_rule(rules, rule, clause)
  if type(rule) ~= "table" then
    return invalid(clause, clause .. ": a table is needed")
  end
  for key, value in pairs(rule) do
    if not RULE[key] then
      return invalid(clause, ("%s: there is no key %q"):format(clause, tostring(key)))
    elseif type(value) ~= RULE[key] then
      return invalid(clause, ("%s: %s is a %s"):format(clause, key, RULE[key]))
    end
  end
  if not rule.host or core.policy_entry(rule.host) ~= "name" then
    return invalid(clause, ("%s: %q is no host name"):format(clause, tostring(rule.host)))
  elseif not rule.set_headers then
    return invalid(clause, clause .. ": set_headers is missing")
  elseif rule.path_prefix and rule.path_prefix ~= "/" or rule.when_headers and next(rule.when_headers) ~= nil then
    return unsupported(clause, clause .. ": the vendor's rules have no conditions but the host, and headers never go "
      .. "to more requests than a rule describes")
  end
  local host = rule.host:lower()
  if rules[host] then
    return unsupported(clause, ("%s: there is a rule for %s already, and the vendor takes one"):format(clause, host))
  end
  local headers, err = headers_of(rule, clause)
  if not headers then
    return nil, err
  end
  rules[host] = body.list { { transform = { headers = headers } } }
  return true
end

-- The rules for headers by host.
local function rules_of(list)
  local rules, count = {}, 0
  for key in pairs(list) do
    if type(key) ~= "number" then
      return invalid("network.inject", "network.inject: a list of rules is needed")
    end
    count = count + 1
  end
  if check.holed(list) then
    return invalid("network.inject", "network.inject: the list has a hole")
  elseif count > MOST_HOSTS then
    return unsupported("network.inject", ("network.inject: the vendor takes %d rules"):format(MOST_HOSTS))
  end
  for i = 1, count do
    local ok, err = add_rule(rules, list[i], ("network.inject[%d]"):format(i))
    if not ok then
      return nil, err
    end
  end
  return rules, count
end

--- Fills `network` (of a create, or the whole body of an update) and tells what holds then, or nil and why not. What it
--- answers third is the value of allow_internet_access.
function policy.map(wanted, network)
  if wanted == "allow" then
    return "allow: everything but what the vendor keeps from all sandboxes", nil, nil
  elseif wanted == nil or wanted == "deny" then
    return "deny: the vendor blocks every connection out, its resolver excepted", nil, false
  elseif type(wanted) ~= "table" then
    return invalid("network", ("network: %q is neither \"allow\", \"deny\" nor a table"):format(tostring(wanted)))
  elseif wanted[1] ~= nil then
    return invalid("network", "network: a list by itself says nothing; write network = { allow = { ... } }")
  end
  for key, value in pairs(wanted) do
    if not KEYS[key] then
      return invalid("network", ("network: there is no key %q%s"):format(tostring(key), check.hint(key, KEYS)))
    elseif KEYS[key] ~= "any" and type(value) ~= KEYS[key] then
      return invalid("network." .. key, ("network.%s: a table is needed"):format(key))
    end
  end
  if wanted.allow == nil then
    return invalid("network.allow", "network.allow: it is missing; an empty one blocks everything")
  elseif wanted.upstream_proxy ~= nil then
    return unsupported("network.upstream_proxy", "network.upstream_proxy: the vendor's is of another kind (SOCKS5)")
  end
  local allow, deny, err
  allow, err = entries(wanted.allow, "network.allow", true)
  if allow then
    deny, err = entries(wanted.deny or {}, "network.deny")
  end
  if not deny then
    return nil, err
  elseif #deny > 0 and #allow > 0 then
    return unsupported("network.deny",
      "network.deny beside network.allow: with the vendor an allowed entry beats a denied one")
  end
  local rules, count = {}, 0
  if wanted.inject then
    rules, count = rules_of(wanted.inject)
    if not rules then
      return nil, count
    end
  end
  if #allow == 0 then
    return "rules: nothing may be reached", nil, false
  end
  network.allowOut, network.denyOut = allow, body.list { EVERYTHING }
  network.rules = count > 0 and rules or nil
  return ("rules: %d entries may be reached; names by Host and SNI on ports 80 and 443%s"):format(#allow,
    count > 0 and ("; %d rules give requests headers"):format(count) or ""), nil, nil
end

return policy
