-- check: netlab
-- check: only 5.4
-- Policies whose connections all go through a proxy.

local helper = require "spec.helper"
local reaching = require "spec.support.reaching"

local sandbar = require "sandbar"

local assert_ok = sandbar.assert
local with_box, reach, get, denied = reaching.with_box, reaching.reach, reaching.get, reaching.denied
local GOOD, GOOD6, OTHER = "198.51.100.10", "2001:db8:2::10", "198.51.100.99"
local LOGIN, PASSWORD = "user:p%40ss%20w%3Ard", "p@ss w:rd"
local TOKEN = "Bearer s3cr3t-0f-the-host"
local NONE = "the upstream proxy does not answer"

describe("a policy with a proxy", function()
  local file, pipe
  local port = {}

  setup(function()
    file = os.getenv("SPEC_DIR") .. "/proxies"
    pipe = assert(io.popen("unset LD_PRELOAD; exec python3 spec/support/proxy_world.py " .. helper.quote(file), "w"))
    local text = assert(helper.eventually(function()
      return helper.read_file(file)
    end, 20))
    for kind, number in text:gmatch("(%l+) (%d+)") do
      port[kind] = number
    end
  end)

  teardown(function()
    pipe:close()
    helper.remove(file)
    helper.remove(file .. ".seen")
  end)

  helper.guard()

  local function url(kind, login, host)
    return ("http://%s%s:%s"):format(login and login .. "@" or "", host or "127.0.0.1", port[kind])
  end

  local function rules(proxy, more)
    local policy = { allow = { "good.test", "rebind.test", "198.51.100.0/28", "2001:db8:2::/64" }, upstream_proxy = proxy }
    for k, v in pairs(more or {}) do
      policy[k] = v
    end
    return policy
  end

  -- What the proxies have been asked for since the last time, in any order.
  local function seen()
    local text = helper.read_file(file .. ".seen") or ""
    os.remove(file .. ".seen")
    local lines = {}
    for line in text:gmatch("[^\n]+") do
      lines[#lines + 1] = line
    end
    table.sort(lines)
    return lines
  end

  before_each(seen)

  it("goes there by it alone, to the address that was looked up", function()
    with_box("deny", function(box)
      for _, proxy in ipairs { url "open", url("odd", nil, "own.test"), url("open", nil, "localhost"),
        url("open", nil, "[::1]"), sandbar.secret(url "open" .. "/") } do
        local kind = tostring(proxy):find(port.odd) and "odd" or "open"
        assert_ok(box:update_network(rules(proxy)))
        local word, came = get(box, OTHER, "GOOD.test")
        assert.equal("ok", word, proxy)
        assert.is_truthy(came:find("^198%.51%.100%.10 GET / HTTP/1%.1"), came)
        assert.equal("ok", (reach(box, "tcp", GOOD6, 7, "hello")))
        assert.same({ kind .. " CONNECT 198.51.100.10:80 HTTP/1.1 -", kind .. " CONNECT [2001:db8:2::10]:7 HTTP/1.1 -" },
          seen())
      end
      assert.same({}, assert_ok(box:info()).denied)
    end)
  end)

  it("loses nothing of what the server says first, nor of a long stream", function()
    with_box(rules(url "odd"), function(box)
      local r = assert_ok(box:exec("exec 3<>/dev/tcp/" .. GOOD .. "/11; head -c 3000000 <&3 | tr -d '\\0' | wc -c; "
        .. "exec 4<>/dev/tcp/" .. GOOD .. "/7; (head -c 3000000 /dev/zero | tr '\\0' x >&4 &); head -c 3000000 <&4 | wc -c",
        { shell = "/bin/bash", timeout = 20 }))
      assert.equal("0\n3000000\n", r.stdout)
    end)
  end)

  it("logs in, and says so if it may not", function()
    with_box(rules(url("login", LOGIN)), function(box)
      assert.equal("ok", (get(box, OTHER, "good.test")))
      assert.same({ "login CONNECT 198.51.100.10:80 HTTP/1.1 user:" .. PASSWORD }, seen())
      for i, login in ipairs { "user:other", "user", false } do
        assert_ok(box:update_network(rules(url("login", login or nil))))
        assert.equal("reset", (get(box, OTHER, "good.test")))
        assert.is_truthy(helper.eventually(function()
          return denied(box, "good.test").count == i
        end))
        assert.equal("the upstream proxy refuses who logs in", denied(box, "good.test").reason)
      end
    end)
  end)

  it("asks it for nothing that the policy does not allow", function()
    with_box(rules(url "open", { deny = { "198.51.100.11" } }), function(box)
      assert.equal("reset", (get(box, OTHER, "other.test")))
      assert.equal("reset", (get(box, OTHER, "rebind.test")))
      for _, to in ipairs { "198.51.100.11", "198.51.100.200", "127.0.0.2", "10.1.0.5", "203.0.113.2", "::ffff:198.51.100.11" } do
        assert.not_equal("ok", (reach(box, "tcp", to, 7)), to)
      end
      assert.same({}, seen())
    end)
  end)

  it("is closed if its proxy is: nothing goes around it", function()
    local reason = { no = "the upstream proxy refuses it", gone = "the upstream proxy cannot reach it",
      redirect = "the upstream proxy does not do what is asked", garbage = "the upstream proxy speaks no HTTP that we do",
      giant = "the upstream proxy speaks no HTTP that we do", early = "the upstream proxy speaks no HTTP that we do",
      shut = NONE }
    local list = { { "http://127.0.0.1:9", NONE }, { "http://nowhere.test:3128", NONE } }
    for kind, why in pairs(reason) do
      list[#list + 1] = { url(kind), why }
    end
    with_box("deny", function(box)
      for _, one in ipairs(list) do
        assert_ok(box:update_network(rules(one[1])))
        for _, how in ipairs { "good.test", GOOD } do
          local began = helper.now()
          local word, came = reach(box, "tcp", how == GOOD and GOOD or OTHER, how == GOOD and 7 or 80,
            reaching.HTTP:format("/", how, ""))
          assert.equal("reset", word, one[1])
          assert.is_nil((came or ""):find("secret of the proxy", 1, true))
          assert.is_true(helper.now() - began < 5, one[1])
          assert.is_truthy(helper.eventually(function()
            return denied(box, how).reason == one[2]
          end), one[2])
        end
      end
    end)
  end)

  it("carries no datagrams, but the relay's own questions for names", function()
    with_box(rules(url "open", { allow = { "good.test", "0.0.0.0/0", "::/0" } }), function(box)
      for _, to in ipairs { GOOD, GOOD6 } do
        assert.not_equal("ok", (reach(box, "udp", to, 7)))
        assert.equal("the upstream proxy carries TCP only", denied(box, to, "udp").reason)
      end
      local r = assert_ok(box:exec "getent ahostsv4 good.test | head -n1; getent hosts other.test || echo none")
      assert.is_truthy(r.stdout:find("^198%.51%.100%.10 .*\nnone\n$"), r.stdout)
      assert.same({}, seen())
    end)
  end)

  it("gives requests their headers, over HTTP and inside TLS", function()
    local policy = rules(url("login", LOGIN), { allow = { "good.test", "tls.test" } })
    policy.inject = { { host = "*.test", set_headers = { Authorization = sandbar.secret(TOKEN) } } }
    with_box(policy, function(box)
      local word, came = get(box, OTHER, "good.test", "X-Echo: 1\\r\\n")
      assert.equal("ok", word)
      assert.is_truthy(came:find("\nAuthorization: " .. TOKEN, 1, true), came)
      assert.is_nil(came:find("Proxy", 1, true), came)
      local r = assert_ok(box:exec("curl -sS -m 15 https://tls.test/", { timeout = 20 }))
      assert.is_truthy(r.stdout:find("\nAuthorization: " .. TOKEN, 1, true), r.stderr)
      assert.same({ "login CONNECT 198.51.100.10:80 HTTP/1.1 user:" .. PASSWORD,
        "login CONNECT 198.51.100.20:443 HTTP/1.1 user:" .. PASSWORD }, seen())
      -- The authority stays for as long as there are rules, and no longer than that.
      assert_ok(box:update_network { allow = { "tls.test" }, upstream_proxy = url "open" })
      r = assert_ok(box:exec("curl -sS -m 15 https://tls.test/", { timeout = 20 }))
      assert.equal("", r.stderr)
      assert.is_nil(r.stdout:find(TOKEN, 1, true))
    end)
  end)

  it("cuts what went another way when the proxy is changed, and else leaves it", function()
    with_box(rules(url "open"), function(box)
      local open
      local function begin()
        open = assert_ok(box:start({ "/bin/bash", "-c", "exec 3<>/dev/tcp/" .. GOOD .. "/7; echo up >&3; read -r l <&3; "
          .. "echo $l; read -r l <&3; echo ended" }))
        assert.equal("up", assert_ok(open.stdout:read("l", { timeout = 10 })))
      end
      local function ends()
        assert.equal("ended", assert_ok(open.stdout:read("l", { timeout = 10 })))
        assert_ok(open:wait { timeout = 10 })
        open:close()
        begin()
      end
      begin()
      assert_ok(box:update_network(rules(url "open", { deny = { "192.0.2.1" } })))
      assert.is_true(open:running())
      assert_ok(box:update_network(rules(url("open", "user:x"))))
      ends()
      assert_ok(box:update_network(rules(nil)))
      ends()
      assert.is_nil(assert_ok(box:info()).network.upstream_proxy)
      assert_ok(box:update_network(rules(url "odd")))
      ends()
      assert_ok(box:update_network "deny")
      assert.equal("ended", assert_ok(open.stdout:read("l", { timeout = 10 })))
      assert_ok(open:wait { timeout = 10 })
      open:close()
    end)
  end)

  it("is there again after a pause, in a copy, and under another supervisor", function()
    local root = helper.dir()
    with_box(rules(url("login", LOGIN)), function(box)
      local function still(one)
        return get(one, OTHER, "good.test") == "ok" and seen()[1] == "login CONNECT 198.51.100.10:80 HTTP/1.1 user:" .. PASSWORD
      end
      assert_ok(box:pause { keep = "disk" })
      assert_ok(box:resume())
      reaching.prepare(box)
      assert.is_true(still(box))
      local copy = assert_ok(box:fork(1))[1]
      assert.is_true(still(copy))
      assert.equal(url("login", "[redacted]"), assert_ok(copy:info()).network.upstream_proxy)
      assert_ok(copy:destroy())
      helper.shell("kill -KILL " .. reaching.supervisor_of(root))
      assert.is_truthy(helper.eventually(function()
        return select(2, pcall(still, box)) == true
      end, 20))
    end, root)
  end)

  it("holds for `prepare`, which may go everywhere by it", function()
    local sandboxes = helper.open()
    local box = assert_ok(sandboxes:create {
      network = rules(url "open", { allow = {} }),
      prepare = function(box)
        reaching.prepare(box)
        assert.equal("ok", (get(box, OTHER, "other.test")))
        assert.same({ "open CONNECT 198.51.100.99:80 HTTP/1.1 -" }, seen())
        assert.not_equal("ok", (reach(box, "udp", GOOD, 7)))
      end,
    })
    assert.not_equal("ok", (get(box, OTHER, "other.test")))
    assert_ok(box:destroy())
  end)

  it("tells nobody who logs in", function()
    local events = {}
    assert_ok(sandbar.audit { fn = function(e) events[#events + 1] = e end })
    finally(function()
      sandbar.audit { fn = false }
    end)
    with_box(rules(url("login", "us3r:s3cr3t-0f-the-host")), function(box, sandboxes)
      assert.equal("reset", (get(box, OTHER, "good.test")))
      local _, bad = box:update_network(rules("http://us3r:s3cr3t-0f-the-host@a b"))
      local told = { sandboxes:info(box.id), box:info(), denied(box, "good.test"), events, bad, tostring(bad),
        sandboxes:explain { network = rules("http://us3r:s3cr3t-0f-the-host@h:1") } }
      local function walk(v)
        if type(v) == "table" then
          for k, one in pairs(v) do
            walk(k)
            walk(one)
          end
        else
          assert.is_nil(tostring(v):find("s3cr3t", 1, true), tostring(v))
          assert.is_nil(tostring(v):find("us3r", 1, true), tostring(v))
        end
      end
      walk(told)
      assert.equal(url("login", "[redacted]"), assert_ok(box:info()).network.upstream_proxy)
      local r = assert_ok(box:exec("grep -rls s3cr3[t]-0f /etc /home /root /run /tmp /var/tmp /dev/shm; "
        .. "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | grep -c s3cr3[t]", { timeout = 30 }))
      assert.equal("0\n", r.stdout)
    end)
    local used
    for _, e in ipairs(events) do
      used = used or (e.event == "secret" and e.what == "upstream_proxy")
    end
    assert.is_true(used)
  end)

  it("is checked before anything is made", function()
    local sandboxes = helper.open()
    for _, bad in ipairs { "", "127.0.0.1:3128", "https://proxy.test:3128", "socks5://proxy.test:1080", "http://", "http://:80",
      "http://proxy.test:0", "http://proxy.test:65536", "http://proxy.test:+1", "http://proxy.test:3128/path", "http://a b",
      "http://a\r\nX: y", "http://u@v@w", "http://u:p%0d%0a@w", "http://u%3a:p@w", "http://u%2:p@w", "http://u:\n@w",
      "http://[redacted]@w", "http://[::1", "http://::1", "http://[fe80::1%25lo]:80", "http://0x7f.1:80", "http://127.1:80",
      "http://[127.0.0.1]:80", "http://proxy.test:80?x", "http://" .. ("a"):rep(2000), sandbar.secret("ftp://x"), 7, true, {} } do
      local box, err = sandboxes:create { network = rules(bad) }
      assert.is_nil(box, tostring(bad))
      assert.equal("InvalidArgument", err.kind)
      assert.equal("network.upstream_proxy", err.clause)
    end
  end)
end)
