-- A proxy that spoils what goes between a client and a server at a byte of one's choice (fault_proxy.py).

local helper = require "spec.helper"

local http = require "sandbar.http"
local json = require "sandbar.json"
local sandbar = require "sandbar"

local PROGRAM = (os.getenv("SPEC_TREE") or ".") .. "/spec/support/fault_proxy.py"

local proxy = {}

local Proxy = {}
Proxy.__index = Proxy

--- In front of the server with this URL: { url, stop() } and what is below.
function proxy.start(url)
  local pipe = assert(io.popen(("exec python3 %s %s"):format(helper.quote(PROGRAM), url:match(":(%d+)$")), "r"))
  local port, pid = assert(pipe:read("*l")):match("(%d+) (%d+)")
  local self = setmetatable({ pipe = pipe, pid = pid, url = "http://127.0.0.1:" .. port }, Proxy)
  self.client = http.client { url = self.url }
  return self
end

local function ask(self, request)
  request.repeatable = true
  local answer = sandbar.assert(http.request(self.client, request, 10, "proxy"))
  assert(answer.status == 200)
  return answer.body
end

--- What is to be spoiled from now on, as the program has it; nothing by default.
function Proxy:faults(list)
  local texts = {}
  for i, fault in ipairs(list or {}) do
    texts[i] = json.encode(fault)
  end
  ask(self, { method = "POST", path = "/_faults", body = "[" .. table.concat(texts, ",") .. "]" })
end

--- The requests since the last look.
function Proxy:log()
  return assert(json.decode(ask(self, { path = "/_log" })))
end

function Proxy:stop()
  self.client:close()
  helper.shell("kill -9 " .. self.pid)
  self.pipe:close()
end

return proxy
