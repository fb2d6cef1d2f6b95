-- Where a request goes: its target taken apart, the sandbox it is for by host name or headers, the handler by method
-- and path.

local router = {}

-- ---- targets ----

local function unescape(text)
  local bad = text:gsub("%%%x%x", ""):find("%", 1, true)
  if bad then
    return nil
  end
  text = text:gsub("%%(%x%x)", function(digits)
    return string.char(tonumber(digits, 16))
  end)
  return not text:find("%z") and text or nil
end

router.unescape = unescape

-- One name or value of a form: a plus is a blank.
local function unescape_form(text)
  return unescape((text:gsub("+", " ")))
end

--- The pairs of a form or query, as a table; of a name that comes twice the first. Nil where it is none.
function router.form(text)
  local out = {}
  for pair in text:gmatch("[^&]+") do
    local name, value = pair:match("^([^=]*)=?(.*)$")
    name, value = unescape_form(name), unescape_form(value)
    if not name or not value then
      return nil
    end
    if out[name] == nil then
      out[name] = value
    end
  end
  return out
end

--- A request's target: { segments, path, query }, or nil. The path is split before it is unescaped: a segment may hold
--- a slash (`/templates/team%2Fname`). `path` is as it was sent, without the query.
function router.target(raw)
  local path, query = raw:match("^(/[^?#]*)%??([^#]*)$")
  if not path then
    return nil
  end
  local segments = {}
  for part in path:gmatch("/([^/]*)") do
    local segment = unescape(part)
    if not segment then
      return nil
    end
    segments[#segments + 1] = segment
  end
  if segments[#segments] == "" then
    segments[#segments] = nil -- "/", and a slash at the end
  end
  local pairs_of = router.form(query)
  return pairs_of and { segments = segments, path = path, query = pairs_of }
end

-- ---- hosts ----

--- A Host header without its port, in lower case.
function router.hostname(host)
  host = (host or ""):lower()
  return host:match("^(%[[^%]]*%])") or host:match("^([^:]*)")
end

local function is_address(name)
  return name:match("^%d+%.%d+%.%d+%.%d+$") ~= nil or name:match("^%[[%x:.]+%]$") ~= nil
end

-- Is the name `domain`, or below it?
local function within(name, domain)
  return name == domain or name:sub(-#domain - 1) == "." .. domain
end

--- May this name be one of ours? A page of somebody else's whose name was made to lead here (DNS rebinding) asks under
--- its own name. `domain` may be nil.
function router.is_ours(name, domain)
  return is_address(name) or within(name, "localhost") or domain ~= nil and within(name, domain)
end

local ENVD = { files = true, metrics = true, envs = true, init = true }

local function is_envd(segments)
  local first = segments[1] or ""
  return first == "process.Process" or first == "filesystem.Filesystem" or ENVD[first] == true and first ~= "init"
end

local function of_text(port, id)
  if not (port or ""):match("^%d+$") or tonumber(port) < 1 or tonumber(port) > 65535 then
    return { status = 400, text = "Invalid sandbox port" }
  elseif not (id or ""):match("^[a-z0-9]+$") then
    return { status = 400, text = "Invalid sandbox ID" }
  end
  return { to = "sandbox", id = id, port = tonumber(port) }
end

local NOT_OURS = "Host not allowed: it is neither an address nor localhost, nor the server's domain (sandbar serve "
  .. "--domain NAME), nor below one of these"

--- Whom a request is for: { to = "control" }, { to = "sandbox", id, port }, { to = "signed" } (a file link without a
--- name: its signature tells), or { status, text } of a refusal. `headers:get(name)`; `target` is of router.target.
function router.place(host, headers, target, domain)
  local name = router.hostname(host)
  if not router.is_ours(name, domain) then
    return { status = 403, text = NOT_OURS }
  end
  local label = name:match("^([^.]+)%.")
  local port, id = (label or ""):match("^(%d+)%-([^-]*)")
  if port and not is_address(name) then
    return of_text(port, id)
  end
  if is_address(name) or name == "localhost" or name == domain or name:match("^sandbox%.") then
    id, port = headers:get("e2b-sandbox-id"), headers:get("e2b-sandbox-port")
    if id and port then
      return of_text(port, (id:match("^([^-]*)")))
    elseif id or port then
      return { status = 400, text = "missing header" }
    end
  end
  if target.segments[1] == "files" and #target.segments == 1 and target.query.signature then
    return { to = "signed" }
  elseif is_envd(target.segments) then
    return { status = 400, text = "missing header" }
  end
  return { to = "control" }
end

--- Does the request come from a page of another origin? Programs that are no browsers send no Origin.
function router.is_foreign(host, headers)
  local origin = headers:get("origin")
  if not origin then
    return false
  end
  return origin:lower():match("^https?://(.*)$") ~= (host or ""):lower()
end

-- ---- handlers ----

local Routes = {}
Routes.__index = Routes

--- Takes { ["GET /a/{id}"] = handler }; a segment in braces is handed over under its name.
function router.new(routes)
  local root = {}
  for key, handler in pairs(routes) do
    local method, path = key:match("^(%u+) (/.*)$")
    local node, names = root, {}
    for segment in path:gmatch("[^/]+") do
      local name = segment:match("^{(.*)}$")
      names[#names + 1] = name
      local at = name and "*" or "/" .. segment
      node[at] = node[at] or {}
      node = node[at]
    end
    node.methods = node.methods or {}
    node.methods[method] = { handler = handler, names = names }
  end
  return setmetatable({ root = root }, Routes)
end

local function walk(node, segments, i, values)
  if i > #segments then
    return node.methods and node, values
  end
  local plain = node["/" .. segments[i]]
  local found = plain and walk(plain, segments, i + 1, values)
  if not found and node["*"] and segments[i] ~= "" then
    local count = #values
    values[count + 1] = segments[i]
    found = walk(node["*"], segments, i + 1, values)
    if not found then
      values[count + 1] = nil
    end
  end
  return found, values
end

--- The handler and its named segments; nil when nothing is there, false and the methods there are when only the method
--- is wrong.
function Routes:find(method, segments)
  local node, values = walk(self.root, segments, 1, {})
  if not node then
    return nil
  end
  local entry = node.methods[method]
  if not entry then
    local allowed = {}
    for name in pairs(node.methods) do
      allowed[#allowed + 1] = name
    end
    table.sort(allowed)
    return false, table.concat(allowed, ", ")
  end
  local params = {}
  for i, name in ipairs(entry.names) do
    params[name] = values[i]
  end
  return entry.handler, params
end

return router
