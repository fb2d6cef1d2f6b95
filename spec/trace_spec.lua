-- SANDBAR_TRACE=1: what the runtime does, a JSON object a line, on stderr.
local helper = require "spec.helper"

describe("SANDBAR_TRACE", function()
  helper.guard()

  local function run(trace)
    return helper.run_lua(([[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = %q, linger = 0 })
      sandbar.scope(function(scope)
        local box = sandbar.assert(sandboxes:create_scoped({ id = "traced" }, scope))
        sandbar.assert(box:exec({ "echo", "hi" }, { env = { KEY = sandbar.secret("tell nobody") } }))
        box:exec { "tell nobody" }
      end)
      print "done"
    ]]):format(helper.root()), { timeout = 20, env = { SANDBAR_TRACE = trace } })
  end

  it("=1 shows messages, failures and releases in their order, and no secret", function()
    local r = run "1"
    assert.equal("done\n", r.stdout)
    assert.is_nil(r.stderr:find("tell nobody", 1, true))
    local at = 1
    for _, line in ipairs {
      '{"event":"start",', '"peer":"supervisor","message":"hello",', '"message":"create",',
      '{"event":"send",[^\n]*"peer":"pid 1","message":"exec",', '{"event":"receive",[^\n]*"peer":"pid 1","message":"reply"',
      '"kind":"StartFailed","error":"%[redacted%]', '"message":"destroy",', '{"event":"release",[^\n]*"id":"traced"}\n$',
    } do
      local _, stop = r.stderr:find(line, at)
      assert.is_truthy(stop, line .. " is not in what follows:\n" .. r.stderr:sub(at))
      at = stop + 1
    end
    for line in r.stderr:gmatch("[^\n]+") do
      assert.matches('^{"event":"[%a ]+","time":%d+%.%d+,.*}$', line)
    end
  end)

  it("shows nothing when it is not 1", function()
    for _, value in ipairs { "0", "" } do
      local r = run(value)
      assert.equal("done\n", r.stdout)
      assert.equal("", r.stderr)
    end
  end)
end)
