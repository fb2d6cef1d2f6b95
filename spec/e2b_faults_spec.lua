-- check: only 5.4
-- check: no user
-- check: no asan
-- The way to the control plane of E2B when it is bad: cut, silent, busy, lying; proxies, certificates, protocols; what is
-- tried again, what is not; and keys that show nowhere. B and two digits are the numbers of known faults.

local busted = require "busted"
local helper = require "spec.helper"

local answers = require "sandbar.e2b.errors"
local core = require "sandbar.core"
local planes = require "spec.support.control_plane"
local sandbar = require "sandbar"

local assert_ok, kind = sandbar.assert, helper.kind

describe("the way to the control plane of E2B", function()
  local plane, boxes, secure, pem

  busted.setup(function()
    local dir = helper.dir("tls")
    pem = dir .. "/both.pem"
    helper.sh("cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -out cert "
      .. "-days 2 -subj /CN=plane -addext subjectAltName=IP:127.0.0.1 && cat key cert > both.pem", helper.quote(dir))
    secure = planes.start("tls=" .. pem)
    secure.url = "https://127.0.0.1:" .. secure.port
  end)

  planes.suite(function(started)
    plane, boxes = started, started and started:open()
  end)

  busted.teardown(function()
    secure:stop()
  end)

  local function fault(fields)
    plane:faults { fields }
  end

  local function count(calls, what)
    local n = 0
    for _, call in ipairs(calls) do
      n = n + (call == what and 1 or 0)
    end
    return n
  end

  describe("errors", function()
    it("A-100: every status has its kind, with the vendor's words", function()
      local once = plane:open { retries = 0 }
      for status, expected in pairs {
        [400] = "InvalidArgument", [401] = "Unauthenticated", [403] = "PermissionDenied", [404] = "NotFound",
        [405] = "Unsupported", [409] = "Busy", [410] = "Unsupported", [413] = "LimitExceeded", [418] = "InvalidArgument",
        [429] = "RateLimited", [501] = "Unsupported", [507] = "NoSpace", [302] = "Protocol",
      } do
        fault { path = "^/v2/sandboxes", times = 9, ["do"] = "status", status = status, message = "so it is",
          headers = status == 302 and { Location = "http://127.0.0.1:1/" } or nil }
        local err = kind(expected, once:list())
        assert.equal(status, err.status)
        assert.truthy(status == 302 or err.message:find("so it is", 1, true), err.message)
      end
    end)

    it("B37: what is no JSON is told apart from what the vendor says, and no page is passed on", function()
      local page = "<html><body>" .. ("Bad gateway. "):rep(2000) .. "</body></html>"
      fault { path = "^/v2/sandboxes", times = 9, ["do"] = "status", status = 502, body = page, type = "text/html" }
      local err = kind("Unavailable", plane:open({ retries = 0 }):list())
      assert.is_true(err.foreign)
      assert.is_true(#err.message < 100)
      assert.equal("text/html", err.content_type)
      assert.truthy(err.excerpt:find("^<html>") and #err.excerpt < 400)
      for _, text in ipairs { page, "[1,2", "\0x", "null", '"text"', "\239\187\191[]", ("["):rep(10000), "[1]", "[null]",
        "{}", '{"sandboxes":[]}', "" } do
        fault { path = "^/v2/sandboxes", times = 9, ["do"] = "status", status = 200, body = text, type = "text/html" }
        kind("Protocol", boxes:list { timeout = 5 })
      end
      fault { path = "^/v2/sandboxes", times = 9, ["do"] = "status", status = 200, body = '[{"sandboxID":7}]' }
      kind("Protocol", boxes:list())
    end)

    it("a gateway's or a page's 404 was taken for a sandbox that has gone, which went on", function()
      local page = "<html><body>The sandbox was not found</body></html>"
      local box = assert_ok(boxes:create { id = "there", lifetime = 60 })
      for _, body in ipairs { page, "404 page not found", '{"message":"Not Found"}', '{"code":5,"message":"not found"}', "" } do
        for _, method in ipairs { "GET", "DELETE" } do
          fault { method = method, path = "^/sandboxes/i", ["do"] = "status", status = 404, body = body, type = "text/html" }
          local err = kind("Protocol", box[method == "GET" and "info" or "destroy"](box))
          assert.equal(404, err.status)
          assert.is_true(err.foreign)
          assert.equal("running", box.state)
        end
      end
      fault { method = "DELETE", path = "^/sandboxes/i", ["do"] = "status", status = 200, body = page, type = "text/html" }
      kind("Protocol", box:destroy())
      assert.equal(1, #boxes:list())
      assert_ok(box:destroy())
      assert.equal(0, #boxes:list())
    end)

    it("P-43: messages of the other side are redacted and short", function()
      fault { path = "^/v2/sandboxes", times = 9, ["do"] = "status", status = 400,
        body = '{"code":400,"message":"bad key ' .. planes.KEY .. "\\n" .. ("x"):rep(5000) .. '"}' }
      local err = kind("InvalidArgument", boxes:list())
      assert.is_nil(err.message:find(planes.KEY, 1, true))
      assert.is_true(#err.message < 700)
      for cut = 470, 500 do -- wherever the rest is left out, no part of a key remains
        fault { path = "^/v2/sandboxes", ["do"] = "status", status = 400, body = ("y"):rep(cut) .. planes.KEY, type = "x" }
        err = kind("InvalidArgument", boxes:list())
        assert.is_nil(err.message:find("5a5", 1, true))
        assert.is_nil(err.excerpt:find("5a5", 1, true))
      end
    end)

    it("codes of Connect and refusals of the port proxy are in the same table", function()
      assert.equal("NotFound", answers.of_code("not_found", "no such file", "read").kind)
      assert.equal("Protocol", answers.of_code("odd", nil, "read").kind)
      local headers = { ["content-type"] = "application/json" }
      local function proxy(status, body)
        return answers.of_proxy { status = status, headers = headers, body = body }
      end
      assert.equal("gone", proxy(502, '{"sandboxId":"i","message":"The sandbox was not found","code":502}'))
      assert.equal("port", proxy(502, '{"sandboxId":"i","message":"The sandbox is running but port is not open","code":502}'))
      assert.equal("token", proxy(403, '{"sandboxId":"i","message":"token","code":403}'))
      assert.is_nil(proxy(502, "my own"))
      assert.is_nil(proxy(404, '{"sandboxId":"i","code":404}'))
    end)
  end)

  describe("tries", function()
    it("B38: waits as long as it is told before it asks again, inside the caller's time", function()
      fault { path = "^/v2/sandboxes", ["do"] = "status", status = 429, headers = { ["Retry-After"] = "1" } }
      local seconds = helper.timed(function()
        assert_ok(boxes:list { timeout = 20 })
      end)
      assert.is_true(seconds >= 1, seconds)
      fault { path = "^/v2/sandboxes", ["do"] = "status", status = 429, headers = { ["Retry-After"] = "30" } }
      plane:log()
      local err = kind("RateLimited", boxes:list { timeout = 5 })
      assert.equal(30, err.retry_after)
      assert.equal(1, #plane:log())
    end)

    it("B38: a hint is a number of seconds or a date, nonsense is none, and no hint means no second try", function()
      local function hint(text, date)
        return answers.retry_after(require("sandbar.headers").new { { "Retry-After", text }, date and { "Date", date } })
      end
      local before, after = "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:39 GMT"
      for text, seconds in pairs { ["0"] = 0, ["1"] = 1, ["2147483"] = 2147483 } do
        assert.equal(seconds, hint(text))
      end
      assert.equal(2, hint(after, before))
      assert.equal(0, hint(before, after))
      for _, text in ipairs { "2.5", "-1", "1e9", "soon", "", "99999999999", "Sun, 06 Foo 1994 08:49:37 GMT" } do
        assert.is_nil(hint(text))
      end
      fault { path = "^/v2/sandboxes", times = 9, ["do"] = "status", status = 429 }
      plane:log()
      kind("RateLimited", boxes:list())
      assert.equal(1, #plane:log())
    end)

    it("a create that was refused as one too many is asked for again, and is one", function()
      fault { method = "POST", times = 2, ["do"] = "status", status = 429, headers = { ["Retry-After"] = "0" } }
      assert_ok(boxes:create { lifetime = 60 })
      assert.equal(3, count(plane:calls(), "POST /v2/sandboxes"))
      assert.equal(1, #boxes:list())
    end)

    it("reads are tried again after any failure, as often as it is said", function()
      for _, what in ipairs { "close", "reset", "cut" } do
        fault { method = "GET", times = 2, ["do"] = what }
        assert_ok(boxes:list { timeout = 20 })
      end
      fault { method = "GET", times = 99, ["do"] = "status", status = 503 }
      plane:log()
      kind("Unavailable", plane:open({ retries = 1 }):list())
      assert.equal(2, #plane:log())
    end)

    it("nothing is tried again that was refused for good", function()
      for _, status in ipairs { 400, 401, 403, 404, 501 } do
        fault { method = "GET", times = 99, ["do"] = "status", status = status }
        plane:log()
        assert.is_nil((boxes:list()))
        assert.equal(1, #plane:log())
      end
    end)

    it("A-33: a vendor's refusal of a lifetime is passed on, and nothing was made", function()
      local err = kind("InvalidArgument", boxes:create { lifetime = "25h" })
      assert.truthy(err.message:find("24 hours", 1, true))
      assert.equal(0, #boxes:list())
    end)
  end)

  describe("lost answers", function()
    it("a create whose answer is lost is found by its token, with everything an answer gives", function()
      for _, what in ipairs { "lose", "cut" } do
        fault { method = "POST", path = "^/v2/sandboxes$", ["do"] = what }
        local box = assert_ok(boxes:create { id = "lost-" .. what, lifetime = 60 })
        local found = boxes:list()
        assert.equal(box.provider_id, found[#found].provider_id and boxes:info("lost-" .. what).provider_id)
      end
      assert.equal(2, #boxes:list())
    end)

    -- In a program of its own: what could not be settled is said when it ends.
    local function creates(faults, code)
      plane:faults(faults)
      return helper.run_lua(([[
        local sandbar = require "sandbar"
        sandbar.config { drain = 0.3 }
        local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
        for i = 1, %d do
          local box, err = boxes:create({ id = "create" .. i, lifetime = 60 }, { timeout = i < 3 and 1.2 or 0.4 })
          print(box and "made" or err.kind, box == nil and err.clock or nil, box == nil and err.limit or nil)
        end
        %s
      ]]):format(planes.KEY, plane.url, #faults, code or ""))
    end

    local function on_create(fields)
      fields.method, fields.path = "POST", "^/v2/sandboxes$"
      return fields
    end

    it("a create that cannot be settled is OutcomeUnknown, or Timeout, is not sent twice, and is told of at the end", function()
      local child = creates {
        on_create { ["do"] = "reset" },
        on_create { ["do"] = "status", status = 502, body = "<html>", type = "text/html" }, -- no proof of anything
        on_create { ["do"] = "stall" }, -- B13
      }
      assert.equal("OutcomeUnknown\tnil\tnil\nOutcomeUnknown\tnil\tnil\nTimeout\ttimeout\t0.4\n", child.stdout)
      for i = 1, 3 do
        assert.truthy(child.stderr:find("not released at exit: sandbox create" .. i, 1, true), child.stderr)
      end
      assert.equal(3, count(plane:calls(), "POST /v2/sandboxes"))
    end)

    it("a create behind a page that said 404 or 405 was made, and asked for once more by another path", function()
      for _, status in ipairs { 404, 405 } do
        fault(on_create { ["do"] = "lie", status = status })
        local box = assert_ok(boxes:create { lifetime = 60 })
        local calls = plane:calls()
        assert.equal(0, count(calls, "POST /sandboxes"))
        assert.equal(1, count(calls, "POST /v2/sandboxes"))
        assert.equal(1, #boxes:list())
        assert_ok(box:destroy())
      end
    end)

    it("a create that the vendor itself says has failed was not made", function()
      fault(on_create { ["do"] = "status", status = 500, message = "no" })
      kind("Unavailable", boxes:create { lifetime = 60 })
    end)

    it("B33: an undone create deleted the first of a list that nobody had filtered", function()
      local labels, other = { sandboxID = "none", text = "}]\"" }, nil
      fault { method = "POST", path = "^/v2/sandboxes$", ["do"] = "hold" }
      sandbar.run(function()
        local task = sandbar.spawn(function()
          return boxes:create { lifetime = 60, labels = labels }
        end)
        assert(helper.eventually(function()
          sandbar.sleep(0.005)
          return count(plane:calls(), "POST /v2/sandboxes") > 0
        end))
        other = assert_ok(boxes:create { lifetime = 60, labels = labels }) -- the newest is the first of the list
        fault { method = "GET", path = "sandbar-token", ["do"] = "all" } -- what the release looks for
        task:cancel()
        task:wait()
      end)
      assert(helper.eventually(function()
        local list = boxes:list()
        return #list == 1 and list[1].provider_id == other.provider_id
      end))
    end)

    it("a create that nobody waits for any more leaves nothing", function()
      fault { method = "POST", path = "^/v2/sandboxes$", ["do"] = "hold" }
      sandbar.run(function()
        local task = sandbar.spawn(function()
          return boxes:create { lifetime = 60 }
        end)
        assert(helper.eventually(function()
          sandbar.sleep(0.005)
          return count(plane:calls(), "POST /v2/sandboxes") > 0
        end))
        task:cancel()
        task:wait()
      end)
      assert(helper.eventually(function()
        return #boxes:list() == 0
      end))
    end)

    it("a create that an interrupt ended left its sandbox as long as the program went on", function()
      fault { method = "POST", path = "^/v2/sandboxes$", ["do"] = "hold" }
      local child = helper.start_lua(([[
        local sandbar = require "sandbar"
        local core = require "sandbar.core"
        local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
        print(pcall(boxes.create, boxes, { lifetime = 60 }))
        collectgarbage()
        collectgarbage()
        local by = core.now() + 10
        while core.outstanding() > 0 and core.now() < by do sandbar.sleep(0.01) end
        print(#boxes:list()) io.stdout:flush()
        io.read()
      ]]):format(planes.KEY, plane.url))
      assert(helper.eventually(function()
        return count(plane:calls(), "POST /v2/sandboxes") > 0
      end))
      child:signal "INT"
      local said = child:line()
      local left = child:line()
      child:signal "KILL"
      child:wait()
      assert.truthy(said:find("^false.*interrupted"), said)
      assert.equal("0", left)
    end)

    it("pauses, resumes, policies, destroys whose answers are lost come to what was asked for", function()
      local box = assert_ok(boxes:create { lifetime = 60 })
      local given = { set_lifetime = 60, update_network = "allow" }
      for _, op in ipairs { "pause", "resume", "set_lifetime", "update_network", "destroy" } do
        fault { path = op == "destroy" and "/i%w*" or "/sandboxes/i", skip = op == "resume" and 1 or 0,
          ["do"] = op == "update_network" and "status" or "lose", status = 503 }
        assert_ok(box[op](box, given[op]))
      end
      assert.equal(0, #boxes:list())
    end)

    it("B13: names the clock that ended a call", function()
      fault { path = "^/v2/sandboxes", ["do"] = "stall" }
      local err = kind("Timeout", plane:open({ request_timeout = 0.2 }):list())
      assert.equal("request_timeout", err.clock)
      assert.equal(0.2, err.limit)
    end)

    it("releases are tried again, and what cannot be released is said at the end", function()
      fault { method = "DELETE", times = 3, ["do"] = "status", status = 503 }
      local box = assert_ok(boxes:create_scoped { lifetime = 60 })
      assert_ok(box:close())
      assert.equal(0, #boxes:list())
      for status, body in pairs { [404] = "<html>not found</html>", [200] = "<html>welcome</html>",
        [202] = "what?" } do -- not the vendor's
        box = assert_ok(boxes:create_scoped { lifetime = 60 })
        fault { method = "DELETE", ["do"] = "status", status = status, body = body, type = "text/html" }
        assert_ok(box:close())
        assert.equal(0, #boxes:list())
      end
      fault { method = "DELETE", times = 99, ["do"] = "status", status = 403 }
      local child = helper.run_lua(([[
        local sandbar = require "sandbar"
        local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
        box = sandbar.assert(boxes:create_scoped { id = "stuck", lifetime = 60 })
      ]]):format(planes.KEY, plane.url))
      assert.truthy(child.stderr:find("not released at exit: sandbox stuck", 1, true), child.stderr)
    end)
  end)

  describe("generations", function()
    it("a server of the first generation is spoken to as it wants", function()
      local old = planes.start("v1")
      local provider = old:open()
      local box = assert_ok(provider:create { lifetime = 60 })
      local log = old:log()
      assert.equal("/v2/sandboxes", log[1].path)
      assert.equal("/v2/sandboxes/none/connect", log[2].path)
      assert.equal("/sandboxes", log[3].path)
      assert.is_true(log[3].body.secure)
      assert_ok(box:pause())
      assert_ok(box:resume())
      assert_ok(provider:create { lifetime = 60 })
      log = old:log()
      assert.equal("/sandboxes", log[#log].path)
      provider, box = nil, nil -- luacheck: ignore
      collectgarbage()
      old:stop()
    end)
  end)

  describe("connections", function()
    it("B39: are used again, and a hundred calls leave one socket", function()
      local before = helper.anonymous_fds()
      for _ = 1, 50 do
        assert_ok(boxes:destroy(assert_ok(boxes:create { lifetime = 60 }).id))
      end
      assert.is_true(helper.anonymous_fds() - before <= 2)
      local peers, gets = {}, 0
      for _, request in ipairs(plane:log()) do
        if request.method == "GET" then
          peers[request.peer], gets = true, gets + 1
        end
      end
      local n = 0
      for _ in pairs(peers) do
        n = n + 1
      end
      assert.equal(50, gets)
      assert.is_true(n <= 3, n)
    end)

    it("B39: neither waits that end early nor providers that are dropped leave sockets", function()
      local function settled()
        collectgarbage()
        collectgarbage()
        return helper.anonymous_fds()
      end
      assert_ok(boxes:list())
      local before = settled()
      fault { path = "^/v2/sandboxes", times = 20, ["do"] = "stall" }
      for _ = 1, 20 do
        kind("Timeout", boxes:list { timeout = 0.002 })
      end
      plane:faults {}
      for _ = 1, 20 do
        assert_ok(plane:open():list())
        kind("Unavailable", plane:open({ api_url = "http://127.0.0.1:1", retries = 0 }):list())
      end
      assert(helper.eventually(function()
        return settled() - before <= 5
      end))
    end)

    it("nobody who answers is Unavailable at once, and a create was not made", function()
      local nowhere = require("sandbar.e2b.provider").open({ api_key = "some key", api_url = "http://127.0.0.1:1",
        retries = 1 }, 1)
      local err = kind("Unavailable", nowhere:create { lifetime = 60 })
      assert.truthy(err.message:find("127.0.0.1:1", 1, true))
    end)

    it("B40: no proxy but the one that is given", function()
      local child = helper.run_lua(([[
        local sandbar = require "sandbar"
        local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q }, 1))
        print(#sandbar.assert(boxes:list()))
      ]]):format(planes.KEY, plane.url), { env = { http_proxy = "http://127.0.0.1:1", HTTPS_PROXY = "http://127.0.0.1:1",
        ALL_PROXY = "http://127.0.0.1:1" } })
      assert.equal("0\n", child.stdout)
    end)

    it("B40: the environment's, where that is asked for, with its exceptions", function()
      local proxies = require "sandbar.e2b.proxies"
      local function of(origin, variables)
        return proxies.of(origin, function(name)
          return variables[name]
        end)
      end
      local url = "http://proxy:3128"
      for _, name in ipairs { "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY" } do
        assert.equal(url, of("https://api.corp", { [name] = url }))
      end
      assert.equal(url, of("http://api.corp", { http_proxy = "proxy:3128" }))
      assert.is_nil(of("http://api.corp", { HTTP_PROXY = url })) -- a request's header in CGI
      assert.is_nil(of("https://api.corp", {}))
      for _, origin in ipairs { "http://localhost:3000", "https://127.0.0.9", "http://[::1]:80", "http://a.localhost" } do
        assert.is_nil(of(origin, { all_proxy = url }))
      end
      for list, direct in pairs {
        ["*"] = true, [".corp"] = true, ["corp"] = true, ["API.corp:443"] = true, ["api.corp:80"] = false, ["pi.corp"] = false,
        [",, x"] = false, ["[::1"] = false, ["10.0.0.0/99"] = false, ["*.corp"] = true, ["a.b,api.corp"] = true,
      } do
        assert.equal(not direct and url or nil, of("https://api.corp", { all_proxy = url, no_proxy = list }), list)
      end
      assert.is_nil(of("https://10.1.2.3", { all_proxy = url, NO_PROXY = "10.0.0.0/8" }))
      assert.equal(url, of("https://11.1.2.3", { all_proxy = url, NO_PROXY = "10.0.0.0/8" }))
      assert.is_nil(of("https://[fd00::1]:8443", { all_proxy = url, no_proxy = "[fd00::1]:8443" }))
      local child = helper.run_lua(([[
        local sandbar = require "sandbar"
        local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = "a key", retries = 0,
          api_url = "http://nowhere.invalid", proxy = "environment" }, 1))
        print(boxes:list())
      ]]), { env = { http_proxy = "http://127.0.0.1:1" } })
      assert.truthy(child.stdout:find("nowhere.invalid cannot be reached", 1, true), child.stdout)
      kind("InvalidArgument", require("sandbar.e2b.provider").open({ api_key = "k", proxy = "envronment" }, 1))
    end)

    it("A-09: reads neither key nor address from the environment", function()
      local child = helper.run_lua([[
        print(require("sandbar.e2b.provider").open({}, 1))
      ]], { env = { E2B_API_KEY = planes.KEY, E2B_API_URL = plane.url } })
      assert.truthy(child.stdout:find("InvalidArgument", 1, true))
    end)

    it("a proxy carries everything in a tunnel, and does not see a key", function()
      local file = helper.scratch() .. "/proxy"
      local world = assert(io.popen("unset LD_PRELOAD; exec python3 spec/support/proxy_world.py " .. helper.quote(file), "w"))
      local ports = assert(helper.eventually(function()
        local found = {}
        for name, port in (helper.read_file(file) or ""):gmatch("(%S+) (%d+)\n") do
          found[name] = port
        end
        return found.login and found.open and found.no and found
      end, 10))
      local function through(url)
        return plane:open { proxy = url, retries = 0 }
      end
      assert_ok(through("http://127.0.0.1:" .. ports.open):list())
      assert_ok(through(sandbar.secret("http://user:p%40ss%20w%3Ard@127.0.0.1:" .. ports.login)):list())
      local err = kind("Unauthenticated", through("http://u:p@127.0.0.1:" .. ports.login):list())
      assert.truthy(err.message:find("407", 1, true))
      kind("Unavailable", through("http://127.0.0.1:" .. ports.no):create { lifetime = 60 })
      kind("Unavailable", through("http://127.0.0.1:1"):list())
      local seen = helper.read_file(file .. ".seen")
      assert.truthy(seen:find("CONNECT 127.0.0.1:" .. plane.port, 1, true))
      assert.is_nil(seen:find(planes.KEY, 1, true))
      kind("InvalidArgument", require("sandbar.e2b.provider").open({ api_key = "some key", proxy = "ftp://x" }, 1))
      world:close()
    end)
  end)

  describe("TLS", function()
    it("trusts the certificates it is given, and no stranger's", function()
      assert_ok(secure:open({ ca_file = pem }):list())
      local err = kind("Unavailable", secure:open({ retries = 0 }):list())
      assert.truthy(err.message:find("certificate", 1, true), err.message)
      kind("InvalidArgument", secure:open({ ca_file = "/no/such/file" }):list())
    end)

    it("speaks HTTP/2 where it is offered", function()
      if helper.shell("nginx -V 2>&1 | grep -c http_v2_module"):match("%d+") == "0" then
        return helper.skip("there is no nginx with HTTP/2")
      end
      local dir = helper.dir("h2")
      local port = helper.sh("python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); "
        .. "print(s.getsockname()[1])'"):match("%d+")
      helper.write_file(dir .. "/conf", ([[
        daemon off; master_process off; pid %s/pid; error_log %s/error.log;
        events {}
        http {
          access_log %s/log; log_format x "$server_protocol $status"; access_log %s/log x;
          client_body_temp_path %s/b; proxy_temp_path %s/p; fastcgi_temp_path %s/f; uwsgi_temp_path %s/u; scgi_temp_path %s/s;
          server { listen 127.0.0.1:%s ssl http2; ssl_certificate %s; ssl_certificate_key %s;
            location / { proxy_pass %s; proxy_http_version 1.1; proxy_set_header Connection ""; } }
        }]]):gsub("%%s/", dir .. "/"):format(port, pem, pem, plane.url))
      local nginx = io.popen(("exec nginx -p %s -c %s/conf 2>/dev/null"):format(dir, dir), "r")
      local url = "https://127.0.0.1:" .. port
      assert(helper.eventually(function()
        return (helper.read_file(dir .. "/pid") or ""):match("%d+")
      end, 10))
      local provider = plane:open { api_url = url, ca_file = pem }
      local box = assert_ok(provider:create { id = "h2", lifetime = 60 })
      assert_ok(provider:connect("h2"))
      assert_ok(box:destroy())
      box, provider = nil, nil -- luacheck: ignore
      helper.sh("kill %s", helper.read_file(dir .. "/pid"):match("%d+"))
      nginx:close()
      local log = helper.read_file(dir .. "/log")
      assert.truthy(log:find("HTTP/2.0 201", 1, true), log)
      assert.is_nil(log:find("HTTP/1", 1, true), log)
    end)
  end)

  describe("a transport that was injected", function()
    local function transport(answer)
      return { asked = {}, request = function(self, request)
        self.asked[#self.asked + 1] = request
        local status, text = answer(request)
        return { status = status, reason = "", headers = require("sandbar.headers").new {}, body = text }
      end }
    end

    it("P-09 P-11 A-99: takes all requests", function()
      local way = transport(function(request)
        if request.method == "POST" then
          return 201, '{"sandboxID":"iabc","envdVersion":"0.6.13"}'
        end
        return 200, "[]"
      end)
      local provider = plane:open { transport = way, api_url = "https://nowhere.invalid/base" }
      local box = assert_ok(provider:create { id = "x", lifetime = 60 })
      assert.equal("iabc", box.provider_id)
      assert.equal("/base/v2/sandboxes", way.asked[2].path)
      kind("Unsupported", provider:create_scoped { lifetime = 60 })
    end)

    it("a template whose daemon is too old is refused, and its sandbox goes", function()
      local way = transport(function(request)
        return request.method == "POST" and 201 or 204, request.method == "POST"
          and '{"sandboxID":"iabc","envdVersion":"0.0.9"}' or ""
      end)
      local err = kind("Unsupported", plane:open({ transport = way }):create { lifetime = 60 })
      assert.equal("template", err.clause)
      assert.equal("DELETE", way.asked[2].method)
    end)
  end)

  describe("credentials", function()
    it("P-10 P-42 P-43: show in nothing that is written anywhere during a whole life", function()
      local audit = helper.scratch() .. "/audit"
      local child = helper.run_lua(([[
        local sandbar = require "sandbar"
        local f = assert(io.open(%q, "w"))
        local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q,
          access_token = %q, team = "t", headers = { ["X-Own"] = sandbar.secret("own-header-secret") } }, 1))
        sandbar.audit { fn = function(event)
          for k, v in pairs(event) do f:write(k, "=", tostring(v), "\n") end
        end }
        local box = sandbar.assert(boxes:create { id = "life", lifetime = 60, env = { A = sandbar.secret("env-secret") },
          network = { allow = { "a.b" }, inject = { { host = "a.b", set_headers = { H = sandbar.secret("rule-secret") } } } } })
        print(box, boxes, box.labels, box:info().network.inject[1].set_headers.H)
        for _, what in ipairs { "pause", "resume", "snapshot", "metrics", "info", "destroy", "pause" } do
          print(what, box[what](box))
        end
        print(boxes.keys:create { name = "k" })
        print(boxes:create { template = "nowhere" })
        f:close()
      ]]):format(audit, planes.KEY, plane.url, planes.TOKEN), { env = { SANDBAR_TRACE = "1" } })
      assert.equal(0, child.code, child.stderr)
      local all = child.stdout .. child.stderr .. helper.read_file(audit)
      assert.truthy(all:find("what=sandbox", 1, true))
      local known = { planes.KEY, planes.TOKEN, "own-header-secret", "env-secret", "rule-secret" }
      for _, request in ipairs(plane:log()) do -- they did go out
        known.sent = known.sent or request.text:find("env-secret", 1, true) and request.headers["X-Own"] == known[3]
      end
      assert.is_true(known.sent)
      for _, secret in ipairs(known) do
        assert.is_nil(all:find(secret, 1, true), secret)
      end
      assert.is_false((core.is_secret("x")))
    end)
  end)
end)
