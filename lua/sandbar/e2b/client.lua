-- Calls of the control plane: JSON over HTTP, with the keys, within one deadline, tried again where that is safe.
--
-- Safe is: what was refused with "too many requests" and a time when not; what was never sent; and, of calls that may
-- be carried out twice, what got no whole answer or one from a server that could not just now.

local address = require "sandbar.e2b.address"
local answers = require "sandbar.e2b.errors"
local body = require "sandbar.e2b.body"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local json = require "sandbar.json"
local link = require "sandbar.link"
local wait = require "sandbar.wait"

local client = {}

local Client = {}
Client.__index = Client

local RETRIES = 3
local REQUEST_TIMEOUT = 60
local SLOW_TIMEOUT = 900 -- of what moves memory around: some four seconds for a GiB
local CONNECT_TIMEOUT = 30
local PAUSE_FIRST, PAUSE_MOST = 0.1, 5
local MAX_BODY = 16777216
local PAGE = 100
local AGENT = "sandbar-lua/" .. core.VERSION

local function as_secret(value)
  return type(value) == "string" and core.secret(value) or value
end

-- ---- the way there ----

-- Requests over sandbar.http, on an origin that each process generation has its own of.
local function over_http(options)
  local transport = { options = options }

  function transport:origin()
    local generation = core.generation()
    if self.generation ~= generation or core.collected(self.port) then
      local http = require "sandbar.http"
      local port, err = http.client {
        url = options.origin, proxy = options.proxy, ca_file = options.ca_file, connect_timeout = CONNECT_TIMEOUT,
      }
      if not port then
        return nil, err
      end
      self.port, self.generation = port, generation
    end
    return self.port
  end

  function transport:request(request, timeout, op)
    local port, err = self:origin()
    if not port then
      return nil, errors.from(err, op)
    end
    return require("sandbar.http").request(port, request, timeout, op)
  end

  return transport
end

--- `options`: api_url, domain, api_key, access_token, team, headers, proxy, ca_file, request_timeout, retries,
--- transport, random. No I/O.
function client.new(options)
  local domain, err = address.domain(options.domain)
  if not domain then
    return nil, err
  end
  local origin, prefix = address.split(options.api_url or "https://api." .. domain, "api_url")
  if not origin then
    return nil, prefix
  end
  local ok
  ok, err = address.check_proxy(options.proxy)
  if not ok then
    return nil, err
  end
  if options.sandbox_url then
    ok, err = address.split(options.sandbox_url, "sandbox_url")
    if not ok then
      return nil, err
    end
  end
  local limit = REQUEST_TIMEOUT
  if options.request_timeout ~= nil then
    limit, err = duration.timeout(options.request_timeout, "request_timeout")
    if err then
      return nil, errors.from(err, "open")
    end
  end
  local retries = options.retries or RETRIES
  if retries < 0 or retries % 1 ~= 0 then
    return nil, errors.new { kind = "InvalidArgument", op = "open", message = "retries: a whole number is needed" }
  end
  local self = setmetatable({
    domain = domain,
    origin = origin,
    prefix = prefix,
    api_key = as_secret(options.api_key),
    access_token = as_secret(options.access_token),
    team = options.team,
    headers = options.headers or {},
    limit = limit,
    retries = retries,
    sandbox_url = options.sandbox_url,
    proxy = options.proxy ~= "environment" and as_secret(options.proxy) or nil,
    asks_environment = options.proxy == "environment",
    ca_file = options.ca_file,
    transport = options.transport,
    injected = options.transport ~= nil,
    random = options.random,
  }, Client)
  if not self.transport then
    local proxy
    proxy, err = self:proxy_for(origin)
    if err then
      return nil, err
    end
    self.transport = over_http { origin = origin, proxy = proxy, ca_file = options.ca_file }
  end
  return self
end

--- The proxy on the way to an origin, or nil; nil and an error where the environment names nonsense.
function Client:proxy_for(origin)
  if not self.asks_environment then
    return self.proxy
  end
  local url = require("sandbar.e2b.proxies").of(origin, os.getenv)
  local ok, err = address.check_proxy(url)
  if not ok then
    return nil, err
  end
  return as_secret(url)
end

--- What ids, tokens and names are that nobody has chosen: a UUID v4, of the bytes of the program's own source where it
--- has given one.
function Client:uuid()
  if not self.random then
    return core.uuid()
  end
  local bytes = self.random(16)
  if type(bytes) ~= "string" or #bytes ~= 16 then
    error("option 'random': of random(16) a string of 16 bytes is due", 0)
  end
  local hex = bytes:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end)
  local variant = ("89ab"):sub(bytes:byte(9) % 4 + 1, bytes:byte(9) % 4 + 1)
  return ("%s-%s-4%s-%s%s-%s"):format(hex:sub(1, 8), hex:sub(9, 12), hex:sub(14, 16), variant, hex:sub(18, 20),
    hex:sub(21))
end

-- Between 0 and 1: programs that began together do not ask again together.
function Client:chance()
  return tonumber(self:uuid():sub(1, 8), 16) / 0xffffffff
end

-- ---- one call ----

--- The header lines of every request, as pairs. `user`: with the user's token instead of the key, for what concerns
--- keys.
function Client:lines(user)
  local lines = {}
  for name, value in pairs(self.headers) do
    lines[#lines + 1] = { name, value }
  end
  lines[#lines + 1] = { "User-Agent", AGENT }
  lines[#lines + 1] = { "Accept", "application/json" }
  if user then
    lines[#lines + 1] = { "Authorization", self.access_token:prefixed("Bearer ") }
    lines[#lines + 1] = { "X-Team-ID", self.team }
  else
    lines[#lines + 1] = { "X-API-Key", self.api_key }
  end
  return lines
end

function Client:target(path, query)
  return self.prefix .. path .. address.query(query or {})
end

--- What undoes something that is about to be made, and its release (http.recipe, without port and headers). Nil and an
--- error; nil alone where a transport is injected, which has no port. `user`: as above.
function Client:recipe(fields, user)
  if self.injected then
    return nil
  end
  local port, err = self.transport:origin()
  if not port then
    return nil, err
  end
  fields.headers = self:lines(user)
  return require("sandbar.http").recipe(port, fields)
end

-- What is null is not there.
local function without_null(value)
  for key, item in pairs(value) do
    if item == json.null then
      value[key] = nil
    elseif type(item) == "table" then
      without_null(item)
    end
  end
  return value
end

-- The JSON that was due: a list of objects where the call is for one, else an object; nil for anything else.
local function decoded(text, array)
  local value = text:find(array and "^%s*%[" or "^%s*{") and json.decode(text)
  if type(value) ~= "table" then
    return nil
  end
  for i = 1, array and #value or 0 do
    if type(value[i]) ~= "table" or value[i] == json.null then
      return nil
    end
  end
  return without_null(value)
end

-- What of an answer counts: the decoded value (true without one), or nil and an error.
local function judge(answer, call)
  if answer.status < 200 or answer.status >= 300 then
    return nil, answers.of_answer(answer, call.op, call.id and { id = call.id }, call.kinds)
  end
  local text = answer.body or ""
  if text == "" and not call.array then
    return true
  end
  local value = decoded(text, call.array)
  if not value then
    return nil, answers.of_nonsense(answer, call.op, call.id and { id = call.id })
  end
  return value
end

-- May a call that has failed with `err` be made again?
local function again(err, call)
  if err.kind == "RateLimited" then
    return err.retry_after ~= nil -- a quota that says nothing of when is not asked again
  elseif err.status == nil then -- no answer
    return err.kind == "Unavailable" or call.repeatable and (err.kind == "Protocol" or err.kind == "OutcomeUnknown")
  end
  return call.repeatable and (err.status >= 500 and err.status ~= 501 or err.status == 408)
end

-- Nothing says that what was asked for has not happened.
local function is_open(err, call)
  return not call.repeatable and (err.kind == "OutcomeUnknown" or err.kind == "Timeout" or err.kind == "Cancelled"
    or err.kind == "Protocol" or err.foreign and err.status >= 500)
end

local function attempt(self, call, request, left)
  local answer, err = self.transport:request(request, left, call.op)
  if not answer then
    return nil, errors.from(err, call.op, call.id and { id = call.id })
  end
  local value
  value, err = judge(answer, call)
  return value, err, answer
end

--- `call`: op (the name of the caller's method), method, path, query, body, timeout, id (for errors), kinds (by
--- status), repeatable (it may be carried out twice), slow, user, array (a list is due, else an object or nothing). The
--- decoded answer (true: there is none) and the answer; or nil, an error, nil, and whether it may have been carried out
--- all the same.
function Client:call(call)
  local ok, early = wait.check(call.op)
  if not ok then
    return nil, early
  end
  local limit, clock = call.timeout, "timeout"
  local own = self.limit and (call.slow and math.max(self.limit, SLOW_TIMEOUT) or self.limit)
  if own and (not limit or own < limit) then
    limit, clock = own, "request_timeout"
  end
  local deadline = link.deadline(limit)
  local lines = self:lines(call.user)
  local text
  if call.body then
    text = body.encode(call.body)
    lines[#lines + 1] = { "Content-Type", "application/json" }
  end
  local request = {
    method = call.method, path = self:target(call.path, call.query), headers = lines, body = text, max_body = MAX_BODY,
    repeatable = call.repeatable or nil,
  }
  local pause, tries, open = PAUSE_FIRST, 0, false
  while true do
    local value, err, answer = attempt(self, call, request, link.left(deadline))
    if value then
      return value, answer
    end
    open = open or is_open(err, call)
    if err.kind == "Timeout" and err.clock == "timeout" and err.status == nil then
      return nil, errors.from(wait.timed_out(call.op, clock, limit), call.op, call.id and { id = call.id }), nil, open
    end
    local nap = err.retry_after and err.retry_after + self:chance() * PAUSE_FIRST or pause * (0.5 + self:chance() / 2)
    if tries >= self.retries or not again(err, call) or deadline and nap >= link.left(deadline) then
      return nil, err, nil, open
    end
    tries, pause = tries + 1, math.min(pause * 2, PAUSE_MOST)
    ok, early = wait.sleep(nap)
    if not ok then
      return nil, errors.from(early, call.op), nil, open
    end
  end
end

--- `fn(item)` of every item of every page of the list at `path`: true, or nil and an error.
function Client:pages(op, path, timeout, fn)
  local deadline, after = link.deadline(timeout), nil
  repeat
    local page, answer = self:call {
      op = op, method = "GET", path = path, timeout = link.left(deadline), repeatable = true, array = true,
      query = { { "limit", PAGE }, after and { "nextToken", after } or nil },
    }
    if not page then
      return nil, link.told(answer, timeout)
    end
    for _, item in ipairs(page) do
      fn(item)
    end
    local more = answer.headers["x-next-token"]
    after = more ~= "" and more ~= after and more or nil
  until not after
  return true
end

return client
