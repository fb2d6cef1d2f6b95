-- A daemon of a hosted sandbox that says what it is told to, in this very program, and files that are reached by it.

local core = require "sandbar.core"
local filecall = require "sandbar.filecall"
local link = require "sandbar.e2b.link"
local message = require "sandbar.e2b.message"
local sandbar = require "sandbar"
local server = require "sandbar.server.http"
require "sandbar.files"

local daemon = {}

local STREAM, UNARY = { ["Content-Type"] = "application/connect+proto" }, { ["Content-Type"] = "application/proto" }

-- A stream of events: of a command, or of a watch.
local Stream = {}
Stream.__index = Stream

function Stream:send(value)
  return self.request:write(message.envelope(0, assert(message.encode(self.kind, value, "proto"))), 10)
end

function Stream:say(text)
  return self:send { event = { data = { stdout = text } } }
end

--- The end of a command, in order.
function Stream:finish(code)
  self:send { event = { ["end"] = { exitCode = code or 0, exited = true, status = "exit status " .. (code or 0) } } }
  return self:over "{}"
end

--- The end of the stream.
function Stream:over(json)
  self.request:write(message.envelope(message.END, json), 10)
  return self.request:finish()
end

function Stream:cut()
  return self.request:abort()
end

local function stream(request, kind)
  request:begin(200, STREAM)
  return setmetatable({ request = request, kind = kind }, Stream)
end

local function unescaped(text)
  return (text:gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

local handlers = {}

handlers["/process.Process/Start"] = function(self, request)
  local text = assert(request:read_all(1000000))
  local given = assert(message.decode("process.StartRequest", text:sub(6), "proto"))
  local args, fields = given.process.args, {}
  for i = 5, #args do
    local name, value = args[i]:match("^(%w+)=(.*)$")
    if name then
      fields[name] = unescaped(value)
    end
  end
  local answer, pid
  if args[2]:find("perl", 1, true) then -- not what ends another
    self.runs[#self.runs + 1] = args[4]
    answer, pid = self.answers[args[4]], 1000 + #self.runs
    self.listed[#self.listed + 1] = { pid = pid, config = given.process }
    if answer == daemon.UNTOLD then
      return request:abort()
    elseif type(answer) == "table" then
      return request:respond(answer[1], { ["Content-Type"] = answer[2] }, answer[3])
    end
  else
    self.killed[#self.killed + 1] = tonumber(args[5])
  end
  local out = stream(request, "process.StartResponse")
  out:send { event = { start = { pid = pid or self.command and 800 or 900 } } }
  if not pid and self.command then
    return self.command(out, given.process)
  end
  if type(answer) == "function" then
    return answer(out, fields)
  end
  out:say(answer or "+")
  out:finish()
end

handlers["/process.Process/List"] = function(self, request)
  request:read_all(1000000)
  self.late = self.late - 1
  local listed = self.late < 0 and self.listed or {}
  request:respond(200, UNARY, assert(message.encode("process.ListResponse", { processes = listed }, "proto")))
end

handlers["/process.Process/SendInput"] = function(self, request)
  local given = assert(message.decode("process.SendInputRequest", request:read_all(1000000), "proto"))
  if self.type_in then
    return self.type_in(request, given.input.stdin)
  end
  request:respond(200, UNARY, "")
  self.input(given.input.stdin)
end

handlers["/process.Process/CloseStdin"] = function(self, request)
  request:read_all(1000000)
  request:respond(200, UNARY, "")
  if self.end_input then
    self.end_input()
  end
end

handlers["/filesystem.Filesystem/WatchDir"] = function(self, request)
  request:read_all(1000000)
  self.watch(stream(request, "filesystem.WatchDirResponse"))
end

handlers["/files"] = function(self, request)
  self.files(request)
end

--- An answer: it has begun, and its stream is cut before it says so.
daemon.UNTOLD = {}

--- Starts one: { handle (of its files), link, runs (what was asked of workers, in order), listed (the workers as the list has
--- them), killed (the numbers of what was ended), late (how many lists show nothing yet), close() }. What it says: `answers` by the
--- worker's operation, a text, UNTOLD, { status, type, body } or a function of its stream and fields; `files`, a function of a request for contents;
--- `watch`, of the stream of a watch; `input`, of what is written to a worker; `command`, of the stream and configuration
--- of what is no worker; `type_in`, of the request that writes, which it answers, and what is written; `end_input`,
--- called when the end of an input was told.
function daemon.start()
  local listener = assert(server.listen { address = "127.0.0.1", port = 0 })
  local self = { answers = {}, runs = {}, listed = {}, killed = {}, late = 0, info = { state = { "running" } } }
  local port = listener:address().port
  local serving = sandbar.spawn(function()
    return server.serve(listener, function(request)
      local handler = handlers[request.target:match("^[^?]*")]
      if handler then
        return handler(self, request)
      end
      request:respond(404, {}, "")
    end)
  end)
  local to = link.new {
    id = "canned", limits = {},
    driver = {
      access = { vendor_id = "canned", domain = "e2b.app", daemon_token = core.secret "the-token" },
      client = { sandbox_url = ("http://127.0.0.1:%d"):format(port), proxy_for = function() end },
      info = function()
        return { fields = self.info }
      end,
    },
  }
  self.handle, self.link = filecall.new(to), to
  local before = core.outstanding()
  function self.close()
    to:close()
    local deadline = core.now() + 10
    while core.outstanding() > before and core.now() < deadline do -- what ends workers needs the daemon
      sandbar.sleep(0.005)
    end
    listener:close()
    serving:cancel()
    serving:wait()
  end
  return self
end

return daemon
