-- Ports of hosted sandboxes: where they are, and requests to them through the vendor's proxy, whose own answers are
-- told from those of the program behind it.

local address = require "sandbar.e2b.address"
local answers = require "sandbar.e2b.errors"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local http = require "sandbar.http"
local link = require "sandbar.link"
local wait = require "sandbar.wait"

local ports = {}

local TOKEN = "e2b-traffic-access-token"
local PAUSE_FIRST, PAUSE_MOST = 0.05, 0.5
local INFO = 5

-- An origin of its own for each port: connections are not shared between sandboxes or ports.
local function origin_of(to, number)
  to.ports = to.ports or {}
  local entry = to.ports[number]
  if not entry then
    local client, access = to.driver.client, to.driver.access
    local lines, prefix = {}, ""
    local url = "https://" .. address.host(number, access.vendor_id, access.domain)
    if client.sandbox_url then -- one place for all: told apart by headers
      url, prefix = address.split(client.sandbox_url, "sandbox_url")
      lines = { { "Host", ("localhost:%d"):format(number) }, { "E2b-Sandbox-Id", access.vendor_id },
        { "E2b-Sandbox-Port", number } }
    end
    local proxy, err = client:proxy_for(url)
    local object
    if not err then
      object, err = http.client { url = url, proxy = proxy, ca_file = client.ca_file }
    end
    if not object then
      return nil, err
    end
    entry = { object = object, lines = lines, prefix = prefix }
    to.ports[number] = entry
  end
  return entry
end

local function lines_of(to, entry, given)
  local lines, names = {}, {}
  for name, value in pairs(type(given) == "table" and given or {}) do
    lines[name] = value
    local own = type(name) == "number" and type(value) == "table" and value[1] or name
    names[type(own) == "string" and own:lower() or own] = true
  end
  local count = #lines
  for _, line in ipairs(entry.lines) do
    if not names[line[1]:lower()] then
      count = count + 1
      lines[count] = line
    end
  end
  local token = to.driver.access.traffic_token
  if token then
    lines[count + 1] = { TOKEN, token }
  end
  return lines
end

-- What the proxy's refusal means: nil and an error.
local function refused(to, number, what, answer, op)
  local extra = { id = to.id, status = answer.status }
  local function fail(kind, message, more)
    for key, value in pairs(more or {}) do
      extra[key] = value
    end
    extra.kind, extra.message, extra.op = kind, message, op
    return nil, errors.new(extra)
  end
  if what == "port" then
    return fail("Unavailable", ("nothing listens on port %d"):format(number), { code = "ECONNREFUSED" })
  elseif what == "token" then
    return fail("PermissionDenied", "the traffic token of the sandbox is missing or wrong; resume() tells it")
  elseif what == "busy" then
    return fail("Busy", "the sandbox is being paused or resumed")
  elseif what == "limit" then
    return fail("RateLimited", "the sandbox has too many connections")
  end
  local r, err = to.driver:info(to.id, INFO)
  if not r then
    return nil, errors.from(to:heard(err), op)
  elseif r.fields.state[1] ~= "running" then
    local _, why = to:not_running(r.fields.state[1])
    return nil, errors.from(why, op)
  end
  return fail("Unavailable", "the vendor's proxy does not know the sandbox, which runs")
end

-- The body of an answer that was read to see whose it is.
local function reader_of(text)
  return {
    read = function()
      local rest = text
      text = nil
      return rest
    end,
    close = function()
      text = nil
      return true
    end,
  }
end

local function attempt(to, number, entry, request, deadline, op)
  local asked = {}
  for key, value in pairs(request) do
    asked[key] = value
  end
  asked.wait = nil
  asked.path = entry.prefix .. (request.path or "/")
  asked.headers = lines_of(to, entry, request.headers)
  local answer, err = http.request(entry.object, asked, link.left(deadline), op)
  if not answer then
    return nil, err
  end
  local status = answer.status
  if status ~= 502 and status ~= 403 and status ~= 409 and status ~= 429 then
    return answer
  end
  if request.stream then
    local text
    text, err = answer.body:read("a", { timeout = link.left(deadline), max = 65536 })
    if err then
      return nil, errors.from(err, op)
    end
    answer.body = text or ""
  end
  local what = answers.of_proxy(answer)
  if what then
    return nil, select(2, refused(to, number, what, answer, op))
  end
  if request.stream then
    answer.body = reader_of(answer.body)
  end
  return answer
end

--- As port:fetch. `request`: checked.
function ports.fetch(to, number, request, timeout)
  local deadline = link.deadline(timeout)
  if to:is_closed() then
    return nil, errors.new { kind = "Closed", op = "fetch", id = to.id, message = "the sandbox's handle is closed" }
  end
  if to.driver.access.private and not to.driver.access.traffic_token then
    return nil, errors.new { kind = "Unsupported", op = "fetch", id = to.id,
      message = "the port is private, and a handle that only looked has no traffic token; resume() tells it" }
  end
  local entry, err = origin_of(to, number)
  if not entry then
    return nil, errors.from(err, "fetch")
  end
  local patience = request.wait and link.deadline(request.wait)
  local pause = PAUSE_FIRST
  while true do
    local answer
    answer, err = attempt(to, number, entry, request, deadline, "fetch")
    if answer or err.code ~= "ECONNREFUSED" or not patience or core.now() >= patience then
      return answer, link.told(err, timeout)
    end
    local ok, why = wait.sleep(math.min(pause, deadline and link.left(deadline) or pause))
    if not ok then
      return nil, why
    end
    pause = math.min(pause * 2, PAUSE_MOST)
  end
end

--- The public address of a port.
function ports.url(to, number)
  return "https://" .. address.host(number, to.driver.access.vendor_id, to.driver.access.domain)
end

--- The headers that a request to it needs: the traffic token, no other.
function ports.headers(to)
  local token = to.driver.access.traffic_token
  return token and { [TOKEN] = token } or {}
end

return ports
