-- A real nginx with its Lua module: what every configuration needs, its start and its end.
--
--   local why_not = nginx.missing()                      -- a reason to skip
--   local web = nginx.start { init = ..., locations = ..., values = { ROOT = helper.root() } }
--   web:curl("http://x/path"); web:stop()
--
-- `init` stands in http { }, `locations` in its server, which has /ping. Words in capitals are replaced by `values`, DIR
-- by the directory of this nginx. Others: workers (1), connections (1024) of each, limit (150, seconds that it may run), core
-- (where the C modules are).

local helper = require "spec.helper"
local lfs = require "lfs"

local MODULES = "/usr/lib/nginx/modules"
local tree = os.getenv("SPEC_TREE") or lfs.currentdir()
local build = os.getenv("SPEC_BUILD") or tree .. "/build"

local nginx = { CORE = build .. "/luajit" }

local CONFIG = [[
daemon off; worker_processes WORKERS; USER
pid DIR/pid; error_log DIR/error.log notice;
load_module MODULES/ndk_http_module.so; load_module MODULES/ngx_http_lua_module.so;
events { worker_connections CONNECTIONS; }
http {
  access_log off; client_body_temp_path DIR/b; proxy_temp_path DIR/p; fastcgi_temp_path DIR/f;
  uwsgi_temp_path DIR/u; scgi_temp_path DIR/c;
  lua_package_path "TREE/lua/?.lua;TREE/lua/?/init.lua;;";
  lua_package_cpath "CORE/?.so;;";
%s
  server {
    listen unix:DIR/s; lua_check_client_abort on;
    location = /ping { content_by_lua_block { ngx.say("pong") } }
%s
  }
}
]]

local Web = {}
Web.__index = Web

--- What curl prints, and its status.
function Web:curl(arguments)
  return helper.shell(("curl -sS --no-progress-meter --max-time 30 --unix-socket %s/s %s"):format(self.dir, arguments))
end

function Web:log()
  return helper.read_file(self.dir .. "/error.log") or ""
end

function Web:pid()
  return tonumber((helper.read_file(self.dir .. "/pid") or ""):match("%d+"))
end

--- Begins; also anew, when it has been stopped.
function Web:run()
  self.child = helper.start_lua(("os.execute('exec nginx -p %s -c %s/conf -e %s/error.log')"):format(self.dir, self.dir,
    self.dir), { timeout = self.limit })
  assert(helper.eventually(function()
    return self:curl("http://x/ping") == "pong\n"
  end, 10), self:log())
end

--- Ends it, and waits for that.
function Web:stop(signal)
  local pid = self:pid()
  if pid then
    helper.shell(("kill -%s %d"):format(signal or "TERM", pid))
  end
  return self.child:wait()
end

--- Why there is none, or nil.
function nginx.missing(core)
  if not lfs.attributes(MODULES .. "/ngx_http_lua_module.so") then
    return "nginx's Lua module is not installed"
  elseif not lfs.attributes((core or nginx.CORE) .. "/sandbar/http.so") then
    return "sandbar is not built for LuaJIT"
  end
end

function nginx.start(opts)
  local web = setmetatable({ dir = helper.dir("n"), limit = opts.limit or 150 }, Web)
  local values = {
    DIR = web.dir, TREE = tree, MODULES = MODULES, CORE = opts.core or nginx.CORE, WORKERS = opts.workers or 1,
    CONNECTIONS = opts.connections or 1024, USER = helper.is_root() and "user root;" or "",
  }
  for name, value in pairs(opts.values or {}) do
    values[name] = value
  end
  helper.write_file(web.dir .. "/conf",
    (CONFIG:format(opts.init or "", opts.locations):gsub("%f[%u]%u+%f[%U]", values)))
  web:run()
  return web
end

return nginx
