-- check: only 5.4
-- check: no asan
-- The control plane's endpoints that no call of the official SDK reaches, or not in every form: logs, access tokens,
-- templates and their sizes, the kinds of a resume. And how a server ends.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local http = require "sandbar.http"
local json = require "sandbar.json"
local message = require "sandbar.e2b.message"
local stream = require "sandbar.stream"

describe("the control plane of sandbar serve", function()
  local server, client

  local start = serve.suite(function(...)
    server, client = ...
  end)

  -- Begins a command; its answer's head and first bytes are there.
  local function begin(headers, script)
    local request = json.encode { process = { cmd = "/bin/sh", args = { "-c", script } }, stdin = false }
    local all = client.with(headers, { ["content-type"] = "application/connect+json", host = "localhost" })
    local answer = assert(http.request(client.port, { method = "POST", path = "/process.Process/Start", stream = true,
      body = message.envelope(0, request), headers = all }, 20, "ask"))
    return answer, assert(stream.some(answer.body, 20))
  end

  -- Until fn() gives something true.
  local function eventually(fn, what)
    local deadline = require("sandbar.core").now() + 20
    repeat
      local got = fn()
      if got then
        return got
      end
    until require("sandbar.core").now() > deadline or not require("sandbar.wait").sleep(0.02)
    error("never: " .. what, 2)
  end

  it("keeps logs of what has happened, without what commands were told", function()
    local id, headers = client.create '{"templateID":"base","timeout":60}'
    local answer = begin(headers, "exit 3 # secret")
    while stream.some(answer.body, 20) do end
    answer.body:close()
    client.get(204, "POST", "/sandboxes/" .. id .. "/timeout", '{"timeout":90}')
    local function messages(list)
      local out = {}
      for i, entry in ipairs(list) do
        out[i] = entry.message
      end
      return table.concat(out, ", ")
    end
    local all = "sandbox created, process started, process ended, lifetime set"
    local path = "/v2/sandboxes/" .. id .. "/logs"
    local forward = client.get(200, "GET", path .. "?direction=forward").logs
    assert.equal(all, messages(forward))
    assert.equal("exit status 3", forward[3].fields.status)
    assert.equal("lifetime set, process ended", messages(client.get(200, "GET", path .. "?limit=2").logs))
    assert.equal("process started", messages(client.get(200, "GET", path .. "?search=ss+started").logs))
    assert.same({}, client.get(200, "GET", path .. "?level=warn").logs)
    assert.same({}, client.get(200, "GET", path .. "?direction=forward&cursor=99999999999999").logs)
    for _, query in ipairs { "limit=x", "limit=1001", "direction=up", "level=loud", "cursor=-1", "search=" .. ("x"):rep(257) } do
      assert.equal(400, (client.ask("GET", path .. "?" .. query)), query)
    end
    local old = client.get(200, "GET", "/sandboxes/" .. id .. "/logs?start=0")
    assert.equal(all, messages(old.logEntries))
    local line = json.decode(old.logs[3].line)
    assert.equal("process ended", line.message)
    assert.equal("sandbar", line.logger)
    assert.is_nil(json.encode(old):find("secret", 1, true))
    assert.equal(404, (client.ask("GET", path, nil, { ["x-api-key"] = server.other_key })))
    client.get(204, "DELETE", "/sandboxes/" .. id)
    assert.equal(404, (client.ask("GET", path)))
  end)

  it("counts a team's sandboxes", function()
    client.create()
    local path = "/teams/" .. client.get(200, "GET", "/teams")[1].teamID .. "/metrics"
    local last = client.get(200, "GET", path)[1]
    assert.is_true(last.concurrentSandboxes >= 1)
    assert.is_true(last.sandboxStartRate > 0)
    local most = client.get(200, "GET", path .. "/max?metric=concurrent_sandboxes")
    assert.equal(last.concurrentSandboxes, most.value)
    client.get(403, "GET", path, nil, { ["x-api-key"] = server.other_key })
  end)

  it("mints and withdraws access tokens, which are no keys", function()
    local made = client.get(201, "POST", "/access-tokens", '{"name":"ci"}')
    assert.truthy(made.token:match("^sk_e2b_%x+$"))
    assert.equal("sk_e2b_", made.mask.prefix)
    local bearer = { ["x-api-key"] = false, authorization = "Bearer " .. made.token }
    client.get(200, "GET", "/v2/sandboxes", nil, bearer)
    assert.equal(401, (client.ask("GET", "/v2/sandboxes", nil, { ["x-api-key"] = made.token })))
    for _, key in ipairs(client.get(200, "GET", "/api-keys")) do
      assert.not_equal(made.id, key.id)
    end
    assert.equal(404, (client.ask("DELETE", "/api-keys/" .. made.id)))
    local path = "/access-tokens/" .. made.id
    assert.equal(404, (client.ask("DELETE", path, nil, { ["x-api-key"] = server.other_key })))
    assert.equal(204, (client.ask("DELETE", path)))
    assert.equal(404, (client.ask("DELETE", path)))
    assert.equal(400, (client.ask("DELETE", "/access-tokens/x")))
    assert.equal(401, (client.ask("GET", "/v2/sandboxes", nil, bearer)))
  end)

  -- Builds a template of these fields; its two ids and its status.
  local function build(fields, steps)
    local made = client.get(202, "POST", "/v3/templates", json.encode(fields))
    local path = ("/templates/%s/builds/%s"):format(made.templateID, made.buildID)
    client.get(202, "POST", "/v2" .. path, json.encode { fromImage = "e2bdev/base", steps = steps })
    local status = eventually(function()
      local now = client.get(200, "GET", path .. "/status")
      return now.status ~= "building" and now
    end, "the end of the build")
    return made.templateID, made.buildID, status
  end

  it("tells of a template, its builds and their logs", function()
    local run = { { type = "RUN", args = { "echo told >&2; true" } } }
    local id, first, status = build({ name = "told" }, run)
    assert.equal("ready", status.status)
    local _, second, failed = build({ name = "told" }, { { type = "RUN", args = { "false" } } })
    assert.equal("error", failed.status)
    local one = client.get(200, "GET", "/templates/told")
    assert.equal(id, one.templateID)
    assert.same({ "told" }, one.aliases)
    assert.is_false(one.public)
    assert.same({ second, first }, { one.builds[1].buildID, one.builds[2].buildID })
    assert.same({ "error", "ready" }, { one.builds[1].status, one.builds[2].status })
    local page, hs = client.get(200, "GET", "/templates/told?limit=1")
    assert.equal(1, #page.builds)
    assert.equal("1", hs["x-next-token"])
    local path = ("/templates/told/builds/%s/logs"):format(first)
    local logs = client.get(200, "GET", path).logs
    assert.equal("building told", logs[1].message)
    assert.equal("built", client.get(200, "GET", path .. "?direction=backward&limit=1").logs[1].message)
    assert.equal(404, (client.ask("GET", (path:gsub("%x%x%x%x/logs", "0000/logs")))))
    assert.equal("base", client.get(200, "GET", "/templates/base").templateID)
    assert.equal(404, (client.ask("GET", "/templates/nope")))
    assert.equal(404, (client.ask("GET", "/templates/told", nil, { ["x-api-key"] = server.other_key })))
  end)

  it("failed of itself where a number was none", function()
    local id, build_id = build({ name = "numbers" }, {})
    for _, path in ipairs { "status?logsOffset=", "status?limit=", "logs?cursor=", "logs?limit=" } do
      for _, wrong in ipairs { "-5", "0.5", "1e-5", "9223372036854775807", "x", "" } do
        local at = ("/templates/%s/builds/%s/%s%s"):format(id, build_id, path, wrong)
        assert.equal(400, (client.ask("GET", at)), at)
      end
    end
  end)

  it("took for a sandbox, for an error of its own or for a limit of the caller's what was wrong in the request", function()
    local large = ("x"):rep(300000)
    for _, wrong in ipairs {
      '"iam":{"tokens":"x"}', '"iam":{"tokens":3}', '"iam":{"tokens":[1]}',
      '"network":{"maskRequestHost":"a\\r\\nb: c"}', '"network":{"maskRequestHost":""}',
      ('"metadata":{"a":"%s"}'):format(large), ('"envVars":{"a":"%s"}'):format(large),
    } do
      local status, text = client.ask("POST", "/v2/sandboxes", '{"templateID":"base",' .. wrong .. "}")
      assert.equal(400, status, wrong:sub(1, 80) .. text)
    end
    local id = client.create '{"templateID":"base","iam":{"tokens":null},"network":{"maskRequestHost":"a.b:${PORT}"}}'
    client.get(204, "DELETE", "/sandboxes/" .. id)
  end)

  it("shares a template with others only when it was told to", function()
    local id = build({ name = "shared" }, {})
    local other = { ["x-api-key"] = server.other_key }
    local create = json.encode { templateID = id }
    assert.equal(404, (client.ask("POST", "/v2/sandboxes", create, other)))
    local names = client.get(200, "PATCH", "/v2/templates/shared", '{"public":true}').names
    assert.truthy(names[1]:match("/shared$"))
    local info = client.get(200, "GET", "/sandboxes/" .. client.get(201, "POST", "/v2/sandboxes", create, other).sandboxID,
      nil, other)
    assert.equal(id, info.templateID)
    client.get(201, "POST", "/v2/sandboxes", json.encode { templateID = names[1] }, other)
    assert.equal(404, (client.ask("DELETE", "/templates/" .. id, nil, other)))
    assert.equal(404, (client.ask("PATCH", "/v2/templates/" .. id, '{"public":false}', other)))
    client.get(200, "PATCH", "/templates/shared", '{"public":false}')
    assert.equal(404, (client.ask("POST", "/v2/sandboxes", create, other)))
    assert.equal(2, client.get(200, "GET", "/templates/shared").spawnCount)
  end)

  it("holds sandboxes to the size their template was built with, where the machine can", function()
    for _, wrong in ipairs { '"cpuCount":3', '"cpuCount":0', '"memoryMB":64', '"memoryMB":129' } do
      assert.equal(400, (client.ask("POST", "/v3/templates", '{"name":"sized",' .. wrong .. "}")), wrong)
    end
    local sandboxes = helper.open()
    local can = sandboxes:capabilities()
    local whole = require("sandbar.server.machine").get()
    local memory = can.limit_memory and 192 or math.floor(whole.memory / 1048576)
    build({ name = "sized", cpuCount = 1, memoryMB = 192 }, {})
    local id = client.create '{"templateID":"sized"}'
    local info = client.get(200, "GET", "/sandboxes/" .. id)
    assert.same({ can.limit_cpu and 1 or whole.cpus, memory }, { info.cpuCount, info.memoryMB })
    assert.equal(can.limit_memory and 192 * 1048576 or nil, assert(sandboxes:info(id)).limits.memory)
    local copy = client.get(201, "POST", "/sandboxes/" .. id .. "/fork")[1].sandbox.sandboxID
    assert.equal(memory, client.get(200, "GET", "/sandboxes/" .. copy).memoryMB)
    for _, one in ipairs(client.get(200, "GET", "/v2/templates")) do
      assert.is_true(one.aliases[1] ~= "sized" or one.memoryMB == memory)
    end
    sandboxes:close()
  end)

  it("starts a sandbox from its disk when the memory of its pause is not wanted", function()
    local id, headers = client.create '{"templateID":"base","timeout":60,"autoPause":true}'
    local octets = client.with(headers, { ["content-type"] = "application/octet-stream" })
    client.get(200, "POST", "/files?path=kept", "yes", octets)
    local answer = begin(headers, "sleep 600")
    client.get(204, "POST", "/sandboxes/" .. id .. "/pause", "{}")
    answer.body:close()
    client.get(201, "POST", "/v2/sandboxes/" .. id .. "/connect", '{"memory":false}')
    local kind = client.with(headers, { ["content-type"] = "application/json" })
    assert.same({}, client.get(200, "POST", "/process.Process/List", "{}", kind))
    assert.equal("yes", select(2, client.ask("GET", "/files?path=kept", nil, headers)))
    local info = client.get(200, "GET", "/sandboxes/" .. id)
    assert.equal("running", info.state)
    assert.equal(200, (client.ask("POST", "/v2/sandboxes/" .. id .. "/connect", '{"memory":false}')))
  end)

  it("puts the metadata of an upload in the place of what was there", function()
    local _, headers = client.create()
    local octets = client.with(headers, { ["content-type"] = "application/octet-stream" })
    local function write(more)
      return client.get(200, "POST", "/files?path=m", "x", client.with(octets, more))[1].metadata
    end
    local function stat()
      local kind = client.with(headers, { ["content-type"] = "application/json" })
      return client.get(200, "POST", "/filesystem.Filesystem/Stat", '{"path":"m"}', kind).entry.metadata
    end
    assert.same({ a = "1", b = "2" }, write { ["x-metadata-a"] = "1", ["x-metadata-b"] = "2" })
    assert.same({ b = "3", c = "4" }, write { ["x-metadata-b"] = "3", ["x-metadata-c"] = "4" })
    assert.same({ b = "3", c = "4" }, stat())
    assert.is_nil(write {})
    assert.is_nil(stat())
  end)

  it("knew every build for ever that nobody had started", function()
    local first = client.get(202, "POST", "/v3/templates", '{"name":"many"}')
    local last
    for _ = 1, 200 do
      last = client.get(202, "POST", "/v3/templates", '{"name":"many"}')
    end
    local at = "/templates/many/builds/%s/status"
    assert.equal(400, (client.ask("GET", at:format(first.buildID))))
    assert.equal("waiting", client.get(200, "GET", at:format(last.buildID)).status)
  end)

  it("answers what it has begun when it is told to end, and nothing else", function()
    local id, headers = client.create()
    local answer, text = begin(headers, "echo begun; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo done")
    local sandboxes = helper.open()
    local box = assert(sandboxes:connect(id))
    server.terminate()
    eventually(function()
      local r = http.request(client.port, { method = "GET", path = "/health", headers = { host = "localhost" } }, 20, "ask")
      return not r or r.status == 503
    end, "the end of what is accepted")
    assert(box.files:write("/tmp/go", ""))
    repeat
      local piece = stream.some(answer.body, 20)
      text = text .. (piece or "")
    until not piece
    answer.body:close()
    client.port:close()
    local record = server.wait()
    assert.equal(0, record.code, record.stderr)
    assert.truthy(text:find('"exitCode"', 1, true) or text:find('"exited":true', 1, true), text)
    assert.truthy(text:find(message.envelope(message.END, "{}"), 1, true))
    assert.equal("running", assert(sandboxes:info(id)).state)
    box:close()
    sandboxes:close()
    start()
    assert.equal("running", client.get(200, "GET", "/sandboxes/" .. id).state)
    assert.equal(204, (client.ask("GET", "/health", nil, headers)))
  end)
end)
