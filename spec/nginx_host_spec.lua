-- check: only 5.4
-- check: no asan
-- Waits, tasks and scopes inside a real nginx with its Lua module, one worker.

local helper = require "spec.helper"
local nginx = require "spec.support.nginx"

local INIT = [[
  init_by_lua_block {
    sb = require "sandbar"
    seen = { lost = 0, begun = 0, init = select(2, sb.sleep(0.01)) }
  }
  init_worker_by_lua_block { seen.init_worker = select(2, sb.sleep(0.01)) }
]]

local LOCATIONS = [[
    location /phases { content_by_lua_block { ngx.print(tostring(seen.init), "\n", tostring(seen.init_worker)) } }
    location /many { content_by_lua_block {
      local fns = {}
      for i = 1, 200 do
        fns[i] = function() for _ = 1, 20 do assert(sb.sleep(0.0005)) end return i end
      end
      local r = sb.assert(sb.all(fns))
      ngx.print(r.n, " ", r[200])
    } }
    location /scope { content_by_lua_block {
      local log = {}
      local value = sb.scope(function(scope)
        scope:defer(function(exit) sb.sleep(0.001) log[#log + 1] = "old " .. tostring(exit.ok) end)
        scope:spawn(function() local _, err = sb.sleep(100) log[#log + 1] = err.kind return nil, err end)
        scope:defer(function() log[#log + 1] = "new" end)
        sb.sleep(0.001)
        return "value"
      end)
      ngx.print(value, " ", table.concat(log, ","))
    } }
    location /cancel { content_by_lua_block {
      local began, kinds = ngx.now(), {}
      local function long() local _, err = sb.sleep(100) kinds[#kinds + 1] = err.kind return nil, err end
      local detached = sb.spawn(long) -- in a timer of its own
      sb.sleep(0.01)
      detached:cancel("enough")
      local _, err = detached:wait()
      kinds[#kinds + 1] = err.kind
      sb.scope(function(scope)
        local task = scope:spawn(long) -- in a light thread of this request
        sb.sleep(0.001)
        task:cancel()
        _, err = task:wait()
        kinds[#kinds + 1] = err.kind
      end)
      ngx.update_time()
      ngx.print(table.concat(kinds, " "), " ", tostring(ngx.now() - began < 5))
    } }
    location /nested { content_by_lua_block {
      local inside = coroutine.wrap(function() return tostring(sb.sleep(0.001)) end)()
      local object = setmetatable({}, { __index = function() return tostring(sb.sleep(0.001)) end })
      local _, sorted = nil, nil
      table.sort({ 2, 1 }, function(a, b) _, sorted = sb.sleep(0.001) return a < b end)
      ngx.print(inside, " ", select(2, pcall(function() return object.x end)), " ", sorted.kind)
    } }
    location /log {
      content_by_lua_block { ngx.print("hi") }
      log_by_lua_block {
        seen.log = select(2, sb.sleep(0.01)).message
        sb.scope(function(scope) scope:defer(function() seen.late = sb.sleep(0.001) end) end)
      }
    }
    location /hang { content_by_lua_block {
      sb.scope(function(scope)
        scope:defer(function() sb.sleep(0.001) seen.lost = seen.lost + 1 end)
        scope:spawn(function() return sb.sleep(100) end)
        seen.begun = seen.begun + 1
        sb.sleep(100)
      end)
    } }
    location /exit { content_by_lua_block {
      sb.scope(function(scope)
        scope:defer(function() seen.lost = seen.lost + 1 end)
        sb.sleep(0.001)
        ngx.exit(204)
      end)
    } }
    location /seen { content_by_lua_block {
      ngx.print(seen.lost, " ", sb.pending() - 1, " ", tostring(seen.log), " ", tostring(seen.late))
    } }
    location /slow { content_by_lua_block {
      seen.begun = seen.begun + 1
      ngx.print(tostring(sb.sleep(0.3) and sb.sleep(0.1)))
    } }
    location /begun { content_by_lua_block { ngx.print(seen.begun) } }
    location /uncaught { content_by_lua_block {
      sb.scope(function() sb.scope(function() sb.assert(sb.sleep("one")) end) end)
    } }
    location /raised { content_by_lua_block { sb.assert(sb.sleep("two")) } }
    location /caught { content_by_lua_block {
      local ok, err = pcall(sb.scope, function() sb.assert(sb.sleep("three")) end)
      ngx.print(tostring(ok), " ", err.kind)
    } }
    location /pid { content_by_lua_block { ngx.print(ngx.worker.pid()) } }
]]

describe("sandbar in nginx", function()
  local dir, web, master
  local core = nginx.CORE
  if nginx.missing(core) then
    core = core:gsub("luajit$", "5.1") -- the same interface: it runs in nginx's LuaJIT
  end
  local why_not = nginx.missing(core)

  local function get(path, seconds)
    return (helper.shell(("curl -s -m %s --unix-socket %s/s http://x%s"):format(seconds or 10, dir, path)))
  end

  local function gone(pid, seconds)
    return helper.eventually(function() return not helper.proc.alive(pid) end, seconds)
  end

  setup(function()
    if why_not then
      return
    end
    web = nginx.start { init = INIT, locations = LOCATIONS, core = core }
    dir = web.dir
    master = web:pid()
  end)

  teardown(function()
    if web then
      web:stop("QUIT")
    end
  end)

  helper.guard { each = false } -- behind our teardown

  local busted_it = it
  local function it(name, fn)
    busted_it(name, function()
      if why_not then
        helper.skip(why_not)
      end
      fn()
    end)
  end

  it("names the phase in which nothing can wait", function()
    assert.equal("sleep: nginx allows no waiting in its init phase; do it in ngx.timer.at(0, fn) (CannotWait)\n"
      .. "sleep: nginx allows no waiting in its init_worker phase; do it in ngx.timer.at(0, fn) (CannotWait)",
      get "/phases")
  end)

  it("wakes hundreds of light threads through one pump", function()
    assert.equal("200 200", get "/many")
  end)

  it("runs scopes and tasks as anywhere else", function()
    assert.equal("value new,Cancelled,old true", get "/scope")
  end)

  it("wakes a task that is cancelled out of its wait, in a timer and in the request", function()
    assert.equal("Cancelled Cancelled Cancelled Cancelled true", get "/cancel")
  end)

  it("waits in coroutines, pcall and metamethods, and says where it cannot", function()
    assert.equal("true true CannotWait", get "/nested")
  end)

  it("closes a scope of the log phase in a timer", function()
    assert.equal("hi", get "/log")
    assert(helper.eventually(function()
      return get("/seen"):find("nginx allows no waiting in its log phase; do it in ngx.timer.at(0, fn) true", 1, true)
    end))
  end)

  it("ends the scopes and waits of a request with it, however it ends", function()
    local visitors = helper.shell(("for i in $(seq 5); do curl -s -m 30 --unix-socket %s/s http://x/hang "
      .. ">/dev/null 2>&1 & echo $!; done"):format(dir))
    -- Of one who leaves before nginx comes to his request it hears nothing.
    assert(helper.eventually(function() return get("/begun") == "5" end), get("/begun"))
    helper.shell("kill " .. visitors:gsub("%s", " "))
    get "/exit"
    assert(helper.eventually(function() return get("/seen"):match("^6 %-?%d+ ") end, 2), get "/seen")
    assert(helper.eventually(function() return get("/seen"):match("^6 %-1 ") end, 2), get "/seen")
  end)

  it("answers what is in flight at a reload, then the old worker leaves", function()
    local worker = tonumber(get "/pid")
    local before = tonumber(get("/begun"))
    helper.shell(("(curl -s --unix-socket %s/s http://x/slow >%s/answer 2>/dev/null) & "):format(dir, dir))
    assert(helper.eventually(function() return tonumber(get("/begun")) > before end), "it does not begin")
    helper.shell("kill -HUP " .. master)
    assert(gone(worker, 3), "the old worker hangs")
    assert(helper.eventually(function() return helper.read_file(dir .. "/answer") == "true" end), "no answer")
    assert.equal("value new,Cancelled,old true", get "/scope")
    local log = helper.read_file(dir .. "/error.log")
    assert.is_nil(log:match("%[alert%][^\n]*"))
    assert.is_nil(log:match("%[error%][^\n]*"))
    assert.is_nil(log:match("%[crit%][^\n]*"))
  end)

  it("logs an error object that nobody caught: nginx says \"unknown reason\" of it", function()
    local before = #helper.read_file(dir .. "/error.log")
    get "/uncaught"
    get "/raised"
    assert.equal("false InvalidArgument", get "/caught")
    local said = {}
    for line in helper.read_file(dir .. "/error.log"):sub(before + 1):gmatch("sandbar: ([^\n]*)") do
      said[#said + 1] = line:match("^nobody caught content_by_lua%b():%d: (sleep: .-%))")
    end
    assert.equal(2, #said)
    assert.is_truthy(said[1]:find("one", 1, true) and said[2]:find("two", 1, true))
  end)
end)
