-- `sandbar serve` as its clients see it: the output of commands in both codecs by curl, files against nginx that stores
-- and sends the same file in the same run, and what a command takes for the official SDK beyond the command itself.
local BYTES = 256000000
local OUTPUT = 400000000
local STDOUT = { proto = 400e6, json = 200e6 } -- bytes a second
local LATENCY = 3e-3
local KEY = "e2b_" .. ("7"):rep(40)
local NPM = "build/npm"

local NGINX = [[
daemon off;
worker_processes 1;
$user
pid $dir/pid;
error_log $dir/error.log warn;
events { worker_connections 64; }
http {
  access_log off;
  sendfile on;
  client_max_body_size 0;
  client_body_temp_path $dir/files/body;
  proxy_temp_path $dir/proxy;
  fastcgi_temp_path $dir/fastcgi;
  uwsgi_temp_path $dir/uwsgi;
  scgi_temp_path $dir/scgi;
  server { listen 127.0.0.1:$port; root $dir/files; dav_methods PUT; }
}
]]

return function(bench)
  local assert, lib = bench.sandbar.assert, bench.lib
  local json, message = require "sandbar.json", require "sandbar.e2b.message"
  local dir = bench.root .. "/server"
  local here = io.popen("pwd"):read("l")
  local rounds = math.max(3, bench.pairs // 10)

  local function run(line)
    local pipe = _G.assert(io.popen(line))
    local text = pipe:read("a")
    pipe:close()
    return text
  end

  local function write(name, text)
    local f = _G.assert(io.open(dir .. "/" .. name, "wb"))
    f:write(text)
    f:close()
    return dir .. "/" .. name
  end

  if not bench.has("curl") then
    return bench.skip("sandbar serve", "curl is not installed")
  end
  os.execute("mkdir " .. dir .. " " .. dir .. "/files " .. dir .. "/files/body")
  write("keys", KEY .. "\n")

  -- ---- the servers ----

  local children = {}

  local function start(args)
    children[#children + 1] = lib.start(args)
  end

  -- The line of a file that has this pattern, once it is there.
  local function await(name, pattern)
    os.execute(("for i in $(seq 200); do grep -qs '%s' %s/%s && exit; sleep 0.05; done"):format(pattern, dir, name))
    local text = bench.read(dir .. "/" .. name) or ""
    return _G.assert(text:match(pattern .. "(%S*)"), name .. ": " .. text)
  end

  start { "sh", "-c", ("exec %s src/main/sandbar.lua serve --root %s --listen 127.0.0.1:0 --api-key-file %s/keys >%s/out"):format(
    arg[-1], bench.root, dir, dir) }
  local url = await("out", "E2B_API_URL=")

  local made = run(("curl -sS -X POST -H 'x-api-key: %s' -H 'content-type: application/json' -d '%s' %s/v2/sandboxes"):format(
    KEY, '{"templateID":"base","timeout":3600}', url))
  local sandbox = _G.assert(json.decode(made), made)
  local headers = ("-H 'E2b-Sandbox-Id: %s' -H 'E2b-Sandbox-Port: 49983' -H 'X-Access-Token: %s'"):format(
    sandbox.sandboxID, sandbox.envdAccessToken)

  -- Seconds of a transfer by curl, which must have had this status.
  local function curl(status, args)
    local text = run("curl -sS -o /dev/null -w '%{http_code} %{time_total}' " .. args)
    local code, seconds = text:match("^(%d+) (%S+)$")
    _G.assert(tonumber(code) == status, args .. ": " .. text)
    return tonumber(seconds)
  end

  -- ---- output ----

  local function stdout(codec)
    local request = { process = { cmd = "/usr/bin/head", args = { "-c", ("%d"):format(OUTPUT), "/dev/zero" } }, stdin = false }
    local body = write("start", message.envelope(0, assert(message.encode("process.StartRequest", request, codec))))
    local times = bench.interleave(rounds, function()
      return curl(200, ("-X POST -H 'content-type: application/connect+%s' --data-binary @%s %s %s/process.Process/Start"):format(
        codec, body, headers, url))
    end)
    bench.row(("serve: stdout by curl, %s / %d MB/s"):format(codec, STDOUT[codec] / 1e6), bench.rate(OUTPUT, times[1]), "",
      OUTPUT / times[1] / STDOUT[codec], ">= 1.0")
  end

  -- ---- files ----

  local function files()
    if not bench.has("nginx") or not run("nginx -V 2>&1"):find("http_dav_module", 1, true) then
      return bench.skip("serve: upload and download / nginx", "nginx with its DAV module is not installed")
    end
    os.execute(("head -c %d /dev/urandom >%s/file"):format(BYTES, dir))
    local port = run("shuf -i 20000-32000 -n 1"):match("%d+")
    local values = { dir = dir, port = port, user = run("id -u") == "0\n" and "user root;" or "" }
    local conf = write("conf", (NGINX:gsub("%$(%l+)", values)))
    start { "nginx", "-p", dir, "-c", conf, "-e", dir .. "/error.log" }
    await("pid", "")
    local peer = ("http://127.0.0.1:%s/file"):format(port)
    local ours = ("%s '%s/files?path=/tmp/file'"):format(headers, url)
    local put = ("-T %s/file "):format(dir)
    curl(201, put .. peer)
    local times, ratios = bench.interleave(rounds, function()
      return curl(200, "-X POST -H 'content-type: application/octet-stream' " .. put .. ours)
    end, function()
      return curl(204, put .. peer)
    end)
    bench.row("serve: upload / nginx PUT (rates)", bench.rate(BYTES, times[1]), bench.rate(BYTES, times[2]), 1 / ratios[2],
      ">= 0.8")
    times, ratios = bench.interleave(rounds, function()
      return curl(200, ours)
    end, function()
      return curl(200, peer)
    end)
    bench.row("serve: download / nginx GET (rates)", bench.rate(BYTES, times[1]), bench.rate(BYTES, times[2]),
      1 / ratios[2], ">= 0.8")
  end

  -- ---- latency ----

  local function latency()
    if not bench.has("node") or not bench.read(NPM .. "/node_modules/e2b/package.json") then
      return bench.skip("serve: a command by the SDK", "node or the npm package e2b (.ci/npm) is not there")
    end
    start { "sh", "-c", ("exec %s/canned %s >%s/port"):format(bench.tools, write("made", made), dir) }
    local canned = await("port", "")
    local box = assert(bench.provider:connect(sandbox.sandboxID))
    local function spawn()
      assert(box:exec { "/bin/bash", "-l", "-c", "true" })
    end
    spawn()
    local spawned = bench.interleave(bench.pairs, spawn)[1]
    box:close()
    local text = run(("node bench/sdk.mjs %s/%s %d %s %s http://127.0.0.1:%s"):format(here, NPM, bench.pairs, KEY, url, canned))
    local with, without = text:match("^(%S+) (%S+)\n$")
    _G.assert(with, text)
    local ours = tonumber(with) / 1e3 - spawned
    bench.row("serve: a command by the SDK / canned", bench.ms(ours), bench.ms(tonumber(without) / 1e3),
      ours / (tonumber(without) / 1e3))
    bench.row(("  beyond both the spawn (%s) and canned / 3 ms"):format(bench.ms(spawned)),
      bench.ms(ours - tonumber(without) / 1e3), "", (ours - tonumber(without) / 1e3) / LATENCY, "<= 1.0")
  end

  local ok, err = xpcall(function()
    stdout("proto")
    stdout("json")
    files()
    latency()
  end, debug.traceback)
  for i = #children, 1, -1 do
    lib.stop(children[i], 15)
  end
  bench.provider:destroy(sandbox.sandboxID)
  if not ok then
    error(err, 0)
  end
end
