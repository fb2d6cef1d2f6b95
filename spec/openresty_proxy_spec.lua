-- check: only 5.4
-- check: limit 180
-- sandbar.openresty.proxy in a real nginx: bodies both ways, errors, upgrades.
local helper = require "spec.helper"
local nginx = require "spec.support.nginx"
local sandbar = require "sandbar"

local INIT = [[
  client_max_body_size 0;
  init_by_lua_block {
    sandbar = require "sandbar"
    provider = sandbar.assert(sandbar.open { root = "ROOT", linger = 0 })
  }
]]

local LOCATIONS = [[
    location / { content_by_lua_block {
      local box = sandbar.assert(provider:connect("web"))
      local port = box:port(tonumber(ngx.var.http_x_port or "3000"))
      local ok, err = require "sandbar.openresty".proxy(port)
      box:close()
      if not ok and not ngx.headers_sent then
        ngx.status = err.kind == "Unavailable" and 502 or 500
        ngx.print(tostring(err))
      end
    } }
]]

local SERVER = [==[
import hashlib, http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def say(self, data, code=200):
        self.send_response(code)
        self.send_header("X-Many", "1")
        self.send_header("X-Many", "2")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        if self.path == "/refuse":
            self.send_response(403)
            self.send_header("X-Many", "1")
            self.send_header("Connection", "keep-alive, X-Hop")
            self.send_header("X-Hop", "1")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"4\r\nno, \r\n5;x=y\r\nnever\r\n0\r\n\r\n")
        elif self.path == "/headers":
            self.say(repr(sorted(self.headers.keys())).encode())
        elif self.headers.get("Upgrade"):
            self.connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
            while True:
                data = self.connection.recv(1000)
                if not data: break
                self.connection.sendall(data.upper())
            self.close_connection = True
        elif self.path == "/slow":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\none\r\n"); self.wfile.flush()
            time.sleep(3)
            self.wfile.write(b"3\r\ntwo\r\n0\r\n\r\n")
        else:
            self.say((self.path + " " + self.headers.get("Host")).encode(), 404 if self.path == "/none" else 200)
    def do_POST(self):
        h, n, left = hashlib.sha256(), 0, int(self.headers["Content-Length"] or 0)
        if self.headers.get("Transfer-Encoding"):
            while True:
                size = int(self.rfile.readline(), 16)
                h.update(self.rfile.read(size)); self.rfile.readline(); n += size
                if size == 0: break
        while left > 0:
            data = self.rfile.read(min(left, 65536)); h.update(data); left -= len(data); n += len(data)
        self.say(("%d %s" % (n, h.hexdigest())).encode())
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
]==]

describe("sandbar.openresty.proxy", function()
  local sandboxes, box, dir, web
  local why_not = nginx.missing()

  setup(function()
    if why_not then
      return
    end
    sandboxes = helper.open()
    box = sandbar.assert(sandboxes:create { id = "web", lifetime = 600 })
    if not sandbar.assert(box:exec("command -v python3")).ok then
      why_not = "python3 is not installed"
      return
    end
    sandbar.assert(box.files:write("server.py", SERVER))
    sandbar.assert(box:start({ "python3", "server.py" }, { stdout = "tail", stderr = "tail", detached = true }))
    sandbar.assert(box:port(3000):wait { timeout = 20 })
    web = nginx.start { init = INIT, locations = LOCATIONS, values = { ROOT = helper.root() } }
    dir = web.dir
  end)

  teardown(function()
    if web then
      web:stop()
    end
    if box then
      box:destroy()
      box:close()
    end
  end)

  helper.guard { each = false }

  local function curl(arguments)
    return web:curl(arguments)
  end

  local function promise(name, fn)
    it(name, function()
      if why_not then
        helper.skip(why_not)
      end
      fn()
    end)
  end

  promise("passes status, headers with repeats and the raw path on; the application sees its own host", function()
    local out = curl("-i 'http://x/a%20b?c=%2F'")
    assert.is_truthy(out:find("^HTTP/1.1 200 "))
    assert.is_truthy(out:find("X%-Many: 1\r\nX%-Many: 2\r\n"))
    assert.is_truthy(out:find("/a%20b?c=%2F localhost:3000", 1, true), out)
    assert.is_truthy(curl("-i http://x/none"):find("^HTTP/1.1 404 "))
  end)

  promise("streams the answer as it comes", function()
    -- The second half comes after three seconds: what curl has by then is the first.
    assert.equal("one", (curl("-N --max-time 1.5 http://x/slow 2>/dev/null")))
  end)

  promise("streams a body with a length, and takes a chunked one", function()
    helper.shell(("head -c 20000000 /dev/urandom >%s/big"):format(dir))
    local sum = helper.shell(("sha256sum <%s/big"):format(dir)):match("%x+")
    assert.equal("20000000 " .. sum, (curl(("--data-binary @%s/big http://x/post"):format(dir))))
    assert.equal("20000000 " .. sum,
      (curl(("-H 'Transfer-Encoding: chunked' --data-binary @%s/big http://x/post"):format(dir))))
  end)

  promise("leaves the answer to the caller when nobody listens", function()
    local out = curl("-i -H 'X-Port: 3999' http://x/")
    assert.is_truthy(out:find("^HTTP/1.1 502 "), out)
    assert.is_truthy(out:find("3999", 1, true))
  end)

  promise("turns an upgrade into a pipe of bytes", function()
    local out = helper.shell(("python3 -c %s %s/s"):format(helper.quote([[
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1])
s.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
head = b""
while not head.endswith(b"\r\n\r\n"): head += s.recv(1)
s.sendall(b"hello")
print(head.split(b" ")[1].decode(), s.recv(100).decode(), end="")
]]), dir))
    assert.equal("101 HELLO", out)
  end)

  -- What a visitor hears that sends these bytes.
  local function talk(bytes)
    helper.write_file(dir .. "/bytes", bytes)
    return helper.shell(("python3 -c %s %s/s <%s/bytes"):format(helper.quote([[
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect(sys.argv[1])
s.sendall(sys.stdin.buffer.read())
got = b""
try:
    while True:
        data = s.recv(65536)
        if not data: break
        got += data
except TimeoutError: pass
sys.stdout.buffer.write(got)
]]), dir, dir))
  end

  promise("opens no pipe unless the application agrees: its refusal is an answer", function()
    local out = talk("GET /refuse HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
      .. "GET /headers HTTP/1.1\r\nHost: x\r\n\r\n")
    assert.is_truthy(out:find("^HTTP/1.1 403 "), out)
    assert.is_truthy(out:find("X-Many: 1", 1, true), out)
    assert.is_nil(out:find("X-Hop", 1, true), out)
    assert.is_truthy(out:find("no, ", 1, true), out)
    assert.is_truthy(out:find("never", 1, true), out)
    -- The second request is nginx's to take, not bytes for the application.
    local _, answers = out:gsub("HTTP/1.1 %d%d%d", "")
    assert.is_true(answers <= 2, out)
    if answers == 2 then
      assert.is_truthy(out:find("HTTP/1.1 200 ", 1, true), out)
    end
  end)

  promise("takes an Upgrade without Connection for an ordinary request, and passes neither on", function()
    for _, connection in ipairs { "", "Connection: keep-alive\r\n", "Connection: close, X-Mine\r\nX-Mine: 1\r\n" } do
      local out = talk("GET /headers HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\n" .. connection .. "\r\n")
      assert.is_truthy(out:find("^HTTP/1.1 200 "), out)
      assert.is_nil(out:find("Upgrade", 1, true), out)
      assert.is_nil(out:find("Mine", 1, true), out)
    end
  end)

  promise("passes no header of the visitor's connection on with an upgrade", function()
    local out = talk("GET /headers HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, X-Mine\r\nUpgrade: echo\r\nX-Mine: 1\r\n"
      .. "Proxy-Authorization: x\r\nX-Other: 1\r\n\r\n")
    assert.is_truthy(out:find("^HTTP/1.1 200 "), out)
    assert.is_truthy(out:find("'X-Other'", 1, true), out)
    assert.is_truthy(out:find("'Upgrade'", 1, true), out)
    assert.is_nil(out:find("Mine", 1, true), out)
    assert.is_nil(out:find("Proxy", 1, true), out)
  end)
end)
