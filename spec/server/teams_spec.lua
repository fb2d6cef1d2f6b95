-- check: no asan
-- check: no user
-- Metrics of a team: over a provider that has as many sandboxes as the spec says, and a clock that is moved on.

local helper = require "spec.helper"
helper.guard()

local boxes = require "sandbar.server.boxes"
local core = require "sandbar.core"
local sandbar = require "sandbar"
local teams = require "sandbar.server.control.teams"

local ID = "11111111-2222-4333-8444-555555555555"

describe("a team's metrics", function()
  local server, running

  before_each(function()
    running = { one = 2, two = 5 }
    local provider = {}
    function provider:list(filter) -- luacheck: ignore 212
      assert.equal("running", filter.state)
      local out = {}
      for i = 1, running[filter.labels[boxes.PREFIX .. "team"]] do
        out[i] = {}
      end
      return out
    end
    server = { provider = provider, boxes = boxes.new(provider, "seed") }
  end)
  after_each(function()
    teams.stop(server)
    for _, history in pairs(server.histories or {}) do
      history.task:wait()
    end
  end)

  local function ask(route, query, team)
    return teams.routes["GET /teams/{team}/" .. route] {
      server = server, query = query or {}, team = "one", team_id = ID, params = { team = team or ID },
    }
  end

  -- Moves the clock on until there are so many samples.
  local function until_there_are(count)
    assert.truthy(helper.eventually(function()
      local _, list = ask("metrics")
      if #list < count then
        core.advance(15)
        sandbar.sleep(0)
      end
      return #list >= count
    end))
  end

  it("are there at the first question, and go on from then", function()
    server.boxes.began = core.wall() + 1000 -- so that the time until the question does not matter
    server.boxes:count("one")
    server.boxes:count("two")
    local status, list = ask("metrics")
    assert.equal(200, status)
    assert.equal(1, #list)
    assert.equal(2, list[1].concurrentSandboxes)
    assert.equal(1, list[1].sandboxStartRate)
    assert.equal(list[1].timestampUnix, math.floor(require("sandbar.server.stamp").seconds(list[1].timestamp)))
    running.one = 7
    until_there_are(2)
    running.one = 3
    until_there_are(3)
    local _, most = ask("metrics/max", { metric = "concurrent_sandboxes" })
    assert.equal(7, most.value)
    _, most = ask("metrics/max", { metric = "sandbox_start_rate" })
    assert.equal(1, most.value)
  end)

  it("are those of a time, of one's own team", function()
    local _, list = ask("metrics")
    local at = ("%d"):format(list[1].timestampUnix)
    for query, count in pairs { [{ start = at }] = 1, [{ ["end"] = at }] = 1, [{ start = at .. "0" }] = 0,
      [{ ["end"] = "1" }] = 0 } do
      assert.equal(count, #select(2, ask("metrics", query)))
    end
    assert.equal(0, select(2, ask("metrics/max", { metric = "concurrent_sandboxes", ["end"] = "1" })).value)
    local function refused(status, ...)
      local none, refusal = ask(...)
      assert.is_nil(none)
      assert.equal(status, refusal.status)
    end
    refused(400, "metrics/max", {})
    refused(400, "metrics/max", { metric = "other" })
    refused(400, "metrics", { start = "now" })
    refused(400, "metrics", {}, "one")
    refused(403, "metrics", {}, (ID:gsub("1", "2")))
  end)

  it("end when nobody has asked for an hour", function()
    ask("metrics")
    local history = server.histories.one
    assert.truthy(helper.eventually(function()
      core.advance(3700)
      sandbar.sleep(0)
      return history.task.state ~= "running"
    end))
    assert.same({}, server.histories)
  end)
end)
