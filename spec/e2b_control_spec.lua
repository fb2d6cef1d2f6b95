-- check: only 5.4
-- check: no user
-- check: no asan
-- The E2B provider's control plane over real sockets: lives of sandboxes, identity, policy, images, keys. Row ids are
-- those of docs/requirements.md, B and two digits those of known faults.

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local planes = require "spec.support.control_plane"
local sandbar = require "sandbar"

local assert_ok, kind = sandbar.assert, helper.kind

describe("the control plane of E2B", function()
  local plane, boxes

  planes.suite(function(started)
    plane, boxes = started, started and started:open()
  end)

  local function create(spec)
    spec = spec or {}
    spec.lifetime = spec.lifetime or 60
    return assert_ok(boxes:create(spec))
  end

  describe("opening", function()
    local open = require("sandbar.e2b.provider").open

    it("A-03 A-09 P-12: needs a key from the program, and does nothing before it has one", function()
      kind("InvalidArgument", open({ api_url = plane.url }, 1))
      kind("InvalidArgument", open({ api_key = "" }, 1))
      assert.equal(0, #plane:log())
    end)

    it("A-05: what is random can be exchanged; ids, tokens and names are made of it", function()
      local asked, given = {}, 0
      local own = plane:open { access_token = planes.TOKEN, team = "t", random = function(n)
        asked[#asked + 1], given = n, given + 1
        return string.char(given):rep(n)
      end }
      local box = assert_ok(own:create { lifetime = 60 })
      assert.equal("01010101-0101-4101-9101-010101010101", box.id)
      assert.equal("02020202-0202-4202-a202-020202020202", plane:log()[1].body.metadata["sandbar-token"])
      assert_ok(box:fork(1))
      assert.equal("sandbar-03030303-0303-4303-b303-030303030303", plane:log()[2].body.name)
      assert_ok(own.keys:delete(assert_ok(own.keys:create { name = "k" }).id))
      assert.equal("k #06060606-0606-4606-a606-060606060606", plane:log()[1].body.name)
      assert.same({ 16, 16, 16, 16, 16, 16 }, asked)
      assert.has_error(function() plane:open({ random = function() return "short" end }):create() end)
    end)

    it("does no I/O", function()
      assert(open({ api_key = "k", api_url = "http://127.0.0.1:1" }, 1))
      kind("InvalidArgument", open({ api_key = "k", api_url = "ftp://x" }, 1))
      kind("InvalidArgument", open({ api_key = "k", api_url = "http://user:pw@x" }, 1))
      kind("InvalidArgument", open({ api_key = "k", domain = "a/b" }, 1))
      kind("InvalidArgument", open({ api_key = "k", retries = -1 }, 1))
      kind("InvalidArgument", open({ api_key = "k", team = "t" }, 1))
    end)

    it("takes no option of another provider's", function()
      assert.has_error(function()
        sandbar.open { provider = "e2b", api_key = "k", root = "/tmp" }
      end)
      assert(sandbar.open { provider = "e2b", api_key = "k" })
    end)
  end)

  describe("create", function()
    it("A-10 A-105 B-13 B-14 P-18: says exactly what was asked for", function()
      local box = create {
        id = "exact", template = "base", lifetime = 90.2, on_expiry = "pause",
        labels = { stack = "s", ["a b"] = "c&d=é" }, env = { A = "1" }, network = "allow",
      }
      local sent = plane:log()[2]
      assert.equal("POST", sent.method)
      assert.equal("/v2/sandboxes", sent.path)
      assert.equal(planes.KEY, sent.headers["X-API-Key"])
      local b = sent.body
      assert.equal("base", b.templateID)
      assert.equal(91, b.timeout)
      assert.is_true(b.autoPause)
      assert.is_true(b.autoPauseMemory)
      assert.is_nil(b.autoResume)
      assert.is_nil(b.allow_internet_access)
      assert.same({ A = "1" }, b.envVars)
      assert.same({ allowPublicTraffic = false, maskRequestHost = "localhost:${PORT}" }, b.network)
      assert.equal("exact", b.metadata["sandbar-id"])
      assert.equal("e2b", b.metadata["sandbar-provider"])
      assert.equal("c&d=é", b.metadata["a b"])
      assert.equal("s", b.metadata.stack)
      assert.equal("running", box.state)
      assert.equal(box.provider_id, box.provider_id:match("^i%w+$"))
      assert.same({ stack = "s", ["a b"] = "c&d=é" }, box.labels)
      assert.is_false(box.owned)
    end)

    it("A-07: takes what the spec says for hosted sandboxes alone, and leaves what it says for others", function()
      create { template = "elsewhere", lifetime = 90, providers = { e2b = { template = "base", lifetime = 120 },
        ["local"] = { template = "of the machine", lifetime = 150 } } }
      local b = plane:log()[1].body
      assert.equal("base", b.templateID)
      assert.equal(120, b.timeout)
    end)

    it("A-31 A-32 A-36 P-17: has an hour by default, then pauses to disk, and nothing wakes it", function()
      local box = assert_ok(boxes:create {})
      local b = plane:log()[1].body
      assert.equal(3600, b.timeout)
      assert.is_true(b.autoPause)
      assert.is_false(b.autoPauseMemory)
      assert.is_nil(b.autoResume)
      assert.is_false(b.allow_internet_access)
      assert.equal(36, #box.id) -- A-25
    end)

    it("A-25: asks nothing else where the library made the id", function()
      create()
      assert.same({ "POST /v2/sandboxes" }, plane:calls())
    end)

    it("A-36: wakes by traffic only with memory, said explicitly", function()
      kind("InvalidArgument", boxes:create { auto_resume = true })
      create { auto_resume = true, on_expiry = "pause" }
      assert.is_true(plane:log()[1].body.autoResume.enabled)
    end)

    it("A-15 A-20: an id in use is refused before anything is allocated, and nothing is touched", function()
      local box = create { id = "twice", labels = { a = "1" } }
      plane:log()
      local err = kind("AlreadyExists", boxes:create { id = "twice", labels = { a = "2" } })
      assert.equal("twice", err.id)
      assert.same({ "GET /v2/sandboxes" }, plane:calls())
      assert.equal("1", box:info().labels.a)
    end)

    it("A-19: two at once of one id are one after the other", function()
      local done = {}
      sandbar.run(function()
        local tasks = {}
        for i = 1, 4 do
          tasks[i] = sandbar.spawn(function()
            local box, err = boxes:create { id = "queue", lifetime = 60 }
            done[#done + 1] = box and "made" or err.kind
          end)
        end
        for _, task in ipairs(tasks) do
          task:wait()
        end
      end)
      table.sort(done)
      assert.same({ "AlreadyExists", "AlreadyExists", "AlreadyExists", "made" }, done)
      assert.equal(1, #boxes:list())
    end)

    it("A-21 B34: another host's that came first keeps the id, and only ours is deleted", function()
      plane:faults { { method = "POST", path = "^/v2/sandboxes$", ["do"] = "twin", before = true } }
      kind("AlreadyExists", boxes:create { id = "race", lifetime = 60 })
      local left = boxes:list()
      assert.equal(1, #left)
      local calls = plane:calls()
      local deleted
      for _, call in ipairs(calls) do
        deleted = call:match("^DELETE /sandboxes/(i%w+)$") or deleted
      end
      assert.is_string(deleted)
      assert.not_equal(left[1].provider_id, deleted)
    end)

    it("A-21 A-22: the one that came first goes on, and the id is Ambiguous until the other has gone", function()
      plane:faults { { method = "POST", path = "^/v2/sandboxes$", ["do"] = "twin" } }
      local box = assert_ok(boxes:create { id = "race", lifetime = 60 })
      local err = kind("Ambiguous", boxes:connect("race")) -- A-23
      assert.equal(2, #err.ids)
      kind("Ambiguous", boxes:info("race"))
      kind("Ambiguous", boxes:destroy("race"))
      assert.equal("running", box:info().state) -- a handle means one sandbox, whatever becomes of the id
      assert_ok(box:destroy())
      assert.equal(1, #boxes:list())
    end)

    it("secrets in env go out as they are and show nowhere", function()
      create { env = { PASSWORD = sandbar.secret('hidden "quoted"\n') } }
      local sent = plane:log()[1]
      assert.equal('hidden "quoted"\n', sent.body.envVars.PASSWORD)
    end)

    it("is refused by clause before anything is allocated", function()
      for clause, spec in pairs {
        ["limits.memory"] = { limits = { memory = 2 ^ 30 } }, ["network.deny"] = { network = {
          allow = { "example.com" }, deny = { "10.0.0.0/8" } } }, -- A-89 A-90 A-101
        template = { template = { rootfs = "/" } }, allow_setuid = { allow_setuid = false },
        ["limits.processes"] = { limits = { processes = 10 } },
        ["limits.max_concurrent_execs"] = { limits = { max_concurrent_execs = 10 } }, -- P-49
        ["network.inject[1]"] = { network = { allow = { "a.b" }, inject = { -- A-95 A-96
          { host = "a.b", path_prefix = "/v1", set_headers = { A = "b" } } } } },
        ["network.upstream_proxy"] = { network = { allow = {}, upstream_proxy = "http://p:1" } },
        ["network.allow"] = { network = { allow = { "::/0" } } },
        ["expect.egress_restricted"] = { expect = { "egress_restricted" } }, -- P-08
      } do
        local err = kind("Unsupported", boxes:create(spec))
        assert.equal(clause, err.clause)
      end
      for _, spec in ipairs {
        { template = "Upper" }, { template = "a", snapshot = "b" }, { lifetime = 0 }, { labels = { ["sandbar-id"] = "x" } },
        { network = { deny = {} } }, { network = "some" },
        { network = { allow = { "a.b", nil, "c.d" } } },
        { labels = { a = "\255" } }, { env = { A = "\255" } }, { id = "-x" }, { on_expiry = "stop" }, { user = "" },
        { network = { allow = { "a.b" }, inject = { { host = "a.b", set_headers = { A = "${e2b.secrets.x}" } } } } },
      } do
        kind("InvalidArgument", boxes:create(spec))
      end
      local err = kind("InvalidArgument", boxes:create { network = { alow = {} } })
      assert.equal("network: there is no key \"alow\"; the nearest known one is 'allow'", err.message)
      assert.equal(0, #plane:log())
    end)

    it("an unknown template is NotFound, and leaves nothing", function()
      local err = kind("NotFound", boxes:create { template = "no-such" })
      assert.equal(404, err.status)
      assert.equal(0, #boxes:list())
    end)
  end)

  describe("networks", function()
    local function sent(network)
      boxes:create { lifetime = 60, network = network }
      return plane:log()[1].body
    end

    it("A-86 A-87 A-88 A-91: maps what means the same", function()
      assert.is_nil(sent("allow").allow_internet_access)
      assert.is_false(sent("deny").allow_internet_access)
      assert.is_false(sent({ allow = {} }).allow_internet_access)
      local b = sent { allow = { "example.com", "1.2.3.0/24" } }
      assert.is_nil(b.allow_internet_access)
      assert.same({ "example.com", "1.2.3.0/24" }, b.network.allowOut)
      assert.same({ "0.0.0.0/0" }, b.network.denyOut)
    end)

    it("A-97: rules for headers that name nothing but a host", function()
      local b = sent { allow = { "api.example.com" }, inject = {
        { host = "API.example.com", set_headers = { Authorization = sandbar.secret("Bearer hidden1") } },
      } }
      assert.same({ ["api.example.com"] = { { transform = { headers = { Authorization = "Bearer hidden1" } } } } },
        b.network.rules)
    end)

    it("explain tells each clause, and what is refused", function()
      local told = assert_ok(boxes:explain { network = { allow = { "a.b" }, deny = { "1.1.1.1" } }, lifetime = 60,
        expect = { "pause_memory", "network_isolated" } })
      assert.is_false(told.ok)
      local verdicts = {}
      for _, c in ipairs(told.clauses) do
        verdicts[c.clause] = c.verdict
      end
      assert.equal("refused", verdicts["network.deny"])
      assert.equal("enforced", verdicts.lifetime)
      assert.equal("enforced", verdicts["expect.pause_memory"])
      assert.equal("refused", verdicts["expect.network_isolated"])
      assert.is_true(boxes:explain({ lifetime = 60 }).ok)
      assert.equal(0, #plane:log())
    end)

    it("P-22 PS-18: capabilities are what the host attests, all else is false", function()
      local mine = plane:open { capabilities = { egress_restricted = true } }:capabilities()
      assert.is_true(mine.egress_restricted)
      assert.is_false(mine.pause_memory)
      local own = boxes:capabilities() -- P-33
      assert.is_true(own.filesystem_isolated)
      assert.is_false(own.network_isolated)
      assert.is_true(own.watch)
      assert.is_false(own.raw_ports)
    end)

    it("are replaced as a whole while it runs", function()
      local box = create { network = "deny" }
      assert_ok(box:update_network { allow = { "example.com" } })
      local told = box:info().network
      assert.same({ "example.com" }, told.allow)
      assert_ok(box:update_network("allow"))
      assert.equal("allow", box:info().network)
      assert_ok(box:update_network("deny"))
      assert.equal("deny", box:info().network)
      kind("Unsupported", box:update_network { allow = { "a.b" }, deny = { "1.1.1.1" } })
      assert_ok(box:pause())
      kind("NotRunning", box:update_network("allow"))
    end)
  end)

  describe("a life", function()
    it("A-13 P-20 P-35 PS-15: is found by its id from another program, labels looked at first", function()
      local box = create { id = "found", labels = { owner = "ci" } }
      local other = plane:open()
      plane:log()
      kind("WrongOwner", other:connect("found", { expect_labels = { owner = "me" }, lifetime = 9999 }))
      assert.same({ "GET /v2/sandboxes", "GET /sandboxes/" .. box.provider_id }, plane:calls())
      local handle = assert_ok(other:connect("found", { expect_labels = { owner = "ci" } }))
      assert.equal(box.provider_id, handle.provider_id)
      assert.equal("running", handle.state)
      kind("NotFound", other:connect("unknown")) -- A-14
      assert.equal(1, #boxes:list())
    end)

    it("B31 P-06 P-21 P-39 B-25: looking, listing, connecting neither wakes it nor lengthens its life", function()
      local box = create { id = "calm" }
      local ends_at = box:info().ends_at
      assert_ok(boxes:connect("calm"))
      assert_ok(boxes:info("calm"))
      assert.equal(ends_at, box:info().ends_at)
      assert.equal("disk", assert_ok(box:pause { keep = "disk" }))
      local handle = assert_ok(boxes:connect("calm"))
      assert.equal("paused", handle.state)
      assert.equal("unknown", handle.kept) -- hole 2: the vendor does not say
      kind("NotRunning", boxes:connect("calm", { lifetime = 500 }))
      for _, call in ipairs(plane:calls()) do
        assert.is_nil(call:match("/connect$"))
      end
    end)

    it("A-27 A-111 P-25 B-53: pauses as it is told, never otherwise", function()
      local box = create()
      plane:log()
      assert.equal("memory", assert_ok(box:pause()))
      local log = plane:log()
      assert.is_true(log[1].body.memory)
      assert.equal("paused", box.state)
      assert.equal("memory", box.kept)
      assert.equal("unknown", assert_ok(box:pause { keep = "disk" })) -- A-29 PS-17: it is paused already
      assert_ok(box:resume())
      assert.equal("disk", assert_ok(box:pause { keep = "disk" }))
      kind("InvalidArgument", box:pause { keep = "all" })
    end)

    it("P-26 P-50: a refused pause leaves it running and is an error", function()
      local box = assert_ok(plane:open({ retries = 0 }):create { lifetime = 60 })
      for _, status in ipairs { 503, 429, 409 } do
        plane:faults { { path = "/pause$", times = 9, ["do"] = "status", status = status } }
        kind("Busy", box:pause())
        assert.equal("running", box.state)
        assert.equal("running", box:info().state)
      end
    end)

    it("P-27 B-15: resume wakes it, with the lifetime it had or the one it is given", function()
      local box = create { lifetime = 100 }
      box:pause()
      plane:log()
      assert_ok(box:resume())
      local log = plane:log()
      assert.equal("/v2/sandboxes/" .. box.provider_id .. "/connect", log[2].path)
      assert.equal(100, log[2].body.timeout)
      assert.equal("running", box.state)
      box:pause()
      assert_ok(box:resume { lifetime = 200 })
      assert.is_near(core.wall() + 200, box.ends_at, 5)
      plane:log()
      assert_ok(box:resume()) -- PS-17: nothing to do
      assert.same({ "GET /sandboxes/" .. box.provider_id }, plane:calls())
    end)

    it("B-12: connect { resume, lifetime } does both, and shortens nothing", function()
      local box = create { id = "long", lifetime = 500 }
      assert.is_near(core.wall() + 500, assert_ok(boxes:connect("long", { lifetime = 100 })).ends_at, 5)
      assert.is_near(core.wall() + 900, assert_ok(boxes:connect("long", { lifetime = 900 })).ends_at, 5)
      box:pause()
      local handle = assert_ok(boxes:connect("long", { resume = true }))
      assert.equal("running", handle.state)
    end)

    it("P-06: one that pauses between the look and the call is not woken", function()
      local box = create { id = "race" }
      plane:faults { { path = "/timeout$", ["do"] = "pause" } }
      kind("NotRunning", boxes:connect("race", { lifetime = 5000 }))
      assert.equal("paused", box:info().state)
    end)

    it("B-52: set_lifetime begins anew from now, shorter too", function()
      local box = create { lifetime = 500 }
      assert_ok(box:set_lifetime(50))
      assert.is_near(core.wall() + 50, box:info().ends_at, 5)
      kind("InvalidArgument", box:set_lifetime(0))
      box:pause()
      kind("NotRunning", box:set_lifetime(50))
    end)

    it("A-30 B-54 B-58 P-31: destroy succeeds for one that is gone; other calls say so", function()
      local box = create { id = "gone" }
      assert_ok(boxes:destroy("gone"))
      assert_ok(boxes:destroy("gone"))
      assert_ok(box:destroy())
      box = create { id = "gone" }
      assert_ok(boxes:destroy("gone"))
      for _, op in ipairs { "pause", "resume", "info" } do
        kind("NotFound", box[op](box))
      end
      kind("NotFound", box:set_lifetime(10))
      assert.equal("gone", box.state)
      kind("NotFound", boxes:info("gone"))
    end)

    it("P hole 4: a destroy that fails is an error", function()
      local box = create()
      plane:faults { { method = "DELETE", times = 99, ["do"] = "status", status = 403 } }
      kind("PermissionDenied", box:destroy())
      assert.equal("running", box.state)
      plane:faults {}
      assert_ok(box:destroy())
    end)

    it("A-16: sandboxes outlive handles and the provider", function()
      local own = plane:open()
      local box = assert_ok(own:create { id = "stays", lifetime = 60 })
      assert_ok(box:close())
      assert_ok(own:close())
      kind("Closed", own:list())
      box, own = nil, nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      assert.equal("running", boxes:info("stays").state)
    end)
  end)

  describe("lists", function()
    it("B31 A-11 A-12 A-104 B-10 B-57: has every page, running and paused, by labels", function()
      for i = 1, 7 do
        local box = create { labels = { stage = i % 2 == 0 and "even" or "odd" } }
        if i > 5 then
          box:pause()
        end
      end
      plane:log()
      assert.equal(7, #boxes:list { page_size = 2 })
      assert.equal(4, #plane:log())
      assert.equal(3, #boxes:list { labels = { stage = "even" }, page_size = 1 })
      assert.equal(2, #boxes:list { state = "paused" })
      assert.equal(5, #boxes:list { state = { "running" } })
      assert.equal(0, #boxes:list { state = "gone" })
      assert.equal(3, #boxes:list { limit = 3 })
    end)

    it("B32: labels with odd characters are found", function()
      local odd = { ["a b"] = "c&d=é", ["%41"] = "+ /?#", ["="] = "100%" }
      create { labels = odd }
      create { labels = { ["a b"] = "c" } }
      local found = boxes:list { labels = odd }
      assert.equal(1, #found)
      assert.same(odd, found[1].labels)
      for _, value in ipairs { "a b", "a+b", "a/b", "50%", "%2F", "a&b=c", "=", "é漢😀", "", ("k"):rep(1024) } do
        create { labels = { v = value } }
        assert.equal(1, #boxes:list { labels = { v = value } }, value)
      end
      plane:log()
      boxes:list { labels = { ["a b"] = "c&d=é" } }
      assert.truthy(plane:log()[1].path:find("a%252520b%3Dc%252526d%25253D%2525C3%2525A9", 1, true))
    end)

    it("B50: what is not there may be null, and what is new is not looked at", function()
      plane:faults { { method = "GET", path = "^/v2/sandboxes", ["do"] = "status", status = 200, body = [=[[
        {"sandboxID":"inull-6532622b","state":"running","startedAt":null,"endAt":null,"alias":null,"templateID":"t",
         "lifecycle":null,"network":null,"allowInternetAccess":null,"cpuCount":1e0,"new":{"a":[]},
         "metadata":{"sandbar-provider":"e2b","sandbar-id":"x","sandbar-token":"t"}}]]=] } }
      local info = boxes:list()[1]
      assert.equal("inull", info.provider_id)
      assert.is_nil(info.started_at)
      assert.equal("t", info.template)
      assert.same({}, info.labels)
    end)

    it("B33: what a server lets through that does not match is left out", function()
      create { labels = { a = "1" } }
      plane:faults { { method = "GET", path = "^/v2/sandboxes", ["do"] = "status", status = 200, body = [=[[
        {"sandboxID":"iforeign","state":"running","startedAt":"2026-01-01T00:00:00Z","metadata":{}},
        {"sandboxID":"iother","state":"running","startedAt":"2026-01-01T00:00:00Z","metadata":
          {"sandbar-provider":"e2b","sandbar-id":"x"}},
        {"sandboxID":"ibare","state":"running","startedAt":"2026-01-01T00:00:00Z"}]]=] } }
      assert.same({}, boxes:list { labels = { a = "1" } })
    end)

    it("A-10: sees nothing but what the library made", function()
      plane.http.request(plane.client, { method = "POST", path = "/v2/sandboxes",
        headers = { ["X-API-Key"] = planes.KEY }, body = '{"templateID":"base","timeout":5}' }, 10, "raw")
      assert.equal(0, #boxes:list())
    end)
  end)

  describe("scopes", function()
    it("A-17 B-06 B-07: destroy what was created in them", function()
      sandbar.scope(function(scope)
        local box = assert_ok(boxes:create_scoped({ lifetime = 60 }, scope))
        assert.is_true(box.owned)
        assert.is_false(plane:log()[1].body.autoPause) -- B-09
        assert.equal(1, #boxes:list())
      end)
      assert.equal(0, #boxes:list())
    end)

    it("destroy what a handle was collected with", function()
      local box = assert_ok(boxes:create_scoped { lifetime = 60 })
      assert.is_true(box.owned)
      assert.equal(1, #boxes:list())
      box = nil -- luacheck: ignore
      assert(helper.eventually(function()
        collectgarbage()
        return #boxes:list() == 0
      end))
    end)

    it("B-07: a program that ends in any way leaves nothing", function()
      for _, ending in ipairs { "os.exit(0)", "error('x')", "do end", "while true do box:info() end" } do
        local child = helper.run_lua(([[
          local sandbar = require "sandbar"
          local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
          box = sandbar.assert(boxes:create_scoped { lifetime = 60 })
          if %q:find("while") then sandbar.run(function(s) sandbar.spawn(function() while true do box:info() end end)
            sandbar.sleep(0.05) os.exit(3) end) end
          %s
        ]]):format(planes.KEY, plane.url, ending, ending))
        assert.is_number(child.code)
        assert(helper.eventually(function()
          return #boxes:list() == 0
        end), ending)
      end
    end)

    it("a program that ends while its create is under way leaves nothing", function()
      plane:faults { { method = "POST", path = "^/v2/sandboxes$", ["do"] = "lose" } }
      helper.run_lua(([[
        local sandbar = require "sandbar"
        local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
        sandbar.run(function()
          sandbar.spawn(function() box = boxes:create_scoped { lifetime = 60 } end)
          sandbar.sleep(0)
          os.exit(0)
        end)
      ]]):format(planes.KEY, plane.url))
      local calls = table.concat(plane:calls(), "\n") -- whichever of them comes first
      assert.truthy(calls:find("POST /v2/sandboxes", 1, true), calls)
      assert.equal(0, #boxes:list())
    end)
  end)

  describe("policies", function()
    local policy = require "sandbar.policy"

    it("P-24 B-12 B-58: the vendor's id names a sandbox as well, ours only", function()
      local box = create { id = "named" }
      assert.equal("named", assert_ok(boxes:connect(box.provider_id)).id)
      assert.equal("named", assert_ok(boxes:info(box.provider_id)).id)
      assert_ok(boxes:destroy(box.provider_id))
      kind("NotFound", boxes:info(box.provider_id))
      local raw = plane.http.request(plane.client, { method = "POST", path = "/v2/sandboxes",
        headers = { ["X-API-Key"] = planes.KEY }, body = '{"templateID":"base","timeout":5}' }, 10, "raw")
      kind("NotFound", boxes:connect(raw.body:match('"sandboxID": "(%w+)"')))
    end)

    it("B-16 B34: one sandbox a user, whoever asks at once, woken when it is paused", function()
      local function users()
        return assert_ok(policy.per_user { provider = plane:open(), spec = { lifetime = 60 } })
      end
      local first, second, ids = users(), users(), {}
      sandbar.run(function()
        local fns = {}
        for i = 1, 12 do
          fns[i] = function()
            ids[assert_ok((i % 2 == 0 and first or second):get("ana")).provider_id] = true
            return true
          end
        end
        assert_ok(sandbar.all(fns))
      end)
      local id = next(ids)
      assert.is_nil(next(ids, id))
      assert.equal(1, #boxes:list())
      assert_ok(boxes:connect(id):pause())
      local box = assert_ok(first:get("ana"))
      assert.equal("running", box.state)
      assert.equal(id, box.provider_id)
    end)

    it("A-23 B34: of two that two hosts have made, everybody takes the older one", function()
      local users = assert_ok(policy.per_user { provider = boxes, spec = { lifetime = 60 } })
      plane:faults { { method = "POST", path = "^/v2/sandboxes$", ["do"] = "twin" } }
      local made = assert_ok(users:get("ben"))
      assert.equal(2, #boxes:list())
      assert.equal(made.provider_id, assert_ok(users:get("ben")).provider_id)
    end)

    it("B-17 B-20 B-21 B-55 B-57: a declared one, and what is left is found by its labels", function()
      local one = assert_ok(policy.declared { provider = boxes, name = "web", spec = { template = "base" } })
      local box = assert_ok(one:get())
      assert_ok(box:pause())
      assert.equal(box.provider_id, assert_ok(one:get()).provider_id)
      local cleanup = assert_ok(policy.cleanup { provider = boxes, stack = "s", stage = "t", binding = "b" })
      assert_ok(assert_ok(cleanup:get()):create { lifetime = 60 })
      local found = 0
      for _ in cleanup:each() do
        found = found + 1
      end
      assert.equal(1, found)
      assert_ok(cleanup:destroy())
      assert.equal(1, #boxes:list())
    end)
  end)

  describe("images and copies", function()
    it("takes snapshots, lists and deletes them, and begins with them", function()
      local box = create()
      local name = assert_ok(box:snapshot("with-tools"))
      assert.equal("team/with-tools:default", name)
      local found = {}
      for _, snapshot in ipairs(boxes.snapshots:list()) do
        found[snapshot.name] = true
      end
      assert.is_true(found[name])
      plane:log()
      local copy = create { snapshot = name } -- A-41
      assert.equal(name, plane:log()[1].body.templateID)
      assert.equal(name, copy:info().snapshot)
      assert_ok(boxes.snapshots:delete(name))
      kind("NotFound", boxes.snapshots:delete(name))
      kind("InvalidArgument", box:snapshot("Upper"))
    end)

    it("fork(n) makes copies with ids of their own, and leaves no snapshot", function()
      local before = #boxes.snapshots:list()
      local box = create { labels = { a = "1" }, network = { allow = { "example.com" } }, env = { A = "1" } }
      plane:log()
      local copies = assert_ok(box:fork(2))
      assert.equal(2, #copies)
      for _, request in ipairs(plane:log()) do
        if request.method == "POST" and request.path == "/v2/sandboxes" then
          assert.same({ A = "1" }, request.body.envVars)
          assert.equal("localhost:${PORT}", request.body.network.maskRequestHost) -- was the vendor's own name
          assert.is_false(request.body.network.allowPublicTraffic)
        end
      end
      assert.not_equal(copies[1].id, copies[2].id)
      assert.same({ a = "1" }, copies[1].labels)
      assert.same({ "example.com" }, copies[2]:info().network.allow)
      assert.equal(before, #boxes.snapshots:list())
      assert.equal(3, #boxes:list())
      kind("InvalidArgument", box:fork(0))
    end)

    it("fork(n) made its copies one after another; eight are made at a time, not more", function()
      local box = create()
      plane:faults { { method = "POST", path = "^/v2/sandboxes$", times = 16, ["do"] = "meet", count = 8 } }
      plane:log()
      local copies, seen, most = assert_ok(box:fork(16)), {}, 0
      for _, copy in ipairs(copies) do
        seen[#seen + (seen[copy.id] and 0 or 1)], seen[copy.id] = copy, true
      end
      assert.equal(16, #seen)
      for _, request in ipairs(plane:log()) do
        most = math.max(most, request.running)
      end
      assert.equal(8, most)
    end)

    it("fork(n) that fails half way leaves no copies", function()
      local before = #boxes.snapshots:list()
      local box = create()
      plane:faults { { method = "POST", path = "^/v2/sandboxes$", skip = 1, ["do"] = "status", status = 429 } }
      kind("RateLimited", plane:open({ retries = 0 }):connect(box.id):fork(2))
      plane:faults {}
      assert.equal(1, #boxes:list())
      assert.equal(before, #boxes.snapshots:list())
    end)

    it("fork(n) left the snapshot whose answer was lost", function()
      local box = create()
      local before = #boxes.snapshots:list()
      plane:faults { { method = "POST", path = "/snapshots$", ["do"] = "lose" } }
      kind("OutcomeUnknown", box:fork(1))
      assert.equal(before, #boxes.snapshots:list())
      plane:faults {
        { method = "POST", path = "/snapshots$", ["do"] = "lose" },
        { method = "DELETE", path = "^/templates/", times = 4, ["do"] = "status", status = 500 },
      }
      kind("OutcomeUnknown", plane:open({ retries = 0 }):connect(box.id):fork(1))
      assert.is_truthy(helper.eventually(function()
        return #boxes.snapshots:list() == before
      end))
      plane:faults { { method = "POST", path = "/snapshots$", ["do"] = "status", status = 429 } }
      plane:log()
      kind("RateLimited", plane:open({ retries = 0 }):connect(box.id):fork(1))
      assert.equal(0, core.outstanding()) -- which was not made is not looked for
    end)

    it("fork(n) that failed half way gave up the copies that could not be destroyed at once", function()
      local box = create()
      plane:faults {
        { method = "POST", path = "^/v2/sandboxes$", skip = 1, ["do"] = "status", status = 429 },
        { method = "DELETE", path = "^/sandboxes/", times = 1, ["do"] = "status", status = 500 },
      }
      kind("RateLimited", plane:open({ retries = 0 }):connect(box.id):fork(2))
      assert.is_truthy(helper.eventually(function()
        return #boxes:list() == 1
      end, 15))
      plane:faults {}
    end)
  end)

  describe("templates", function()
    local dir

    busted.setup(function()
      dir = helper.dir("context")
      helper.sh("cd %s && mkdir -p app/deep && printf hello > app/a.txt && printf x > app/deep/%s && chmod 755 app/a.txt "
        .. "&& ln -s a.txt app/link && printf one > single", helper.quote(dir), ("n"):rep(120))
    end)

    local function build(opts)
      opts.name = opts.name or "tool"
      return boxes.templates:build(opts)
    end

    it("are built of the steps that the local provider takes, with their log", function()
      local heard = {}
      local made = assert_ok(build { from = "base", tags = { "v1" }, limits = { cpus = 2, memory = 512 * 2 ^ 20 }, steps = {
        { run = "echo it's" }, { run = { "apt-get", "install", "a b" } }, { env = { B = "2", A = "1" } },
        { workdir = "/srv" }, { user = "app" }, { run = "id" }, { start = "serve" }, { ready = { port = 80 } },
      }, on_progress = function(event)
        heard[#heard + 1] = event.line
      end })
      assert.equal(8, #made.steps)
      assert.equal(7, #heard)
      local log = plane:log()
      assert.same({ name = "tool", tags = { "v1" }, cpuCount = 2, memoryMB = 512 }, log[1].body)
      local start = log[2].body
      assert.equal("base", start.fromTemplate)
      assert.same({ "/bin/sh -c 'echo it'\\''s'", "root" }, start.steps[1].args)
      assert.same({ "'apt-get' 'install' 'a b'", "root" }, start.steps[2].args)
      assert.same({ "A", "1", "B", "2" }, start.steps[3].args)
      assert.same({ "mkdir -p -- '/srv'", "root" }, start.steps[4].args)
      assert.same({ "/bin/sh -c 'id'" }, start.steps[7].args)
      assert.equal("/bin/sh -c 'serve'", start.startCmd)
      assert.equal('[ -n "$(ss -Htuln sport = :80)" ]', start.readyCmd)
      assert.is_nil(start.force)
    end)

    it("get files and trees of the host, each once", function()
      local steps = { { copy = dir .. "/app", to = "/srv/app", owner = "app", mode = "755" },
        { copy = dir .. "/single", to = "/srv/single" } }
      assert_ok(build { steps = steps, from = { image = "debian:12" }, cache = false })
      local log, sent = plane:log(), {}
      for _, request in ipairs(log) do
        if request.method == "PUT" then
          assert.is_nil(request.headers["X-API-Key"])
          assert.equal("yes", request.headers["X-Store"])
          assert.truthy(request.path:find("?sig=a%2Fb", 1, true))
          assert.is_string(request.headers["Content-Length"])
          for _, entry in ipairs(request.body) do
            sent[entry.name] = entry
          end
        elseif request.path:find("/v2/templates/", 1, true) then
          assert.equal("debian:12", request.body.fromImage)
          assert.is_true(request.body.force)
          assert.same({ "app", "/srv/app", "app", "755" }, request.body.steps[1].args)
        end
      end
      assert.equal("5", sent.app.type)
      assert.equal("hello", sent["app/a.txt"].text)
      assert.equal(493, sent["app/a.txt"].mode % 512)
      assert.equal("x", sent["app/deep/" .. ("n"):rep(120)].text)
      assert.equal("a.txt", sent["app/link"].link)
      assert.equal("one", sent.single.text)
      assert_ok(build { steps = steps })
      for _, call in ipairs(plane:calls()) do
        assert.is_nil(call:match("^PUT"))
      end
    end)

    it("that cannot be built say which step it was, and what it wrote", function()
      local err = kind("CommandFailed", build { steps = { { workdir = "/x" }, { run = "exit 3" } } })
      assert.equal(2, err.step)
      assert.truthy(err.output:find("exit 3", 1, true))
    end)

    it("are refused where they would come out otherwise", function()
      for _, opts in ipairs {
        { network = "deny" }, { limits = { disk = 1 } }, { steps = { { env = { A = "$HOME" } } } },
        { steps = { { ready = "true", timeout = 5 } } }, { steps = { { start = false } } },
      } do
        kind("Unsupported", build(opts))
      end
      kind("InvalidArgument", build { name = "Upper" })
      kind("InvalidArgument", build { limits = { memory = 1000 } })
      kind("InvalidArgument", build { tags = { "a:b" } })
      kind("NotFound", build { steps = { { copy = dir .. "/none", to = "/" } } })
      kind("InvalidArgument", build { steps = { { copy = dir .. "/single", to = "/", mode = 755 } } })
      assert.equal(0, #plane:log())
    end)

    it("B-59: are listed, tagged, and deleted when nothing stands on them", function()
      assert_ok(build { name = "used" })
      local box = create { template = "used" }
      box:pause()
      local found = {}
      for _, template in ipairs(boxes.templates:list()) do
        found[template.name] = template
      end
      assert.equal(536870912, found.used.memory)
      kind("Busy", boxes.templates:delete("used"))
      assert_ok(box:destroy())
      assert_ok(boxes.templates:tag("used", { "prod", "v2" }))
      assert.equal(2, #boxes.templates:tags("used"))
      assert_ok(boxes.templates:untag("used", { "v2" }))
      assert.equal("prod", boxes.templates:tags("used")[1].tag)
      assert_ok(boxes.templates:delete("used"))
      kind("NotFound", boxes.templates:delete("used"))
    end)
  end)

  describe("measures", function()
    it("tells the last sample, or those of a time", function()
      local box = create()
      local now = assert_ok(box:metrics())
      assert.equal(12.5, now.cpu_percent)
      assert.equal(2 ^ 28, now.memory)
      assert.equal(2 ^ 34, now.disk_total)
      plane:log()
      assert.equal(2, #assert_ok(box:metrics { start = 1700000000 }))
      assert.truthy(plane:log()[1].path:find("/metrics?start=1700000000", 1, true))
    end)

    it("passes on the vendor's log", function()
      create { id = "logged" }
      local lines = assert_ok(boxes:logs("logged", { level = "info", limit = 10 }))
      assert.equal("up", lines[1].message)
      assert.equal("envd", lines[1].fields.unit)
      assert.equal(1788256800, lines[1].at)
      kind("InvalidArgument", boxes:logs("logged", { level = "loud" }))
    end)
  end)

  describe("keys", function()
    it("B-04 B-05: a program gets its own, which goes with the scope", function()
      kind("Unauthenticated", boxes.keys:create { name = "x" })
      local admin = plane:open { access_token = planes.TOKEN, team = "t1" }
      local before = #assert_ok(admin.keys:list())
      sandbar.scope(function(scope)
        local key = assert_ok(admin.keys:create_scoped({ name = "worker" }, scope))
        assert.is_true((core.is_secret(key.key)))
        assert.equal(before + 1, #admin.keys:list())
      end)
      assert.equal(before, #admin.keys:list())
      local kept = assert_ok(admin.keys:create { name = "kept" })
      assert_ok(admin.keys:delete(kept.id))
      assert_ok(admin.keys:delete(kept.id))
      kind("InvalidArgument", admin.keys:delete("x"))
    end)

    it("B-04 B-05: whose answer was lost stayed; they are revoked, and have the name that they were given", function()
      local admin = plane:open { access_token = planes.TOKEN, team = "t1", retries = 0 }
      local before = #assert_ok(admin.keys:list())
      local function none()
        return #assert_ok(admin.keys:list()) == before
      end
      for what, expected in pairs { lose = "OutcomeUnknown", cut = "OutcomeUnknown", hold = "Timeout" } do
        plane:faults { { method = "POST", path = "^/api-keys$", ["do"] = what } }
        kind(expected, admin.keys:create { name = "worker", timeout = what == "hold" and 1 or 20 })
        assert.is_truthy(helper.eventually(none), what)
      end
      plane:faults { { method = "POST", path = "^/api-keys$", ["do"] = "status", status = 400 } }
      kind("InvalidArgument", admin.keys:create { name = "worker" })
      assert.equal(0, core.outstanding())
      local key = assert_ok(admin.keys:create { name = "a #b" })
      assert.equal("a #b", key.name)
      assert.equal("a #b", assert_ok(admin.keys:list())[before + 1].name)
      assert_ok(admin.keys:delete(key.id))
      kind("InvalidArgument", admin.keys:create { name = ("n"):rep(91) })
    end)
  end)
end)
