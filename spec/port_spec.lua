local helper = require "spec.helper"
local inside = require "spec.support.inside"

local core = require "sandbar.core"
local sandbar = require "sandbar"

-- A server of the sandbox's own, in Python: what real programs start.
local SERVER = [==[
import http.server, socket, sys, time
family = {"4": socket.AF_INET, "6": socket.AF_INET6}[sys.argv[1]]
address, port = sys.argv[2], int(sys.argv[3])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        n = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(n)
        if self.path.startswith("/status/"):
            code, data = int(self.path[8:]), b"" if self.path[8:] in ("204", "304") else b"said so"
        elif self.path == "/host":
            code, data = 200, self.headers.get("Host", "").encode()
        elif self.path == "/auth":
            code, data = 200, self.headers.get("Authorization", "").encode()
        elif self.path == "/slow":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (b"one", b"two"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece)); self.wfile.flush()
                time.sleep(0.3)
            self.wfile.write(b"0\r\n\r\n")
            return
        else:
            code, data = 200, (self.command + " " + self.path + " ").encode() + body
        self.send_response(code)
        self.send_header("X-Twice", "1")
        self.send_header("X-Twice", "2")
        if code not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD" and code not in (204, 304):
            self.wfile.write(data)
    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer
    def log_message(self, *args): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = family
    def server_bind(self):
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super().server_bind()
Server((address, port), Handler).serve_forever()
]==]

describe("box:port", function()
  helper.guard()

  local sandboxes = helper.open()

  local function with_box(fn)
    inside.with_box(sandboxes, fn)
  end

  local function serve(box, port, address, family)
    if not box:exec("command -v python3").ok then
      helper.skip("python3 is not installed")
    end
    sandbar.assert(box.files:write("server.py", SERVER))
    return sandbar.assert(box:start({
      "python3", "server.py", family or "4", address or "127.0.0.1", tostring(port),
    }, { stdout = "tail", stderr = "tail" }))
  end

  it("fetches, waiting until somebody listens (B-48, B-49)", function()
    with_box(function(box)
      serve(box, 3000)
      local r = sandbar.assert(box:port(3000):fetch { path = "/a?b=c%20d", wait = 10 })
      assert.equal(200, r.status)
      assert.equal("GET /a?b=c%20d ", r.body)
      assert.equal("1", r.headers["x-TWICE"])
      r = sandbar.assert(box:port(3000):fetch { method = "POST", path = "/p", body = "data\0" })
      assert.equal("POST /p data\0", r.body)
      assert.equal("localhost:3000", sandbar.assert(box:port(3000):fetch { path = "/host" }).body)
      r = sandbar.assert(box:port(3000):fetch { path = "/auth", headers = { Authorization = "Bearer mine" } })
      assert.equal("Bearer mine", r.body)
    end)
  end)

  it("passes the application's own errors as responses (B41)", function()
    with_box(function(box)
      serve(box, 3000)
      sandbar.assert(box:port(3000):wait { timeout = 10 })
      for _, status in ipairs { 200, 204, 304, 404, 500, 502, 599 } do
        assert.equal(status, sandbar.assert(box:port(3000):fetch { path = "/status/" .. status }).status)
      end
    end)
  end)

  it("tells a closed port from a paused and a destroyed sandbox (B41)", function()
    local box = sandbar.assert(sandboxes:create { lifetime = 60 })
    local r, err = box:port(3001):fetch {}
    assert.is_nil(r)
    assert.equal("Unavailable", err.kind)
    assert.equal("ECONNREFUSED", err.code)
    err = select(2, box:port(3001):connect())
    assert.equal("Unavailable", err.kind)
    err = select(2, box:port(3001):wait { timeout = 0.2 })
    assert.equal("Timeout", err.kind)
    assert.equal(0.2, err.limit)
    sandbar.assert(box:pause { keep = "disk" })
    err = select(2, box:port(3001):fetch {})
    assert.equal("NotRunning", err.kind)
    sandbar.assert(box:destroy())
    err = select(2, box:port(3001):fetch {})
    assert.equal("NotFound", err.kind)
    box:close()
  end)

  -- They named what was left of it.
  it("a fetch and a wait that time out name the limit they were given", function()
    with_box(function(box)
      local listener = [[import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 3300)); s.listen(); time.sleep(600)]]
      sandbar.assert(box:start({ "python3", "-c", listener }))
      sandbar.assert(box:port(3300):wait { timeout = 10 })
      local err = select(2, box:port(3300):fetch { timeout = 0.2 })
      assert.equal("Timeout", err.kind)
      assert.equal(0.2, err.limit)
      assert.matches("0.2 s", err.message)
      local p = sandbar.assert(box:start("sleep 600"))
      err = select(2, p:wait { timeout = 0.2, output = true })
      assert.equal("Timeout", err.kind)
      assert.equal(0.2, err.limit)
    end)
  end)

  it("reaches whichever loopback the server is on (B42)", function()
    with_box(function(box)
      for i, where in ipairs { { "4", "127.0.0.1" }, { "4", "0.0.0.0" }, { "6", "::1" }, { "6", "::" } } do
        serve(box, 3100 + i, where[2], where[1])
        local r = sandbar.assert(box:port(3100 + i):fetch { path = "/", wait = 10 }, where[2])
        assert.equal(200, r.status)
      end
    end)
  end)

  it("prefers IPv4 and caches no choice (B42)", function()
    with_box(function(box)
      local six = serve(box, 3200, "::1", "6")
      sandbar.assert(box:port(3200):wait { timeout = 10 })
      six:kill { signal = "KILL", grace = 0 }
      local _, err = box:port(3200):fetch {}
      assert.equal("Unavailable", err.kind)
      serve(box, 3200, "127.0.0.1", "4")
      assert.equal(200, sandbar.assert(box:port(3200):fetch { wait = 10 }).status)
    end)
  end)

  it("keeps no sockets of many ports for requests that never come", function()
    with_box(function(box)
      serve(box, 3000)
      sandbar.assert(box:port(3000):fetch { wait = 10 })
      local before = helper.anonymous_fds()
      for number = 4000, 4039 do
        assert.equal("Unavailable", select(2, box:port(number):fetch {}).kind)
      end
      assert.is_true(helper.anonymous_fds() > before + 40)
      core.advance(11)
      assert.is_truthy(helper.eventually(function()
        sandbar.sleep(0.001)
        return helper.anonymous_fds() <= before
      end), "they are still there")
      assert.equal(200, sandbar.assert(box:port(3000):fetch {}).status)
    end)
  end)

  -- A main program's plain request takes a shorter way than one inside of a task.
  it("answers a main program as it answers a task", function()
    with_box(function(box)
      serve(box, 3000)
      local port = box:port(3000)
      sandbar.assert(port:fetch { wait = 10 })
      local function told(...)
        local ok, r, err = sandbar.pcall(...) -- on 5.1 a wait cannot leave the plain one
        if not ok then
          return { raised = r:gsub(":%d+:", ":N:") }
        end
        local body = r and r.body
        return r and { status = r.status, reason = r.reason, twice = r.headers:all("x-twice"),
          body = type(body) == "string" and body or body:read("a") }
          or { kind = err.kind, message = err.message, op = err.op }
      end
      local function ask(request)
        return told(function()
          local r, err = port:fetch(request)
          return r, err
        end)
      end
      local requests = {
        {}, { path = "/a?b" }, { method = "HEAD" }, { method = "DELETE", path = "/d" }, { path = "/status/404" },
        { stream = true }, { stream = false, max_body = 100 }, { max_body = 3 }, { max_body = 0 / 0 },
        { max_body = -1 },
        { path = "" }, { path = "a" }, { path = "/a b" }, { path = "/a\0" }, { path = "/a\r\n" }, { path = 1 },
        { method = "G T" }, { method = "" }, { method = 1 }, { stream = 1 }, { pth = "/" }, { ["path\0"] = "/" },
        { "/" },
        { headers = { Authorization = "x" } }, { method = "POST", body = "b" }, { timeout = 5 }, "/",
        setmetatable({}, { __index = { path = "/inherited" } }),
      }
      for i = 0, #requests do
        local request = requests[i]
        local plain, inside_task = ask(request), nil
        sandbar.run(function()
          inside_task = ask(request)
        end)
        assert.same(inside_task, plain, "request " .. i)
      end
      assert.equal("GET /inherited ", ask(requests[#requests]).body)
      assert.equal("LimitExceeded", ask({ max_body = 3 }).kind)
    end)
  end)

  it("streams the body as it comes", function()
    with_box(function(box)
      serve(box, 3000)
      sandbar.assert(box:port(3000):wait { timeout = 10 })
      local r = sandbar.assert(box:port(3000):fetch { path = "/slow", stream = true })
      assert.equal("one", sandbar.assert(r.body:read(3)))
      assert.equal("two", r.body:read("a"))
      r.body:close()
    end)
  end)

  it("carries raw bytes", function()
    with_box(function(box)
      serve(box, 3000)
      sandbar.assert(box:port(3000):wait { timeout = 10 })
      local c = sandbar.assert(box:port(3000):connect())
      sandbar.assert(c:write("GET /raw HTTP/1.0\r\n\r\n"))
      c:close_write()
      local all = sandbar.assert(c:read("a"))
      assert.is_truthy(all:find("GET /raw", 1, true))
      c:close()
    end)
  end)

  it("records exposed ports for every host, over a pause", function()
    local box = sandbar.assert(sandboxes:create { lifetime = 60 })
    sandbar.assert(box:port(8080):expose())
    sandbar.assert(box:port(80):expose())
    sandbar.assert(box:port(80):expose())
    assert.same({ 80, 8080 }, sandbar.assert(box:ports()))
    sandbar.assert(box:pause { keep = "disk" })
    local other = sandbar.assert(helper.open():connect(box.id))
    assert.same({ 80, 8080 }, sandbar.assert(other:ports()))
    sandbar.assert(other:port(80):unexpose())
    assert.same({ 8080 }, sandbar.assert(box:ports()))
    other:close()
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("gives an address that other programs of the host can use", function()
    with_box(function(box)
      helper.need_program("curl")
      serve(box, 3000)
      sandbar.assert(box:port(3000):wait { timeout = 10 })
      local up = sandbar.assert(box:port(3000):upstream())
      assert.equal("localhost:3000", up.host)
      -- The relay runs in this very process, so curl must not block it: it works on its own thread.
      local out, status = helper.shell(("curl -sS --max-time 10 --unix-socket %s http://localhost:3000/from/curl"):format(
        helper.quote((up.address:gsub("^unix:", "")))))
      assert.equal(0, status, out)
      assert.equal("GET /from/curl ", out)
    end)
  end)

  it("refuses what is no port, no path, or comes later", function()
    with_box(function(box)
      for _, number in ipairs { 0, -1, 65536, 1.5 } do
        local p, err = box:port(number)
        assert.is_nil(p)
        assert.equal("InvalidArgument", err.kind)
      end
      for _, path in ipairs { "http://elsewhere/", "//elsewhere\r\n", "relative", "" } do
        local _, err = box:port(80):fetch { path = path }
        assert.equal("InvalidArgument", err.kind)
      end
      for _, body in ipairs { {}, 1, true } do
        local ok, err = pcall(function()
          box:port(80):fetch { body = body }
        end)
        assert.is_false(ok)
        assert.matches("port_spec.lua:%d+: bad argument #1 to 'fetch' %(option 'body'", err)
      end
      assert.is_nil(box:port(80).url)
      assert.same({}, box:port(80).headers)
    end)
  end)
end)
