-- check: only 5.4
-- check: no asan
-- The demo is the main job; it has to hold on a pipe, word for word what a newcomer sees.
local helper = require "spec.helper"

local tree = os.getenv("SPEC_TREE") or "."

describe("examples/quickstart.lua", function()
  helper.guard()

  it("does the whole job and leaves nothing", function()
    local r = helper.run_lua(nil, { file = tree .. "/examples/quickstart.lua", timeout = 100 })
    assert.equal("", r.stderr)
    assert.equal(0, r.code, r.stdout)
    assert.is_nil(r.stdout:find("\27", 1, true))
    for _, said in ipairs { "they fail", "they pass", "status 200", "checksum right", "none now" } do
      assert.matches(said, r.stdout, 1, true)
    end
  end)
end)
