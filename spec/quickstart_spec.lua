-- check: only 5.4
-- check: no asan
-- The demo is the main job; it has to hold on a pipe, word for word what a newcomer sees.
local helper = require "spec.helper"
local sandbar = require "sandbar"

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

  it("takes nobody else's sandbox, begun meanwhile, for what it left", function()
    local demo = helper.start_lua(nil, { file = tree .. "/examples/quickstart.lua", timeout = 100 })
    assert.matches("sandbar quickstart", demo:line(), 1, true)
    local sandboxes = helper.open()
    local other = sandbar.assert(sandboxes:create_scoped {})
    local r = demo:wait()
    sandbar.assert(other:destroy())
    assert.equal(0, r.code, r.stdout)
  end)

  it("removes its directory also when a step fails", function()
    local bin = helper.dir("bin")
    helper.write_file(bin .. "/sha256sum", "#!/bin/sh\ncat > /dev/null\n")
    helper.write_file(bin .. "/mktemp", ("#!/bin/sh\nmkdir -m 700 %s/root && echo %s/root\n"):format(bin, bin))
    helper.sh("chmod 755 %s/*", bin)
    local r = helper.run_lua(nil, {
      file = tree .. "/examples/quickstart.lua", timeout = 100,
      env = { PATH = bin .. ":" .. os.getenv("PATH") },
    })
    assert.equal(1, r.code)
    assert.matches("wrong checksum", r.stdout, 1, true)
    assert.equal("mktemp\nsha256sum\n", helper.sh("ls %s", bin))
  end)
end)
