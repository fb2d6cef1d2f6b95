-- check: netlab
-- check: only 5.4
-- Headers with secrets that requests get on their way out of a sandbox.

local helper = require "spec.helper"
local reaching = require "spec.support.reaching"

local sandbar = require "sandbar"

local assert_ok = sandbar.assert
local with_box, reach, get, denied = reaching.with_box, reaching.reach, reaching.get, reaching.denied
local GOOD, OTHER = "198.51.100.10", "198.51.100.99"
local TOKEN = "Bearer s3cr3t-0f-the-host"
local ECHO = "X-Echo: 1\\r\\n"

-- Opens one as descriptor 3 of a shell.
local WEBSOCKET = "exec 3<>/dev/tcp/198.51.100.99/80; printf 'GET / HTTP/1.1\\r\\nHost: %s\\r\\n"
  .. "Connection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n' >&3; read -r line <&3; read -r line <&3"

local function secret()
  return { Authorization = sandbar.secret(TOKEN) }
end

-- A policy: this rule for good.test, which is allowed.
local function rules(rule, more)
  local policy = { allow = { "good.test", "other.test", "*.wide.test" }, inject = { rule } }
  rule.host = rule.host or "good.test"
  rule.set_headers = rule.set_headers or secret()
  for k, v in pairs(more or {}) do
    policy[k] = v
  end
  return policy
end

describe("a header that is injected", function()
  helper.guard()

  -- The values of a header in what the server got; or what became of the request.
  local function got(box, path, more, host, name, address)
    local word, came = get(box, address or OTHER, host or "good.test", ECHO .. (more or ""), path)
    if word ~= "ok" then
      return word
    end
    local out = {}
    for key, value in came:gmatch("\n([%w_-]+): ([^\r\n]*)") do
      if key:lower():gsub("_", "-") == (name or "authorization") then
        out[#out + 1] = value
      end
    end
    return table.concat(out, "|")
  end

  it("comes with requests for its host, and with no others", function()
    with_box(rules { host = "good.test" }, function(box)
      assert.equal(TOKEN, got(box, "/"))
      assert.equal(TOKEN, got(box, "/", "", "GOOD.test."))
      assert.equal(TOKEN, got(box, "http://good.test/a?b"))
      assert.equal(TOKEN, got(box, "/", "", "good.test", nil, "2001:db8:9::1"))
      assert.equal("", got(box, "/", "", "other.test"))
      assert.equal("", got(box, "/", "", "sub.wide.test"))
      assert.equal("reset", got(box, "/", "", "xgood.test"))
    end)
    with_box(rules { host = "*.wide.test" }, function(box)
      assert.equal(TOKEN, got(box, "/", "", "sub.wide.test"))
      assert.equal("", got(box, "/"))
    end)
  end)

  it("takes the place of what the program sent, in any spelling", function()
    with_box(rules { set_headers = { Authorization = sandbar.secret(TOKEN), ["X-Api-Key"] = "plain" } }, function(box)
      for _, own in ipairs { "Authorization: mine\\r\\n", "aUTHORIZATION: a\\r\\nAuthorization: b\\r\\n",
        "X-Api-Key: mine\\r\\nX_API_KEY: mine\\r\\n", "Connection: Authorization, X-Api-Key\\r\\n" } do
        assert.equal(TOKEN, got(box, "/", own))
        assert.equal("plain", got(box, "/", own, nil, "x-api-key"))
      end
    end)
  end)

  it("is for the paths below its prefix, and for none that a server could read as another", function()
    with_box(rules { path_prefix = "/v1" }, function(box)
      for _, path in ipairs { "/v1", "/v1/", "/v1/a", "/v1?x", "/v1/a%20b/c%2Fd", "/v1/...", "/v1/.a?../..", "/v1/a;b",
        "http://good.test/v1/a" } do
        assert.equal(TOKEN, got(box, path), path)
      end
      for _, path in ipairs { "/", "/v2", "/v10", "/V1", "/v1%2fa", "/%761", "/?/v1", "*", "http://good.test",
        "http://good.test?/v1/a" } do
        assert.equal("", got(box, path), path)
      end
      for _, path in ipairs { "/v1/../a", "/v1/..", "/a/../v1", "/v1/%2e%2e/a", "/v1/%2E./a", "/v1/.", "/v1//a", "//v1",
        "/v1/..%2fa", "/v1/..%5Ca", "/v1/..\\\\a", "/v1/%252e%252e/a", "/v1/..;/a", "/v1/;a/b", "/v1/%", "/v1/%2", "/v1/%00",
        "/v1/%c0%ae%c0%ae/a", "/v1/a#/../b", "/v1/%u002e", "http://good.test/v1/../a", "http://good.test//v1" } do
        assert.equal("reset", got(box, path), path)
      end
      assert.equal("a path that servers read differently", denied(box, "good.test").reason)
      assert.equal("", got(box, "/v1/../a", "", "other.test"))
    end)
  end)

  it("needs the headers it asks for, each once and with just that value", function()
    with_box(rules { when_headers = { ["X-Team"] = "blue", accept = "a" } }, function(box)
      assert.equal(TOKEN, got(box, "/", "x-team:  blue \\r\\nACCEPT:a\\r\\n"))
      for _, more in ipairs { "", "X-Team: blue\\r\\n", "X-Team: Blue\\r\\nAccept: a\\r\\n", "X-Team: blue2\\r\\nAccept: a\\r\\n",
        "X-Team: blue\\r\\nAccept: a\\r\\nX-Team: blue\\r\\n", "X-Team: blue\\r\\nAccept: a\\r\\nX_Team: red\\r\\n",
        "X-Team: blue, red\\r\\nAccept: a\\r\\n" } do
        assert.equal("", got(box, "/", more), more)
      end
    end)
  end)

  it("is of the first rule that fits", function()
    local policy = rules { path_prefix = "/a", set_headers = { Authorization = "one" } }
    policy.inject[2] = { host = "good.test", set_headers = { Authorization = "two" } }
    with_box(policy, function(box)
      assert.equal("one", got(box, "/a"))
      assert.equal("two", got(box, "/b"))
      assert.same({
        allow = policy.allow, deny = {},
        inject = {
          { host = "good.test", path_prefix = "/a", set_headers = { Authorization = "secret([redacted])" } },
          { host = "good.test", set_headers = { Authorization = "secret([redacted])" } },
        },
      }, assert_ok(box:info()).network)
    end)
  end)

  it("opens nothing: its host is reached only if something else allows it", function()
    with_box({ allow = { "other.test" }, inject = { { host = "good.test", set_headers = secret() } } }, function(box)
      assert.equal("reset", got(box, "/"))
      assert.equal("", got(box, "/", "", "other.test"))
      assert.equal("reset", (reach(box, "tcp", GOOD, 7)))
    end)
    with_box({ allow = {}, inject = { { host = "good.test", set_headers = secret() } } }, function(box)
      assert.equal("error ENETUNREACH", (reach(box, "tcp", GOOD, 80)))
    end)
    with_box(rules({}, { deny = { GOOD } }), function(box)
      assert.equal("reset", got(box, "/"))
    end)
  end)

  it("goes where the name leads also if the program's address is allowed, which else gets what was sent", function()
    local policy = { allow = { "198.51.100.0/24" }, inject = { { host = "good.test", set_headers = secret() },
      { host = "private.test", set_headers = secret() } } }
    with_box(policy, function(box)
      local _, came = get(box, OTHER, "good.test", ECHO)
      assert.is_truthy(came:find("^" .. GOOD:gsub("%.", "%%.") .. " GET"))
      assert.is_truthy(came:find(TOKEN, 1, true))
      assert.equal("reset", got(box, "/", "", "private.test"))
      _, came = get(box, OTHER, "other.test", ECHO .. "Connection: keep-alive\\r\\n")
      assert.is_truthy(came:find("^198%.51%.100%.99 GET"))
      assert.is_truthy(came:find("keep-alive", 1, true)) -- not touched
      -- What cannot be read for certain goes on as it is: without the secret.
      for _, text in ipairs { "GET / HTTP/1.1\\nHost: good.test\\r\\nX-Echo: 1\\r\\n\\r\\n",
        "GET / HTTP/1.1\\r\\nHost: good.test\\r\\nHost: good.test\\r\\nX-Echo: 1\\r\\n\\r\\n",
        "GET / HTTP/1.1\\r\\nHost: good.test\\r\\nX-Echo: 1\\r\\n folded\\r\\n\\r\\n" } do
        local word, answer = reach(box, "tcp", OTHER, 80, text, "")
        assert.equal("ok", word, text)
        assert.is_truthy(answer:find("198.51.100.99 GET", 1, true), answer)
        assert.is_nil(answer:find(TOKEN, 1, true))
      end
      assert.equal("ok", (reach(box, "tcp", OTHER, 7)))
    end)
  end)

  it("does not go with a request that could hide another, nor with a second one", function()
    with_box(rules {}, function(box)
      local head = "POST / HTTP/1.1\\r\\nHost: good.test\\r\\n" .. ECHO
      for _, text in ipairs { "Content-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n",
        "Content-Length: 3\\r\\nContent-Length: 3\\r\\n\\r\\nabc", "Transfer-Encoding: chunked\\r\\n\\r\\n3\\nabc\\r\\n0\\r\\n\\r\\n",
        "X: a\\r\\n b\\r\\n\\r\\n", "X: a\\nY: b\\r\\n\\r\\n", "Transfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n" } do
        assert.equal("reset", (reach(box, "tcp", OTHER, 80, head .. text, "")), text)
      end
      local word, came = reach(box, "tcp", OTHER, 80, head .. "Content-Length: 3\\r\\n\\r\\nabc" .. head .. "\\r\\n", "")
      assert.equal("ok", word)
      local _, answers = came:gsub("HTTP/1.1 200", "")
      assert.equal(1, answers)
      local chunked = "Transfer-Encoding: chunked\\r\\nExpect: 100-continue\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n"
      assert.is_truthy(select(2, reach(box, "tcp", OTHER, 80, head .. chunked, "")):find(TOKEN, 1, true))
    end)
  end)

  it("does not come back as the answer to a TRACE", function()
    with_box(rules {}, function(box)
      assert.equal("reset", (reach(box, "tcp", OTHER, 80, "TRACE / HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n", "")))
      assert.equal("TRACE would show what is injected", denied(box, "good.test").reason)
    end)
  end)

  it("opens WebSockets", function()
    with_box(rules {}, function(box)
      local r = assert_ok(box:exec(WEBSOCKET:format("good.test") .. "; echo frame >&3; read -r line <&3; echo \"$line\"",
        { shell = "/bin/bash", timeout = 10 }))
      assert.equal("frame\n", r.stdout)
    end)
  end)

  it("shows nowhere inside, and in nothing that is told of the sandbox", function()
    local events = {}
    assert_ok(sandbar.audit { fn = function(e) events[#events + 1] = e end })
    finally(function()
      sandbar.audit { fn = false }
    end)
    with_box(rules { path_prefix = "/v1" }, function(box, sandboxes)
      assert.equal("reset", got(box, "/v1/.."))
      local told = { sandboxes:info(box.id), box:info(), denied(box, "good.test"), events,
        sandboxes:explain { network = rules {} } }
      local function walk(v)
        if type(v) == "table" then
          for k, one in pairs(v) do
            walk(k)
            walk(one)
          end
        else
          assert.is_nil(tostring(v):find("s3cr3t", 1, true))
        end
      end
      walk(told)
      local r = assert_ok(box:exec("grep -rls s3cr3[t]-0f /etc /home /root /run /tmp /var/tmp /dev/shm; "
        .. "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | grep -c s3cr3[t]", { timeout = 30 }))
      assert.equal("0\n", r.stdout)
    end)
    local used
    for _, e in ipairs(events) do
      used = used or (e.event == "secret" and e.what == "inject" and e.name == "Authorization" and e.host == "good.test")
    end
    assert.is_true(used)
  end)

  it("changes with update_network, which cuts what was opened with another", function()
    with_box(rules {}, function(box)
      local open = {}
      for i, host in ipairs { "good.test", "other.test" } do
        open[i] = assert_ok(box:start({ "/bin/bash", "-c", WEBSOCKET:format(host) .. "; echo up; read -r line <&3; echo ended" }))
        assert.equal("up", assert_ok(open[i].stdout:read("l", { timeout = 10 })))
      end
      assert.equal(TOKEN, got(box, "/"))
      assert_ok(box:update_network(rules({}, { allow = { "good.test", "other.test", "private.test" } })))
      assert.is_true(open[1]:running())
      assert_ok(box:update_network(rules { set_headers = { Authorization = "new" } }))
      assert.equal("ended", assert_ok(open[1].stdout:read("l", { timeout = 10 })))
      assert.equal("new", got(box, "/"))
      assert.is_true(open[2]:running())
      assert_ok(open[2]:kill { signal = "KILL", grace = 0 })
      for _, one in ipairs(open) do
        assert_ok(one:wait { timeout = 10 })
        one:close()
      end
      assert_ok(box:update_network { allow = { "good.test" } })
      assert.equal("", got(box, "/"))
      assert.is_nil(assert_ok(box:info()).network.inject)
    end)
  end)

  it("is there again after a pause, in a copy, and under another supervisor", function()
    local root = helper.dir()
    with_box(rules {}, function(box, sandboxes)
      assert_ok(box:pause { keep = "disk" })
      assert_ok(box:resume())
      reaching.prepare(box)
      assert.equal(TOKEN, got(box, "/"))
      local copy = assert_ok(box:fork(1))[1]
      assert.equal(TOKEN, got(copy, "/"))
      assert_ok(copy:destroy())
      local old = reaching.supervisor_of(root)
      helper.shell("kill -KILL " .. old)
      assert.is_truthy(helper.eventually(function()
        return select(2, pcall(got, box, "/")) == TOKEN
      end, 20))
      assert.is_truthy(assert_ok(sandboxes:info(box.id)).network.inject)
    end, root)
  end)

  it("is checked before anything is made", function()
    local sandboxes = helper.open()
    local function refused(rule, text)
      local box, err = sandboxes:create { network = { allow = { "good.test" }, inject = { rule } } }
      assert.is_nil(box)
      assert.equal("InvalidArgument", err.kind)
      assert.is_truthy(err.message:find(text, 1, true), err.message)
      assert.is_nil(err.message:find("s3cr3t", 1, true))
    end
    local good = secret()
    refused({ set_headers = good }, "no host name")
    refused({ host = "1.2.3.4", set_headers = good }, "no host name")
    refused({ host = "good.test:80", set_headers = good }, "no host name")
    refused({ host = "good.test" }, "set_headers is missing")
    refused({ host = "good.test", set_headers = {} }, "set_headers is missing")
    refused({ host = "good.test", set_headers = good, path = "/" }, "no key \"path\"")
    refused({ host = "good.test", set_headers = { ["a b"] = "x" } }, "no name of a header")
    refused({ host = "good.test", set_headers = { a = 1 } }, "neither a string nor a secret")
    refused({ host = "good.test", set_headers = good, when_headers = { a = sandbar.secret("x") } }, "not a string")
    for _, path in ipairs { "v1", "", "/a/../b", "/a//b", "/%2e%2e", "/a?b" } do
      refused({ host = "good.test", set_headers = good, path_prefix = path }, "no path that all servers read alike")
    end
    for _, name in ipairs { "Host", "content-length", "Transfer_Encoding", "Connection", "Expect" } do
      refused({ host = "good.test", set_headers = { [name] = "x" } }, "not a header to set")
    end
    for _, value in ipairs { "s3cr3t\r\nX: y", "s3cr3t\0", " s3cr3t", "s3cr3t\127" } do
      refused({ host = "good.test", set_headers = { a = sandbar.secret(value) } }, "control characters")
    end
    refused({ host = "good.test", set_headers = { ["A-b"] = "x", ["a_B"] = "y" } }, "is there twice")
    refused({ host = "good.test", set_headers = { a = sandbar.secret(("s3cr3t"):rep(3000)) } }, "too long")
    local many = {}
    for i = 1, 33 do
      many[i] = { host = "good.test", set_headers = good }
    end
    local _, err = sandboxes:create { network = { allow = {}, inject = many } }
    assert.equal("InvalidArgument", err.kind)
  end)
end)
