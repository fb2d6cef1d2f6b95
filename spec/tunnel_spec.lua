-- check: one Lua
-- check: no user
-- Connections to origins that carry bytes as they are, in the clear and inside TLS behind a proxy: websockets, streams
-- and upstream sockets go through the same.

local busted = require "busted"
local helper = require "spec.helper"
local server = require "spec.support.websocket"

local core = require "sandbar.core"
local http = require "sandbar.http"
local lfs = require "lfs"
local stream = require "sandbar.stream"
local wait = require "sandbar.wait"
local websocket = require "sandbar.websocket"

local TLS = (os.getenv("SPEC_TREE") or ".") .. "/spec/support/tls/"

-- A proxy that connects to this machine, whatever the host is called, and refuses "no.test".
local PROXY = [==[
import socket, sys, threading
def pump(a, b):
    try:
        while True:
            data = a.recv(65536)
            if not data: break
            b.sendall(data)
    except OSError: pass
    for s in (a, b):
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
def serve(s):
    head = b""
    while b"\r\n\r\n" not in head:
        more = s.recv(4096)
        if not more: return
        head += more
    host, port = head.split()[1].rsplit(b":", 1)
    if host == b"no.test":
        s.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"); s.close(); return
    try: to = socket.create_connection(("127.0.0.1", int(port)))
    except OSError: s.sendall(b"HTTP/1.1 502 Gone\r\n\r\n"); s.close(); return
    s.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    threading.Thread(target=pump, args=(s, to), daemon=True).start()
    pump(to, s)
l = socket.socket()
l.bind(("127.0.0.1", 0)); l.listen(100)
print(l.getsockname()[1], flush=True)
while True:
    s, _ = l.accept()
    threading.Thread(target=serve, args=(s,), daemon=True).start()
]==]

describe("a tunnel to an origin", function()
  local pipes, plain, tls, proxy = {}, nil, nil, nil

  local function run(text, arguments)
    local name = helper.write_file(("%s/%d.py"):format(helper.dir(), #pipes), text)
    local pipe = assert(io.popen(("unset LD_PRELOAD; echo $$; exec python3 %s %s"):format(name, arguments), "r"))
    local pid = assert(pipe:read("*l"))
    pipes[#pipes + 1] = { pipe = pipe, pid = pid }
    return assert(pipe:read("*l"))
  end

  busted.setup(function()
    proxy = run(PROXY, "")
    plain = run(server.SERVER, "127.0.0.1 0")
    tls = run(server.SERVER, "127.0.0.1 0 " .. TLS .. "server.pem")
  end)

  busted.teardown(function()
    for _, one in ipairs(pipes) do
      helper.shell("kill -9 " .. one.pid)
      one.pipe:close()
    end
  end)

  helper.guard { growth = 24 }

  local function origin(kind)
    if kind == "plain" then
      return assert(http.client { url = "http://127.0.0.1:" .. plain })
    end
    return assert(http.client { url = "https://tls.test:" .. tls, proxy = "http://127.0.0.1:" .. proxy,
      ca_file = TLS .. "ca.crt" })
  end

  local function fails(kind, value, err)
    assert.is_nil(value)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  -- fn(open, client) for an origin of each kind; what open() opened is closed, and the origin.
  local function each(fn)
    for _, kind in ipairs { "plain", "tls" } do
      local client, opened = origin(kind), {}
      local ok, err = pcall(fn, function(path, opts)
        opts = opts or {}
        opts.headers = { { "Host", "tls.test" } }
        local ws, why, answer = websocket.open(client, 0, path, opts, 20)
        opened[#opened + 1] = ws
        return ws, why, answer
      end, client, kind)
      for _, ws in ipairs(opened) do
        assert(ws:close { timeout = 0 })
      end
      client:close()
      assert(ok, kind .. ": " .. tostring(err))
    end
  end

  it("carries websockets: text, bytes, empty ones, MiBs, fragments, and the code of a close (B43)", function()
    each(function(open)
      local ws = assert(open "/echo")
      local all = ("\0\1\254\255"):rep(262144)
      for _, message in ipairs { "hello", "", all, ("x"):rep(70000) } do
        assert(ws:send(message, { binary = true }))
        assert.is_true(ws:receive { timeout = 20 } == message, #message)
      end
      assert(ws:close())
      ws = assert(open "/fragments")
      assert.equal(300, #assert(ws:receive { timeout = 20 }))
      assert.equal("10:are you there", (ws:receive { timeout = 20 }))
      ws = assert(open "/code")
      assert.equal("first", (ws:receive { timeout = 20 }))
      assert.is_nil(ws:receive { timeout = 20 })
      assert.equal(4001, ws.close_code)
      assert.equal("early", (assert(open "/early"):receive { timeout = 20 }))
    end)
  end)

  it("tells a cut from a close", function()
    each(function(open)
      for _, path in ipairs { "/cut", "/reset" } do
        local ws = assert(open(path))
        assert.equal("before", (ws:receive { timeout = 20 }))
        fails("OutcomeUnknown", ws:receive { timeout = 20 })
      end
    end)
  end)

  it("stops a sender whom nobody reads, and loses nothing of what it sent", function()
    each(function(open)
      local ws = assert(open "/flood")
      local last, now = -1, 0
      assert.is_truthy(helper.eventually(function() -- it has come to a stop
        last, now = now, tonumber((assert(open "/sent"):receive { timeout = 20 }))
        return now > 0 and now == last
      end, 20))
      assert.is_true(now * 65536 < 64 * 1048576, now)
      for _ = 1, 40 do
        assert.equal(65536, #assert(ws:receive { timeout = 20 }))
      end
    end)
  end)

  it("gives an answer that opens nothing, with its body", function()
    each(function(open)
      local _, err, answer = open "/plain"
      assert.equal("Protocol", err.kind)
      assert.equal(404, err.status)
      assert.equal("no socket here", answer.body)
      fails("Protocol", open "/liar")
      fails("Protocol", open "/half")
    end)
  end)

  it("many at once, beside requests that look for connections to use again", function()
    each(function(open, client)
      local all = {}
      for i = 1, 24 do
        all[i] = assert(open "/echo")
        assert.equal(404, assert(http.request(client, { path = "/" }, 20, "fetch")).status)
      end
      for i, ws in ipairs(all) do
        assert(ws:send("number " .. i))
      end
      assert.equal(404, assert(http.request(client, { path = "/" }, 20, "fetch")).status)
      for i, ws in ipairs(all) do
        assert.equal("number " .. i, (ws:receive { timeout = 20 }))
      end
    end)
  end)

  it("as a stream of bytes both ways", function()
    each(function(_, client)
      local native = assert(wait.op(client:dial(), 20, "dial")).object
      local out = stream.output("the connection", { native = native, mode = "pipe" })
      assert(wait.op(native:write "GET /x HTTP/1.1\r\nHost: x\r\n\r\n", 20, "write"))
      assert.truthy(assert(out:read("a", { timeout = 20 })):find("no socket here$"))
      out:close()
    end)
  end)

  it("as a socket of this machine, which goes with the origin", function()
    each(function(_, client)
      local address = assert(http.upstream(client)).address
      assert.equal(address, assert(http.upstream(client)).address)
      local path = address:sub(6)
      for _ = 1, 3 do
        assert.equal("no socket here", (helper.shell("curl -sS -m 20 --unix-socket " .. path .. " http://x/")))
      end
      client:close()
      assert.is_true(helper.eventually(function()
        return not lfs.attributes(path)
      end))
    end)
  end)

  it("that cannot be is Unavailable, by what was in the way", function()
    local function of(options)
      local client = assert(http.client(options))
      local op = client:dial()
      local r, err = wait.op(op, 20, "dial")
      local ws, why = websocket.open(client, 0, "/", { headers = { { "Host", "x" } } }, 20)
      client:close()
      assert.is_nil(ws)
      assert.equal(err.message, why.message)
      return r, err
    end
    local through = "http://127.0.0.1:" .. proxy
    fails("Unavailable", of { url = "http://127.0.0.1:1" })
    assert.truthy(fails("Unavailable", of { url = "http://no.test", proxy = through }).message:find "proxy answers 403")
    assert.truthy(fails("Unavailable", of { url = "https://other.test:" .. tls, proxy = through, ca_file = TLS .. "ca.crt" })
      .message:find "cannot be reached") -- another name than the certificate's
    fails("Unavailable", of { url = "https://127.0.0.1:" .. plain, connect_timeout = 0.2 }) -- says nothing of TLS
  end)

  it("ends with its origin, and with whoever gives up waiting for it", function()
    each(function(open, client)
      local ws = assert(open "/echo")
      local silent = assert(http.client { url = "https://127.0.0.1:" .. plain }) -- says nothing of TLS
      local op = silent:dial()
      op:cancel()
      local _, err = wait.op(op, 20, "dial")
      assert.equal("Cancelled", err.kind)
      op = silent:dial()
      silent:close()
      _, err = wait.op(op, 20, "dial")
      assert.equal("Closed", err.kind)
      fails("Timeout", websocket.open(client, 0, "/mute", { headers = { { "Host", "x" } } }, 0.1))
      client:close()
      fails("Closed", ws:receive { timeout = 20 })
      _, err = wait.op(client:dial(), 20, "dial")
      assert.equal("Closed", err.kind)
    end)
  end)

  it("is of a port Unsupported, and of an origin of a collected handle nothing is left", function()
    local port = assert(http.port { port = tonumber(plain) })
    local _, err = wait.op(port:dial(), 20, "dial")
    assert.equal("Unsupported", err.kind)
    port:close()
    for _ = 1, 3 do
      local client = origin "tls"
      local native = assert(wait.op(client:dial(), 20, "dial")).object
      assert.is_not_nil(native)
    end
    collectgarbage()
    collectgarbage()
    assert.is_not_nil(core)
  end)
end)
