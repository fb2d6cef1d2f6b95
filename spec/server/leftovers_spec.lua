-- check: only 5.4
-- check: no asan
-- What `sandbar serve` has on the disk for the time of a call is not there after it, nor after a server that was killed
-- in the middle of one.

local helper = require "spec.helper"
local catalog = require "sandbar.server.catalog"
local serve = require "spec.support.serve"

describe("sandbar serve", function()
  local server, client

  local start = serve.suite(function(...)
    server, client = ...
  end)

  local function names_of(collection)
    local out = {}
    for i, one in ipairs(assert(collection:list())) do
      out[i] = one.name
    end
    table.sort(out)
    return out
  end

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

  it("left a snapshot or a template for ever that it had made when it was killed, and not kept", function()
    local sandboxes = helper.open()
    local box = assert(sandboxes:create { lifetime = 60 })
    local stray, own, built = "e2b-" .. ("a"):rep(20), "e2b-of-somebody", "e2b-0f3a3e12-9273-4a80-8c5b-898799e30a6b"
    assert(box:snapshot(stray))
    assert(box:snapshot(own))
    assert(sandboxes.templates:build { name = built, from = "base", steps = { { run = { "true" } } } })
    assert(box:destroy())
    local id = client.create '{"templateID":"base","timeout":60}'
    local first = client.get(201, "POST", "/sandboxes/" .. id .. "/snapshots", "{}").snapshotID
    assert.same({ false, false }, { names_of(sandboxes.snapshots)[1] == stray, names_of(sandboxes.templates)[1] == built })
    client.port:close()
    server.kill()
    start()
    local second = client.get(201, "POST", "/sandboxes/" .. id .. "/snapshots", "{}").snapshotID
    assert.equal(3, #names_of(sandboxes.snapshots))
    for _, snapshot in ipairs { first, second } do
      client.get(204, "DELETE", "/templates/" .. snapshot:gsub(":", "%%3A"))
    end
    assert.same({ own }, names_of(sandboxes.snapshots))
    assert(sandboxes.snapshots:delete(own))
    sandboxes:close()
  end)
end)

describe("a snapshot", function()
  it("that took the name of a template which was made meanwhile was a build of that", function()
    local store = {}
    function store:load(_, default) -- luacheck: ignore 212
      return default
    end
    function store:save() -- luacheck: ignore 212
      return true
    end
    local all = assert(catalog.open(store, {}))
    assert(all:entry("team", "name", "template"))
    local none, why = all:add { team = "team", name = "name", kind = "snapshot", of = "s", tags = { "default" } }
    assert.is_nil(none)
    assert.equal(409, why.status)
    assert.same({}, all:find("team", "name").builds)
  end)
end)
