-- check: one Lua
-- check: no user
-- The HTTP server inside TLS.
local busted = require "busted"
local helper = require "spec.helper"

local core = require "sandbar.core"
local http = require "sandbar.server.http"
local sandbar = require "sandbar"

local BUILD = os.getenv("SPEC_BUILD") or "build"
local TLS = (os.getenv("SPEC_TREE") or ".") .. "/spec/support/tls/"
local PEM = TLS .. "server.pem"

describe("http server with TLS", function()
  helper.guard()

  local listener, port

  busted.before_each(function()
    listener = sandbar.assert(http.listen { address = "127.0.0.1", tls_cert = PEM, tls_key = PEM, header_timeout = 3000 })
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

  -- Runs beside us; what it prints, once it has ended.
  local function run(line, ...)
    local pipe = assert(io.popen("unset LD_PRELOAD; exec " .. line:format(...), "r"))
    return function()
      local all = pipe:read("*a")
      pipe:close()
      return all
    end
  end

  local function curl(arguments, path)
    return run("curl -s -S -m 20 --cacert %sca.crt --resolve tls.test:%d:127.0.0.1 %s https://tls.test:%d%s 2>&1",
      TLS, port, arguments, port, path)
  end

  it("serves requests one after another, with bodies both ways", function()
    local data = helper.dir() .. "/data"
    helper.write_file(data, ("0123456789abcde\n"):rep(200000))
    local answer = curl(("-T %s -o %s.back https://tls.test:%d/first --next -s -S --cacert %sca.crt --resolve tls.test:%d:127.0.0.1 "
      .. "-w '%%{num_connects}'"):format(data, data, port, TLS, port), "/second")
    local request = accept()
    assert.equal("/first", request.target)
    assert.is_true(request.secure)
    local body = sandbar.assert(request:read_all(4000000, 20))
    assert.is_true(body == helper.read_file(data))
    sandbar.assert(request:begin(200))
    for i = 1, #body, 100000 do
      sandbar.assert(request:write(body:sub(i, i + 99999), 20))
    end
    sandbar.assert(request:finish())
    sandbar.assert(accept():respond(200, nil, "second "))
    assert.equal("second 0", answer()) -- no second connection
    assert.is_true(helper.read_file(data .. ".back") == body)
  end)

  it("serves clients who come at once, whose handshakes come one after the other, and some who go inside of theirs", function()
    local all = run("sh -c 'for i in $(seq 20); do "
      .. "curl -s -S -m 20 --cacert %sca.crt --resolve tls.test:%d:127.0.0.1 https://tls.test:%d/$i & "
      .. "timeout -s KILL 0.02 openssl s_client -connect 127.0.0.1:%d </dev/null >/dev/null 2>&1 & done; wait' 2>&1", TLS, port,
      port, port)
    for _ = 1, 20 do
      sandbar.assert(accept():respond(200, nil, "yes "))
    end
    assert.equal(("yes "):rep(20), all())
  end)

  it("says when the client has gone, and cuts what is given up", function()
    local answer = curl("-m 1", "/")
    local request = accept()
    sandbar.assert(request:begin(200))
    assert.is_true(request:gone(10))
    assert.truthy(answer():find("timed out"))
    answer = curl("", "/")
    request = accept()
    sandbar.assert(request:begin(200))
    request:abort()
    assert.truthy(answer():find("^curl: "))
  end)

  it("answers no plain HTTP, no version before 1.2, no other protocol, and nobody who says nothing for long", function()
    local raw = helper.quote(BUILD .. "/spec/raw_client") .. " " .. port
    assert.equal("", helper.sh("%s 'send=GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' end", raw):match("HTTP/1[^%[]*") or "")
    assert.truthy(helper.shell(("echo | openssl s_client -connect 127.0.0.1:%d -tls1_1 -cipher ALL:@SECLEVEL=0"):format(port))
      :find("Cipher is (NONE)", 1, true))
    assert.truthy(helper.shell(("echo | openssl s_client -connect 127.0.0.1:%d -alpn h2"):format(port))
      :find("no application protocol", 1, true))
    local out = helper.dir() .. "/out"
    helper.sh("{ %s end > %s.new; mv %s.new %s; } > /dev/null 2>&1 &", raw, out, out, out)
    assert.equal("[end]", assert(helper.eventually(function()
      core.advance(3000)
      return helper.read_file(out)
    end, 20)))
    fails("Timeout", listener:accept(0))
  end)

  it("says what is wrong with a certificate or a key", function()
    local function listen(cert, key)
      return http.listen { address = "127.0.0.1", tls_cert = cert, tls_key = key }
    end
    local dir = helper.dir()
    helper.sh("openssl ecparam -name prime256v1 -genkey -noout -out %s/other.pem", dir)
    helper.sh("openssl ec -in %s/other.pem -aes128 -passout pass:secret -out %s/locked.pem", dir, dir)
    fails("InvalidArgument", listen(PEM, nil))
    fails("NotFound", listen(dir .. "/none", PEM))
    fails("NotFound", listen(PEM, dir .. "/none"))
    fails("InvalidArgument", listen(dir .. "/other.pem", PEM)) -- no certificate in it
    fails("InvalidArgument", listen(PEM, TLS .. "ca.crt"))
    fails("InvalidArgument", listen(PEM, dir .. "/other.pem"))
    fails("InvalidArgument", listen(PEM, dir .. "/locked.pem"))
  end)
end)
