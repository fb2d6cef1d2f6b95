-- check: only 5.4
-- check: no asan
-- check: no user
-- Hosted sandboxes over HTTP/2, as the vendor offers it, and over IPv6: nginx with a certificate in front of `sandbar
-- serve`. What is said there is in other files; here, that all of it gets through.

local helper = require "spec.helper"
local serve = require "spec.support.serve"
local websockets = require "spec.support.websocket"

local sandbar = require "sandbar"

local ok = sandbar.assert

local CONFIG = [[
daemon off; master_process off; pid DIR/pid; error_log DIR/error.log; events {}
http {
  log_format x "$server_protocol $request"; access_log DIR/log x;
  client_body_temp_path DIR/b; proxy_temp_path DIR/p; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
  client_max_body_size 0; proxy_buffering off; proxy_request_buffering off;
  map $http_upgrade $connection_header { default upgrade; "" ""; }
  server {
    listen 127.0.0.1:PORT ssl http2; listen [::1]:PORT ssl http2; ssl_certificate DIR/pem; ssl_certificate_key DIR/pem;
    location / { proxy_pass URL; proxy_http_version 1.1; proxy_set_header Host $http_host;
      proxy_set_header Connection $connection_header; proxy_set_header Upgrade $http_upgrade; } } }
]]

describe("hosted sandboxes over HTTP/2", function()
  local server, dir, port, nginx, why_not

  setup(function()
    if not helper.shell("nginx -V 2>&1"):find("http_v2_module", 1, true) then
      why_not = "there is no nginx with HTTP/2"
      return
    end
    local took = helper.shell("python3 -c 'import socket; s = socket.socket(socket.AF_INET6); s.bind((\"::1\", 0)); "
      .. "print(s.getsockname()[1])' 2>/dev/null"):match("%d+")
    if not took then
      why_not = "this machine has no ::1"
      return
    end
    dir, port = helper.dir("front"), took
    helper.sh("cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -out cert -days 2 "
      .. "-subj /CN=front -addext subjectAltName=IP:127.0.0.1,IP:::1 && cat key cert > pem", helper.quote(dir))
    server = serve.start()
    helper.write_file(dir .. "/conf", (CONFIG:gsub("DIR", dir):gsub("PORT", port):gsub("URL", server.url)))
    nginx = io.popen(("exec nginx -p %s -c %s/conf -e %s/error.log 2>/dev/null"):format(dir, dir, dir), "r")
    assert(helper.eventually(function()
      return (helper.read_file(dir .. "/pid") or ""):match("%d+")
    end, 10), "nginx does not start")
  end)

  teardown(function()
    collectgarbage()
    collectgarbage()
    if nginx then
      helper.sh("kill %s", helper.read_file(dir .. "/pid"):match("%d+"))
      nginx:close()
      server.stop()
    end
  end)

  helper.guard { each = false, growth = 32 }

  local function with_box(host, fn)
    if why_not then
      return helper.skip(why_not)
    end
    local url = ("https://%s:%s"):format(host, port)
    local boxes = ok(sandbar.open { provider = "e2b", api_key = server.key, api_url = url, sandbox_url = url,
      ca_file = dir .. "/cert" })
    sandbar.scope(function(scope)
      fn(ok(boxes:create_scoped({ lifetime = 120 }, scope)))
    end)
  end

  local function runs(box)
    local long = ("0123456789abcdef"):rep(200000)
    assert.equal("out\n", ok(box:exec("echo out; echo bad >&2")).stdout)
    assert.is_true(ok(box:exec("cat", { stdin = long })).stdout == long)
    assert.equal("ExecTimedOut", select(2, box:exec("sleep 7161", { timeout = 0.5 })).kind)
    ok(box.files:write("long", long))
    assert.is_true(ok(box.files:read "long") == long)
    local watch = ok(box.files:watch ".")
    ok(box.files:write("seen", "x"))
    assert.equal("seen", ok(watch:next { timeout = 20 }).path)
    watch:close()
    local p = ok(box:start("read a; echo got $a", { pty = { cols = 80, rows = 24 } }))
    ok(p.stdin:write("this\n"))
    assert.equal(0, ok(p:wait { timeout = 20, output = true }).exit_code)
  end

  it("run commands, carry files and tell changes", function()
    with_box("127.0.0.1", runs)
    for line in helper.read_file(dir .. "/log"):gmatch("[^\n]+") do
      assert.truthy(line:find("^HTTP/2%.0 "), line)
    end
  end)

  it("do so over IPv6", function()
    with_box("[::1]", runs)
  end)

  it("run more commands at once than a connection may carry, and others beside what nobody reads", function()
    with_box("127.0.0.1", function(box)
      local unread = ok(box:start("cat /dev/zero", { stderr = "ignore" }))
      assert.equal(1, #unread.stdout:read(1))
      sandbar.run(function()
        local fns = {}
        for i = 1, 200 do -- nginx takes 128
          fns[i] = function()
            return ok(box:exec({ "echo", tostring(i) }, { timeout = 60 })).stdout
          end
        end
        for i, said in ipairs(ok(sandbar.all(fns))) do
          assert.equal(i .. "\n", said)
        end
      end)
      assert.equal("SIGTERM", ok(unread:kill { timeout = 20 }).signal)
    end)
  end)

  it("answer on their ports, with websockets", function()
    with_box("127.0.0.1", function(box)
      ok(box.files:write("/tmp/ws.py", websockets.SERVER))
      ok(box:start({ "python3", "/tmp/ws.py", "127.0.0.1", "3001" }, { stdout = "ignore", stderr = "ignore" }))
      assert.equal(404, ok(box:port(3001):fetch { path = "/plain", wait = 20, timeout = 30 }).status)
      local ws = ok(box:port(3001):websocket("/echo", { wait = 20 }))
      ok(ws:send("hello"))
      assert.equal("hello", (ws:receive { timeout = 20 }))
      assert.is_true(ok(ws:close()))
    end)
  end)
end)
