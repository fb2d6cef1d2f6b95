-- Where things are at the vendor: base URLs, the host names of sandboxes, and what goes into paths and queries.

local errors = require "sandbar.errors"

local address = {}

local DOMAIN = "e2b.app"
-- Domains with one host that all sandboxes are reached at, by headers.
local SHARED = { ["e2b.app"] = true, ["e2b.dev"] = true, ["e2b.pro"] = true, ["e2b-staging.dev"] = true }

address.DAEMON_PORT = 49983

local function bad(what, message)
  return nil, errors.new { kind = "InvalidArgument", op = "open", clause = what, message = what .. ": " .. message }
end

--- A text as one segment of a path, or as a value in a query.
function address.escape(text)
  return (text:gsub("[^%w%-._~]", function(c)
    return ("%%%02X"):format(c:byte())
  end))
end

--- A query of { name, value } pairs, or "" without any.
function address.query(pairs_)
  local out = {}
  for i, pair in ipairs(pairs_) do
    out[i] = pair[1] .. "=" .. address.escape(tostring(pair[2]))
  end
  return out[1] and "?" .. table.concat(out, "&") or ""
end

--- The filter of a list by metadata. Names and values are escaped, then the pairs as a form, then all of it in the
--- query.
function address.filter(metadata)
  local names, out = {}, {}
  for name in pairs(metadata) do
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do
    out[i] = address.escape(address.escape(name)) .. "=" .. address.escape(address.escape(metadata[name]))
  end
  return table.concat(out, "&")
end

--- Origin and path prefix of a URL, or nil and InvalidArgument.
function address.split(url, what)
  local origin, prefix = url:match("^(https?://[^/?#%s@%z]+)([^?#%s%z]*)$")
  if not origin or prefix ~= "" and prefix:sub(1, 1) ~= "/" then
    return bad(what, ("%q is not http:// or https://, a host, perhaps a port and a path"):format(url))
  end
  return origin, (prefix:gsub("/+$", ""))
end

local PROXIES = { http = true, https = true, socks5 = true, socks5h = true }

--- True, or nil and InvalidArgument: the URL of a proxy. What is a secret is looked at when it is used.
function address.check_proxy(url)
  if type(url) == "string" and url ~= "environment" and not PROXIES[url:match("^(%w+)://[^%s%z]+$")] then
    return bad("proxy", "\"environment\", or http://, https://, socks5:// or socks5h:// and a host is needed")
  end
  return true
end

--- A domain as it is given or left out, or nil and InvalidArgument.
function address.domain(given)
  if given == nil or given == "" then
    return DOMAIN
  elseif not given:find("^[%w%-.]+:?%d*$") then
    return bad("domain", ("%q is no domain"):format(given))
  end
  return given
end

--- The host of a sandbox's port.
function address.host(port, vendor_id, domain)
  return ("%d-%s.%s"):format(port, vendor_id, domain)
end

--- Where a sandbox's daemon is asked.
function address.daemon(vendor_id, domain, sandbox_url)
  if sandbox_url then
    return sandbox_url
  elseif SHARED[domain] then
    return "https://sandbox." .. domain
  end
  return "https://" .. address.host(address.DAEMON_PORT, vendor_id, domain)
end

return address
