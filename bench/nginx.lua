-- A worker of nginx that runs commands in a sandbox answers others meanwhile: how long a second endpoint takes
-- during 1,000 requests that each run one, against the same server with nothing else to do.
local MODULES = "/usr/lib/nginx/modules"
local REQUESTS, CLIENTS = 1000, 16

local CONFIG = [[
daemon off;
worker_processes 1;
$user
pid $dir/pid;
error_log $dir/error.log notice;
load_module $modules/ndk_http_module.so;
load_module $modules/ngx_http_lua_module.so;
events { worker_connections 512; }
http {
  access_log off;
  keepalive_requests 1000000;
  client_body_temp_path $dir/body;
  proxy_temp_path $dir/proxy;
  fastcgi_temp_path $dir/fastcgi;
  uwsgi_temp_path $dir/uwsgi;
  scgi_temp_path $dir/scgi;
  lua_package_path "$here/lua/?.lua;$here/lua/?/init.lua;;";
  lua_package_cpath "$here/build/luajit/?.so;;";
  init_by_lua_block {
    local sandbar = require "sandbar"
    provider = sandbar.assert(sandbar.open { root = "$root", linger = 600 })
    function answer(text)
      ngx.header.content_length = #text
      ngx.print(text)
    end
  }
  server {
    listen unix:$dir/s;
    location = /ping { content_by_lua_block { answer("pong") } }
    location = /exec { content_by_lua_block {
      local sandbar = require "sandbar"
      local box = sandbar.assert(provider:connect("bench-nginx"))
      local r = sandbar.assert(box:exec { "true" })
      box:close()
      answer(tostring(r.exit_code))
    } }
  }
}
]]

return function(bench)
  local assert, lib = bench.sandbar.assert, bench.lib
  local what = "nginx: ping during execs, p50/p99; p99 / 5 ms"
  local here = io.popen("pwd"):read("l")
  if not (bench.has("nginx") and bench.read(MODULES .. "/ngx_http_lua_module.so")) then
    return bench.skip(what, "nginx with its Lua module is not installed")
  elseif not bench.read(here .. "/build/luajit/sandbar/core.so") then
    return bench.skip(what, "sandbar is not built for LuaJIT")
  end
  local box = assert(bench.provider:create_scoped { id = "bench-nginx", limits = { processes = 500 } })
  local dir = bench.root .. "/nginx"
  local root = io.popen("id -u"):read("l") == "0"
  os.execute("mkdir " .. dir)
  local values = { dir = dir, here = here, modules = MODULES, root = bench.root, user = root and "user root;" or "" }
  local conf = _G.assert(io.open(dir .. "/conf", "w"))
  conf:write((CONFIG:gsub("%$(%l+)", values)))
  conf:close()
  local pid = lib.start { "nginx", "-p", dir, "-c", dir .. "/conf", "-e", dir .. "/error.log" }

  -- Milliseconds of the pings: median, 99th percentile; and how long all took.
  local function ask(count, seconds)
    local line = io.popen(("%s/requests %s/s %d %d %d"):format(bench.tools, dir, count, CLIENTS, seconds)):read("l")
    local p50, p99, worst, took = (line or ""):match("^(%S+) (%S+) (%S+) (%S+)")
    _G.assert(p50, "the server does not answer: " .. (bench.read(dir .. "/error.log") or ""))
    return { p50 = tonumber(p50), p99 = tonumber(p99), worst = tonumber(worst), took = tonumber(took) }
  end
  local function median(rounds, field)
    local list = {}
    for i, round in ipairs(rounds) do
      list[i] = round[field]
    end
    return bench.median(list)
  end
  local function text(rounds)
    return ("%.2f/%.2f ms"):format(median(rounds, "p50"), median(rounds, "p99"))
  end

  local busy, idle = {}, {}
  local ok, err = pcall(function()
    os.execute("for i in $(seq 100); do [ -S " .. dir .. "/s ] && exit; sleep 0.05; done")
    ask(50, 20)
    for i = 1, math.max(3, bench.pairs // 20) do
      busy[i], idle[i] = ask(REQUESTS, 60), ask(0, 1)
    end
  end)
  lib.stop(pid, 15)
  box:destroy()
  if not ok then
    error(err, 0)
  end
  bench.row(what, text(busy), text(idle), median(busy, "p99") / 5, "<= 1.0")
end
