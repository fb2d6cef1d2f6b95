-- check: only 5.4
-- check: no asan
-- What `sandbar serve` has on the disk for the time of a call is not there after it, nor after a server that was killed
-- in the middle of one.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

describe("sandbar serve", function()
  local server, client

  teardown(function()
    client.port:close()
    server.stop()
  end)
  helper.guard { each = false }

  setup(function()
    server = serve.start()
    client = serve.client(server)
  end)

  it("kept what every fork had been made from", function()
    local id, headers = client.create '{"templateID":"base","timeout":60}'
    local octets = client.with(headers, { ["content-type"] = "application/octet-stream" })
    client.get(200, "POST", "/files?path=kept", "yes", octets)
    local copies = client.get(201, "POST", "/sandboxes/" .. id .. "/fork", '{"timeout":60,"count":2}')
    local sandboxes = helper.open()
    assert.same({}, sandboxes.snapshots:list())
    for _, one in ipairs(copies) do
      local made = one.sandbox
      local status, text = client.ask("GET", "/files?path=kept", nil, {
        ["e2b-sandbox-id"] = made.sandboxID, ["e2b-sandbox-port"] = "49983", ["x-access-token"] = made.envdAccessToken,
      })
      assert.same({ 200, "yes" }, { status, text })
    end
    sandboxes:close()
  end)
end)
