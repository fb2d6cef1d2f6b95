-- Ports, by a small server inside the sandbox, for which it needs Python 3; and the network that it has not.

-- Says what it was asked: a status from the path, the method, the Host, the length of the body.
local SERVER = [==[
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(size)
        body = ("%s %s %s %d" % (self.command, self.path, self.headers.get("Host"), size)).encode()
        if self.path == "/long": body = b"x" * 3000000
        self.send_response(int(self.path[1:]) if self.path[1:].isdigit() else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Twice", "one")
        self.send_header("X-Twice", "two")
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = do_PUT = do_OPTIONS = answer
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
]==]

return function(t)
  local it, assert, fails = t.it, t.assert, t.fails
  local ok = t.sandbar.assert

  local function with_server(fn)
    if not ok(t.box:exec "command -v python3").ok then
      t.skip "the sandbox has no Python 3"
    end
    ok(t.box.files:write("/tmp/conformance.py", SERVER))
    t.sandbar.scope(function(scope)
      ok(t.box:start({ "python3", "/tmp/conformance.py" }, { scope = scope, stdout = "ignore", stderr = "ignore" }))
      local port = t.box:port(3000)
      ok(port:wait { timeout = t.patience })
      fn(port)
      port:close()
    end)
  end

  it("B-50: requests arrive as they are sent, answers as they are given", function()
    with_server(function(port)
      local answer = ok(port:fetch { path = "/a?b=c%20d" })
      assert.equal(200, answer.status)
      assert.equal("GET /a?b=c%20d localhost:3000 0", answer.body)
      local twice = {}
      for _, line in ipairs(answer.headers) do
        twice[#twice + 1] = line[1]:lower() == "x-twice" and line[2] or nil
      end
      assert.same({ "one", "two" }, twice)
      assert.equal("POST /p localhost:3000 100000",
        ok(port:fetch { method = "POST", path = "/p", body = ("y"):rep(100000) }).body)
      assert.equal(3000000, #ok(port:fetch { path = "/long" }).body)
      for _, status in ipairs { 404, 500, 502 } do
        assert.equal(status, ok(port:fetch { path = "/" .. status }).status)
      end
      local stream = ok(port:fetch { path = "/long", stream = true })
      local size = 0
      for piece in function() return stream.body:read(65536) end do
        size = size + #piece
      end
      assert.equal(3000000, size)
      fails("InvalidArgument", port:fetch { path = "http://elsewhere.example/" })
    end)
  end)

  it("where nothing listens that is said, paused and gone are told apart from it", function()
    t.with_box({}, function(box)
      local port = box:port(3999)
      local err = fails("Unavailable", port:fetch {})
      assert.equal("ECONNREFUSED", err.code)
      if t.provider:capabilities().pause_disk then
        ok(box:pause { keep = "disk", timeout = t.patience })
        fails("NotRunning", port:fetch {})
      end
      ok(t.provider:destroy(box.id))
      fails("NotFound", port:fetch {})
    end)
  end)

  it("A-78: what is exposed is listed, for every program", function()
    local port = t.box:port(3001)
    ok(port:expose())
    local other = ok(t.provider:connect(t.box.id))
    assert.equal(1, #ok(other:ports()))
    other:close()
    ok(port:unexpose())
    assert.equal(0, #ok(t.box:ports()))
    port:close()
  end)

  it("there is no network but what is asked for", function()
    local line = ("exec 3<>/dev/tcp/%s/80 && echo reached"):format(t.reaches)
    local function reached(network)
      return t.with_box({ network = network }, function(box)
        return ok(box:exec(line, { shell = "/bin/bash", time_limit = 10 })).stdout == "reached\n"
      end)
    end
    if not reached "allow" then -- then it says nothing that it is not reached with "deny" either
      t.skip("nothing at " .. t.reaches .. " is reached with network = \"allow\"")
    end
    assert.is_false(reached "deny")
  end)
end
