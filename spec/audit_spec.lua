local helper = require "spec.helper"

local sandbar = require "sandbar"

describe("sandbar.audit", function()
  helper.guard()

  local sandboxes = helper.open()
  local events

  before_each(function()
    events = {}
    sandbar.assert(sandbar.audit { fn = function(event)
      events[#events + 1] = event
    end })
  end)

  after_each(function()
    sandbar.assert(sandbar.audit { fn = false })
  end)

  local function told()
    local out = {}
    for i, e in ipairs(events) do
      out[i] = ("%s %s %s"):format(e.event, e.what, e.op or e.name)
    end
    return out
  end

  it("tells acquisitions and releases in their order", function()
    sandbar.scope(function(scope)
      local box = sandbar.assert(sandboxes:create_scoped({ id = "seen" }, scope))
      sandbar.assert(box:start { "sleep", "60" })
    end)
    assert.same({
      "acquire sandbox create_scoped", "acquire process start", "release process close", "release sandbox close",
    }, told())
    for _, e in ipairs(events) do
      assert.equal("seen", e.id)
      assert.is_true(e.time > 1e9)
    end
  end)

  it("tells refusals with their clause", function()
    local _, err = sandboxes:create { network = "allow" }
    assert.equal("Unsupported", err.kind)
    assert.same({ "refuse sandbox create" }, told())
    assert.equal("network", events[1].clause)
  end)

  it("tells where a secret was used, and never what it is", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    sandbar.assert(box:exec("true", { env = { KEY = sandbar.secret("tell nobody") } }))
    box:close()
    local seen = false
    for _, e in ipairs(events) do
      seen = seen or e.event == "secret" and e.name == "KEY"
      for _, value in pairs(e) do
        assert.is_nil(tostring(value):find("tell nobody", 1, true))
      end
    end
    assert.is_true(seen)
  end)
end)
