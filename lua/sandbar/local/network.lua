-- Network policies: checked, and put into the fields of a request. What they mean is said in
-- docs/internals/network.md.

local audit = require "sandbar.audit"
local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local values = require "sandbar.values"

local inject = lazy "sandbar.local.inject"

local MAX_ENTRIES = 256

local network = {}

local invalid = values.invalid

local KEYS = { allow = true, deny = true, inject = true, upstream_proxy = true }

-- A list of texts for the wire, or nil and why not.
local function entries(list, said, names)
  if list == nil then
    return {}
  end
  if type(list) ~= "table" then
    return invalid("network", said .. ": a list of strings is needed")
  end
  local out = {}
  for key, value in pairs(list) do
    if type(key) ~= "number" or type(value) ~= "string" then
      return invalid("network", said .. ": a list of strings is needed")
    end
    local what = core.policy_entry(value)
    if not what or (what == "name" and not names) then
      return invalid("network", ("%s: %s is neither %san address nor a CIDR"):format(said, errors.quoted(value),
        names and "a host name, " or ""))
    end
  end
  if check.holed(list) then
    return invalid("network", said .. ": the list has a hole")
  end
  for i, value in ipairs(list) do
    out[i] = value
  end
  if #out > MAX_ENTRIES then
    return invalid("network", ("%s: %d entries at most"):format(said, MAX_ENTRIES))
  end
  return out
end

-- The proxy of a policy as an entry of net_inject, if it names one, or nil and why not. From here on its URL is a
-- secret, for there may be a password in it.
function network.proxy(policy)
  local url = type(policy) == "table" and policy.upstream_proxy
  if not url then
    return nil
  end
  if type(url) ~= "string" and not core.is_secret(url) then
    return invalid("network.upstream_proxy", "network.upstream_proxy: neither a string nor a secret")
  elseif not core.policy_proxy(url) then
    return invalid("network.upstream_proxy",
      "network.upstream_proxy: it is not of the form http://[user:password@]host[:port]")
  end
  audit.emit("secret", { what = "upstream_proxy" })
  return { "u", core.is_secret(url) and url or core.secret(url) }
end

-- Adds the fields network, net_allow, net_deny, net_inject. What is to be told, or nil and why not.
function network.check(policy, f)
  if policy == "deny" or policy == "allow" then
    f.network = policy
    return "allow: TCP and UDP to everywhere but the host itself and link-local addresses"
  elseif type(policy) ~= "table" then
    return invalid("network", ("network: %s is neither \"allow\", \"deny\" nor a table"):format(
      errors.quoted(tostring(policy))))
  end
  if policy[1] ~= nil then
    return invalid("network", "network: a list by itself says nothing; write network = { allow = { ... } }")
  end
  for key in pairs(policy) do
    if not KEYS[key] then
      return invalid("network", ("network: there is no key %s%s"):format(errors.quoted(tostring(key)),
        check.hint(key, KEYS)))
    end
  end
  if policy.allow == nil then
    return invalid("network", "network.allow: it is missing; an empty one blocks everything")
  end
  local allow, deny, err
  allow, err = entries(policy.allow, "network.allow", true)
  if allow then
    deny, err = entries(policy.deny, "network.deny")
  end
  if not deny then
    return nil, err
  end
  local told = ("rules: %d entries may be reached, %d may not"):format(#allow, #deny)
  if policy.inject ~= nil then
    local rules, count = inject.check(policy.inject)
    if not rules then
      return nil, count
    end
    f.net_inject = rules
    told = ("%s; %d rules give requests headers"):format(told, count)
  end
  if policy.upstream_proxy ~= nil then
    local entry
    entry, err = network.proxy(policy)
    if not entry then
      return nil, err
    end
    f.net_inject = f.net_inject or {}
    table.insert(f.net_inject, entry)
    told = told .. "; all through a proxy"
  end
  f.network, f.net_allow, f.net_deny = "rules", allow, deny
  return told
end

return network
