-- check: only 5.4
-- check: no asan
-- The E2B provider against the project's own server, `sandbar serve`, as a separate process with real sandboxes. What it
-- does with a server that misbehaves is in e2b_faults_spec.

local helper = require "spec.helper"
local serve = require "spec.support.serve"

local sandbar = require "sandbar"

local assert_ok, kind = sandbar.assert, helper.kind

describe("the control plane of E2B against sandbar serve", function()
  local server, boxes

  setup(function()
    server = serve.start()
  end)

  teardown(function()
    boxes = nil
    collectgarbage()
    collectgarbage()
    server.stop()
  end)

  helper.guard { each = false, growth = 24 }

  local function open(key)
    return assert_ok(sandbar.open { provider = "e2b", api_key = key or server.key, api_url = server.url,
      sandbox_url = server.url })
  end

  before_each(function()
    boxes = boxes or open()
  end)

  it("A-13 B-10 B-52 P-35: a life: found, listed, paused, resumed, told apart by labels, destroyed", function()
    local box = assert_ok(boxes:create { id = "life", lifetime = 120, labels = { ["a b"] = "c&d=é", stage = "x" },
      env = { A = sandbar.secret("hidden") } })
    assert.equal("running", box.state)
    local info = assert_ok(boxes:info("life"))
    assert.same({ ["a b"] = "c&d=é", stage = "x" }, info.labels)
    assert.is_near(info.started_at + 120, info.ends_at, 5)
    assert.equal("pause_disk", info.on_expiry)
    assert.equal(1, #boxes:list { labels = { ["a b"] = "c&d=é" } })
    assert.equal(0, #boxes:list { labels = { ["a b"] = "c" } })
    kind("AlreadyExists", boxes:create { id = "life" })
    kind("WrongOwner", boxes:connect("life", { expect_labels = { stage = "y" } }))
    assert_ok(box:set_lifetime(60))
    assert.equal("memory", assert_ok(box:pause()))
    assert.equal("unknown", assert_ok(box:pause()))
    assert.equal(1, #boxes:list { state = "paused" })
    kind("NotRunning", box:set_lifetime(60))
    local other = assert_ok(open():connect("life"))
    assert.equal("paused", other.state)
    assert_ok(other:resume())
    assert.equal("running", box:info().state)
    assert.equal("disk", assert_ok(box:pause { keep = "disk" }))
    assert_ok(boxes:connect("life", { resume = true, lifetime = 90 }))
    assert.equal(0, #open(server.other_key):list())
    kind("NotFound", open(server.other_key):connect("life"))
    assert_ok(box:destroy())
    assert_ok(boxes:destroy("life"))
    kind("NotFound", box:info())
  end)

  it("A-17 B-07: what a scope, a lost handle or a program that has ended owned is gone", function()
    sandbar.scope(function(scope)
      assert_ok(boxes:create_scoped({ lifetime = 60 }, scope))
      assert.equal(1, #boxes:list())
    end)
    assert.equal(0, #boxes:list())
    helper.run_lua(([[
      local sandbar = require "sandbar"
      local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
      box = sandbar.assert(boxes:create_scoped { lifetime = 60 })
    ]]):format(server.key, server.url))
    assert.equal(0, #boxes:list())
  end)

  it("A-12: lists have every page", function()
    for i = 1, 3 do
      assert_ok(boxes:create { lifetime = 60, labels = { n = tostring(i) } })
    end
    local seen = {}
    for info in boxes:each { page_size = 1 } do
      seen[info.labels.n] = true
      assert_ok(boxes:destroy(info.id))
    end
    assert.same({ ["1"] = true, ["2"] = true, ["3"] = true }, seen)
  end)

  it("A-88: policies hold as they were asked for", function()
    local box = assert_ok(boxes:create { lifetime = 60, network = { allow = { "example.com" } } })
    assert.same({ "example.com" }, box:info().network.allow)
    assert_ok(box:update_network("deny"))
    assert.equal("deny", box:info().network)
    assert_ok(box:destroy())
  end)

  it("snapshots and copies", function()
    local box = assert_ok(boxes:create { lifetime = 60, labels = { a = "1" } })
    local name = assert_ok(box:snapshot("made-here"))
    local found = {}
    for _, snapshot in ipairs(assert_ok(boxes.snapshots:list())) do
      found[snapshot.name] = true
    end
    assert.is_true(found[name])
    local copies = assert_ok(box:fork(2))
    assert.same({ a = "1" }, copies[1]:info().labels)
    local from = assert_ok(boxes:create { snapshot = name, lifetime = 60 })
    for _, one in ipairs { box, copies[1], copies[2], from } do
      assert_ok(one:destroy())
    end
    assert_ok(boxes.snapshots:delete(name))
    assert.equal(0, #boxes:list())
  end)

  it("a template that is built, named and deleted", function()
    local path = helper.scratch() .. "/file"
    helper.write_file(path, "hello")
    assert_ok(boxes.templates:build { name = "built-here", steps = {
      { run = "echo from-run > /root/run" }, { copy = path, to = "/opt/file" }, { env = { A = "1" } },
    } })
    local names = {}
    for _, template in ipairs(assert_ok(boxes.templates:list())) do
      names[template.name:match("[^/]*$")] = true
    end
    assert.is_true(names["built-here"])
    local box = assert_ok(boxes:create { template = "built-here", lifetime = 60 })
    kind("Busy", boxes.templates:delete("built-here"))
    assert_ok(box:destroy())
    local err = kind("CommandFailed", boxes.templates:build { name = "fails-here", steps = { { run = "exit 3" } } })
    assert.equal(1, err.step)
    assert_ok(boxes.templates:delete("built-here"))
    os.remove(path)
  end)

  it("B-26 B-48 B-49 B-50 B41: commands, and requests to ports, by their own and the proxy's answers", function()
    sandbar.scope(function(scope)
      local box = assert_ok(boxes:create_scoped({ lifetime = 120, prepare = { "echo prepared > /tmp/p" } }, scope))
      assert.equal("prepared\n", assert_ok(box:exec("cat /tmp/p")).stdout)
      assert.equal(3, assert_ok(box:exec("exit 3")).exit_code)
      local port = box:port(3000)
      assert.equal(("https://3000-%s."):format(box.provider_id), port.url:match("^https://3000%-%w+%."))
      assert.equal("e2b-traffic-access-token", (next(port.headers)))
      local err = kind("Unavailable", port:fetch())
      assert.equal("ECONNREFUSED", err.code)
      assert_ok(box:start("cd /tmp && exec python3 -m http.server 3000", { stdout = "ignore", stderr = "ignore" }))
      local page = assert_ok(port:fetch { path = "/p", wait = 20 })
      assert.equal("prepared\n", page.body)
      assert.equal(404, assert_ok(port:fetch { path = "/none" }).status)
      assert.equal("prepared\n", assert_ok(port:fetch { path = "/p", stream = true }).body:read("a"))
      kind("Unsupported", assert_ok(boxes:connect(box.id)):port(3000):fetch())
      kind("Unsupported", port:connect())
      assert_ok(box:pause())
      kind("NotRunning", port:fetch())
      assert_ok(box:destroy())
      kind("NotFound", port:fetch())
    end)
  end)

  it("what is claimed of commands and files is what a sandbox shows", function()
    local box = assert_ok(boxes:create { lifetime = 60 })
    local have = assert_ok(boxes:capabilities { measure = box })
    -- tree_kill is more here than is claimed, or as much
    for _, name in ipairs { "pty", "signals", "append", "atomic_write", "open_files", "watch", "xattrs" } do
      assert.equal(have.measured[name].value, have[name], name)
    end
    assert_ok(box:destroy())
  end)

  it("P-42 P-43: neither the key nor a sandbox's tokens show in what a program writes, traces or audits", function()
    local child = helper.run_lua(([[
      local sandbar = require "sandbar"
      local boxes = sandbar.assert(sandbar.open { provider = "e2b", api_key = %q, api_url = %q, sandbox_url = %q })
      sandbar.audit { fd = 2 }
      local box = sandbar.assert(boxes:create { id = "told", lifetime = 60, env = { S = sandbar.secret("env-secret") } })
      print(box, box:exec("true"), box:port(80):fetch(), box:port(80).headers["e2b-traffic-access-token"])
      print(box:exec("exit 1", { check = true }), boxes:connect("nobody"), box)
    ]]):format(server.key, server.url, server.url), { env = { SANDBAR_TRACE = "1" } })
    local http = require "sandbar.http"
    local client = assert_ok(http.client { url = server.url })
    local box = assert_ok(boxes:connect("told"))
    local answer = assert_ok(http.request(client, { method = "POST", path = "/v2/sandboxes/" .. box.provider_id .. "/connect",
      headers = { ["X-API-Key"] = server.key }, body = "{}" }, 20, "connect"))
    client:close()
    local all, seen = child.stdout .. child.stderr, 0
    for _, name in ipairs { "envdAccessToken", "trafficAccessToken" } do
      local token = answer.body:match('"' .. name .. '":%s*"([^"]+)"')
      assert.is_string(token)
      assert.is_nil(all:find(token, 1, true), name)
      seen = seen + 1
    end
    assert.equal(2, seen)
    for _, secret in ipairs { server.key, "env-secret" } do
      assert.is_nil(all:find(secret, 1, true))
    end
    assert.truthy(all:find("acquire", 1, true), all)
    assert_ok(box:destroy())
  end)

  it("refusals come as what they are", function()
    kind("Unauthenticated", open("e2b_" .. ("00"):rep(20)):list())
    kind("NotFound", boxes:create { template = "no-such-thing" })
    local metrics = assert_ok(boxes:create { id = "measured", lifetime = 60 })
    local ok, why = metrics:metrics()
    assert.is_true(ok ~= nil or why.kind == "Unavailable")
    local lines, no = boxes:logs("measured")
    assert.is_true(lines ~= nil or no.kind == "Unsupported")
    assert_ok(metrics:destroy())
  end)
end)
