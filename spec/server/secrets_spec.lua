-- check: netlab
-- check: only 5.4
-- check: no asan
-- check: no user
-- Secrets of `sandbar serve`: what is in them comes with requests of sandboxes, and never into a sandbox or an answer.

local helper = require "spec.helper"
local reaching = require "spec.support.reaching"
local serve = require "spec.support.serve"

local json = require "sandbar.json"

local OTHER = "198.51.100.99"

describe("a secret", function()
  local server, client, sandboxes

  teardown(function()
    sandboxes:close()
  end)
  serve.suite(function(...)
    server, client = ...
    sandboxes = helper.open()
  end)

  -- Header Authorization of a request of a sandbox for good.test, as the server there got it.
  local function got(id)
    local box = assert(sandboxes:connect(id))
    reaching.prepare(box)
    local word, came = reaching.get(box, OTHER, "good.test", "X-Echo: 1\\r\\n", "/")
    box:close()
    assert.equal("ok", word)
    return came:match("\n[Aa]uthorization: ([^\r\n]*)")
  end

  local function network(text)
    return { allowOut = { "good.test" }, denyOut = { "0.0.0.0/0" },
      rules = { ["good.test"] = { { transform = { headers = { Authorization = text } } } } } }
  end

  local function create(text)
    return client.create(json.encode { templateID = "base", network = network(text), autoPause = true })
  end

  it("is kept under its name, and never told", function()
    local made = client.get(201, "POST", "/secrets", '{"name":"Kept","value":"v-1","metadata":{"a":"b"}}')
    assert.truthy(made.secretID:match("^sec_[a-z0-9]+$"))
    assert.same({ "kept", 1, { a = "b" } }, { made.name, made.currentVersion, made.metadata })
    assert.equal(409, (client.ask("POST", "/secrets", '{"name":"KEPT","value":"x"}')))
    for _, wrong in ipairs { '{"name":"sec_x","value":"x"}', '{"name":"a b","value":"x"}', '{"name":"","value":"x"}',
      '{"name":"x","value":""}', '{"name":"x","value":"a\\nb"}', '{"name":"x"}' } do
      assert.equal(400, (client.ask("POST", "/secrets", wrong)), wrong)
    end
    local changed = client.get(200, "POST", "/secrets/" .. made.secretID, '{"value":"v-2"}')
    assert.same({ 2, { a = "b" } }, { changed.currentVersion, changed.metadata })
    client.get(201, "POST", "/secrets", '{"name":"second","value":"v-1"}')
    local page, hs = client.get(200, "GET", "/secrets?limit=1")
    assert.equal("kept", page[1].name)
    page = client.get(200, "GET", "/secrets?nextToken=" .. hs["x-next-token"])
    assert.equal("second", page[1].name)
    assert.same({}, client.get(200, "GET", "/secrets", nil, { ["x-api-key"] = server.other_key }))
    assert.equal(404, (client.ask("GET", "/secrets/kept", nil, { ["x-api-key"] = server.other_key })))
    local text = select(2, client.ask("GET", "/secrets")) .. select(2, client.ask("GET", "/secrets/kept"))
    assert.is_nil(text:find("v-", 1, true))
    for _, name in ipairs { "kept", "second" } do
      assert.equal(204, (client.ask("DELETE", "/secrets/" .. name)))
      assert.equal(404, (client.ask("DELETE", "/secrets/" .. name)))
    end
  end)

  it("comes with the requests that a rule names it for, with the value it has then", function()
    client.get(201, "POST", "/secrets", '{"name":"token","value":"one"}')
    local text = "Bearer ${e2b.secrets.Token}"
    local id, headers = create(text)
    assert.equal("Bearer one", got(id))
    local info = client.get(200, "GET", "/sandboxes/" .. id)
    assert.equal(text, info.network.rules["good.test"][1].transform.headers.Authorization)
    assert.is_nil(client.get(200, "GET", "/envs", nil, headers).Authorization)
    client.get(200, "POST", "/secrets/token", '{"value":"two"}')
    assert.equal("Bearer two", got(id))
    local copy = client.get(201, "POST", "/sandboxes/" .. id .. "/fork", '{"timeout":60}')[1].sandbox.sandboxID
    assert.equal("Bearer two", got(copy))
    client.get(204, "POST", "/sandboxes/" .. id .. "/pause", "{}")
    client.get(200, "POST", "/secrets/token", '{"value":"three"}')
    assert.equal("Bearer three", got(copy))
    client.get(201, "POST", "/v2/sandboxes/" .. id .. "/connect", "{}")
    assert.equal("Bearer three", got(id))
    client.get(204, "PUT", "/sandboxes/" .. copy .. "/network", json.encode(network "plain"))
    client.get(204, "DELETE", "/secrets/token")
    assert.is_nil(got(id))
    assert.equal("plain", got(copy))
    for _, one in ipairs { id, copy } do
      client.get(204, "DELETE", "/sandboxes/" .. one)
    end
  end)

  it("that there is not, or that is another team's, is refused", function()
    client.get(201, "POST", "/secrets", '{"name":"theirs","value":"x"}', { ["x-api-key"] = server.other_key })
    for _, text in ipairs { "${e2b.secrets.theirs}", "${e2b.secrets.}", "a${e2b.secrets.nope}b", "${e2b.identity.tokens.x}" } do
      local body = json.encode { templateID = "base", network = network(text) }
      assert.equal(400, (client.ask("POST", "/v2/sandboxes", body)), text)
    end
    local id = create "as ${it} is ${e2b.other}"
    assert.equal("as ${it} is ${e2b.other}", got(id))
    client.get(204, "DELETE", "/sandboxes/" .. id)
    client.get(204, "DELETE", "/secrets/theirs", nil, { ["x-api-key"] = server.other_key })
  end)
end)
