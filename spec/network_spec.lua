-- check: netlab
-- check: only 5.4
-- check: limit 240
-- What a sandbox reaches under which network policy, on a machine with a small world around it.

local helper = require "spec.helper"
local reaching = require "spec.support.reaching"

local core = require "sandbar.core"
local sandbar = require "sandbar"

local assert_ok = sandbar.assert
local GOOD, OTHER = "198.51.100.10", "198.51.100.99"
local QUICK = 2.5 -- seconds; whatever waits for an answer takes more
local HTTP = reaching.HTTP

describe("a network policy", function()
  helper.guard()

  local with_box, reach, get, denied = reaching.with_box, reaching.reach, reaching.get, reaching.denied
  local hello, sni = reaching.hello, reaching.sni

  local function hosts(box, name)
    return (assert_ok(box:exec({ "getent", "ahosts", name }, { timeout = 10 })).stdout:match("^%S+"))
  end

  -- Everything the world's DNS was asked.
  local function questions()
    return helper.read_file(helper.scratch() .. "/questions") or ""
  end

  describe("\"deny\"", function()
    it("reaches nothing, fails at once, and starts no relay", function()
      with_box("deny", function(box)
        local word, _, took = reach(box, "tcp", GOOD, 7)
        assert.equal("error ENETUNREACH", word)
        assert.is_true(took < QUICK)
        assert.equal("error ENETUNREACH", (reach(box, "udp", GOOD, 7)))
        assert.is_nil(hosts(box, "good.test"))
        assert.equal("deny", assert_ok(box:info()).network)
      end)
    end)

    it("is what an empty list of allowed ones means", function()
      with_box({ allow = {} }, function(box)
        assert.equal("error ENETUNREACH", (reach(box, "tcp", GOOD, 7)))
        assert.same({ allow = {}, deny = {} }, assert_ok(box:info()).network)
      end)
    end)
  end)

  describe("\"allow\"", function()
    it("carries TCP and UDP to any address and port, of both families", function()
      with_box("allow", function(box)
        for _, address in ipairs { GOOD, "10.1.0.9", "2001:db8:2::9", "fd00:1::9" } do
          for _, kind in ipairs { "tcp", "udp" } do
            local word, came = reach(box, kind, address, 7, "hello")
            assert.equal("ok", word, kind .. " " .. address)
            assert.equal("hello", came)
          end
        end
        assert.equal(GOOD, hosts(box, "good.test"))
        assert.equal("allow", assert_ok(box:info()).network)
      end)
    end)

    it("carries datagrams of nearly every size", function()
      with_box("allow", function(box)
        for _, address in ipairs { GOOD, "2001:db8:2::9" } do
          for _, n in ipairs { 1, 1473, 65000 } do
            local text = ("x"):rep(n)
            assert.equal(text, select(2, reach(box, "udp", address, 7, text)))
          end
        end
      end)
    end)

    it("passes every byte of a long stream, and its end", function()
      with_box("allow", function(box)
        local r = assert_ok(box:exec(
          "head -c 30000000 /dev/urandom >/tmp/sent; exec 3<>/dev/tcp/198.51.100.10/7; cat /tmp/sent >&3 & "
          .. "head -c 30000000 <&3 >/tmp/got; cmp /tmp/sent /tmp/got", { shell = "/bin/bash", timeout = 60 }))
        assert.same({ 0, "", "" }, { r.exit_code, r.stdout, r.stderr })
        for _, bytes in pairs(assert_ok(box:metrics()).network) do
          assert.is_true(bytes >= 30000000 and bytes < 30100000, bytes)
        end
      end)
    end)

    it("says of a port where nobody listens what anybody would", function()
      with_box("allow", function(box)
        assert.equal("reset", (reach(box, "tcp", GOOD, 17)))
        assert.equal("refused", (reach(box, "udp", GOOD, 17)))
        assert.equal("refused", (reach(box, "udp", "2001:db8:2::9", 17)))
        assert.same({}, assert_ok(box:info()).denied)
      end)
    end)

    it("never reaches the host itself, nor link-local addresses, in any spelling", function()
      with_box("allow", function(box)
        for _, address in ipairs { "203.0.113.2", "169.254.169.254", "0.0.0.1", "255.255.255.255", "224.0.0.1",
          "192.0.0.3", "2001:db8:1::2", "64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:169.254.169.254", "ff02::1" } do
          local word, _, took = reach(box, "tcp", address, 7)
          assert.is_truthy(word == "reset" or word:find("^error"), address .. " " .. word)
          assert.is_true(took < QUICK, address)
          word, _, took = reach(box, "udp", address, 7)
          assert.is_truthy(word:find("^error"), address .. " " .. word)
          assert.is_true(took < QUICK, address)
        end
        assert.same({ "tcp", 7, "an address of the host", 1 }, (function(d)
          return { d.protocol, d.port, d.reason, d.count }
        end)(denied(box, "2001:db8:1::2", "tcp")))
      end)
    end)

    it("leaves the sandbox's own loopback to the sandbox", function()
      with_box("allow", function(box)
        for _, address in ipairs { "127.0.0.1", "127.9.9.9", "::1", "192.0.0.2" } do
          assert.equal("refused", (reach(box, "tcp", address, 7)), address)
        end
        assert.same({}, assert_ok(box:info()).denied)
      end)
    end)

    it("does not take who dials the relay's own listener anywhere (escape probe 47)", function()
      with_box("allow", function(box)
        for _, address in ipairs { "192.0.0.3", "fd73:616e:6462:6f78::3" } do
          for _, port in ipairs { 1, 53, 80 } do
            local word, _, took = reach(box, "tcp", address, port)
            assert.is_truthy(word == "reset" or word == "refused" or word:find("^error"), ("%s %d: %s"):format(address, port, word))
            assert.is_true(took < QUICK, address)
          end
        end
        assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
      end)
    end)

    it("does not let anybody inside change its network", function()
      local probe = helper.read_file((os.getenv("SPEC_BUILD") or "build") .. "/spec/probe")
      with_box("allow", function(box)
        assert_ok(box.files:write("/tmp/probe", probe, { mode = "755" }))
        for _, user in ipairs { "user", "root" } do
          for _, attempt in ipairs { "routes", "families" } do
            local r, err = box:exec({ "/tmp/probe", attempt }, { user = user, timeout = 60 })
            if r then
              assert.equal(0, r.exit_code, r.stdout .. r.stderr)
            else
              assert.equal("Unsupported", err.kind) -- one id only: there is no root inside
            end
          end
        end
        assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
        assert.equal("reset", (reach(box, "tcp", "203.0.113.2", 7)))
      end)
    end)

    it("carries nothing but TCP and UDP", function()
      with_box("allow", function(box)
        local echo = { ["127.0.0.1"] = "\\x08\\x00\\x00\\x00\\x00\\x01\\x00\\x01",
          ["::1"] = "\\x80\\x00\\x00\\x00\\x00\\x01\\x00\\x01" }
        echo[GOOD], echo["2001:db8:2::9"] = echo["127.0.0.1"], echo["::1"]
        for address, text in pairs(echo) do
          local word = reach(box, "icmp", address, 1, text)
          if address:find("1$") then
            assert.equal("ok", word, address)
          else -- for IPv6 the kernel says nothing
            assert.equal(address == GOOD and "error EPERM" or "silent", word, address)
          end
        end
        local word = reach(box, "udplite", GOOD, 7)
        assert.is_truthy(word == "error EPERM" or word == "error EPROTONOSUPPORT", word)
      end)
    end)
  end)

  describe("with CIDRs", function()
    it("reaches those that are allowed, and no others", function()
      with_box({ allow = { "198.51.100.8/29", "2001:db8:2::/96", "10.1.0.5" } }, function(box)
        for _, address in ipairs { "198.51.100.8", "198.51.100.15", "2001:db8:2::ffff", "10.1.0.5" } do
          assert.equal("ok", (reach(box, "tcp", address, 7)), address)
          assert.equal("ok", (reach(box, "udp", address, 7)), address)
        end
        for _, address in ipairs { "198.51.100.7", "198.51.100.16", "2001:db8:2:0:1::", "10.1.0.6" } do
          local word, _, took = reach(box, "tcp", address, 7)
          assert.equal("reset", word, address)
          assert.is_true(took < QUICK)
          word, _, took = reach(box, "udp", address, 7)
          assert.equal(address:find(":") and "error EACCES" or "error EHOSTUNREACH", word, address)
          assert.is_true(took < QUICK)
        end
        local one = denied(box, "198.51.100.7")
        assert.same({ "udp", 7, "not allowed" }, { one.protocol, one.port, one.reason })
        assert.is_true(math.abs(one.at - core.wall()) < 60)
      end)
    end)

    it("does not reach what is denied, whatever allows it", function()
      with_box({ allow = { "0.0.0.0/0", "good.test", "198.51.100.20/32" }, deny = { "198.51.100.0/24" } }, function(box)
        assert.equal("ok", (reach(box, "tcp", "10.1.0.5", 7)))
        assert.equal("reset", (reach(box, "tcp", "198.51.100.20", 7)))
        assert.equal("error EHOSTUNREACH", (reach(box, "udp", "198.51.100.20", 7)))
        assert.equal("reset", (get(box, GOOD, "good.test")))
        assert.equal("reset", (reach(box, "tcp", "2001:db8:2::1", 7))) -- 0.0.0.0/0 is IPv4
      end)
      with_box({ allow = { "good.test" }, deny = { "198.51.100.0/24" } }, function(box)
        assert.equal("reset", (get(box, "203.0.113.77", "good.test"))) -- by its name it is denied as well
        assert.equal("denied", denied(box, "good.test").reason)
      end)
    end)

    it("opens link-local addresses and those of the host only to entries that mean just them", function()
      with_box({ allow = { "0.0.0.0/0" } }, function(box)
        assert.equal("reset", (reach(box, "tcp", "169.254.169.254", 7)))
        assert.equal("reset", (reach(box, "tcp", "203.0.113.2", 7)))
      end)
      with_box({ allow = { "169.254.169.254", "203.0.113.2", "127.0.0.0/8" } }, function(box)
        assert.equal("ok", (reach(box, "tcp", "169.254.169.254", 7)))
        assert.equal("reset", (reach(box, "tcp", "203.0.113.2", 7))) -- nobody listens there
        assert.is_nil(assert_ok(box:info()).denied[1])
      end)
    end)

    it("answers no name that is not listed: there is none", function()
      with_box({ allow = { "198.51.100.0/24" } }, function(box)
        assert.is_nil(hosts(box, "good.test"))
        assert.equal("not allowed", denied(box, "good.test").reason)
      end)
    end)
  end)

  describe("with names", function()
    local RULES = { allow = { "good.test", "*.wide.test", "rebind.test", "metadata.test", "private.test", "own.test",
      "nowhere.test" } }

    it("goes where the name leads, not where the program points", function()
      with_box(RULES, function(box)
        for _, address in ipairs { GOOD, OTHER, "203.0.113.2", "169.254.169.254", "10.1.0.5" } do
          local word, came = get(box, address, "good.test")
          assert.equal("ok", word)
          assert.equal("198.51.100.10 GET / HTTP/1.1 good.test", came)
        end
        assert.equal("2001:db8:2::10 GET / HTTP/1.1 good.test", select(2, get(box, "2001:db8:9::1", "good.test")))
        assert.equal("198.51.100.12 GET /a HTTP/1.1 sub.wide.test", select(2, get(box, OTHER, "sub.wide.test", "", "/a")))
      end)
    end)

    it("reads the name in every spelling that servers do, also a byte at a time", function()
      with_box(RULES, function(box)
        for _, host in ipairs { "GOOD.Test", "good.test.", "good.test:80" } do
          assert.equal("198.51.100.10 GET / HTTP/1.1 " .. host, select(2, get(box, OTHER, host)))
        end
        assert.equal("ok", (get(box, OTHER, "good.test", "", nil, "slow")))
        assert.equal("198.51.100.10 GET http://good.test/ HTTP/1.1 good.test",
          select(2, get(box, OTHER, "good.test", "", "http://good.test/")))
      end)
    end)

    it("refuses requests that name no listed host, two, or one in a way that can be read differently", function()
      with_box(RULES, function(box)
        local text = HTTP:format("/", "good.test", "")
        for _, request in ipairs {
          HTTP:format("/", "other.test", ""), HTTP:format("/", "wide.test", ""), HTTP:format("/", "xgood.test", ""),
          HTTP:format("/", "good.test", "Host: other.test\\r\\n"), HTTP:format("/", "good.test:81", ""),
          HTTP:format("/", "good.test@other.test", ""), HTTP:format("/", "198.51.100.10", ""),
          HTTP:format("http://other.test/", "good.test", ""), HTTP:format("http://good.test@other.test/", "good.test", ""),
          "GET / HTTP/1.0\\r\\n\\r\\n", "GET / HTTP/1.1\\nHost: good.test\\n\\r\\n\\r\\n",
          text:gsub("Host", " Host"), text:gsub("Host:", "Host :"), text:gsub("/1.1", "/2.0"), text:gsub("/1.1", "/1.1 "),
          "CONNECT good.test:80 HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n",
          "PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", "\\x16\\x03\\x01\\x00\\x05hello",
          HTTP:format("/", "good.test", "Content-Length: 1\\r\\nContent-Length: 2\\r\\n"),
          HTTP:format("/", "good.test", "Content-Length: 1\\r\\nTransfer-Encoding: chunked\\r\\n"),
          HTTP:format("/", "good.test", "Transfer-Encoding: gzip, chunked\\r\\n"),
          HTTP:format("/", "good.test", "Transfer-Encoding: chunked\\r\\n") .. "0x1\\r\\na\\r\\n",
        } do
          local word, came, took = reach(box, "tcp", OTHER, 80, request, "")
          assert.equal("reset", word, request .. " " .. tostring(came))
          assert.is_true(took < QUICK)
        end
        assert.equal("not allowed", denied(box, "other.test").reason)
      end)
    end)

    it("lets one request through on a connection: a second one might be for another host", function()
      with_box(RULES, function(box)
        local second = HTTP:format("/2", "other.test", "")
        for _, first in ipairs {
          HTTP:format("/1", "good.test", ""), HTTP:format("/1", "good.test", "Connection: keep-alive\\r\\n"),
          HTTP:format("/1", "good.test", "Content-Length: 3\\r\\n") .. "abc",
          HTTP:format("/1", "good.test", "Upgrade: h2c\\r\\nConnection: Upgrade\\r\\n"),
        } do
          local word, came = reach(box, "tcp", OTHER, 80, first .. second, "")
          assert.equal("ok", word)
          assert.is_truthy(came:find("GET /1", 1, true))
          assert.is_nil(came:find("/2", 1, true))
        end
      end)
    end)

    it("carries a WebSocket both ways once the server has agreed", function()
      with_box(RULES, function(box)
        local r = assert_ok(box:exec("exec 3<>/dev/tcp/198.51.100.99/80; printf 'GET / HTTP/1.1\\r\\nHost: good.test\\r\\n"
          .. "Connection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n' >&3; read -r line <&3; read -r x <&3; "
          .. "echo \"$line\"; for i in 1 2; do echo frame $i >&3; read -r line <&3; echo \"$line\"; done",
          { shell = "/bin/bash", timeout = 10 }))
        assert.equal("HTTP/1.1 101 Switching Protocols\r\nframe 1\nframe 2\n", r.stdout)
      end)
    end)

    it("reads the name a TLS client asks for, and dials that", function()
      with_box(RULES, function(box)
        local text, n = hello(sni("good.test"))
        for _, how in ipairs { "", "slow" } do
          local word, came = reach(box, "tcp", OTHER, 443, text, how)
          assert.equal("ok", word)
          assert.equal(("198.51.100.10 %d\n"):format(n), came)
        end
        assert.equal("2001:db8:2::10 " .. n .. "\n", select(2, reach(box, "tcp", "2001:db8:9::1", 443, text, "")))
      end)
    end)

    it("refuses TLS without a listed name, with two, with an encrypted one, and split over records", function()
      with_box(RULES, function(box)
        local good = sni("good.test")
        local whole = hello(good)
        local split = whole:gsub("^(\\x16\\x03\\x01)\\x00\\x(%x%x)(\\x01.*)$", function(head, _, rest)
          return head .. "\\x00\\x04" .. rest:sub(1, 16) .. head .. "\\x00\\x10" .. rest:sub(17)
        end)
        assert.not_equal(whole, split)
        for _, text in ipairs { (hello("")), (hello(sni("other.test"))), (hello(good .. good)),
          (hello(good .. "\254\13\0\1x")), (hello(sni("198.51.100.10"))), (hello(sni("good.test\0x"))), split,
          HTTP:format("/", "good.test", ""), "\\x80\\x2e\\x01\\x03\\x01" } do
          local word, came, took = reach(box, "tcp", OTHER, 443, text, "")
          assert.equal("reset", word, text .. tostring(came))
          assert.is_true(took < QUICK)
        end
      end)
    end)

    it("does not go where a name leads to if nobody outside should be there", function()
      with_box(RULES, function(box)
        for name, why in pairs { ["rebind.test"] = "the host's loopback", ["metadata.test"] = "link-local",
          ["private.test"] = "a private address", ["own.test"] = "an address of the host" } do
          local word, _, took = reach(box, "tcp", OTHER, 80, HTTP:format("/", name, ""), "")
          assert.equal("reset", word, name)
          assert.is_true(took < QUICK)
          assert.equal(why, denied(box, name).reason)
          assert.is_nil(hosts(box, name))
        end
        assert.equal("reset", (reach(box, "tcp", OTHER, 80, HTTP:format("/", "nowhere.test", ""), "")))
      end)
      with_box({ allow = { "private.test", "10.1.0.0/16" } }, function(box)
        assert.equal("10.1.0.5 GET / HTTP/1.1 private.test", select(2, get(box, OTHER, "private.test")))
        assert.equal("10.1.0.5", hosts(box, "private.test"))
      end)
    end)

    it("serves names on ports 80 and 443 only, and nothing but TCP", function()
      with_box(RULES, function(box)
        assert.equal("reset", (reach(box, "tcp", GOOD, 7)))
        assert.equal("reset", (reach(box, "tcp", GOOD, 8080, HTTP:format("/", "good.test", ""), "")))
        assert.equal("error EHOSTUNREACH", (reach(box, "udp", GOOD, 443)))
        assert.equal("error EHOSTUNREACH", (reach(box, "udp", GOOD, 80)))
      end)
    end)

    it("lets connections whose names find no place among 64 lookups wait for one: they were reset", function()
      local ASKER = [[
import socket
def ask():
    s = socket.create_connection(("198.51.100.99", 80), 20)
    s.send(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
    return s
def answer(s):
    try: return s.recv(100).startswith(b"HTTP/1.1 200")
    except OSError as e: return e
asked = [ask() for _ in range(100)]
try: # what comes behind them: the relay has seen them all then
    socket.create_connection(("192.0.0.1", 53), 20).recv(1)
except OSError: pass
print("asked", flush=True)
answers = [answer(s) for s in asked]
print(answers.count(True), set(answers))
]]
      with_box(RULES, function(box)
        assert_ok(box.files:write("/tmp/ask.py", ASKER))
        local world = assert(reaching.world(), "no netlab around")
        if select(2, helper.shell("kill -STOP " .. world)) ~= 0 then
          helper.skip("the world around it is root's")
        end
        finally(function()
          helper.shell("kill -CONT " .. world)
        end)
        local p = assert_ok(box:start({ "python3", "/tmp/ask.py" }, { stderr = "stdout" }))
        assert.equal("asked", p.stdout:read("l", { timeout = 20 }))
        helper.sh("kill -CONT %d", world)
        assert.equal("100 {True}", p.stdout:read("l", { timeout = 20 }))
      end)
    end)

    it("answers for listed names and tells the world of no other", function()
      with_box(RULES, function(box)
        assert.equal(GOOD, hosts(box, "good.test"))
        assert.equal(GOOD, hosts(box, "GOOD.test."))
        assert.equal("198.51.100.12", hosts(box, "sub.wide.test"))
        for _, name in ipairs { "other.test", "c2VjcmV0.evil.test", "wide.test" } do
          local took = helper.timed(function()
            assert.is_nil(hosts(box, name))
          end)
          assert.is_true(took < QUICK)
          assert.is_nil(("\n" .. questions()):lower():find("\n" .. name:lower() .. " ", 1, true))
        end
        -- Whoever else is asked, it is the relay that answers: question for an address, then one for a text.
        local function ask(name, kind)
          local text = "\\x00\\x07\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00"
          for word in name:gmatch("[^.]+") do
            text = text .. ("\\x%02x%s"):format(#word, word)
          end
          return text .. "\\x00\\x00" .. kind .. "\\x00\\x01"
        end
        local word, came = reach(box, "udp", "198.51.100.53", 53, ask("good.test", "\\x01"))
        assert.equal("ok", word)
        assert.equal(string.char(198, 51, 100, 10), came:sub(-4))
        came = select(2, reach(box, "udp", "198.51.100.53", 53, ask("other.test", "\\x01")))
        assert.same({ 3, 0 }, { came:byte(4) % 16, came:byte(8) })
        local before = questions()
        came = select(2, reach(box, "udp", "198.51.100.53", 53, ask("good.test", "\\x10")))
        assert.same({ 0, 0 }, { came:byte(4) % 16, came:byte(8) })
        assert.equal("reset", (reach(box, "tcp", "192.0.0.1", 53)))
        assert.equal(before, questions())
        assert.equal("not allowed", denied(box, "c2vjcmv0.evil.test").reason)
      end)
    end)
  end)

  describe("that is changed", function()
    -- A connection that waits for a line before it goes on.
    local function hold(box, kind, address, port, text)
      local p = assert_ok(box:start({ "/tmp/reach", kind, address, tostring(port), text or "x", "hold" },
        { stdin = "pipe" }))
      assert.equal("held", assert_ok(p.stdout:read("l", { timeout = 10 })))
      return p
    end

    local function go_on(p)
      assert_ok(p.stdin:write("\n"))
      local word = assert_ok(p.stdout:read("l", { timeout = 10 }))
      assert_ok(p:wait { timeout = 10 })
      assert_ok(p:close())
      return word:match("^ok") or word
    end

    it("cuts what it forbids, leaves what it allows, and holds when update_network returns", function()
      with_box("allow", function(box)
        local stays, goes = hold(box, "tcp", GOOD, 7), hold(box, "tcp", OTHER, 7)
        assert.is_true(assert_ok(box:update_network { allow = { GOOD } }))
        assert.equal("reset", (reach(box, "tcp", OTHER, 7)))
        assert.equal("ok", go_on(stays))
        assert.equal("reset", go_on(goes))
        assert.same({ allow = { GOOD }, deny = {} }, assert_ok(box:info()).network)
        assert_ok(box:update_network("deny"))
        assert.equal("reset", (reach(box, "tcp", GOOD, 7)))
        assert.equal("error EHOSTUNREACH", (reach(box, "udp", GOOD, 7)))
        assert_ok(box:update_network { allow = { "good.test" } })
        assert.equal("ok", (get(box, OTHER, "good.test")))
        assert_ok(box:update_network("allow"))
        assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
      end)
    end)

    it("opens a sandbox that was made without any network", function()
      with_box("deny", function(box)
        assert_ok(box:update_network { allow = { "good.test", GOOD } })
        assert.equal("ok", (get(box, OTHER, "good.test")))
        assert.equal("ok", (reach(box, "udp", GOOD, 7)))
        assert.equal(GOOD, hosts(box, "good.test"))
      end)
    end)

    it("refuses a bad one and keeps the one before", function()
      with_box({ allow = { GOOD } }, function(box)
        for _, bad in ipairs { { allow = { "1.2.3" } }, { allow = {}, deny = { "a.b" } }, { deny = {} }, "open" } do
          local ok, err = box:update_network(bad)
          assert.is_nil(ok)
          assert.equal("InvalidArgument", err.kind)
        end
        assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
        assert.same({ allow = { GOOD }, deny = {} }, assert_ok(box:info()).network)
      end)
    end)

    it("goes on after a pause that keeps memory, and with copies", function()
      with_box({ allow = { GOOD }, deny = { OTHER } }, function(box)
        local held = hold(box, "tcp", GOOD, 7)
        assert.equal("memory", assert_ok(box:pause { keep = "memory" }))
        assert.equal("NotRunning", select(2, box:update_network("allow")).kind)
        assert_ok(box:resume())
        assert.equal("ok", go_on(held))
        local copy = assert_ok(box:fork(1))[1]
        for _, one in ipairs { box, copy } do
          assert.same({ allow = { GOOD }, deny = { OTHER } }, assert_ok(one:info()).network)
          assert.equal("ok", (reach(one, "tcp", GOOD, 7)))
          assert.equal("reset", (reach(one, "tcp", OTHER, 7)))
        end
        assert_ok(copy:destroy())
      end)
    end)

    it("is NotRunning for a paused sandbox, whose policy is there again after its resume", function()
      local sandboxes = helper.open()
      local box = assert_ok(sandboxes:create { network = { allow = { GOOD } } })
      assert_ok(box:pause { keep = "disk" })
      assert.equal("NotRunning", select(2, box:update_network("allow")).kind)
      assert_ok(box:resume())
      reaching.prepare(box)
      assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
      assert.equal("reset", (reach(box, "tcp", OTHER, 7)))
      assert_ok(box:destroy())
      box:close()
    end)
  end)

  describe("kept by a relay", function()
    local supervisor_of = reaching.supervisor_of

    -- The relays of a supervisor.
    local function relays(supervisor)
      local found = {}
      for _, stat in ipairs(helper.proc.children(supervisor)) do
        if helper.proc.cmdline(stat.pid)[1] == "sandbar-relay" then
          found[#found + 1] = stat.pid
        end
      end
      return found
    end

    it("that has no rights, ends with its sandbox, and is not there without need", function()
      with_box("deny", function()
        local supervisor = supervisor_of()
        assert.same({}, relays(supervisor))
        with_box("allow", function()
          local pid = relays(supervisor)[1]
          assert.is_truthy(pid)
          assert.is_truthy(helper.eventually(function() -- the last step
            return helper.proc.status(pid, "Seccomp") == "2"
          end))
          for _, key in ipairs { "CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb" } do
            assert.is_truthy(helper.proc.status(pid, key):match("^0+$"), key)
          end
          assert.equal("1", helper.proc.status(pid, "NoNewPrivs"))
        end)
        assert.is_truthy(helper.eventually(function()
          return #relays(supervisor) == 0
        end))
      end)
    end)

    it("lets nothing through while it is gone, and comes back", function()
      with_box("allow", function(box)
        assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
        local supervisor = supervisor_of()
        local pid = relays(supervisor)[1]
        finally(function()
          helper.shell("kill -CONT " .. supervisor)
        end)
        helper.shell(("kill -STOP %d; kill -KILL %d"):format(supervisor, pid)) -- so that no other is started
        assert.is_truthy(helper.eventually(function()
          return not helper.proc.alive(pid)
        end))
        for _, address in ipairs { GOOD, "2001:db8:2::9" } do
          assert.equal("refused", (reach(box, "tcp", address, 7)))
          assert.equal("refused", (reach(box, "udp", address, 7)))
        end
        helper.shell("kill -CONT " .. supervisor)
        assert.is_truthy(helper.eventually(function()
          return reach(box, "tcp", GOOD, 7) == "ok"
        end, 20))
        assert.equal("ok", (reach(box, "udp", GOOD, 7)))
        assert.not_equal(pid, relays(supervisor)[1])
      end)
    end)

    it("was not replaced when it took no more policies: update_network was done, and everything refused", function()
      local names = { GOOD }
      for i = 1, 250 do
        names[#names + 1] = ("h%d.%s.test"):format(i, ("x"):rep(60))
      end
      with_box({ allow = { OTHER } }, function(box)
        local supervisor = supervisor_of()
        local pid, tasks = relays(supervisor)[1], {}
        finally(function()
          helper.shell("kill -CONT " .. pid)
        end)
        helper.sh("kill -STOP %d", pid)
        sandbar.scope(function(scope)
          repeat
            tasks[#tasks + 1] = scope:spawn(function() return assert_ok(box:update_network { allow = names }) end)
            sandbar.sleep(0)
            assert_ok(box:info()) -- which is asked after that
            assert.is_true(#tasks < 200, "it takes everything")
          until not helper.proc.alive(pid) or tasks[1].state ~= "running"
          for _, task in ipairs(tasks) do
            assert.is_true(task:wait { timeout = 20 })
          end
        end)
        assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
        assert.equal("reset", (reach(box, "tcp", OTHER, 7)))
      end)
    end)

    it("ended before it had answered to a policy that opens nothing, for which there is no other: nobody answered", function()
      with_box({ allow = { OTHER } }, function(box)
        local pid = relays(supervisor_of())[1]
        helper.sh("kill -STOP %d", pid)
        sandbar.scope(function(scope)
          local change = scope:spawn(function() return assert_ok(box:update_network("deny", { timeout = 20 })) end)
          sandbar.sleep(0)
          assert_ok(box:info()) -- which is asked after that
          helper.sh("kill -KILL %d", pid)
          assert.is_true(change:wait { timeout = 20 })
        end)
        assert.equal("refused", (reach(box, "tcp", OTHER, 7)))
      end)
    end)

    it("is made anew by a new supervisor, with the policy of last", function()
      local root = helper.dir()
      with_box("allow", function(box)
        assert_ok(box:update_network { allow = { GOOD } })
        local old = supervisor_of(root)
        helper.shell("kill -KILL " .. old)
        assert.is_truthy(helper.eventually(function()
          local new = supervisor_of(root)
          return new ~= old and relays(new)[1]
        end, 20))
        assert.equal("ok", (reach(box, "tcp", GOOD, 7)))
        assert.equal("reset", (reach(box, "tcp", OTHER, 7)))
        assert.same({ allow = { GOOD }, deny = {} }, assert_ok(box:info()).network)
      end, root)
    end)

    it("that many idle connections neither stop nor feed", function()
      with_box({ allow = { "good.test", GOOD } }, function(box)
        local pid = relays(supervisor_of())[1]
        local p = assert_ok(box:start({ "/bin/bash", "-c", "trap '' PIPE; ulimit -n 4096; i=0; while [ $i -lt 1500 ]; do "
          .. "exec {fd}<>/dev/tcp/198.51.100.99/80; echo -n 'GET / HTTP/1.1' >&$fd; i=$((i+1)); done 2>/dev/null; "
          .. "echo done; read x" }, { stdin = "pipe", stderr = "ignore" }))
        assert.equal("done", assert_ok(p.stdout:read("l", { timeout = 60 })))
        assert.is_true(tonumber(helper.proc.status(pid, "VmRSS"):match("%d+")) < 65536)
        assert_ok(p:kill { signal = "KILL", grace = 0 })
        p:close()
        assert.is_truthy(helper.eventually(function()
          return reach(box, "tcp", GOOD, 7) == "ok"
        end, 10))
      end)
    end)
  end)

  it("keeps sandboxes apart from each other", function()
    with_box("allow", function(box)
      with_box("allow", function(other)
        local server = assert_ok(other:start({ "/bin/bash", "-c", "echo up; sleep 100" }))
        assert_ok(server.stdout:read("l", { timeout = 10 }))
        assert.equal("refused", (reach(box, "tcp", "192.0.0.2", 7)))
        assert_ok(server:kill { signal = "KILL", grace = 0 })
        server:close()
      end)
    end)
  end)
end)
