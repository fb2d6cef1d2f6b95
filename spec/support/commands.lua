-- A plain client of a `sandbar serve` for its commands: streams that are read event by event, in one or the other codec.

local http = require "sandbar.http"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"
local stream = require "sandbar.stream"

local commands = {}

local PATIENCE = 30

local Events = {}
Events.__index = Events

--- The next event, or nil and the payload of the end of the stream.
function Events:next()
  while true do
    local flags, payload = self.parser:next()
    if flags == message.END then
      return nil, payload
    elseif flags then
      return assert(message.decode("process.StartResponse", payload, self.codec)).event
    end
    self.parser:feed(assert(stream.some(self.body, PATIENCE)))
  end
end

--- Output until `count` bytes of it have come, or to the end: the bytes, and the end event.
function Events:output(count)
  local pieces, have = {}, 0
  while not count or have < count do
    local event = self:next()
    if not event or event["end"] then
      return table.concat(pieces), event and event["end"]
    end
    local data = event.data and (event.data.stdout or event.data.stderr or event.data.pty) or ""
    pieces[#pieces + 1], have = data, have + #data
  end
  return table.concat(pieces)
end

function Events:close()
  self.body:close()
end

local Client = {}
Client.__index = Client

--- A client with a sandbox of its own. Its field `ping`: seconds between signs of life, where it is to have any.
function commands.client(server)
  local self = setmetatable({ port = http.port { port = tonumber(server.url:match(":(%d+)$")) } }, Client)
  local answer = assert(http.request(self.port, { method = "POST", path = "/v2/sandboxes",
    body = '{"templateID":"base","timeout":600}', headers = { ["x-api-key"] = server.key, host = "localhost" } }, PATIENCE,
    "create"))
  assert(answer.status == 201, answer.body)
  local made = json.decode(answer.body)
  self.id = made.sandboxID
  self.headers = { ["e2b-sandbox-id"] = made.sandboxID, ["e2b-sandbox-port"] = "49983",
    ["x-access-token"] = made.envdAccessToken, host = "localhost" }
  return self
end

function Client:close()
  self.port:close()
end

--- A request to the sandbox's daemon.
function Client:ask(method, path, body, headers)
  local all = {}
  for _, list in ipairs { self.headers, headers or {} } do
    for name, value in pairs(list) do
      all[name] = value
    end
  end
  return assert(http.request(self.port, { method = method, path = path, body = body, headers = all }, PATIENCE, "ask"))
end

local function open(self, method, request, codec)
  codec = codec or "json"
  local headers = { ["content-type"] = "application/connect+" .. codec, ["keepalive-ping-interval"] = self.ping }
  for name, value in pairs(self.headers) do
    headers[name] = value
  end
  local body = assert(message.encode(("process.%sRequest"):format(method), request, codec))
  local answer = assert(http.request(self.port, { method = "POST", path = "/process.Process/" .. method, stream = true,
    body = message.envelope(0, body), headers = headers }, PATIENCE, "ask"))
  assert(answer.status == 200)
  local events = setmetatable({ body = answer.body, parser = message.parser(), codec = codec }, Events)
  local first, failure = events:next()
  events.pid = assert(first, failure).start.pid
  return events
end

--- A command of a shell; `input`: with an stdin.
function Client:start(line, codec, input)
  return open(self, "Start", { process = { cmd = "/bin/sh", args = { "-c", line } }, stdin = input or false }, codec)
end

function Client:connect(pid, codec)
  return open(self, "Connect", { process = { pid = pid } }, codec)
end

local function unary(self, method, request)
  local answer = self:ask("POST", "/process.Process/" .. method, assert(message.encode(
    ("process.%sRequest"):format(method), request, "json")), { ["content-type"] = "application/json" })
  assert(answer.status == 200, answer.body)
end

function Client:input(pid, data)
  unary(self, "SendInput", { process = { pid = pid }, input = { stdin = data } })
end

function Client:end_input(pid)
  unary(self, "CloseStdin", { process = { pid = pid } })
end

--- A command from its start to its end: what it wrote, and how it ended.
function Client:run(line, codec)
  local events = self:start(line, codec)
  local out, ended = events:output()
  local _, last = events:next()
  events:close()
  assert(last == "{}", last)
  return out, ended
end

return commands
