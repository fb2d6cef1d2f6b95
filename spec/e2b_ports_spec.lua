-- check: only 5.4
-- check: no asan
-- check: no user
-- Ports of hosted sandboxes, against the project's own server with real sandboxes: what gets through the proxy, and
-- that its own answers are told from those of the program behind it. The connections themselves are in tunnel_spec.

local helper = require "spec.helper"
local serve = require "spec.support.serve"
local websockets = require "spec.support.websocket"

local json = require "sandbar.json"
local sandbar = require "sandbar"

local assert_ok, kind = sandbar.assert, helper.kind

-- Says what it was asked, and answers by path what the vendor's proxy might say as well.
local WEB = [==[
import http.server, json, threading
go = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def slowly(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"4\r\none\n\r\n")
        go.wait(20)
        self.wfile.write(b"4\r\ntwo\n\r\n0\r\n\r\n" if self.path == "/slow" else b"4\r\ntw")
        self.close_connection = True
    def answer(self):
        if self.path in ("/slow", "/cut"): return self.slowly()
        if self.path == "/go": go.set()
        code = {"/502": 502, "/like": 502, "/403": 403, "/big": 409}.get(self.path, 200)
        body = json.dumps({"path": self.path, "method": self.command,
            "headers": {k.lower(): v for k, v in self.headers.items()}}).encode()
        if self.path == "/like": body = b'{"sandboxId":7,"message":"port is not open","code":502}'
        if self.path == "/big": body = b"x" * 300000
        self.send_response(code)
        self.send_header("Content-Type", "text/html" if self.path == "/403" else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = do_OPTIONS = answer
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
]==]

describe("ports of a hosted sandbox", function()
  local server, boxes, box, other

  setup(function()
    server = serve.start()
    boxes = assert_ok(sandbar.open { provider = "e2b", api_key = server.key, api_url = server.url,
      sandbox_url = server.url })
    box = assert_ok(boxes:create { lifetime = 300, network = "deny" })
    other = assert_ok(boxes:create { lifetime = 300, network = "deny" })
    for port, text in pairs { [3000] = WEB, [3001] = websockets.SERVER } do
      local name = ("/tmp/%d.py"):format(port)
      assert_ok(box:exec("cat > " .. name, { stdin = text, check = true }))
      assert_ok(box:start({ "python3", name, "127.0.0.1", tostring(port) }, { stdout = "ignore", stderr = "ignore" }))
    end
  end)

  teardown(function()
    for _, one in ipairs { box, other } do
      one:destroy()
      one:close()
    end
    boxes, box, other = nil, nil, nil
    collectgarbage()
    collectgarbage()
    server.stop()
  end)

  helper.guard { each = false, growth = 32 }

  it("A-81 A-82 A-83 B-50: have addresses, and one header of their own", function()
    local port = box:port(3000)
    local host = ("3000-%s.%s"):format(box.provider_id, server.url:match("^http://(.*)"):gsub("^[%d.]+", "localhost"))
    assert.equal("https://" .. host, port.url)
    assert.equal("wss://" .. host, port.websocket_url)
    assert.equal("e2b-traffic-access-token", (next(port.headers)))
    assert.is_nil(next(port.headers, (next(port.headers))))
  end)

  it("B41 B-S4: wait tells a closed port, a paused sandbox and a gone one apart, and takes any status for an answer",
    function()
      assert.is_true(assert_ok(box:port(3000):wait { timeout = 20 }))
      assert.is_true(assert_ok(box:port(3001):wait { timeout = 20 })) -- it answers with 404
      local err = kind("Timeout", box:port(9):wait { timeout = 1.5 }) -- the server itself takes a second to be sure
      assert.equal("ECONNREFUSED", err.cause and err.cause.code, tostring(err))
      assert.equal(1.5, err.limit)
      local late = assert_ok(box:start("sleep 0.3; exec python3 -m http.server 3005", { stdout = "ignore", stderr = "ignore" }))
      assert.is_true(assert_ok(box:port(3005):wait { timeout = "20s" }))
      assert_ok(late:kill())
      local gone = assert_ok(boxes:create { lifetime = 60 })
      local port = gone:port(3000)
      assert_ok(gone:pause())
      kind("NotRunning", port:wait { timeout = 5 })
      kind("NotRunning", port:websocket("/"))
      assert_ok(boxes:destroy(gone.id))
      kind("NotFound", port:wait { timeout = 5 })
      kind("NotFound", port:websocket("/"))
      gone:close()
      kind("Closed", port:wait { timeout = 5 })
      kind("Closed", port:upstream())
    end)

  it("B41: the program's own refusals are answers, whatever they look like", function()
    local port = box:port(3000)
    for _, stream in ipairs { false, true } do
      for path, status in pairs { ["/502"] = 502, ["/like"] = 502, ["/403"] = 403, ["/big"] = 409 } do
        local answer = assert_ok(port:fetch { path = path, stream = stream, headers = { ["User-Agent"] = "Mozilla/5.0" } })
        assert.equal(status, answer.status, path)
        local body = stream and assert_ok(answer.body:read("a")) or answer.body
        assert.equal(path == "/big" and 300000 or #body, #body)
        if stream then
          answer.body:close()
        end
      end
    end
    -- Who looks like a browser is shown a page for people by the proxy.
    local err = kind("Unavailable", box:port(9):fetch { headers = { { "user-agent", "Mozilla/5.0" } }, stream = true })
    assert.equal("ECONNREFUSED", err.code)
  end)

  it("B44: an answer comes as the program writes it, and a cut one never looks whole", function()
    local port = box:port(3000)
    local bodies = {}
    for i, path in ipairs { "/slow", "/cut" } do
      bodies[i] = assert_ok(port:fetch { path = path, stream = true, timeout = 20 }).body
      assert.equal("one", bodies[i]:read("l", { timeout = 20 }))
    end
    assert_ok(port:fetch { path = "/go" }) -- until then no more is written
    assert.equal("two", bodies[1]:read("l", { timeout = 20 }))
    assert.same({}, { bodies[1]:read("l", { timeout = 20 }) })
    local rest, err = bodies[2]:read("a", { timeout = 20 })
    assert.is_nil(rest)
    assert.truthy(err and err.kind, "a whole body")
    bodies[1]:close()
    bodies[2]:close()
  end)

  it("B43 B-49: the program sees Host: localhost:n, the path as it was given, and no token", function()
    local seen = json.decode(
      assert_ok(box:port(3000):fetch { path = "/a%20b?c=%2F", headers = { Authorization = "Bearer mine" } }).body)
    assert.equal("/a%20b?c=%2F", seen.path)
    assert.equal("localhost:3000", seen.headers.host)
    assert.equal("Bearer mine", seen.headers.authorization)
    assert.is_nil(seen.headers["e2b-traffic-access-token"])
  end)

  it("no header of a request leads to another sandbox", function()
    local port = box:port(3000)
    kind("Unsupported", port:fetch { headers = { Host = ("3000-%s.x"):format(other.provider_id) } })
    kind("Unsupported", port:websocket("/", { headers = { { "host", "localhost:3000" } } }))
    for _, name in ipairs { "E2b-Sandbox-Id", "e2b-sandbox-port", "E2B-Traffic-Access-Token" } do
      kind("InvalidArgument", port:fetch { headers = { [name] = other.provider_id } })
      kind("InvalidArgument", port:websocket("/", { headers = { { name, other.provider_id } } }))
    end
  end)

  it("B43 B-S3: a websocket, text and bytes; what opens none says who refused", function()
    local port = box:port(3001)
    local ws = assert_ok(port:websocket("/echo", { protocols = { "a", "b" }, wait = 20, headers = { ["X-Mine"] = "1" } }))
    assert.equal("b", ws.protocol)
    local all = ("\0\255é"):rep(30000)
    assert_ok(ws:send("hello"))
    assert_ok(ws:send(all, { binary = true }))
    assert.same({ "hello", "text" }, { ws:receive { timeout = 20 } })
    local data, what = ws:receive { timeout = 20 }
    assert.is_true(data == all and what == "binary")
    assert.is_true(assert_ok(ws:close()))
    local host = assert_ok(port:websocket("/host", { headers = { ["X-Mine"] = "1" } }))
    assert.equal("Host: localhost:3001", (host:receive { timeout = 20 }))
    local rest = host:receive { timeout = 20 }
    while rest and not rest:find("^[Xx]%-[Mm]ine: 1$") do
      rest = host:receive { timeout = 20 }
    end
    assert.is_string(rest)
    host:close { timeout = 0 }
    local err = kind("Protocol", port:websocket("/plain"))
    assert.equal(404, err.status)
    err = kind("Unavailable", box:port(9):websocket("/", { wait = 0.2 }))
    assert.equal("ECONNREFUSED", err.code)
  end)

  it("upstream is a socket of this machine for proxies that know HTTP", function()
    local way = assert_ok(box:port(3000):upstream())
    assert.equal("localhost:3000", way.host)
    local http, core = require "sandbar.http", require "sandbar.core"
    local token = way.headers["e2b-traffic-access-token"]
    assert.is_true(core.is_secret(token))
    local client = assert_ok(http.client { url = server.url })
    way.headers["Host"] = way.host -- what the socket leads to is the server's own address here
    local answer = assert_ok(http.request(client, { path = "/up", headers = way.headers }, 20, "fetch"))
    client:close()
    assert.equal(200, answer.status)
    local said = helper.shell(("curl -sS -m 20 --unix-socket %s -H 'Host: %s' -H 'E2b-Sandbox-Id: %s' -H 'E2b-Sandbox-Port: 3000' "
      .. "http://x/up"):format(way.address:sub(6), way.host, box.provider_id))
    assert.truthy(said:find("e2b-traffic-access-token is missing", 1, true), said)
    box:port(3000):close()
  end)

  it("raw connections are refused, by name", function()
    local err = kind("Unsupported", box:port(3000):connect())
    assert.equal("raw_ports", err.clause)
    local have = assert_ok(boxes:capabilities())
    assert.is_false(have.raw_ports)
    assert.is_true(have.websocket)
  end)

  it("A-78 A-79 A-80 A-85: markers, one a port, seen by every handle, through both kinds of pause", function()
    local one = assert_ok(boxes:create { lifetime = 120 })
    assert.same({}, assert_ok(one:ports()))
    assert_ok(one:port(8080):expose())
    local seen = assert_ok(boxes:connect(one.id))
    assert_ok(seen:port(3000):expose())
    assert_ok(seen:port(3000):expose())
    assert.same({ 3000, 8080 }, assert_ok(one:ports()))
    for _, keep in ipairs { "memory", "disk" } do
      assert_ok(one:pause { keep = keep })
      kind("NotRunning", one:ports())
      kind("NotRunning", one:port(1):expose())
      assert_ok(one:resume())
      assert.same({ 3000, 8080 }, assert_ok(seen:ports { timeout = 20 }), keep)
    end
    assert_ok(one:port(8080):unexpose())
    assert_ok(one:port(8080):unexpose())
    assert.same({ 3000 }, assert_ok(seen:ports()))
    assert_ok(one:destroy())
    kind("NotFound", one:ports())
  end)

  it("private ports without a token are Unsupported until resume, public ones are not", function()
    local seen = assert_ok(boxes:connect(box.id))
    local port = seen:port(3000)
    for name, args in pairs { fetch = {}, wait = {}, upstream = {} } do
      assert.equal("public_ports", kind("Unsupported", port[name](port, args)).clause)
    end
    kind("Unsupported", port:websocket("/"))
    local ends_at = assert_ok(seen:info()).ends_at
    assert_ok(seen:resume())
    assert.equal(200, assert_ok(port:fetch()).status)
    assert.is_near(ends_at, assert_ok(seen:info()).ends_at, 2) -- no life is lengthened by that
    local woken = assert_ok(boxes:connect(box.id, { resume = true }))
    assert.equal(200, assert_ok(woken:port(3000):fetch()).status)
    local open = assert_ok(boxes:create { lifetime = 60, public_ports = true })
    local looked = assert_ok(boxes:connect(open.id))
    assert.is_nil(next(looked:port(3000).headers))
    assert.equal("ECONNREFUSED", kind("Unavailable", looked:port(3000):fetch()).code)
    assert_ok(open:destroy())
  end)
end)
