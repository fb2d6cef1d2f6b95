-- check: netlab
-- check: only 5.4
-- Headers with secrets that requests get on their way out of a sandbox inside TLS.

local helper = require "spec.helper"
local reaching = require "spec.support.reaching"

local sandbar = require "sandbar"

local assert_ok, unpack = sandbar.assert, table.unpack
local with_box, denied = reaching.with_box, reaching.denied
local TOKEN = "Bearer s3cr3t-0f-the-host"
local KEPT = "BEGIN CERTIFICATE"

local function rules(rule, more)
  local policy = { allow = { "tls.test", "bad.test", "good.test" }, inject = { rule } }
  rule.host = rule.host or "*.test"
  rule.set_headers = rule.set_headers or { Authorization = sandbar.secret(TOKEN) }
  for k, v in pairs(more or {}) do
    policy[k] = v
  end
  return policy
end

-- What curl gets, and its status and message.
local function curl(box, args, url)
  local r = assert_ok(box:exec("curl -sS -m 15 " .. args .. " " .. (url or "https://tls.test/"), { timeout = 20 }))
  return r.stdout, r.exit_code, r.stderr
end

local function has_token(box, args, url)
  local came, code, why = curl(box, args or "", url)
  assert.equal(0, code, why)
  return came:find("\nAuthorization: " .. TOKEN, 1, true) ~= nil, came
end

local TRUSTED = (helper.read_file("/etc/ssl/certs/ca-certificates.crt") or "")
  == helper.read_file("spec/support/tls/ca.crt")

describe("a header that is injected into TLS", function()
  helper.guard()

  if not TRUSTED then
    pending("this machine keeps the certificates it trusts elsewhere")
    return
  end

  it("comes with requests of programs that trust what the sandbox trusts", function()
    with_box(rules {}, function(box)
      local has, came = has_token(box, "-H 'Authorization: mine' -H 'X-Own: 1'")
      assert.is_true(has)
      assert.is_nil(came:find("mine", 1, true))
      assert.is_truthy(came:find("X-Own: 1", 1, true))
      local r = assert_ok(box:exec({ "python3", "-c", "import urllib.request as u; "
        .. "print(u.urlopen('https://tls.test/').read().decode())" }, { timeout = 20 }))
      assert.is_truthy(r.stdout:find(TOKEN, 1, true), r.stderr)
    end)
  end)

  it("has the rules of plain HTTP: paths, headers, what cannot be read for certain", function()
    with_box(rules { path_prefix = "/v1", when_headers = { ["X-Team"] = "blue" } }, function(box)
      assert.is_true(has_token(box, "-H 'X-Team: blue'", "https://tls.test/v1/a"))
      assert.is_false(has_token(box, "-H 'X-Team: red'", "https://tls.test/v1/a"))
      assert.is_false(has_token(box, "-H 'X-Team: blue'", "https://tls.test/v2"))
      assert.not_equal(0, select(2, curl(box, "--path-as-is", "https://tls.test/v1/../a")))
      assert.equal("a request that gets no headers for certain", denied(box, "tls.test").reason)
      assert.not_equal(0, select(2, curl(box, "-X TRACE -H 'X-Team: blue'", "https://tls.test/v1")))
    end)
  end)

  it("is not for a request that names another host than its TLS", function()
    with_box(rules {}, function(box)
      assert.not_equal(0, select(2, curl(box, "-H 'Host: good.test'")))
      assert.equal("no readable request inside TLS", denied(box, "tls.test").reason)
    end)
  end)

  it("goes to nobody whom the host does not trust", function()
    with_box(rules {}, function(box)
      local came, code = curl(box, "-k", "https://bad.test/")
      assert.equal("", came)
      assert.not_equal(0, code)
      assert.equal("its certificate is not trusted", denied(box, "bad.test").reason)
    end)
  end)

  it("is said to be missing if the program trusts nobody", function()
    with_box(rules {}, function(box)
      assert_ok(box.files:write("/tmp/other.pem", helper.read_file("spec/support/tls/ca.crt")))
      local _, code = curl(box, "--capath /tmp --cacert /tmp/other.pem")
      assert.equal(60, code)
      assert.equal("the program does not trust the sandbox's authority", denied(box, "tls.test").reason)
    end)
  end)

  it("leaves TLS to other hosts as it is", function()
    with_box(rules { host = "good.test" }, function(box)
      local came, _, why = curl(box, "-v")
      assert.is_truthy(why:find("issuer: CN=sandbar specs", 1, true), why)
      assert.is_nil(came:find(TOKEN, 1, true))
    end)
  end)

  it("does not hold up long answers, long requests, or an end without a word", function()
    with_box(rules {}, function(box)
      local _, code, why = curl(box, "-o /tmp/got", "https://tls.test/big")
      assert.equal(0, code, why)
      assert.equal(5000000, assert_ok(box.files:stat("/tmp/got")).size)
      local came
      came, code, why = curl(box, "-H Expect: --data-binary @/tmp/got")
      assert.equal(0, code, why)
      assert.is_truthy(came:find("^5000000 POST / "), came)
      assert.is_true(has_token(box, "", "https://tls.test/close"))
    end)
  end)

  -- Says each text to tls.test inside TLS, with these protocols, and shows what comes, or why nothing does.
  local RAW = [[
import socket, ssl, sys
c = ssl.create_default_context()
if sys.argv[1]:
    c.set_alpn_protocols(sys.argv[1].split(","))
for text in sys.argv[2:]:
    try:
        s = c.wrap_socket(socket.create_connection(("198.51.100.99", 443), 5), server_hostname="tls.test")
        s.settimeout(5)
        s.sendall(text.encode().decode("unicode_escape").encode("latin1"))
        got = b""
        while True:
            more = s.recv(65536)
            if not more:
                break
            got += more
        print("ok", s.selected_alpn_protocol())
        print(got.decode("latin1"))
    except OSError as e:
        print("over", e)
    print("\1")
]]

  it("does not go with what could be read as two requests, or as none", function()
    with_box(rules {}, function(box)
      assert_ok(box.files:write("/tmp/raw.py", RAW))
      local function raw(protocols, ...)
        local r = assert_ok(box:exec({ "python3", "/tmp/raw.py", protocols, ... }, { timeout = 60 }))
        local all = {}
        for one in r.stdout:gmatch("(.-)\1\n") do
          all[#all + 1] = one
        end
        assert.equal(select("#", ...), #all, r.stderr)
        return all
      end
      local head = "POST / HTTP/1.1\\r\\nHost: tls.test\\r\\n"
      local second = "GET /two HTTP/1.1\\r\\nHost: tls.test\\r\\n\\r\\n"
      local bad = {
        "PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0",
        head .. "Content-Length: 5\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" .. second,
        head .. "Content-Length: 0\\r\\nContent-Length: 39\\r\\n\\r\\n" .. second,
        head .. "Content-Length: 0, 39\\r\\n\\r\\n" .. second, head .. "Content-Length: +0\\r\\n\\r\\n" .. second,
        head .. "Transfer-Encoding: chunked, identity\\r\\n\\r\\n0\\r\\n\\r\\n" .. second,
        head .. "Transfer-Encoding:\\x0bchunked\\r\\n\\r\\n0\\r\\n\\r\\n" .. second,
        head .. "Transfer_Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n" .. second,
        head .. "X: a\\r\\n Content-Length: 39\\r\\n\\r\\n" .. second, head .. "X: a\\nContent-Length: 39\\r\\n\\r\\n" .. second,
        head .. "X: a\\rY: b\\r\\n\\r\\n", head .. "X: a\\0\\r\\n\\r\\n", head .. ": x\\r\\n\\r\\n", head .. "X\\r\\n\\r\\n",
        head .. "Authorization : mine\\r\\n\\r\\n", "\\r\\n" .. head .. "\\r\\n", head .. "Host: good.test\\r\\n\\r\\n",
        "GET https://tls.test/ HTTP/1.1\\r\\nHost: tls.test\\r\\n\\r\\n", "GET / HTTP/1.1\\r\\n\\r\\n",
        "GET / HTTP/1.1\\r\\nHost: tls.test:80\\r\\n\\r\\n", "CONNECT tls.test:443 HTTP/1.1\\r\\nHost: tls.test\\r\\n\\r\\n",
        "GET /\\r\\n\\r\\n", "GET / HTTP/3\\r\\nHost: tls.test\\r\\n\\r\\n", "GET  / HTTP/1.1\\r\\nHost: tls.test\\r\\n\\r\\n",
        head .. "Upgrade: websocket\\r\\nConnection: upgrade\\r\\n\\r\\n" .. second,
      }
      for i, came in ipairs(raw("", unpack(bad))) do
        assert.is_true(came:find("^over") ~= nil or came == "ok None\n\n", bad[i] .. " " .. came)
      end
      assert.equal("no readable request inside TLS", denied(box, "tls.test").reason)
      -- A trailer is no header, and what follows a request is none.
      local came = raw("", head .. "Transfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\nAuthorization: mine\\r\\n\\r\\n")[1]
      assert.is_nil(came:find("mine", 1, true), came)
      local good = { "GET / HTTP/1.1\\r\\nHost: tls.test\\r\\n\\r\\n" .. second, head .. "Content-Length: 3\\r\\n\\r\\nabc" .. second,
        head .. "AUTHORIZATION: mine\\r\\nauthorization:mine\\r\\n\\r\\n" .. second }
      for _, all in ipairs(raw("h2,http/1.1", unpack(good))) do
        assert.is_truthy(all:find("^ok http/1%.1\n"), all)
        assert.is_truthy(all:find("\nAuthorization: " .. TOKEN, 1, true), all)
        assert.equal(1, select(2, all:lower():gsub("\nauthorization:", "")), all)
        assert.is_nil(all:find("two", 1, true), all)
        assert.is_nil(all:find("mine", 1, true), all)
      end
      assert.is_truthy(raw("h2", second)[1]:find("^over"))
    end)
  end)

  it("comes in requests whose bytes are counted", function()
    with_box(rules {}, function(box)
      curl(box, "-o /tmp/got", "https://tls.test/big")
      local network = assert_ok(box:metrics()).network
      assert.is_true(network.received > 5000000 and network.received < 5500000, network.received)
      curl(box, "-o /dev/null -H Expect: --data-binary @/tmp/got")
      network = assert_ok(box:metrics()).network
      assert.is_true(network.sent > 5000000 and network.sent < 5500000, network.sent)
    end)
  end)

  it("is trusted once the first rule has come, by the same authority until the last has gone", function()
    with_box({ allow = { "tls.test" } }, function(box)
      local function bundle()
        return select(2, assert_ok(box.files:read("/etc/ssl/certs/ca-certificates.crt")):gsub(KEPT, ""))
      end
      assert.is_false(has_token(box))
      local before = bundle()
      assert_ok(box:update_network(rules {}))
      assert.is_true(has_token(box))
      assert_ok(box:update_network(rules { path_prefix = "/v1" }))
      assert.is_true(has_token(box, "", "https://tls.test/v1"))
      assert.equal(before + 1, bundle())
      assert_ok(box:update_network { allow = { "tls.test" } })
      assert.is_false(has_token(box))
    end)
  end)

  it("is there after a prepare, which had neither rule nor authority", function()
    local sandboxes = helper.open()
    local box = assert_ok(sandboxes:create { prepare = { "curl -sS https://tls.test/ >/tmp/prepared" }, network = rules {} })
    assert.is_nil(assert_ok(box.files:read("/tmp/prepared")):find(TOKEN, 1, true))
    assert.is_true(has_token(box))
    assert_ok(box:destroy())
    box:close()
  end)

  -- Begins as many connections to tls.test at once, says so, and then how many got an answer with these words in it.
  local MANY = [[
import selectors, socket, ssl, sys
c = ssl.create_default_context()
wait = selectors.DefaultSelector()
many = int(sys.argv[1])
for i in range(many):
    raw = socket.create_connection(("198.51.100.99", 443), 20)
    raw.setblocking(False)
    s = c.wrap_socket(raw, server_hostname="tls.test", do_handshake_on_connect=False)
    try:
        s.do_handshake()
    except ssl.SSLWantReadError:
        wait.register(s, selectors.EVENT_READ)
print("begun", flush=True)
good, over = 0, {}
while wait.get_map():
    ready = wait.select(20)
    if not ready:
        break
    for key, _ in ready:
        s = key.fileobj
        try:
            s.do_handshake()
            wait.unregister(s)
            s.settimeout(20)
            s.sendall(b"GET / HTTP/1.1\r\nHost: tls.test\r\n\r\n")
            got = b""
            while True:
                more = s.recv(65536)
                if not more:
                    break
                got += more
            good += sys.argv[2].encode() in got
        except ssl.SSLWantReadError:
            pass
        except OSError as e:
            over[str(e)] = over.get(str(e), 0) + 1
            wait.unregister(s)
print(good, over or "")
]]

  it("comes with all of many requests that begin at once", function()
    local root = helper.dir()
    with_box(rules {}, function(box)
      assert.is_true(has_token(box)) -- it is there
      local opener
      for _, stat in ipairs(helper.proc.children(reaching.supervisor_of(root))) do
        opener = helper.proc.cmdline(stat.pid)[1] == "sandbar-tls" and stat.pid or opener
      end
      helper.shell("kill -STOP " .. assert(opener))
      local p = assert_ok(box:start { "python3", "-c", MANY, "200", TOKEN })
      local begun = p.stdout:read("l", { timeout = 20 })
      if begun ~= "begun" then
        helper.shell("kill -CONT " .. opener)
        error("they did not begin: " .. tostring(p.stderr:read("a", { timeout = 20 })))
      end
      local arrived = helper.eventually(function()
        return select(2, helper.read_file("/proc/net/tcp"):gsub(" %x+:%x+ %x+:01BB 01 ", "")) >= 200
      end, 20)
      -- What it is told meanwhile waits as well, and cuts nothing that is still allowed.
      local updated, why = box:update_network(rules({}, { allow = { "tls.test", "more.test" } }))
      helper.shell("kill -CONT " .. opener)
      assert.is_truthy(arrived)
      assert.is_truthy(updated, tostring(why))
      assert.equal("200 ", p.stdout:read("l", { timeout = 60 }))
      p:close()
    end, root)
  end)

  it("is there again after a pause, in a copy, and under another supervisor", function()
    local root = helper.dir()
    with_box(rules {}, function(box)
      assert_ok(box:pause { keep = "disk" })
      assert_ok(box:resume())
      assert.is_true(has_token(box))
      local copy = assert_ok(box:fork(1))[1]
      assert.is_true(has_token(copy))
      assert_ok(copy:destroy())
      local old = reaching.supervisor_of(root)
      helper.shell("kill -KILL " .. old)
      assert.is_truthy(helper.eventually(function()
        local ok, came = pcall(curl, box, "")
        return ok and came:find(TOKEN, 1, true)
      end, 20))
    end, root)
  end)

  it("leaves neither the secret nor the authority's key inside", function()
    with_box(rules {}, function(box, sandboxes)
      local r = assert_ok(box:exec("grep -rlsE 's3cr3[t]-0f|PRIVATE KE[Y]' /etc /home /root /run /tmp /var/tmp /dev/shm",
        { timeout = 30 }))
      assert.equal("", r.stdout)
      assert.is_true(assert_ok(sandboxes:capabilities()).inject_https)
      assert.same({ { host = "*.test", set_headers = { Authorization = "secret([redacted])" } } },
        assert_ok(box:info()).network.inject)
    end)
  end)
end)
