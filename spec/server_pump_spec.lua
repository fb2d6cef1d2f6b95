-- check: only 5.4
-- check: no user
-- What the HTTP server moves without Lua: output of processes into answers, bodies into processes, connections to ports.
local busted = require "busted"
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local http = require "sandbar.server.http"
local json = require "sandbar.json"
local sandbar = require "sandbar"

local CLIENT = helper.quote((os.getenv("SPEC_BUILD") or "build") .. "/spec/raw_client")
local SERVER = (os.getenv("SPEC_BUILD") or "build") .. "/spec/http_server"

local function client(port, ...)
  local words = { "exec", CLIENT, port }
  for _, step in ipairs { ... } do
    words[#words + 1] = helper.quote(step)
  end
  local pipe = assert(io.popen(table.concat(words, " "), "r"))
  return function()
    local all = pipe:read("*a")
    pipe:close()
    return all
  end
end

describe("http server", function()
  helper.guard()

  local sandboxes = helper.open()
  local listener, port

  busted.before_each(function()
    listener = sandbar.assert(http.listen { address = "127.0.0.1" })
    port = listener:address().port
  end)

  busted.after_each(function()
    listener:cut()
    sandbar.assert(listener:drain(5))
  end)

  local function accept()
    return sandbar.assert(listener:accept(10))
  end

  local function fails(kind, value, err)
    assert.is_nil(value)
    assert.equal(kind, err and err.kind, tostring(err))
  end

  -- A body in chunks, put together.
  local function unchunk(text)
    local pieces, at = {}, select(2, text:find("\r\n\r\n", 1, true)) + 1
    while true do
      local size, from = text:match("^(%x+)\r\n()", at)
      size = tonumber(size, 16)
      if size == 0 then
        return table.concat(pieces), text:sub(from)
      end
      pieces[#pieces + 1] = text:sub(from, from + size - 1)
      assert.equal("\r\n", text:sub(from + size, from + size + 1))
      at = from + size + 2
    end
  end

  -- The messages of a body of envelopes.
  local function messages(body)
    local list, at = {}, 1
    while at <= #body do
      assert.equal(0, body:byte(at))
      local a, b, c, d = body:byte(at + 1, at + 4)
      local n = ((a * 256 + b) * 256 + c) * 256 + d
      list[#list + 1] = body:sub(at + 5, at + 4 + n)
      at = at + 5 + n
    end
    return list
  end

  local function unbase64(text)
    return helper.sh("printf %%s %s | base64 -d", helper.quote(text))
  end

  local GET = "send=GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"

  it("pumps the output of a process into an answer, as it is and in envelopes", function()
    inside.with_box(sandboxes, function(box)
      for _, framing in ipairs { "raw", "connect+json", "connect+proto" } do
        local answer = client(port, GET, "shut", "end")
        local request = accept()
        local p = sandbar.assert(box:start("seq 1 20000; echo bad >&2", { stdout = "pipe", stderr = "pipe" }))
        sandbar.assert(request:begin(200))
        assert.equal(108894, sandbar.assert(request:pump_out(p.stdout, framing, "stdout")))
        assert.equal(4, sandbar.assert(request:pump_out(p.stderr, framing, "stderr")))
        sandbar.assert(request:finish())
        sandbar.assert(p:wait())
        local body, rest = unchunk(answer())
        assert.equal("\r\n[end]", rest)
        local out, err = {}, {}
        for _, message in ipairs(framing == "raw" and {} or messages(body)) do
          local data
          if framing == "connect+json" then
            data = json.decode(message).event.data
            data = { stdout = data.stdout and unbase64(data.stdout), stderr = data.stderr and unbase64(data.stderr) }
          else
            local http_c = require "sandbar.http"
            data = assert(http_c.decode and http_c.decode("process.StartResponse", message)
              or require("sandbar.e2b.message").decode("process.StartResponse", message, "proto")).event.data
          end
          out[#out + 1], err[#err + 1] = data.stdout, data.stderr
        end
        if framing == "raw" then
          out, err = { body:sub(1, -5) }, { body:sub(-4) }
        end
        assert.is_true(table.concat(out) == helper.sh("seq 1 20000"), framing)
        assert.equal("bad\n", table.concat(err))
      end
    end)
  end)

  it("a client that stops reading stops the command, and one that goes ends the pump", function()
    inside.with_box(sandboxes, function(box)
      local answer = client(port, "small", GET, "until=\\r\\n\\r\\n", "sink=100000", "wait=100", "sink=5000000", "reset")
      local request = accept()
      local p = sandbar.assert(box:start("yes", { stdout = "pipe" }))
      sandbar.assert(request:begin(200))
      fails("Closed", request:pump_out(p.stdout))
      assert.is_true(request:gone())
      sandbar.assert(p:kill())
      sandbar.assert(p:wait())
      answer()
    end)
  end)

  it("pumps a body into a process, as fast as that reads", function()
    inside.with_box(sandboxes, function(box)
      local answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 3000000\\r\\n"
        .. "Expect: 100-continue\\r\\n\\r\\n", "until=Continue\\r\\n\\r\\n", "fill=3000000", "shut", "end")
      local request = accept()
      local p = sandbar.assert(box:start("sleep 0.2; wc -c", { stdin = "pipe", stdout = "pipe" }))
      assert.equal(3000000, sandbar.assert(request:pump_in(p.stdin, 20)))
      p.stdin:close()
      assert.equal("3000000\n", p.stdout:read("a"))
      sandbar.assert(p:wait())
      sandbar.assert(request:respond(200, nil, "done"))
      assert.truthy(answer():find("done[end]", 1, true))

      -- The process that reads no more.
      answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 3000000\\r\\n\\r\\n", "fill=3000000",
        "end")
      request = accept()
      p = sandbar.assert(box:start("exit 3", { stdin = "pipe" }))
      sandbar.assert(p:wait())
      fails("Closed", request:pump_in(p.stdin, 20))
      request:abort()
      answer()

      -- The client that goes inside of it.
      answer = client(port, "send=POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 30\\r\\n\\r\\nhalf", "shut", "end")
      request = accept()
      p = sandbar.assert(box:start("cat", { stdin = "pipe", stdout = "pipe" }))
      fails("Closed", request:pump_in(p.stdin, 20))
      p.stdin:close()
      assert.equal("half", p.stdout:read("a"))
      sandbar.assert(p:wait())
      request:abort()
      answer()
    end)
  end)

  it("moves an open file into an answer, from where it is, and no further than was asked for", function()
    inside.with_box(sandboxes, function(box)
      local text = helper.sh("seq 1 100000")
      sandbar.assert(box.files:write("numbers", text))
      local answer = client(port, GET, "shut", "end")
      local request = accept()
      local f = sandbar.assert(box.files:open("numbers"))
      assert.equal("1", f:read("l"))
      sandbar.assert(request:begin(200))
      assert.equal(4, sandbar.assert(request:send_file(f, 4)))
      assert.equal("4", f:read("l"))
      assert.equal(#text - 8, sandbar.assert(request:send_file(f)))
      assert.equal(0, sandbar.assert(request:send_file(f, 10)))
      assert.is_nil(f:read("l"))
      sandbar.assert(request:finish())
      local body = unchunk(answer())
      assert.is_true(body == "2\n3\n" .. text:sub(9))

      f:close()
      answer = client(port, GET, "shut", "end")
      request = accept()
      sandbar.assert(request:begin(200))
      fails("Closed", request:send_file(f))
      request:abort()
      answer()
    end)
  end)

  it("a client that does not read a file, or goes, ends with it", function()
    inside.with_box(sandboxes, function(box)
      sandbar.assert(box:exec("head -c 30000000 /dev/zero >zeros"))
      local answer = client(port, "small", GET, "until=\\r\\n\\r\\n", "sink=100000", "wait=50", "sink=5000000", "reset")
      local request = accept()
      local f = sandbar.assert(box.files:open("zeros"))
      sandbar.assert(request:begin(200))
      fails("Closed", request:send_file(f))
      assert.is_true(request:gone())
      f:close()
      answer()
    end)
  end)

  it("moves a body into an open file, in whatever form it comes", function()
    inside.with_box(sandboxes, function(box)
      local head = "send=POST / HTTP/1.1\\r\\nHost: x\\r\\n"
      for form, steps in pairs {
        length = { head .. "Content-Length: 3000000\\r\\nExpect: 100-continue\\r\\n\\r\\n", "until=Continue\\r\\n\\r\\n",
          "fill=3000000" },
        chunks = { head .. "Transfer-Encoding: chunked\\r\\n\\r\\n1e8480\\r\\n", "fill=2000000", "wait=20",
          "send=\\r\\nf4240\\r\\n", "fill=1000000", "send=\\r\\n0\\r\\n\\r\\n" },
      } do
        steps[#steps + 1] = "shut"
        steps[#steps + 1] = "end"
        local answer = client(port, table.unpack(steps))
        local request = accept()
        local f = sandbar.assert(box.files:open("body", "w"))
        sandbar.assert(f:write("head:"))
        assert.equal(3000000, sandbar.assert(request:pump_in(f, 20)), form)
        sandbar.assert(f:write(":tail"))
        f:close()
        sandbar.assert(request:respond(200, nil, "done"))
        assert.truthy(answer():find("done[end]", 1, true))
        assert.is_true(sandbar.assert(box.files:read("body")) == "head:" .. ("x"):rep(3000000) .. ":tail", form)
      end

      -- The client that goes inside of it; the file that cannot be written.
      local answer = client(port, head .. "Content-Length: 30\\r\\n\\r\\nhalf", "shut", "end")
      local request = accept()
      local f = sandbar.assert(box.files:open("body", "w"))
      fails("Closed", request:pump_in(f, 20))
      f:close()
      assert.equal("half", box.files:read("body"))
      request:abort()
      answer()

      answer = client(port, head .. "Content-Length: 4\\r\\n\\r\\nhalf", "shut", "end")
      request = accept()
      f = sandbar.assert(box.files:open("body", "r"))
      local n, err = request:pump_in(f, 20)
      assert.is_nil(n)
      assert.equal("EBADF", err.code)
      f:close()
      request:abort()
      answer()
    end)
  end)

  it("refuses a second pump of a stream, and a reader of one that is pumped", function()
    inside.with_box(sandboxes, function(box)
      local first = client(port, GET, "shut", "end")
      local one = accept()
      local second = client(port, GET, "shut", "end")
      local other = accept()
      local p = sandbar.assert(box:start("read x; echo $x", { stdin = "pipe", stdout = "pipe" }))
      sandbar.assert(one:begin(200))
      sandbar.assert(other:begin(200))
      local pump = sandbar.assert(one:start_pump_out(p.stdout, "raw"))
      fails("Busy", other:pump_out(p.stdout))
      fails("Busy", p.stdout:read())
      sandbar.assert(p.stdin:write("hello\n"))
      assert.equal(6, sandbar.assert(pump:wait()))
      sandbar.assert(one:finish())
      sandbar.assert(other:finish())
      assert.equal("hello\n", (unchunk(first())))
      second()
      sandbar.assert(p:wait())
    end)
  end)

  it("makes of a connection one to a port: all bytes both ways, and each side's end", function()
    inside.with_box(sandboxes, function(box)
      sandbar.assert(box.files:write("server", helper.read_file(SERVER)))
      local p = sandbar.assert(box:start("chmod 755 server && exec ./server 3000", { stdout = "ignore" }))
      sandbar.assert(box:port(3000):wait { timeout = 10 })

      local answer = client(port, "send=GET /tunnel HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\nearly",
        "until=early", "fill=300000", "shut", "sink=300000", "end")
      local request = accept()
      local c = sandbar.assert(box:port(3000):connect())
      sandbar.assert(c:write("GET /tunnel HTTP/1.1\r\nHost: x\r\n\r\n"))
      assert.is_true(request:upgrade(c))
      assert.truthy(answer():find("^HTTP/1.1 101 .*\r\n\r\nearlybye%[end%]$"))

      -- A head of ours; the wait is given up: both are cut.
      answer = client(port, "send=GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n",
        "until=\\r\\n\\r\\n", "hang")
      request = accept()
      c = sandbar.assert(box:port(3000):connect())
      local task = sandbar.spawn(request.upgrade, request, c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
      sandbar.sleep(0.05)
      task:cancel()
      fails("Cancelled", task:wait())
      assert.equal("HTTP/1.1 101 Switching Protocols\r\n\r\n[reset]", answer())
      c:close()

      -- Nothing comes either way.
      local quick = sandbar.assert(http.listen { address = "127.0.0.1", tunnel_timeout = 0.2 })
      answer = client(quick:address().port,
        "send=GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n", "hang")
      request = sandbar.assert(quick:accept(10))
      c = sandbar.assert(box:port(3000):connect())
      fails("Timeout", request:upgrade(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n"))
      assert.truthy(answer():find("[reset]", 1, true))
      c:close()
      quick:close()
      sandbar.assert(quick:drain(5))
      sandbar.assert(p:kill())
      sandbar.assert(p:wait())
    end)
  end)
end)
