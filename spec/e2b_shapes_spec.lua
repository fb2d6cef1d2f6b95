-- check: only 5.4
-- check: no asan
-- Answers of a control plane that are JSON and of another shape than is due (known faults B37 and B50): no call raises, and
-- null is never a value.

local compat = require "sandbar.compat"
local headers = require "sandbar.headers"
local json = require "sandbar.json"
local sandbar = require "sandbar"

local TIME = "2026-09-01T10:00:00Z"

local function array(...)
  return json.array { ... }
end

-- What the calls of `CALLS` are answered with, by the target that they ask for.
local SERVED = {
  ["^/v2/sandboxes%?"] = "boxes", ["^/sandboxes/iabc$"] = "box", ["/logs%?"] = "logs", ["^/snapshots"] = "snapshots",
  ["^/v2/templates"] = "templates", ["/tags$"] = "tags", ["/status%?logsOffset=0"] = "status", ["/status%?logsOffset=1"] = "over",
  ["^/api%-keys"] = "keys",
}

local function answers()
  local box = { sandboxID = "iabc", alias = "base", state = "running", startedAt = TIME, endAt = TIME,
    envdVersion = "0.6.13", lifecycle = { onTimeout = "kill" },
    metadata = { ["sandbar-provider"] = "e2b", ["sandbar-id"] = "x", ["sandbar-cwd"] = "/tmp", label = "1" },
    network = { allowOut = array("a.b"), denyOut = array("0.0.0.0/0"),
      rules = { ["a.b"] = array { transform = { headers = { A = "b" } } } } } }
  local line = { timestamp = TIME, message = "m", level = "info", step = "1", fields = { a = "b" } }
  return {
    box = box, boxes = array(box), logs = { logs = array(line) },
    snapshots = array { snapshotID = "s:default", names = array("s") },
    templates = array { templateID = "t", names = array("n"), createdAt = TIME, cpuCount = 1, memoryMB = 512 },
    tags = array { tag = "a", buildID = "b", createdAt = TIME },
    status = { status = "building", logEntries = array(line) },
    over = { status = "error", reason = { message = "m", step = "1" }, logEntries = array() },
    keys = array { id = "k", name = "n", createdAt = TIME, mask = { prefix = "e2b_", maskedValuePrefix = "aa" } },
  }
end

-- Every way into a value, as lists of keys.
local function paths(value, path, out)
  for key, item in pairs(type(value) == "table" and value or {}) do
    local at = { compat.unpack(path) }
    at[#at + 1] = key
    out[#out + 1] = at
    paths(item, at, out)
  end
  return out
end

local function has_null(value)
  if value == json.null then
    return true
  end
  for _, item in pairs(type(value) == "table" and value or {}) do
    if has_null(item) then
      return true
    end
  end
  return false
end

describe("the control plane of E2B with answers of another shape", function()
  local wrong, asked

  local transport = {}

  function transport.request(_, request)
    local answer = { status = 201, reason = "", headers = headers.new {}, body = "" }
    if request.path == "/v3/templates" then
      answer.body = '{"templateID":"t","buildID":"b"}'
    elseif request.path == "/v2/sandboxes" then
      answer.body = '{"sandboxID":"icopy"}'
    elseif request.method == "POST" then
      answer.body = '{"snapshotID":"s:default"}'
    end
    for pattern, name in pairs(request.method == "GET" and SERVED or {}) do
      if request.path:find(pattern) then
        local all = answers()
        asked[name] = true
        local at, path = all, wrong or { name }
        for i = 1, #path - 1 do
          at = at[path[i]]
        end
        if wrong then
          at[path[#path]] = wrong.value
        end
        answer.body = json.encode(all[name])
      end
    end
    return answer
  end

  local CALLS = {
    list = function(provider) return provider:list() end,
    info = function(provider) return provider:info "x" end,
    logs = function(provider) return provider:logs "x" end,
    snapshots = function(provider) return provider.snapshots:list() end,
    templates = function(provider) return provider.templates:list() end,
    tags = function(provider) return provider.templates:tags "n" end,
    keys = function(provider) return provider.keys:list() end,
    fork = function(provider)
      local box, err = provider:connect "x"
      return box and box:fork(1), err
    end,
    build = function(provider)
      local heard = {}
      local _, err = provider.templates:build { name = "n", steps = { { run = "x" } }, timeout = 0.05,
        on_progress = function(event) heard[#heard + 1] = event end }
      return heard, err
    end,
  }

  local function call(name)
    asked = {}
    local provider = sandbar.assert(sandbar.open { provider = "e2b", api_key = "a key", access_token = "a token", team = "t",
      transport = transport, retries = 0 })
    return pcall(CALLS[name], provider)
  end

  for name in pairs(CALLS) do
    it(name .. " raised an error, or gave what is not there as a value", function()
      wrong = nil
      assert.is_true(call(name))
      local concerned = asked
      for _, path in ipairs(paths(answers(), {}, {})) do
        for _, value in ipairs(concerned[path[1]] and { json.null, 7, "zz", array(7), { a = 7 }, true } or {}) do
          wrong = path
          wrong.value = value
          local ok, told = call(name)
          local where = ("%s = %s: %s"):format(table.concat(path, "."), tostring(value), tostring(told))
          assert.is_true(ok, where)
          assert.is_false(has_null(told), where)
        end
      end
    end)
  end
end)
