-- check: long
-- check: only 5.4
-- check: limit 400
-- The "what went wrong elsewhere" of ports and streams with the times and numbers they were seen with. The short forms are
-- in port_spec and websocket_spec.
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local sandbar = require "sandbar"
local websocket = require "spec.support.websocket"

local SERVER = [==[
import socket, sys, threading, time
def lines(c, n, gap):
    c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for i in range(n):
        if i: time.sleep(gap)
        text = b"line %d\n" % i
        c.sendall(b"%x\r\n%s\r\n" % (len(text), text))
    c.sendall(b"0\r\n\r\n")
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        data = c.recv(65536)
        if not data: return
        head += data
    path = head.split()[1].decode()
    if path == "/spread": lines(c, 11, 1)
    elif path == "/silent": lines(c, 2, 130)
    elif path == "/many": lines(c, 20, 0.1)
    elif path == "/nothing": pass
    elif path == "/died":
        c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf")
    elif path == "/reset":
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        time.sleep(0.2)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    elif path.startswith("/fat"):
        n = int(path[4:])
        cookies = b"".join(b"Set-Cookie: n%d=%d\r\n" % (i, i) for i in range(20))
        body = b"%d" % len(head)
        c.sendall(b"HTTP/1.1 200 OK\r\n" + cookies + b"X-Fat: " + b"f" * n + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    elif path == "/slowly":
        text, at = head.split(b"\r\n\r\n", 1)[1], time.time()
        while b"first" not in text: text += c.recv(65536)
        early = time.time() - at
        while b"last" not in text: text += c.recv(65536)
        body = b"%d %d" % (early < 1, time.time() - at > 1.5)
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    c.close()
def one(c):
    try: serve(c)
    except OSError: pass
    finally: c.close()
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(200)
print("up", flush=True)
while True:
    c, _ = s.accept()
    threading.Thread(target=one, args=(c,), daemon=True).start()
]==]

describe("faults of ports:", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, function(box)
      if not box:exec("command -v python3").ok then
        helper.skip("python3 is not installed")
      end
      sandbar.assert(box.files:write("server.py", SERVER))
      fn(box)
    end)
  end

  local function serve(box, port)
    local p = sandbar.assert(box:start { "python3", "server.py", tostring(port) })
    assert.equal("up", sandbar.assert(p.stdout:read("l", { timeout = 20 })))
    return p
  end

  local function fetch(box, path, opts)
    opts = opts or {}
    opts.path, opts.timeout = path, opts.timeout or 30
    return box:port(3000):fetch(opts)
  end

  it("a server that was not there yet, said nothing or broke off looked like an answer (B41)", function()
    with_box(function(box)
      local at, tries, late = helper.now(), 0, nil
      sandbar.assert(sandbar.all {
        function()
          sandbar.sleep(2)
          late = serve(box, 3000)
          return true
        end,
        function()
          local r, err
          repeat
            r, err = fetch(box, "/fat1", { timeout = 5 })
            if not r then
              assert.equal("Unavailable", err.kind)
              tries = tries + 1
              sandbar.sleep(0.1)
            end
          until r or helper.now() - at > 20
          assert.equal(200, r and r.status, tostring(err))
          return true
        end,
      })
      assert.is_true(tries > 5, tries)
      for _, path in ipairs { "/nothing", "/died", "/reset" } do
        local r, err = fetch(box, path)
        assert.is_nil(r, path)
        assert.is_truthy(sandbar.errors[err.kind] and err.kind ~= "Internal" and err.kind ~= "Timeout", path .. ": " .. tostring(err))
      end
      assert.equal(200, sandbar.assert(fetch(box, "/fat1")).status)
      late:close()
    end)
  end)

  it("headers had to be small, and of many with one name the last was left (B43)", function()
    with_box(function(box)
      local server = serve(box, 3000)
      for _, n in ipairs { 1, 8, 16, 60 } do
        local r = sandbar.assert(fetch(box, "/fat" .. n * 1024, { headers = { ["X-Fat"] = ("g"):rep(n * 1024) } }))
        assert.equal(n * 1024, #r.headers["x-fat"])
        assert.is_true(tonumber(r.body) > n * 1024)
        local order = {}
        for name, value in r.headers:each() do
          if name:lower() == "set-cookie" then
            order[#order + 1] = value
          end
        end
        assert.equal(20, #order)
        assert.equal("n0=0", order[1])
        assert.equal("n19=19", order[20])
        local c = sandbar.assert(box:port(3000):connect())
        sandbar.assert(c:write("GET /fat10 HTTP/1.0\r\n\r\n"))
        local _, cookies = sandbar.assert(c:read("a", { timeout = 10 })):gsub("Set%-Cookie: ", "")
        assert.equal(20, cookies)
        c:close()
      end
      server:close()
    end)
  end)

  it("requests sent one behind the other, before the first was answered, lost some (B43)", function()
    with_box(function(box)
      sandbar.assert(box.files:write("pipelined.py", [==[
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = self.path.encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
]==]))
      local server = sandbar.assert(box:start { "python3", "pipelined.py" })
      sandbar.assert(box:port(3000):wait { timeout = 20 })
      local c = sandbar.assert(box:port(3000):connect())
      local requests, answers = {}, {}
      for i = 1, 50 do
        requests[i] = ("GET /%d HTTP/1.1\r\nHost: localhost\r\n%s\r\n"):format(i, i == 50 and "Connection: close\r\n" or "")
      end
      sandbar.assert(c:write(table.concat(requests)))
      for body in sandbar.assert(c:read("a", { timeout = 20 })):gmatch("\r\n\r\n/(%d+)") do
        answers[#answers + 1] = tonumber(body)
      end
      assert.equal(50, #answers)
      for i = 1, 50 do
        assert.equal(i, answers[i])
      end
      c:close()
      server:close()
    end)
  end)

  it("a websocket that was silent for two minutes was cut (B43)", function()
    with_box(function(box)
      sandbar.assert(box.files:write("websocket.py", websocket.SERVER))
      local server = sandbar.assert(box:start { "python3", "websocket.py", "127.0.0.1", "3000" })
      sandbar.assert(box:port(3000):wait { timeout = 20 })
      local ws = sandbar.assert(box:port(3000):websocket("/echo"))
      sandbar.assert(ws:send("before"))
      assert.equal("before", (ws:receive { timeout = 10 }))
      local _, err = ws:receive { timeout = 120 }
      assert.equal("Timeout", err.kind)
      sandbar.assert(ws:send("after"))
      assert.equal("after", (ws:receive { timeout = 10 }))
      ws:close()
      server:close()
    end)
  end)

  it("what was uploaded slowly was kept until it was whole (B44)", function()
    with_box(function(box)
      local server, n = serve(box, 3000), 0
      local r = sandbar.assert(fetch(box, "/slowly", { method = "POST", body = function()
        n = n + 1
        if n == 2 then
          sandbar.sleep(2)
        end
        return ({ "first", "last" })[n]
      end }))
      assert.equal("1 1", r.body)
      server:close()
    end)
  end)

  it("what streams came in one piece at the end, or was cut when it was silent (B44)", function()
    with_box(function(box)
      local server = serve(box, 3000)
      local function spread(read)
        local first, last, n
        for i = 0, 10 do
          assert.equal("line " .. i, read())
          first, last, n = first or helper.now(), helper.now(), i
        end
        assert.equal(10, n)
        assert.is_true(last - first > 8, ("all within %g s"):format(last - first))
        return true
      end
      sandbar.assert(sandbar.all {
        function()
          local r = sandbar.assert(fetch(box, "/spread", { stream = true }))
          spread(function() return sandbar.assert(r.body:read("l")) end)
          r.body:close()
          return true
        end,
        function()
          local arrived, rest = {}, ""
          sandbar.assert(box:exec("i=0; while [ $i -le 10 ]; do echo line $i; i=$((i+1)); sleep 1; done", { on_output = function(data)
            rest = rest .. data
            arrived[#arrived + 1] = helper.now()
          end }))
          assert.equal(11, #arrived)
          assert.is_true(arrived[11] - arrived[1] > 8)
          return true
        end,
        function()
          local r = sandbar.assert(fetch(box, "/silent", { stream = true, timeout = 200 }))
          assert.equal("line 0", r.body:read("l"))
          assert.equal("line 1", r.body:read("l"))
          r.body:close()
          return true
        end,
      })
      local streams = {}
      for i = 1, 100 do
        streams[i] = function()
          local r = sandbar.assert(fetch(box, "/many", { stream = true, timeout = 60 }))
          for k = 0, 19 do
            assert.equal("line " .. k, r.body:read("l"))
          end
          r.body:close()
          return true
        end
      end
      sandbar.assert(sandbar.all(streams))
      server:close()
    end)
  end)
end)
