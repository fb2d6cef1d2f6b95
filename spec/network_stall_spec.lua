-- check: netlab
-- check: only 5.4
-- check: long
-- A proxy that takes connections and says nothing.

local helper = require "spec.helper"
local reaching = require "spec.support.reaching"

local sandbar = require "sandbar"

local assert_ok = sandbar.assert

describe("a proxy that stalls", function()
  helper.guard()

  it("is given up, and holds up nothing else", function()
    local file = os.getenv("SPEC_DIR") .. "/proxies"
    local pipe = assert(io.popen("unset LD_PRELOAD; exec python3 spec/support/proxy_world.py " .. helper.quote(file), "w"))
    finally(function()
      pipe:close()
      helper.remove(file)
      helper.remove(file .. ".seen")
    end)
    local port = assert(helper.eventually(function()
      return (helper.read_file(file) or ""):match("stall (%d+)")
    end, 20))
    reaching.with_box({ allow = { "198.51.100.0/24", "good.test" }, upstream_proxy = "http://127.0.0.1:" .. port }, function(box)
      local began = helper.now()
      local r = assert_ok(box:exec("for i in $(seq 20); do (exec 3<>/dev/tcp/198.51.100.10/7; read -r line <&3; "
        .. "echo over) 2>/dev/null & done; wait", { shell = "/bin/bash", timeout = 40 }))
      local took = helper.now() - began
      assert.equal(20, select(2, r.stdout:gsub("over", "")), r.stdout)
      assert.is_true(took > 9 and took < 14, took)
      assert.equal("the upstream proxy does not answer", reaching.denied(box, "198.51.100.10").reason)
      assert.is_truthy(assert_ok(box:exec "getent hosts good.test").stdout:find("good.test", 1, true))
    end)
  end)
end)
