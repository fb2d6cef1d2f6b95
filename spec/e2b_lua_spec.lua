-- check: no user
-- The E2B provider's control plane on every Lua: one life with everything in it. What it does in detail is in
-- e2b_control_spec and e2b_faults_spec.

local helper = require "spec.helper"

local planes = require "spec.support.control_plane"
local sandbar = require "sandbar"

local assert_ok = sandbar.assert

describe("the control plane of E2B on this Lua", function()
  local plane, boxes

  planes.suite(function(started)
    plane, boxes = started, started and started:open { access_token = planes.TOKEN, team = "t" }
  end)

  it("lives a life, blocking and in tasks", function()
    local function life(id)
      local box = assert_ok(boxes:create { id = id, lifetime = 60, labels = { ["ä=&"] = "%" }, on_expiry = "pause",
        env = { A = sandbar.secret("hidden"), B = "1" }, network = { allow = { "example.com" } } })
      assert.equal("memory", assert_ok(box:pause()))
      assert.same({ ["ä=&"] = "%" }, assert_ok(boxes:info(id)).labels)
      assert_ok(box:resume())
      assert_ok(box:set_lifetime(30))
      assert.equal(12.5, assert_ok(box:metrics()).cpu_percent)
      assert.equal("up", assert_ok(boxes:logs(id))[1].message)
      local copies = assert_ok(box:fork(2))
      assert_ok(box:update_network("deny"))
      local _, err = boxes:create { id = id }
      assert.equal("AlreadyExists", err.kind)
      for _, copy in ipairs(copies) do
        assert_ok(copy:destroy())
      end
      assert_ok(box:destroy())
    end
    life("one")
    sandbar.run(function()
      assert_ok(sandbar.all { function() life("two") return true end, function() life("three") return true end })
    end)
    local seen = 0
    for _ in boxes:each { page_size = 1 } do
      seen = seen + 1
    end
    assert.equal(0, seen)
  end)

  it("releases what scopes and lost handles own", function()
    sandbar.scope(function(scope)
      assert_ok(boxes:create_scoped({ lifetime = 60 }, scope))
      assert_ok(boxes.keys:create_scoped({ name = "own" }, scope))
      assert.equal(1, #boxes:list())
    end)
    assert.equal(0, #boxes:list())
    assert.equal(0, #boxes.keys:list())
    assert_ok(boxes:create_scoped { lifetime = 60 })
    assert(helper.eventually(function()
      collectgarbage()
      return #boxes:list() == 0
    end))
  end)

  it("builds templates", function()
    local path = helper.scratch() .. "/file"
    helper.write_file(path, ("x"):rep(70000))
    assert_ok(boxes.templates:build { name = "t", steps = { { run = "true" }, { copy = path, to = "/f" } } })
    for _, request in ipairs(plane:log()) do
      if request.path:find("^/upload/") then
        assert.equal(70000, #request.body[1].text)
      end
    end
    helper.remove(path)
  end)

  it("finds a create whose answer was lost", function()
    plane:faults { { method = "POST", path = "^/v2/sandboxes$", ["do"] = "lose" } }
    assert_ok(assert_ok(boxes:create { lifetime = 60 }):destroy())
  end)
end)
