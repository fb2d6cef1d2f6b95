-- check: only 5.4
-- check: no asan
-- check: no user
-- Whoever asks `sandbar serve`, nobody reaches what is another's: each route of the control plane is tried, also those
-- that come to it later.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local json = require "sandbar.json"
local signature = require "sandbar.server.signature"

describe("sandbar serve and two teams:", function()
  local server, client, other, id, headers

  -- All routes: method, path.
  local function routes()
    local out = {}
    for name in helper.shell("ls lua/sandbar/server/control"):gmatch("([%w_]+)%.lua") do
      local module = require("sandbar.server.control." .. name)
      for _, part in ipairs { "routes", "routes_v2" } do
        for route in pairs(type(module) == "table" and module[part] or {}) do
          out[#out + 1] = { route:match("^(%u+) (.*)$") }
        end
      end
    end
    table.sort(out, function(a, b)
      return a[2] .. a[1] < b[2] .. b[1]
    end)
    return out
  end

  serve.suite(function(...)
    server, client = ...
    other = { ["x-api-key"] = server.other_key }
    id, headers = client.create '{"templateID":"base","timeout":600,"metadata":{"of":"one"}}'
  end)

  local BODY = '{"timeout":60,"duration":20,"name":"of-two","tags":["x"],"target":"owned","public":true,"count":1}'

  it("every route wants a key", function()
    local all = routes()
    assert.is_true(#all > 35)
    for _, route in ipairs(all) do
      for _, bad in ipairs { false, "", "e2b_" .. ("0"):rep(40), server.key .. "0", server.key:sub(1, -2) } do
        local path = route[2]:gsub("{id}", id):gsub("{%w+}", "owned")
        local status, body = client.ask(route[1], path, route[1] ~= "GET" and BODY or nil, { ["x-api-key"] = bad })
        assert.equal(401, status, route[1] .. " " .. path .. ": " .. body)
        assert.equal(401, json.decode(body).code)
      end
    end
    local _, body = client.ask("GET", "/v2/sandboxes", nil, { ["x-api-key"] = false })
    assert.matches("the header X-API-Key", json.decode(body).message, 1, true)
    client.get(200, "GET", "/sandboxes/" .. id)
  end)

  it("a sandbox is not there for another team, whatever it asks", function()
    local count = 0
    for _, route in ipairs(routes()) do
      if route[2]:find("{id}", 1, true) then
        count = count + 1
        for _, name in ipairs { id, id .. "-6532622b" } do
          local path = route[2]:gsub("{id}", name)
          local status, body = client.ask(route[1], path, route[1] ~= "GET" and BODY or nil, other)
          assert.equal(404, status, route[1] .. " " .. path .. ": " .. body)
        end
      end
    end
    assert.is_true(count > 12)
    local info = client.get(200, "GET", "/sandboxes/" .. id)
    assert.equal("running", info.state)
    assert.equal("one", info.metadata.of)
  end)

  it("lists and metrics have each team's own", function()
    local own = client.get(201, "POST", "/v2/sandboxes", '{"templateID":"base","metadata":{"of":"two"}}', other).sandboxID
    for _, path in ipairs { "/v2/sandboxes", "/sandboxes", "/v2/sandboxes?metadata=of%3Done" } do
      for _, one in ipairs(client.get(200, "GET", path, nil, other)) do
        assert.equal(own, one.sandboxID)
      end
    end
    -- The filter took the place of the team in the labels that are looked for.
    for _, path in ipairs { "/v2/sandboxes", "/sandboxes" } do
      for _, label in ipairs { "team%3Dkey-" .. signature.hash(server.key):sub(1, 16), "template%3Dbase" } do
        assert.same({}, client.get(200, "GET", path .. "?metadata=sandbar.serve/" .. label, nil, other))
      end
    end
    local both = client.get(200, "GET", ("/sandboxes/metrics?sandbox_ids=%s,%s"):format(id, own), nil, other).sandboxes
    assert.is_nil(both[id])
    assert.is_table(both[own])
    client.get(204, "DELETE", "/sandboxes/" .. own, nil, other)
  end)

  it("snapshots, templates and keys are their team's", function()
    local snapshot = client.get(201, "POST", "/sandboxes/" .. id .. "/snapshots", '{"name":"owned"}').snapshotID
    assert.same({}, client.get(200, "GET", "/snapshots", nil, other))
    assert.same({}, client.get(200, "GET", "/snapshots?sandboxID=" .. id, nil, other))
    local escaped = snapshot:gsub("/", "%%2F"):gsub(":", "%%3A")
    for _, name in ipairs { "owned", escaped } do
      assert.equal(404, (client.ask("DELETE", "/templates/" .. name, nil, other)))
      assert.equal(404, (client.ask("GET", "/templates/" .. name .. "/tags", nil, other)))
      assert.equal(404, (client.ask("GET", "/templates/aliases/" .. name, nil, other)))
    end
    for _, name in ipairs { "owned", snapshot } do
      assert.equal(404, (client.ask("POST", "/v2/sandboxes", json.encode { templateID = name }, other)))
      assert.equal(404, (client.ask("POST", "/templates/tags", json.encode { target = name, tags = { "x" } }, other)))
    end
    for _, key in ipairs(client.get(200, "GET", "/api-keys")) do
      assert.equal(404, (client.ask("PATCH", "/api-keys/" .. key.id, '{"name":"x"}', other)))
      assert.equal(404, (client.ask("DELETE", "/api-keys/" .. key.id, nil, other)))
    end
    client.get(204, "DELETE", "/templates/" .. escaped)
  end)

  it("a volume is its team's, and its files of who has its token", function()
    local one = client.get(201, "POST", "/volumes", '{"name":"owned"}')
    local two = client.get(201, "POST", "/volumes", '{"name":"owned"}', other)
    assert.equal(400, (client.ask("POST", "/volumes", '{"name":"owned"}')))
    assert.same({ { volumeID = two.volumeID, name = "owned" } }, client.get(200, "GET", "/volumes", nil, other))
    for _, method in ipairs { "GET", "DELETE" } do
      assert.equal(404, (client.ask(method, "/volumes/" .. one.volumeID, nil, other)))
    end
    local path = "/volumecontent/" .. one.volumeID .. "/"
    local function with_token(token)
      return { ["x-api-key"] = token and server.key, authorization = token and "Bearer " .. token }
    end
    local right = with_token(one.token)
    assert.equal(201, (client.ask("PUT", path .. "file?path=/f", "text", right)))
    for _, token in ipairs { false, two.token, server.key, one.token .. "0" } do
      for call, method in pairs { ["file?path=/f"] = "GET", ["path?path=/f"] = "DELETE", ["dir?path=/"] = "GET" } do
        local status, body = client.ask(method, path .. call, nil, with_token(token))
        assert.equal(401, status)
        assert.equal("unauthenticated", json.decode(body).code)
      end
    end
    for _, at in ipairs { "/../etc/passwd", "../../etc/passwd", "/a/../../etc/passwd" } do
      assert.equal(404, (client.ask("GET", path .. "file?path=" .. at, nil, right)))
    end
    for call, method in pairs { ["path"] = "GET", ["dir?path=/&depth=0"] = "GET", ["dir?path=/x&uid=-1"] = "POST",
      ["path?path=/"] = "DELETE", ["file?path=/"] = "GET" } do
      assert.equal(400, (client.ask(method, path .. call, nil, right)), call)
    end
    assert.equal(405, (client.ask("DELETE", path .. "dir?path=/", nil, right)))
    assert.equal(404, (client.ask("POST", path .. "dir?path=/no/where", nil, right)))
    assert.equal("text", select(2, client.ask("GET", path .. "file?path=f", nil, right)))
    for _, info in ipairs(client.get(200, "GET", "/v2/sandboxes")) do
      assert.equal(id, info.sandboxID)
    end
    client.get(204, "DELETE", "/volumes/" .. one.volumeID)
    assert.equal(401, (client.ask("GET", path .. "file?path=f", nil, right)))
    client.get(204, "DELETE", "/volumes/" .. two.volumeID, nil, other)
  end)

  it("a key, or another sandbox's token, opens no sandbox's daemon", function()
    local made = client.get(201, "POST", "/v2/sandboxes", '{"templateID":"base"}', other)
    local kind = { ["content-type"] = "application/json" }
    for _, token in ipairs { false, server.key, server.other_key, made.envdAccessToken, headers["x-access-token"] .. "0", "" } do
      local hs = client.with(client.with(headers, kind), { ["x-access-token"] = token })
      assert.equal(401, (client.ask("POST", "/process.Process/List", "{}", hs)))
      assert.equal(401, (client.ask("POST", "/filesystem.Filesystem/Stat", '{"path":"/"}', hs)))
      for _, path in ipairs { "/files?path=/etc/passwd", "/envs", "/metrics" } do
        assert.equal(401, (client.ask("GET", path, nil, hs)))
      end
      assert.equal(401, (client.ask("POST", "/files/compose", "{}", hs)))
    end
    client.get(200, "POST", "/process.Process/List", "{}", client.with(headers, kind))
    client.get(204, "DELETE", "/sandboxes/" .. made.sandboxID, nil, other)
  end)

  it("a page of another site, or of another name for this server, gets nothing", function()
    for _, route in ipairs(routes()) do
      local path = route[2]:gsub("{id}", id):gsub("{%w+}", "owned")
      local sent = route[1] ~= "GET" and BODY or nil
      for _, origin in ipairs { "http://evil.test", "null", "http://127.0.0.1", server.url .. ".evil.test", "file://" } do
        assert.equal(403, (client.ask(route[1], path, sent, { origin = origin })), path)
      end
      for _, host in ipairs { "evil.test", "127.0.0.1.evil.test", "localhost.evil.test", "evil-localhost" } do
        assert.equal(403, (client.ask(route[1], path, sent, { host = host })), path)
      end
    end
    for _, host in ipairs { "evil.test", "3000-" .. id .. ".evil.test", "49983-" .. id .. ".evil.test" } do
      assert.equal(403, (client.ask("GET", "/health", nil, { host = host })))
    end
    assert.equal("running", client.get(200, "GET", "/sandboxes/" .. id).state)
  end)
end)
