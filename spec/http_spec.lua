-- HTTP into ports, against a server on this host's loopback that misbehaves on demand. The same code reaches
-- sandboxes; what differs there is only where the sockets come from (see port_spec).

local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local wait = require "sandbar.wait"

local PROGRAM = (os.getenv("SPEC_BUILD") or "build") .. "/spec/http_server"

local servers = {}

-- Starts a server of its own: its port number and a function that ends it.
local function start_server(arguments)
  local pipe = assert(io.popen("exec " .. helper.quote(PROGRAM) .. " " .. (arguments or ""), "r"))
  local number, pid = assert(pipe:read("*l")):match("(%d+) (%d+)")
  local function stop()
    if pipe then
      helper.shell("kill -9 " .. pid)
      pipe:close()
      pipe = nil
    end
  end
  servers[#servers + 1] = stop
  return tonumber(number), stop
end

describe("http", function()
  local http, number, port

  busted.setup(function()
    http = require "sandbar.http"
    number = start_server()
    port = http.port { port = number }
  end)

  helper.guard { growth = 24 }

  it("kept in memory what only the dynamic linker had read of libcurl's libraries", function()
    local child = helper.run_lua [[
      -- kB of files' pages that are mapped, are no code and were not written.
      local function clean()
        local at, sum = false, 0
        for line in io.lines "/proc/self/smaps" do
          local perms = line:match "^%x+%-%x+ (%S+)"
          if perms then
            at = perms:find("^r%-%-") and line:find("/", 1, true)
          elseif at then
            sum = sum + (tonumber(line:match "^Rss: +(%d+)") or 0) - (tonumber(line:match "^Anonymous: +(%d+)") or 0)
          end
        end
        return sum
      end
      for path in package.cpath:gmatch "[^;]+" do
        if package.loadlib(path:gsub("%?", "sandbar/http"), "luaopen_sandbar_http") then
          break
        end
      end
      local linked = clean()
      require "sandbar.http"
      print(linked, clean())
    ]]
    local linked, ready = child.stdout:match("^(%d+)%s+(%d+)")
    assert.is_true(tonumber(ready) < tonumber(linked), child.stdout .. child.stderr)
  end)

  busted.teardown(function()
    port:close()
    port = nil
    for _, stop in ipairs(servers) do
      stop()
    end
  end)

  local function fetch(request, timeout)
    if type(request) == "string" then
      request = { path = request }
    end
    return http.request(port, request, timeout or 10, "fetch")
  end

  -- A number the server answers with.
  local function ask(path)
    return tonumber(assert(fetch(path)).body)
  end

  describe("loading", function()
    it("is not a part of require 'sandbar.core'", function()
      local out = helper.shell(([[LUA_CPATH=%s %s -e 'require "sandbar.core"
        for line in io.lines("/proc/self/maps") do if line:find("libcurl") then print(line) end end']]):format(
        helper.quote(package.cpath), helper.interpreter()))
      assert.equal("", out)
    end)
  end)

  describe("sha256", function()
    it("gives the 32 bytes of the digest", function()
      local hex = http.sha256("abc"):gsub(".", function(c)
        return ("%02x"):format(c:byte())
      end)
      assert.equal("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", hex)
      assert.equal(32, #http.sha256(""))
      assert.equal(http.sha256("abc"), http.sha256(core.secret("abc")))
    end)
  end)

  describe("answers", function()
    it("passes every status on as an answer, with its own words", function()
      for _, status in ipairs { 200, 204, 301, 302, 304, 404, 418, 500, 502, 599 } do
        local answer = assert(fetch("/status/" .. status))
        assert.equal(status, answer.status)
        assert.equal("Odd words (here)", answer.reason)
        assert.equal((status == 204 or status == 304) and "" or "hello", answer.body)
      end
    end)

    it("does not follow redirects", function()
      assert.equal("http://127.0.0.1:1/", assert(fetch("/status/302")).headers.location)
    end)

    it("answers a HEAD request without a body", function()
      local answer = assert(fetch { method = "HEAD", path = "/status/200" })
      assert.equal(200, answer.status)
      assert.equal("5", answer.headers["content-length"])
      assert.equal("", answer.body)
    end)

    it("takes 60 KiB of headers", function()
      local answer = assert(fetch("/headers/60"))
      assert.equal(1000, #answer.headers["x-fat-59"])
      assert.equal(61, #answer.headers)
    end)

    it("keeps twenty Set-Cookie lines apart, in order", function()
      local answer = assert(fetch("/cookies"))
      local cookies = answer.headers:all("SET-COOKIE")
      assert.equal(20, #cookies)
      for i = 1, 20 do
        assert.equal(("c%d=%d; Path=/"):format(i, i), cookies[i])
      end
      local names = {}
      for name, value in answer.headers:each() do
        names[#names + 1] = name .. "=" .. value
      end
      assert.equal(21, #names)
      assert.equal("Set-Cookie=c1=1; Path=/", names[1])
      assert.equal("set-cookie=c2=2; Path=/", names[2])
      assert.equal(cookies[1], answer.headers["Set-Cookie"])
    end)

    it("reads a body that ends with the connection", function()
      assert.equal("all of it", assert(fetch("/until-close")).body)
    end)

    it("refuses a body above max_body, and goes on working", function()
      local answer, err = fetch { path = "/big/100000", max_body = 99999 }
      assert.is_nil(answer)
      assert.equal("LimitExceeded", err.kind)
      assert.equal(100000, #assert(fetch { path = "/big/100000", max_body = 100000 }).body)
    end)

    it("refuses a max_body that is no number of bytes as a value, not as misuse", function()
      for _, max in ipairs { -1, 0 / 0, -1 / 0 } do
        local answer, err = fetch { path = "/status/200", max_body = max }
        assert.is_nil(answer)
        assert.equal("InvalidArgument", err.kind)
      end
    end)

    it("carries large bodies whole", function()
      assert.equal(20000000, #assert(fetch("/big/20000000")).body)
    end)
  end)

  describe("requests", function()
    local function raw(request)
      request.path = request.path or "/raw"
      return assert(fetch(request)).body
    end

    it("says Host: localhost:n unless told otherwise, and adds nothing of its own", function()
      assert.equal(("GET /raw HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"):format(number), raw {})
      assert.equal("GET /raw HTTP/1.1\r\nHost: other.test\r\n\r\n", raw { headers = { Host = "other.test" } })
    end)

    it("sends headers in order, with repeats, empty ones and secrets", function()
      local text = raw {
        headers = { { "B", "1" }, { "a", 2 }, { "B", "3" }, { "Empty", "" }, { "T", core.secret("s3cret") } },
      }
      assert.truthy(text:find("\r\nB: 1\r\na: 2\r\nB: 3\r\nEmpty:\r\nT: s3cret\r\n", 1, true))
      text = raw { headers = { Many = { "x", "y" }, Accept = "text/plain" } }
      assert.truthy(text:find("\r\nAccept: text/plain\r\nMany: x\r\nMany: y\r\n", 1, true))
    end)

    it("sends 60 KiB of headers", function()
      local headers = {}
      for i = 1, 60 do
        headers[i] = { "X-" .. i, ("v"):rep(1000) }
      end
      assert.truthy(#raw { headers = headers } > 60000)
    end)

    it("leaves the path as it is", function()
      for _, path in ipairs { "/raw/../a/./b", "/raw//x?q=%41&r=%2f", "/raw/\195\164{}|^\"<>`" } do
        assert.equal("GET " .. path .. " HTTP/1.1", raw({ path = path }):match("^[^\r]*"))
      end
    end)

    it("refuses what is no path of this port, and broken headers", function()
      for _, request in ipairs {
        { path = "http://127.0.0.1/" }, { path = "" }, { path = "x" }, { path = "/a b" },
        { path = "/a\r\nX: y" }, { path = "/a#b" }, { path = "/\0" },
        { method = "GET / HTTP/1.1\r\n" }, { method = "" },
        { headers = { ["a b"] = "c" } }, { headers = { a = "b\r\nc: d" } }, { headers = { a = "b\0c" } },
        { headers = { "a: b" } }, { headers = { a = true } }, { headers = { [""] = "x" } }, { wait = -1 },
        { headers = { ["Content-Length"] = "3" }, body = "four" }, { body = 5 },
      } do
        local answer, err = fetch(request)
        assert.is_nil(answer)
        assert.equal("InvalidArgument", err.kind)
      end
      local _, err = fetch { headers = { Upgrade = "websocket" } }
      assert.equal("Unsupported", err.kind)
    end)

    it("uses no proxy of the environment", function()
      local out = helper.shell(([[http_proxy=http://127.0.0.1:1 ALL_PROXY=http://127.0.0.1:1 \
        LUA_PATH=%s LUA_CPATH=%s %s -e 'local http = require "sandbar.http"
        local a, e = http.request(http.port { port = %d }, { path = "/status/200" })
        print(a and a.status, e)']]):format(
        helper.quote(package.path), helper.quote(package.cpath), helper.interpreter(), number))
      assert.equal("200\tnil\n", out)
    end)

    it("sends bodies of any method and any bytes", function()
      local bytes = {}
      for i = 0, 255 do
        bytes[i + 1] = string.char(i)
      end
      local body = table.concat(bytes):rep(1000)
      for _, method in ipairs { "POST", "PUT", "PATCH", "DELETE", "GET", "REPORT" } do
        assert.equal(body, assert(fetch { method = method, path = "/echo", body = body }).body)
      end
      assert.truthy(raw({ method = "POST" }):find("\r\nContent-Length: 0\r\n", 1, true))
      assert.truthy(raw({ method = "POST", body = "" }):find("\r\nContent-Length: 0\r\n", 1, true))
    end)

    it("honours Expect: 100-continue", function()
      local headers = { Expect = "100-continue" }
      local seconds, answer = helper.timed(fetch,
        { method = "POST", path = "/echo", body = "x", headers = headers })
      assert.equal("x", answer.body)
      assert.truthy(seconds < 0.9) -- libcurl would go on by itself after a second
    end)

    it("sends a body from a function, in pieces or with its length", function()
      local function pieces(n)
        return function()
          n = n - 1
          return n >= 0 and ("piece"):rep(1000) or nil
        end
      end
      assert.equal("5000000", assert(fetch { method = "POST", path = "/count-body", body = pieces(1000) }).body)
      local text = raw { method = "PUT", body = pieces(3), headers = { ["Content-Length"] = "15000" } }
      assert.truthy(text:find("\r\nContent-Length: 15000\r\n", 1, true))
      assert.falsy(text:lower():find("transfer-encoding", 1, true))
      text = raw { method = "POST", body = pieces(3) }
      assert.truthy(text:find("\r\nTransfer-Encoding: chunked\r\n", 1, true))
      for _, length in ipairs { "14999", "15001" } do
        local answer, err = fetch {
          method = "PUT", path = "/count-body", body = pieces(3), headers = { ["Content-Length"] = length },
        }
        assert.is_nil(answer)
        assert.equal("InvalidArgument", err.kind)
      end
    end)

    it("sends an open file", function()
      local path = helper.write_file(helper.scratch() .. "/body", ("line\n"):rep(50000))
      local file = assert(io.open(path, "rb"))
      assert.equal("250000", assert(fetch { method = "PUT", path = "/count-body", body = file }).body)
      file:close()
    end)

    it("gives up when the body's function fails, and the server sees it cut", function()
      local n = 0
      local answer, err = fetch {
        method = "POST", path = "/pieces",
        body = function()
          n = n + 1
          if n == 3 then
            return nil, errors.new { kind = "NoSpace", message = "no more" }
          end
          return "x"
        end,
      }
      assert.is_nil(answer)
      assert.equal("NoSpace", err.kind)
    end)

    it("stops writing a body that is answered before its end", function()
      local written = 0
      local answer, err = fetch {
        method = "POST", path = "/refuse-body",
        body = function()
          written = written + 1
          return written < 10000 and ("x"):rep(65536) or nil
        end,
      }
      -- The kernel may lose the answer with the connection; never is it a success that was none.
      if answer then
        assert.equal(413, answer.status)
      else
        assert.equal("OutcomeUnknown", err.kind)
      end
      assert.truthy(written < 10000)
    end)
  end)

  describe("streams", function()
    it("gives pieces as they come", function()
      local answer, came = assert(fetch { path = "/drip/5/100", stream = true }), {}
      for i = 1, 5 do
        assert.equal("piece " .. i, assert(answer.body:read(7, { timeout = 5 })))
        came[i] = helper.now()
      end
      assert.truthy(came[5] - came[1] > 0.2, "they came together")
      assert.is_nil((answer.body:read(7)))
    end)

    -- A transfer that stood still with more than half of the queue left never went on for a reader who needed
    -- more than that, but not more than the whole queue.
    it("comes whole and in order, however large the pieces it is read in", function()
      local numbers = {}
      for n = 1, 400000 do
        numbers[n] = n
      end
      local sent = table.concat(numbers, ",")
      local sizes = { 262144, 1, 262144, 65536, 300000, 7, 131072, 262143, 100000, 262144 }
      local answer = assert(fetch { method = "POST", path = "/echo", body = sent, stream = true })
      local got, i = {}, 0
      repeat
        i = i + 1
        got[i] = answer.body:read(sizes[i % #sizes + 1], { timeout = 10 })
      until not got[i]
      assert.is_true(table.concat(got) == sent)
    end)

    it("reads by count, line and whole", function()
      local answer = assert(fetch { method = "POST", path = "/echo", body = "one\ntwo\nthree\nrest", stream = true })
      assert.equal("one", answer.body:read("l"))
      assert.equal("tw", answer.body:read(2))
      assert.equal("o", answer.body:read())
      assert.equal("three\n", answer.body:read("L"))
      assert.equal("rest", answer.body:read("a"))
      assert.is_nil(answer.body:read("l"))
    end)

    it("holds back a server that is faster than its reader", function()
      local function resident()
        return tonumber(helper.proc.status("self", "VmRSS"):match("%d+"))
      end
      local before = resident()
      local answer = assert(fetch { path = "/big/200000000", stream = true })
      wait.sleep(0.2)
      local growth = resident() - before
      assert.truthy(growth < 20000, ("grown by %d KiB"):format(growth))
      local total = 0
      while true do
        local piece = assert(answer.body:read(1000000) or "")
        if piece == "" then
          break
        end
        total = total + #piece
      end
      assert.equal(200000000, total)
    end)

    it("ends as it did when its end comes while it stands still", function()
      for _, how in ipairs { "", "/chunks", "/close", "/cut" } do
        for _, n in ipairs { 196608, 261900, 262144, 262145, 278528, 327500, 327680, 327681, 400000 } do
          local answer = assert(fetch { path = ("/big/%d%s"):format(n, how), stream = true })
          local total, data, err = 0
          wait.sleep(0.01) -- it fills its queue meanwhile
          repeat
            data, err = answer.body:read(50000, { timeout = 10 })
            total = total + #(data or "")
          until not data
          assert.equal(how == "/cut" and "Protocol" or nil, err and err.kind)
          assert.equal(how == "/cut" and n - n % 50000 or n, total)
          assert.equal("xxx", assert(fetch("/big/3")).body)
        end
      end
    end)

    -- It named what was left of it, often 0 s.
    it("names the limit it was given when it times out", function()
      local function late()
        wait.sleep(0.1)
        return "piece"
      end
      for _, request in ipairs {
        { path = "/silent" }, { method = "POST", path = "/silent", body = late },
        { method = "POST", path = "/count-body", body = late },
      } do
        local answer, err = fetch(request, 0.15)
        assert.is_nil(answer)
        assert.equal("Timeout", err.kind)
        assert.equal("timeout", err.clock)
        assert.equal(0.15, err.limit)
        assert.matches("not done within timeout = 0.15 s", err.message)
      end
    end)

    it("consumes nothing when a read times out or a line is too long", function()
      local answer = assert(fetch { path = "/drip/2/150", stream = true })
      local data, err = answer.body:read(14, { timeout = 0.05 })
      assert.is_nil(data)
      assert.equal("Timeout", err.kind)
      data, err = answer.body:read("l", { max = 3 })
      assert.is_nil(data)
      assert.equal("LimitExceeded", err.kind)
      assert.equal("piece 1piece 2", answer.body:read("a"))
    end)

    it("closes the connection when the reader stops", function()
            local answer = assert(fetch { path = "/endless", stream = true })
      assert(answer.body:read(5))
      assert.equal(1, ask("/held"))
      answer.body:close()
      assert.truthy(helper.eventually(function()
        return ask("/held") == 0
      end))
    end)

    it("closes the connection when nobody holds the body", function()
            local answer = assert(fetch { path = "/endless", stream = true })
      assert.equal(200, answer.status)
      answer = nil -- luacheck: ignore
      assert.truthy(helper.eventually(function()
        collectgarbage()
        return ask("/held") == 0
      end))
    end)

    it("sends a slow body early", function()
      local fastest = math.huge
      local op, upload = http.fetch(port, {
        method = "POST", path = "/pieces", stream = true, body = function() end,
      })
      local answer
      for i = 1, 4 do
        local start = helper.now()
        assert(wait.op(upload:write(("x"):rep(i)), 5))
        answer = answer or assert(wait.finish(op, 5)) and http.answer(op)
        assert.equal(tostring(i), answer.body:read("l", { timeout = 5 }))
        fastest = math.min(fastest, i > 1 and helper.now() - start or fastest)
        wait.sleep(0.05)
      end
      upload:finish()
      assert.equal("", answer.body:read("a", { timeout = 5 }))
      assert.truthy(fastest < 0.1, fastest)
    end)

    it("ends when the server has, although more of its body is waited for", function()
      for _, lines in ipairs { {}, { ["Content-Length"] = 100 } } do
        local there, stop = start_server()
        local own = http.port { port = there }
        local op, upload = http.fetch(own, { method = "POST", path = "/silent", headers = lines, body = function() end })
        assert(wait.op(upload:write("some of it"), 5))
        assert(helper.eventually(function()
          return http.request(own, { path = "/held" }, 5, "test").body == "1"
        end))
        assert.is_false(op:failed())
        stop()
        local answer, err = wait.op(op, 10, "test")
        assert.is_nil(answer)
        assert.equal("OutcomeUnknown", err.kind)
        assert.is_true(op:failed())
        upload:close()
        own:close()
      end
    end)

    it("carries a hundred at once", function()
      local ops = {}
      for i = 1, 100 do
        ops[i] = http.fetch(port, { path = "/drip/3/30", stream = true })
      end
      for i = 1, 100 do
        assert(wait.finish(ops[i], 10))
        local answer = http.answer(ops[i])
        assert.equal("piece 1piece 2piece 3", answer.body:read("a", { timeout = 10 }))
      end
    end)
  end)

  describe("broken answers", function()
    it("never takes a cut body for a whole one", function()
      for _, how in ipairs { "length", "chunk", "between", "reset", "head" } do
        local answer, err = fetch("/cut/" .. how)
        assert.is_nil(answer)
        assert.equal("Protocol", err.kind)
        answer, err = fetch { method = "POST", path = "/cut/" .. how }
        assert.is_nil(answer)
        assert.equal("OutcomeUnknown", err.kind)
      end
    end)

    it("gives what came of a cut stream, then the error", function()
      local answer = assert(fetch { path = "/cut/chunk", stream = true })
      assert.equal("only this", answer.body:read(9))
      local data, err = answer.body:read(1)
      assert.is_nil(data)
      assert.equal("Protocol", err.kind)
    end)

    it("tells a connection that ends without an answer", function()
      local answer, err = fetch("/nothing")
      assert.is_nil(answer)
      assert.equal("Unavailable", err.kind)
      assert.equal("ECONNRESET", err.code)
      answer, err = fetch { method = "POST", path = "/nothing" }
      assert.is_nil(answer)
      assert.equal("OutcomeUnknown", err.kind)
    end)

    it("ends a head or trailers that have no end, and keeps little of them", function()
      for _, what in ipairs { "lines", "line", "hints", "trailers" } do
        for _, stream in ipairs { false, true } do
          local answer, err = fetch { path = "/flood/" .. what, stream = stream }
          if answer then
            assert.equal("trailers", what)
            answer, err = answer.body:read("a", { timeout = 10 })
          end
          assert.is_nil(answer)
          assert.equal("Protocol", err.kind, what .. ": " .. tostring(err))
        end
      end
    end)

    it("does not take rubbish for HTTP", function()
      local answer, err = fetch("/rubbish")
      assert.is_nil(answer)
      assert.equal("Protocol", err.kind)
    end)
  end)

  describe("connections", function()
    it("are used again by idempotent requests", function()
      assert(fetch("/status/200"))
      local before = ask("/accepted")
      for _ = 1, 20 do
        assert(fetch("/status/200"))
      end
      assert.equal(before, ask("/accepted"))
    end)

    it("carry a POST exactly once, also when a kept one is dead", function()
      local own = http.port { port = number }
      for i = 1, 5 do
        local before = ask("/posts")
        assert(http.request(own, { path = "/second-dies" }, 10)) -- leaves a connection behind
        http.request(own, { method = "POST", path = "/second-dies", body = "once" }, 10)
        assert.equal(before + 1, ask("/posts"), "round " .. i)
      end
      -- What may be repeated is, when its connection turns out dead.
      assert(http.request(own, { path = "/second-dies" }, 10))
      assert.equal("first", assert(http.request(own, { path = "/second-dies" }, 10)).body)
      own:close()
    end)

    it("leave nothing of a request to the next one, whatever kinds follow each other", function()
      local own = http.port { port = number }
      local plain = assert(http.request(own, { path = "/raw?0" }, 10)).body
      local others = {
        { path = "/raw?0", headers = { Cookie = "a=b", Accept = "x/y" } },
        { path = "/status/200", method = "HEAD" },
        { path = "/raw", method = "POST", body = "posted" },
        { path = "/cut/length" },
        { path = "/raw", method = "DELETE" },
        { path = "/drip/2/1", stream = true },
        { path = "/status/204" },
      }
      assert.matches("^GET /raw%?0 HTTP/1.1\r\nHost: localhost:%d+\r\n\r\n$", plain)
      for i, other in ipairs(others) do
        local answer = http.request(own, other, 10)
        if other.stream then
          assert.equal("piece 1piece 2", answer.body:read("a", { timeout = 10 }))
        end
        assert.equal(plain, assert(http.request(own, { path = "/raw?0" }, 10)).body, "after " .. i)
      end
      own:close()
    end)

    it("belong to one port object", function()
      local a, b = http.port { port = number }, http.port { port = number }
      local before = ask("/accepted")
      assert(http.request(a, { path = "/status/200" }, 10))
      assert(http.request(b, { path = "/status/200" }, 10))
      assert(http.request(a, { path = "/status/200" }, 10))
      assert.equal(before + 2, ask("/accepted"))
      a:close()
      b:close()
    end)

    it("end with their port", function()
      local other, stop = start_server()
      local own, watch = http.port { port = other }, http.port { port = other }
      assert(http.request(own, { path = "/status/200" }, 10))
      local op = http.fetch(own, { path = "/silent" })
      local answer = assert(http.request(own, { path = "/endless", stream = true }, 10))
      own:close()
      local r, err = wait.op(op, 5)
      assert.is_nil(r)
      assert.equal("Closed", err.kind)
      while answer.body:read(5) do -- what had come
      end
      r, err = answer.body:read(5)
      assert.is_nil(r)
      assert.equal("Closed", err.kind)
      r, err = http.request(own, {}, 5)
      assert.is_nil(r)
      assert.equal("Closed", err.kind)
      assert.truthy(helper.eventually(function()
        return assert(http.request(watch, { path = "/connections" }, 10)).body == "1" -- the asking one
      end))
      watch:close()
      stop()
    end)

    it("leave no descriptors behind over 500 fetches", function()
      local function round()
        assert(fetch("/status/200"))
        assert(fetch { method = "POST", path = "/echo", body = "x" })
        fetch("/cut/length")
        fetch("/nothing")
        assert(fetch { path = "/endless", stream = true }).body:close()
      end
      round()
      wait.sleep(0.05)
      local before = helper.anonymous_fds()
      for _ = 1, 100 do
        round()
      end
      assert.truthy(helper.eventually(function()
        return helper.anonymous_fds() <= before + 16 -- kept connections
      end))
    end)
  end)

  describe("deadlines", function()
    it("end a request that is not answered, and its connection", function()
      local answer, err
      local seconds = helper.timed(function()
        answer, err = fetch("/silent", 0.1)
      end)
      assert.is_nil(answer)
      assert.equal("Timeout", err.kind)
      assert.truthy(seconds < 0.5)
      assert.truthy(helper.eventually(function()
        return ask("/held") == 0
      end))
    end)

    it("end a body that nobody takes", function()
      local n = 0
      local answer, err = fetch({
        method = "POST", path = "/silent",
        body = function()
          n = n + 1
          return n < 1000 and ("x"):rep(65536) or nil
        end,
      }, 0.3)
      assert.is_nil(answer)
      assert.truthy(err.kind == "Timeout" or err.kind == "OutcomeUnknown")
    end)
  end)

  describe("a port where nothing listens", function()
    local closed

    busted.before_each(function()
      local stop
      closed, stop = start_server()
      stop()
    end)

    it("is refused at once", function()
      local own = http.port { port = closed }
      local fastest = math.huge
      for _ = 1, 3 do
        local seconds, answer = helper.timed(function()
          return (http.request(own, {}, 5))
        end)
        assert.is_nil(answer)
        fastest = math.min(fastest, seconds)
      end
      assert.truthy(fastest < 0.2, fastest)
      local _, err = http.request(own, { method = "POST", body = "x" }, 5)
      assert.equal("Unavailable", err.kind)
      assert.equal("ECONNREFUSED", err.code)
      own:close()
    end)

    it("is tried for as long as wait says", function()
      local own = http.port { port = closed }
      local seconds, answer = helper.timed(function()
        return (http.request(own, { wait = 0.2 }, 5))
      end)
      assert.is_nil(answer)
      assert.truthy(seconds >= 0.19 and seconds < 0.5)
      own:close()
    end)

    it("answers once it opens, on either loopback", function()
      for _, family in ipairs { "", "-6 " } do
        local own = http.port { port = closed }
        local posted = http.fetch(own, { method = "POST", path = "/echo", body = "late", wait = 10 })
        local got = http.fetch(own, { path = "/status/200", wait = 10 })
        local open = own:wait(10)
        wait.sleep(0.1)
        local _, stop = start_server(family .. closed)
        assert(wait.finish(posted, 10))
        assert(wait.finish(got, 10))
        assert.equal("late", http.answer(posted).body)
        assert.equal(200, http.answer(got).status)
        assert(wait.op(open, 10))
        assert.equal(200, assert(http.request(own, { path = "/status/200" }, 10)).status)
        assert(http.wait(own, 1))
        own:close()
        stop()
      end
    end)
  end)

  describe("an upstream socket", function()
    -- What comes back for some bytes: how many, and the last ones.
    local function through(address, request)
      local path = helper.write_file(helper.scratch() .. "/request", request)
      return (helper.shell(("%s -c %s < %s"):format(PROGRAM, address:match("^unix:(.+)$"), path)))
    end

    it("relays both directions to the port, through half-closes", function()
      local own = http.port { port = number }
      local up = assert(http.upstream(own))
      assert.equal(up.address, assert(http.upstream(own)).address)
      assert.truthy(through(up.address, "GET /status/200 HTTP/1.1\r\n\r\n"):find("hello$"))
      assert.truthy(through(up.address, "GET /big/3000000 HTTP/1.1\r\n\r\n"):find("^30000%d%d "))
      assert.truthy(through(up.address, "GET /tunnel HTTP/1.1\r\n\r\nraw bytes"):find("\r\n\r\nraw bytesbye$"))
      own:close()
    end)

    it("lies in a directory of its own that goes away with the port", function()
      local own = http.port { port = number }
      local path = assert(http.upstream(own)).address:match("^unix:(.+)$")
      local dir = path:match("^(.*)/")
      assert.equal("700\n", (helper.shell("stat -c %a " .. helper.quote(dir))))
      own:close()
      assert.truthy(helper.eventually(function()
        return select(2, helper.shell("test -e " .. helper.quote(dir))) ~= 0
      end))
    end)

    it("goes away with the process", function()
      local out = helper.shell(([[LUA_PATH=%s LUA_CPATH=%s %s -e 'local http = require "sandbar.http"
        print(http.upstream(http.port { port = 1 }).address) os.exit(0)']]):format(
        helper.quote(package.path), helper.quote(package.cpath), helper.interpreter()))
      local dir = assert(out:match("^unix:(.*)/"))
      assert.truthy(select(2, helper.shell("test -e " .. helper.quote(dir))) ~= 0)
    end)
  end)
end)
