-- check: only 5.4
-- check: no asan
-- check: no user
-- What the official SDK for Python sends and how it reads answers, where that differs from the one for JavaScript: by
-- requests of the same form, since the SDK itself is not at hand.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local json = require "sandbar.json"
local message = require "sandbar.e2b.message"
local signature = require "sandbar.server.signature"
local stamp = require "sandbar.server.stamp"

local AGENT = {
  ["user-agent"] = "e2b-python-sdk/2.45.1", lang = "python", lang_version = "3.11.7", package_version = "2.45.1",
  publisher = "e2b", sdk_runtime = "python", system = "Linux", ["content-type"] = "application/json",
}

describe("sandbar serve as the Python SDK asks it", function()
  local server, client, made

  local CREATE = '{"templateID":"base","timeout":300,"secure":%s,"allow_internet_access":true,"metadata":{},"envVars":{}}'

  -- One request of the control plane.
  local function ask(method, path, body)
    return client.ask(method, path, body, AGENT)
  end

  -- One unary call of the daemon: status, the answer out of its JSON.
  local function call(name, body, more)
    local headers = client.with(AGENT, {
      ["e2b-sandbox-id"] = made.sandboxID, ["e2b-sandbox-port"] = "49983", ["x-access-token"] = made.envdAccessToken,
      ["connect-protocol-version"] = "1", ["connect-timeout-ms"] = "60000", ["x-api-key"] = false,
    })
    local status, answer, hs = client.ask("POST", "/filesystem.Filesystem/" .. name, body, client.with(headers, more))
    return status, json.decode(answer), hs
  end

  serve.suite(function(...)
    server, client = ...
    made = client.get(201, "POST", "/sandboxes", CREATE:format("true"), AGENT)
  end)

  it("creates with every field, and by default with a token", function()
    assert.truthy(server.key:match("^e2b_[0-9a-f]+$"))
    assert.is_string(made.envdAccessToken)
    local detail = client.get(200, "GET", "/sandboxes/" .. made.sandboxID, nil, AGENT)
    assert.equal(300, stamp.seconds(detail.endAt) - stamp.seconds(detail.startedAt))
    assert.same({}, detail.metadata)
    local open = client.get(201, "POST", "/sandboxes", CREATE:format("false"), AGENT)
    assert.is_nil(open.envdAccessToken)
    local at = { ["e2b-sandbox-id"] = open.sandboxID, ["e2b-sandbox-port"] = "49983", ["x-api-key"] = false }
    client.get(200, "GET", "/envs", nil, at)
    client.get(204, "DELETE", "/sandboxes/" .. open.sandboxID, nil, AGENT)
  end)

  it("connects and pauses with bodies that are always there, and looks at the status", function()
    local path = "/sandboxes/" .. made.sandboxID
    local before = client.get(200, "GET", path, nil, AGENT)
    local again = client.get(200, "POST", path .. "/connect", '{"timeout":10}', AGENT)
    assert.equal(made.envdAccessToken, again.envdAccessToken)
    assert.equal(before.endAt, client.get(200, "GET", path, nil, AGENT).endAt)
    for _, memory in ipairs { "true", "false" } do
      assert.equal(204, (ask("POST", path .. "/pause", ('{"memory":%s}'):format(memory))))
      assert.equal(409, (ask("POST", path .. "/pause", ('{"memory":%s}'):format(memory))))
      assert.equal(404, (ask("POST", path .. "/timeout", '{"timeout":60}')))
      again = client.get(201, "POST", path .. "/connect", '{"timeout":300}', AGENT)
      assert.equal(made.envdAccessToken, again.envdAccessToken)
    end
    for _, request in ipairs {
      { "DELETE", "" }, { "GET", "" }, { "POST", "/timeout", '{"timeout":60}' }, { "POST", "/pause", '{"memory":true}' },
      { "POST", "/connect", '{"timeout":60}' }, { "GET", "/metrics" },
    } do
      local status, body = ask(request[1], "/sandboxes/i0000000000000000dead" .. request[2], request[3])
      assert.equal(404, status, request[2])
      assert.equal(404, json.decode(body).code)
    end
  end)

  it("gives every unary call a time, and reads numbers as codes", function()
    local status, answer = call("Stat", '{"path":"/etc/passwd"}')
    assert.equal(200, status)
    assert.equal("FILE_TYPE_FILE", answer.entry.type)
    status, answer = call("Stat", '{"path":"/nope"}')
    assert.equal(404, status)
    assert.equal("not_found", answer.code)
    status, answer = call("MakeDir", '{"path":"/tmp"}')
    assert.equal(409, status)
    assert.equal("already_exists", answer.code)
    status, answer = call("Stat", '{"path":"/"}', { ["x-access-token"] = "wrong" })
    assert.equal(401, status)
    assert.equal(401, answer.code)
    status, answer = call("Stat", '{"path":"/"}', { ["e2b-sandbox-id"] = "i0000000000000000dead" })
    assert.equal(502, status)
    assert.equal(502, answer.code)
  end)

  it("watches by asking again and again", function()
    assert.equal(200, (call("MakeDir", '{"path":"/home/user/watched"}')))
    local status, answer = call("CreateWatcher", '{"path":"watched","recursive":false}', { ["keepalive-ping-interval"] = "50" })
    assert.equal(200, status)
    local id = ('{"watcherId":"%s"}'):format(answer.watcherId)
    assert.same({}, (select(2, call("GetWatcherEvents", id))))
    assert.equal(200, (call("MakeDir", '{"path":"watched/new"}')))
    assert.same({ name = "new", type = "EVENT_TYPE_CREATE" }, helper.eventually(function()
      local events = select(2, call("GetWatcherEvents", id)).events
      return events and events[1]
    end))
    assert.equal(200, (call("RemoveWatcher", id)))
    for _, name in ipairs { "GetWatcherEvents", "RemoveWatcher" } do
      status, answer = call(name, id)
      assert.equal(404, status)
      assert.equal("not_found", answer.code)
    end
  end)

  it("writes one file to the path of the query, several by their names, and signs paths in percent", function()
    local at = {
      ["e2b-sandbox-id"] = made.sandboxID, ["e2b-sandbox-port"] = "49983", ["x-access-token"] = made.envdAccessToken,
      ["x-api-key"] = false, ["content-type"] = "multipart/form-data; boundary=b0b",
    }
    local function part(name, data)
      return ('--b0b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n'
        .. "Content-Type: application/octet-stream\r\n\r\n%s\r\n"):format(name, data)
    end
    local one = client.get(200, "POST", "/files?path=a%20b%2F%C3%A9%2B.txt&username=user", part("whatever", "one") .. "--b0b--\r\n",
      at)
    assert.equal("/home/user/a b/é+.txt", one[1].path)
    local both = client.get(200, "POST", "/files?username=root", part("/tmp/x/1", "1") .. part("two", "2") .. "--b0b--\r\n", at)
    assert.equal("/tmp/x/1", both[1].path)
    assert.equal("/root/two", both[2].path)
    local link = "/files?username=user&path=a%20b%2F%C3%A9%2B.txt&signature="
      .. signature.of("a b/é+.txt", "read", "user", made.envdAccessToken):gsub("%+", "%%2B"):gsub("/", "%%2F")
    local status, body = client.ask("GET", link, nil, { ["x-api-key"] = false })
    assert.equal(200, status, body)
    assert.equal("one", body)
  end)

  it("runs commands as user by default, without naming one", function()
    local request = { process = { cmd = "/bin/bash", args = { "-l", "-c", "id -un" } }, stdin = false }
    local _, body = client.ask("POST", "/process.Process/Start",
      message.envelope(0, assert(message.encode("process.StartRequest", request, "json"))), client.with(AGENT, {
        ["e2b-sandbox-id"] = made.sandboxID, ["e2b-sandbox-port"] = "49983", ["x-access-token"] = made.envdAccessToken,
        ["connect-protocol-version"] = "1", ["connect-timeout-ms"] = "60000", ["keepalive-ping-interval"] = "50",
        ["content-type"] = "application/connect+json", ["x-api-key"] = false,
      }))
    local parser, events = message.parser(), {}
    parser:feed(body)
    for flags, payload in function() return parser:next() end do
      events[#events + 1] = { flags, json.decode(payload) }
    end
    assert.is_true(events[1][2].event.start.pid > 0)
    assert.equal("dXNlcgo=", events[2][2].event.data.stdout)
    assert.same({ exited = true, status = "exit status 0" }, events[3][2].event["end"])
    assert.same({ message.END, {} }, events[4])
  end)

  it("builds as root where its version is an old one", function()
    local function build(name, version)
      local begun = client.get(202, "POST", "/v3/templates", ('{"name":"%s"}'):format(name), AGENT)
      local path = ("/templates/%s/builds/%s"):format(begun.templateID, begun.buildID)
      local agent = client.with(AGENT, { ["user-agent"] = "e2b-python-sdk/" .. version })
      local status = client.ask("POST", "/v2" .. path,
        '{"fromImage":"e2bdev/base","force":true,"steps":[{"type":"RUN","args":["echo is-$(id -un)"]}]}', agent)
      return status, path
    end
    assert.equal(400, (build("python-none", "new")))
    for version, user in pairs { ["2.2.9"] = "root", ["2.45.1"] = "user" } do
      local status, path = build("python-" .. user, version)
      assert.equal(202, status)
      local told = assert(helper.eventually(function()
        local now = client.get(200, "GET", path .. "/status", nil, AGENT)
        return (now.status == "ready" or now.status == "error") and now
      end, 30))
      assert.equal("ready", told.status)
      local lines = {}
      for _, entry in ipairs(told.logEntries) do
        lines[entry.message] = true
      end
      assert.is_true(lines["is-" .. user], user)
      local in_it = client.get(201, "POST", "/sandboxes", CREATE:format("false"):gsub("base", "python-" .. user), AGENT)
      local envs = client.get(200, "GET", "/envs", nil, { ["e2b-sandbox-id"] = in_it.sandboxID,
        ["e2b-sandbox-port"] = "49983", ["x-api-key"] = false })
      assert.equal("user", envs.USER)
      client.get(204, "DELETE", "/sandboxes/" .. in_it.sandboxID, nil, AGENT)
      client.get(204, "DELETE", "/templates/python-" .. user, nil, AGENT)
    end
  end)
end)
