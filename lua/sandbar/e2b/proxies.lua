-- The proxy that the environment names, for a program that asks for it (open { proxy = "environment" }): as other
-- programs read these variables, but that a machine's own addresses are never reached through one.

local proxies = {}

-- Upper-case HTTP_PROXY is a request's header Proxy in programs that a web server starts: whoever sends a request would
-- choose where keys go. So nobody's is taken.
local NAMES = { https = { "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY" },
  http = { "http_proxy", "all_proxy", "ALL_PROXY" } }

local function number_of(address)
  local a, b, c, d = address:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
  if not a then
    return nil
  end
  local out = 0
  for _, part in ipairs { a, b, c, d } do
    if tonumber(part) > 255 then
      return nil
    end
    out = out * 256 + tonumber(part)
  end
  return out
end

local function is_loopback(host)
  return host == "localhost" or host:find("%.localhost$") or host == "::1" or number_of(host) and host:find("^127%.")
end

-- Is a host meant by an entry: "*", an address, a range, a name with all below it, each perhaps with a port?
local function meant(entry, host, port)
  if entry == "*" then
    return true
  end
  local inner, inner_port = entry:match("^%[([^%]]*)%]:?(%d*)$")
  if inner then
    return inner == host and (inner_port == "" or inner_port == port)
  end
  local range, bits = entry:match("^([%d.]+)/(%d+)$")
  if range then
    local from, at = number_of(range), number_of(host)
    bits = tonumber(bits)
    if not from or not at or bits > 32 then
      return false
    end
    local size = 2 ^ (32 - bits)
    return math.floor(from / size) == math.floor(at / size)
  end
  local name, name_port = entry:match("^([^:]*):(%d+)$")
  name = name or entry
  if name_port and name_port ~= port then
    return false
  end
  name = name:gsub("^%*?%.", "")
  return name ~= "" and (name == host or host:sub(-#name - 1) == "." .. name)
end

--- Its URL for an origin, or nil. `get(name)`: a variable.
function proxies.of(origin, get)
  local scheme, authority = origin:lower():match("^(%w+)://(.*)$")
  local host, port = authority:match("^%[([^%]]*)%]:?(%d*)$")
  if not host then
    host, port = authority:match("^([^:]*):?(%d*)$")
  end
  port = port ~= "" and port or scheme == "https" and "443" or "80"
  if is_loopback(host) then
    return nil
  end
  for entry in ((get "no_proxy" or get "NO_PROXY" or ""):lower()):gmatch("[^,%s]+") do
    if meant(entry, host, port) then
      return nil
    end
  end
  for _, name in ipairs(NAMES[scheme] or {}) do
    local url = get(name)
    if url and url ~= "" then
      return url:find("://", 1, true) and url or "http://" .. url
    end
  end
  return nil
end

return proxies
