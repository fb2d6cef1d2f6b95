-- The canned control plane of the specs (control_plane.py), and providers that speak to it over real sockets.

local busted = require "busted"
local helper = require "spec.helper"

local body = require "sandbar.e2b.body"
local json = require "sandbar.json"
local sandbar = require "sandbar"

local PROGRAM = (os.getenv("SPEC_TREE") or ".") .. "/spec/support/control_plane.py"

local plane = { KEY = "e2b_" .. ("5a"):rep(20), TOKEN = "sk_e2b_" .. ("7b"):rep(20) }

local Plane = {}
Plane.__index = Plane

function plane.start(arguments)
  local pipe = assert(io.popen(("exec python3 %s %s"):format(helper.quote(PROGRAM), arguments or ""), "r"))
  local port, pid = assert(pipe:read("*l")):match("(%d+) (%d+)")
  local http = require "sandbar.http"
  local self = setmetatable({ pipe = pipe, port = tonumber(port), pid = pid, http = http }, Plane)
  self.url = "http://127.0.0.1:" .. port
  self.client = http.client { url = self.url }
  return self
end

function Plane:stop()
  self.client:close()
  helper.shell("kill -9 " .. self.pid)
  self.pipe:close()
end

--- What it is to do instead of what it is asked for, from now on; nothing by default.
function Plane:faults(list)
  local answer = sandbar.assert(self.http.request(self.client,
    { method = "POST", path = "/_faults", repeatable = true, body = body.encode(body.list(list or {})) }, 10, "faults"))
  assert(answer.status == 204)
end

--- Every request since the last look: method, path, headers, body (decoded), text.
function Plane:log()
  local answer = sandbar.assert(self.http.request(self.client, { path = "/_log" }, 10, "log"))
  local out = assert(json.decode(answer.body))
  for _, request in ipairs(out) do
    request.text, request.body = request.body, request.body:find("^[{%[]") and assert(json.decode(request.body)) or nil
  end
  return out
end

--- The same as lines "METHOD path", without queries.
function Plane:calls()
  local out = {}
  for i, request in ipairs(self:log()) do
    out[i] = request.method .. " " .. request.path:gsub("%?.*", "")
  end
  return out
end

function Plane:options(more)
  local options = { api_key = plane.KEY, api_url = self.url }
  for key, value in pairs(more or {}) do
    options[key] = value
  end
  return options
end

function Plane:open(more)
  return sandbar.assert(require("sandbar.e2b.provider").open(self:options(more), 2))
end

--- A plane for the suite that this is called in, as new before each test: nothing there, no faults, an empty log. `use`
--- is called with it when it is there, and with nil when it is to be let go.
function plane.suite(use)
  local self, boxes

  busted.setup(function()
    self = plane.start()
    boxes = self:open()
    use(self)
  end)

  helper.guard { growth = 24 }

  busted.teardown(function()
    boxes = nil
    use(nil)
    collectgarbage()
    collectgarbage()
    self:stop()
  end)

  busted.before_each(function()
    self:faults {}
    for info in boxes:each() do
      boxes:destroy(info.provider_id)
    end
    self:log()
  end)
end

return plane
