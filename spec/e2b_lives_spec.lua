-- check: only 5.4
-- check: no user
-- check: no asan
-- Lives of sandboxes at a control plane (support/control_plane.py): what is prepared, what is never done by itself, what
-- takes long or is given up. Row ids are those of docs/requirements.md.

local helper = require "spec.helper"

local core = require "sandbar.core"
local planes = require "spec.support.control_plane"
local sandbar = require "sandbar"

local assert_ok, kind = sandbar.assert, helper.kind

describe("a life at the control plane of E2B", function()
  local plane, boxes

  planes.suite(function(started)
    plane, boxes = started, started and started:open()
  end)

  -- Until the plane was asked for this.
  local function asked(path)
    assert(helper.eventually(function()
      sandbar.sleep(0)
      for _, call in ipairs(plane:calls()) do
        if call:find(path) then
          return true
        end
      end
    end), path)
  end

  it("A-37: prepare has network, then the policy holds", function()
    local before
    local box = assert_ok(boxes:create { network = { allow = { "example.com" } }, prepare = function(b)
      before = assert_ok(b:info()).network
      return true
    end })
    assert.equal("allow", before)
    assert.same({ "example.com" }, assert_ok(box:info()).network.allow)
    assert.is_false(box.owned)
    box = assert_ok(boxes:create { prepare = function() return true end })
    assert.equal("deny", assert_ok(box:info()).network)
  end)

  it("A-38: prepare that fails or raises, or whose policy is refused, takes its sandbox with it", function()
    kind("CommandFailed", boxes:create { prepare = function() return nil, "not today" end })
    assert.equal(0, #boxes:list())
    assert.is_false(pcall(boxes.create, boxes, { prepare = function() error("broken", 0) end }))
    assert.equal(0, #boxes:list())
    plane:faults { { method = "PUT", path = "/network$", ["do"] = "status", status = 403 } }
    kind("PermissionDenied", boxes:create { prepare = function() return true end })
    assert.equal(0, #boxes:list())
  end)

  it("A-39: prepare that is cancelled, or has no more time, takes its sandbox with it", function()
    sandbar.run(function()
      local inside = false
      local task = sandbar.spawn(function()
        return boxes:create { prepare = function()
          inside = true
          return sandbar.sleep(60)
        end }
      end)
      while not inside do
        sandbar.sleep(0)
      end
      assert.equal(1, #boxes:list())
      task:cancel "enough"
      kind("Cancelled", task:wait { timeout = 20 })
    end)
    assert.equal(0, #boxes:list())
  end)

  it("A-35: nothing renews a lifetime, nor asks for anything, by itself", function()
    sandbar.scope(function(scope)
      local box = assert_ok(boxes:create_scoped({ lifetime = 3600 }, scope))
      local ends_at = box.ends_at
      plane:log()
      for _ = 1, 20 do
        core.advance(300)
        sandbar.sleep(0.01)
      end
      assert.same({}, plane:calls())
      assert.equal(math.floor(ends_at), math.floor(assert_ok(box:info()).ends_at))
    end)
  end)

  it("A-111: a refused pause to disk is an error, and no other kind is taken instead", function()
    local box = assert_ok(plane:open({ retries = 0 }):create { lifetime = 60 })
    plane:faults { { path = "/pause$", ["do"] = "status", status = 503 } }
    plane:log()
    kind("Busy", box:pause { keep = "disk" })
    local pauses = 0
    for _, request in ipairs(plane:log()) do
      if request.path:find("/pause$") then
        pauses = pauses + 1
        assert.is_false(request.body.memory)
      end
    end
    assert.equal(1, pauses)
    assert.equal("running", assert_ok(box:info()).state)
  end)

  it("B-01 P-13: a program binds its template once, a create may name another; without any it is base", function()
    local bound = plane:open { defaults = { template = "base:mine", lifetime = 77 } }
    assert_ok(bound:create {})
    assert_ok(bound:create { template = "base" })
    assert_ok(boxes:create {})
    local sent = {}
    for _, request in ipairs(plane:log()) do
      if request.method == "POST" then
        sent[#sent + 1] = { request.body.templateID, request.body.timeout }
      end
    end
    assert.same({ { "base:mine", 77 }, { "base", 77 }, { "base", 3600 } }, sent)
  end)

  it("P-19: a secret is no label", function()
    assert.has_error(function()
      boxes:create { labels = { token = core.secret "hidden-value" } }
    end)
    assert.same({}, plane:calls())
  end)

  it("P-45: a pause that takes long holds nobody up", function()
    sandbar.run(function()
      local box = assert_ok(boxes:create { id = "slow", lifetime = 60 })
      plane:faults { { path = "/pause$", ["do"] = "hold" } }
      local task = sandbar.spawn(function()
        return box:pause { timeout = 30 }
      end)
      asked("/pause$")
      local other = assert_ok(boxes:create { lifetime = 60 })
      assert_ok(other:pause())
      assert_ok(boxes:info("slow"))
      assert.equal("running", task.state)
      task:cancel()
      task:wait { timeout = 20 }
    end)
  end)

  it("P-47: a bound on the environment", function()
    local box = assert_ok(boxes:create { lifetime = 60, limits = { max_env = 100 } })
    plane:log()
    kind("LimitExceeded", box:exec("true", { env = { A = ("x"):rep(100) } }))
    kind("LimitExceeded", box:start("true", { env = { A = ("x"):rep(100) } }))
    assert.same({}, plane:calls())
  end)

  it("PS-15: a state that is none of the protocol's is failed, not running", function()
    local box = assert_ok(boxes:create { id = "odd", lifetime = 60 })
    plane:faults { { method = "GET", path = "/sandboxes/i", ["do"] = "status", status = 200, body = {
      sandboxID = box.provider_id, templateID = "t", state = "migrating", envdVersion = "0.6.13",
      startedAt = "2026-09-01T10:00:00Z", endAt = "2026-09-01T11:00:00Z",
      metadata = { ["sandbar-provider"] = "e2b", ["sandbar-id"] = "odd" },
    } } }
    assert.equal("failed", assert_ok(box:info()).state)
  end)

  it("PS-17: pauses and resumes can be cancelled", function()
    sandbar.run(function()
      for _, op in ipairs { "pause", "resume" } do
        local box = assert_ok(boxes:create { lifetime = 60 })
        if op == "resume" then
          assert_ok(box:pause())
        end
        plane:log()
        local path = op == "pause" and "/pause$" or "/connect$"
        plane:faults { { path = path, ["do"] = "hold" } }
        local task = sandbar.spawn(function()
          return box[op](box)
        end)
        asked(path)
        task:cancel "enough"
        kind("Cancelled", task:wait { timeout = 20 })
        assert.equal(op == "pause" and "paused" or "running", assert_ok(box:info()).state) -- it was done all the same
      end
    end)
  end)

  it("a program that ended in the middle of fork(n) left its snapshot", function()
    local box, go = assert_ok(boxes:create { lifetime = 60 }), helper.scratch() .. "/go"
    plane:faults { { method = "POST", path = "/snapshots$", ["do"] = "hold" } }
    local child = helper.start_lua(([[
      local sandbar = require "sandbar"
      local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
      local box = sandbar.assert(boxes:connect(%q))
      sandbar.run(function()
        sandbar.spawn(function() box:fork(1) end)
        repeat sandbar.sleep(0.02) until io.open(%q)
        os.exit(0)
      end)
    ]]):format(planes.KEY, plane.url, box.id, go))
    asked("^POST .*/snapshots$")
    assert.equal(1, #boxes.snapshots:list())
    helper.write_file(go, "")
    local ended = child:wait()
    assert.equal("", ended.stderr)
    assert.equal(0, #boxes.snapshots:list())
    os.remove(go)
  end)
end)
