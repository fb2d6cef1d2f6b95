-- `prepare`: what is done in a new sandbox with network, before its policy holds and before anybody has it.
-- check: only 5.4
-- check: no asan

local helper = require "spec.helper"

local sandbar = require "sandbar"

describe("prepare", function()
  helper.guard()

  local sandboxes = helper.open()

  local function refused(kind, _, err)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  local function none_left()
    assert.same({}, sandbar.assert(sandboxes:list()))
  end

  it("runs with network, then the policy holds", function()
    local policies = { false, "allow", { allow = { "192.0.2.0/24" } } }
    for i, policy in ipairs(policies) do
      local seen, owned
      local box = sandbar.assert(sandboxes:create {
        network = policy or nil, labels = { i = tostring(i) },
        prepare = function(b)
          seen, owned = sandbar.assert(b:info()).network, b.owned
          return b.files:write("/tmp/prepared", "yes")
        end,
      })
      assert.equal("allow", seen)
      assert.is_true(owned)
      assert.equal("yes", sandbar.assert(box.files:read "/tmp/prepared"))
      local info = sandbar.assert(box:info())
      assert.same(policy or "deny", type(policy) == "table" and { allow = info.network.allow } or info.network)
      assert.same({ false, false, "pause_disk", tostring(i) }, { box.owned, info.owned, info.on_expiry, info.labels.i })
      sandbar.assert(box:destroy())
    end
  end)

  it("as a list of commands runs one after the other; a scoped sandbox stays scoped", function()
    sandbar.scope(function(scope)
      local box = sandbar.assert(sandboxes:create_scoped({
        prepare = { "echo 1 > /tmp/list", { "sh", "-c", "echo \"$1\" >> /tmp/list", "sh", "2" } },
      }, scope))
      assert.equal("1\n2\n", sandbar.assert(box.files:read "/tmp/list"))
      assert.is_true(box.owned)
    end)
    none_left()
  end)

  it("that fails, raises, takes too long or is cancelled leaves no sandbox", function()
    local err = refused("CommandFailed", sandboxes:create { prepare = { "true", "echo why >&2; exit 4" } })
    assert.equal(4, err.result.exit_code)
    assert.equal("command 2 of prepare exited with 4: why", err.message)
    err = refused("CommandFailed", sandboxes:create { prepare = { "false" } })
    assert.equal("command 1 of prepare exited with 1", err.message) -- once with an empty colon
    none_left()
    err = refused("CommandFailed", sandboxes:create { prepare = function() return nil, "not today" end })
    assert.is_truthy(err.message:find("not today", 1, true))
    none_left()
    local ok, raised = pcall(sandboxes.create, sandboxes, { prepare = function() error("broken", 0) end })
    assert.same({ false, "broken" }, { ok, raised })
    none_left()
    refused("Timeout", sandboxes:create({ prepare = { "sleep 1000" } }, { timeout = 0.5 }))
    none_left()
    sandbar.run(function()
      local inside = false
      local task = sandbar.spawn(function()
        return sandboxes:create { prepare = function(b)
          inside = true
          return b:exec "sleep 1000"
        end }
      end)
      while not inside do
        sandbar.sleep(0.01)
      end
      task:cancel "enough"
      refused("Cancelled", task:wait())
    end)
    none_left()
    assert.is_false(pcall(sandboxes.create, sandboxes, { prepare = { 1 } }))
  end)

  it("whose program is killed leaves no sandbox, though it was to outlive the program", function()
    local p = helper.start_lua(([[
      local sandbar = require "sandbar"
      sandbar.open({ root = %q, linger = 0 }):create { prepare = function(b)
        print("go") io.stdout:flush()
        return b:exec "sleep 1000"
      end }
    ]]):format(helper.root()))
    assert.equal("go", p:line())
    assert.equal(1, #sandbar.assert(sandboxes:list()))
    p:signal "KILL"
    p:wait()
    assert.is_truthy(helper.eventually(function()
      return #sandbar.assert(sandboxes:list()) == 0
    end))
  end)
end)
