-- check: only 5.4
-- check: no user
-- check: no asan
-- sandbar.openresty.proxy in front of a port of a hosted sandbox: a real nginx, the project's own server behind it.

local busted = require "busted"
local helper = require "spec.helper"
local nginx = require "spec.support.nginx"
local sandbar = require "sandbar"
local serve = require "spec.support.serve"

local INIT = [[
  client_max_body_size 0;
  init_by_lua_block {
    sandbar = require "sandbar"
    provider = sandbar.assert(sandbar.open { provider = "e2b", api_key = "KEY", api_url = "URL", sandbox_url = "URL" })
  }
]]

local LOCATIONS = [[
    location / { content_by_lua_block {
      local box = sandbar.assert(provider:connect("web", { resume = true }))
      local port = box:port(tonumber(ngx.var.http_x_port or "3000"))
      local ok, err = require "sandbar.openresty".proxy(port, ngx.var.http_x_host and { host = ngx.var.http_x_host })
      box:close()
      if not ok and not ngx.headers_sent then
        ngx.status = 599
        ngx.print(err.kind, " ", err.code or err.clause)
      end
    } }
]]

local SERVER = [==[
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/502": return self.say(502, b"my own")
        if self.headers.get("Upgrade") and self.path == "/echo":
            self.connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
            while True:
                data = self.connection.recv(1000)
                if not data: break
                self.connection.sendall(data.upper())
            self.close_connection = True
            return
        self.say(200, json.dumps({k.lower(): v for k, v in self.headers.items()}).encode())
    def do_POST(self):
        self.say(200, b"%d" % len(self.rfile.read(int(self.headers["Content-Length"]))))
    def say(self, code, data):
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
]==]

describe("sandbar.openresty.proxy to a hosted port", function()
  local server, boxes, box, dir, web
  local why_not = nginx.missing()

  busted.setup(function()
    if why_not then
      return
    end
    server = serve.start()
    boxes = sandbar.assert(sandbar.open { provider = "e2b", api_key = server.key, api_url = server.url,
      sandbox_url = server.url })
    box = sandbar.assert(boxes:create { id = "web", lifetime = 300 })
    sandbar.assert(box:exec("cat > /tmp/server.py", { stdin = SERVER, check = true }))
    sandbar.assert(box:start("exec python3 /tmp/server.py", { stdout = "ignore", stderr = "ignore" }))
    sandbar.assert(box:port(3000):wait { timeout = 20 })
    web = nginx.start { init = INIT, locations = LOCATIONS, values = { KEY = server.key, URL = server.url } }
    dir = web.dir
  end)

  busted.teardown(function()
    if web then
      web:stop()
    end
    if box then
      box:destroy()
      box:close()
      boxes, box = nil, nil
      collectgarbage()
      collectgarbage()
      server.stop()
    end
  end)

  helper.guard { each = false, growth = 24 }

  local function curl(arguments)
    if why_not then
      helper.skip(why_not)
    end
    return (web:curl(arguments))
  end

  it("B-51 B43: carries requests and bodies; the program sees its own Host, and no visitor says which sandbox", function()
    local seen = curl("-H 'X-Mine: 1' -H 'E2b-Sandbox-Id: iother' -H 'E2b-Sandbox-Port: 22' -H 'e2b-traffic-access-token: x' "
      .. "-A Mozilla/5.0 http://visitor.test/")
    local headers = assert(require("sandbar.json").decode(seen), seen)
    assert.equal("localhost:3000", headers.host)
    assert.equal("1", headers["x-mine"])
    assert.is_nil(headers["e2b-traffic-access-token"])
    helper.write_file(dir .. "/data", ("x"):rep(3000000))
    assert.equal("3000000", curl("--data-binary @" .. dir .. "/data -X POST http://x/"))
  end)

  it("B41: tells the proxy's refusals from the program's own, for people in a browser too", function()
    assert.equal("my own 502", curl("-w ' %{http_code}' http://x/502"))
    assert.equal("Unavailable ECONNREFUSED 599", curl("-w ' %{http_code}' -H 'X-Port: 9' -A Mozilla/5.0 http://x/"))
    local upgrade = "-H 'Connection: Upgrade' -H 'Upgrade: echo' "
    assert.equal("Unavailable ECONNREFUSED 599", curl("-w ' %{http_code}' -H 'X-Port: 9' " .. upgrade .. "http://x/echo"))
    assert.equal("my own 502", curl("-w ' %{http_code}' " .. upgrade .. "http://x/502"))
    assert.equal("Unsupported host", curl("-H 'X-Host: other.test' http://x/"))
  end)

  it("B-51: passes a change of protocol, then bytes both ways", function()
    local said = helper.shell(([[python3 -c '
import socket
s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect("%s/s")
s.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
data = b""
while b"\r\n\r\n" not in data: data += s.recv(1000)
s.sendall(b"hello"); got = b""
while len(got) < 5: got += s.recv(1000)
print(data.split(b"\r\n")[0].decode(), got.decode())
s.close()
']]):format(dir))
    assert.equal("HTTP/1.1 101 Switching Protocols HELLO\n", said)
  end)
end)
