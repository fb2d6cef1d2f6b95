-- check: only 5.4
-- check: limit 240
-- sandbar inside a real nginx with its Lua module: two workers, real requests, real sandboxes.
local helper = require "spec.helper"
local nginx = require "spec.support.nginx"
local sandbar = require "sandbar"


local INIT = [[
  init_by_lua_block {
    sandbar = require "sandbar"
    assert_ = sandbar.assert
    provider = assert_(sandbar.open { root = "ROOT", linger = 0 })
    submitted_in_init = provider:info("web")          -- refused with the phase named
    init_answer = select(2, provider:info("web"))
  }
]]

local LOCATIONS = [[
    location = /pid { content_by_lua_block { ngx.say(ngx.worker.pid()) } }

    location = /exec { content_by_lua_block {
      local box = assert_(provider:connect("web"))
      local r = assert_(box:exec({ "sh", "-c", ngx.unescape_uri(ngx.var.arg_script or "echo $1"), "sh", ngx.var.arg_n },
        { timeout = 20, max_output = 65536 }))
      box:close()
      ngx.print(r.exit_code, " ", r.stdout)
    } }

    location = /timeout { content_by_lua_block {
      local box = assert_(provider:connect("web"))
      local r, err = box:exec("echo partial; sleep 47", { timeout = 1 })
      box:close()
      ngx.print(tostring(r), " ", err.kind, " ", err.result and err.result.stdout or "-")
    } }

    location = /abort { content_by_lua_block {
      local box = assert_(provider:connect("web"))
      local how = ngx.var.arg_how
      if how == "exec" then
        box:exec({ "sleep", "LEAVES" })
      elseif how == "streamed" then
        box:exec({ "sleep", "LEAVES" }, { on_output = function() end })
      end
      sandbar.scope(function(scope)
        if how == "adopted" then
          scope:adopt(box)
          box:exec({ "sleep", "LEAVES" })
        end
        assert_(box:start({ "sleep", "LEAVES" }, { scope = scope }))
        ngx.sleep(60)
      end)
    } }

    location = /scoped { content_by_lua_block {
      local text = sandbar.scope(function(scope)
        local own = assert_(provider:create_scoped({}, scope))
        return assert_(own:exec("echo from $(cat /etc/hostname >/dev/null; id -un)")).stdout
      end)
      ngx.print(text)
    } }

    location = /collected { content_by_lua_block {
      local box = assert_(provider:connect("web"))
      sandbar.scope(function(scope)
        local cat = assert_(box:start({ "cat" }, { scope = scope, stdin = "pipe" }))
        for _ = 1, 4 do
          collectgarbage()
          ngx.sleep(0.01)
        end
        assert_(cat.stdin:write("still here\n"))
        ngx.say((assert_(cat.stdout:read("l", { timeout = 10 }))))
      end)
    } }

    location = /all { content_by_lua_block {
      local box = assert_(provider:connect("web"))
      local list = assert_(sandbar.all {
        function() return assert_(box:exec { "echo", "a" }).stdout end,
        function() return assert_(box:exec { "echo", "b" }).stdout end,
      })
      box:close()
      ngx.print(table.concat(list))
    } }

    location = /raise { content_by_lua_block {
      sandbar.scope(function(scope)
        local box = assert_(provider:connect("web"))
        assert_(box:start({ "sleep", "RAISES" }, { scope = scope }))
        error("on purpose")
      end)
    } }

    location = /init { content_by_lua_block {
      ngx.print(init_answer and init_answer.kind or "none", " ", tostring(init_answer))
    } }

    location = /phases {
      header_filter_by_lua_block {
        local _, err = provider:info("web")
        ngx.header["X-Kind"] = err and err.kind
        ngx.header["X-Text"] = err and tostring(err):gsub("\n", " ")
      }
      content_by_lua_block { ngx.say("body") }
    }

    location = /timer { content_by_lua_block {
      local done
      ngx.timer.at(0, function()
        local box = assert_(provider:connect("web"))
        done = assert_(box:exec("echo in a timer")).stdout
        box:close()
      end)
      for _ = 1, 200 do
        if done then break end
        ngx.sleep(0.02)
      end
      ngx.print(done or "nothing")
    } }

    location /app/ { content_by_lua_block {
      local box = assert_(provider:connect("web"))
      local ok, err = require "sandbar.openresty".proxy(box:port(3000))
      box:close()
      if not ok and not ngx.headers_sent then
        ngx.status = 502
        ngx.print(tostring(err))
      end
    } }
]]

describe("in nginx", function()
  helper.guard { each = false } -- out here, so that its last look comes after our teardown
describe("", function()
  local sandboxes, box, dir, web
  local why_not = nginx.missing()

  local function curl(arguments)
    return web:curl(arguments)
  end

  setup(function()
    if why_not then
      return
    end
    sandboxes = helper.open()
    box = sandbar.assert(sandboxes:create_scoped { id = "web", limits = { processes = 500 } })
    web = nginx.start { init = INIT, locations = LOCATIONS, workers = 2, limit = 200, values = {
      ROOT = helper.root(), LEAVES = helper.mark(4711), RAISES = helper.mark(4712),
    } }
    dir = web.dir
  end)

  teardown(function()
    if web then
      web:stop()
    end
    if box then
      box:destroy()
    end
    helper.shell("rm -rf " .. helper.quote(dir or "/nonexistent"))
  end)

  local function promise(name, fn)
    it(name, function()
      if why_not then
        helper.skip(why_not)
      end
      fn()
    end)
  end

  promise("a thousand requests each run their own command and get their own answer, and nobody is blocked", function()
    local urls = {}
    for n = 1, 1000 do
      urls[n] = ("url = \"http://x/exec?n=token%d\"\noutput = \"%s/out.%d\"\n"):format(n, dir, n)
    end
    helper.write_file(dir .. "/urls", table.concat(urls))
    local pinger = helper.start_lua(([[
      local worst = 0
      while true do
        local stop = io.open(%q)
        if stop then break end
        local p = io.popen("curl -sS --max-time 10 --unix-socket %s/s -w ' %%{time_total}' http://x/ping")
        local seconds = tonumber(p:read("*a"):match("pong%%s+([%%d.]+)"))
        p:close()
        if not seconds then print("ping failed") os.exit(1) end
        worst = math.max(worst, seconds)
      end
      print(worst)
    ]]):format(dir .. "/done", dir), { timeout = 120 })
    local out, status = helper.shell(("curl -sS --no-progress-meter --max-time 100 -Z --parallel-max 50 --unix-socket %s/s -K %s/urls"):format(dir, dir))
    helper.write_file(dir .. "/done", "")
    local ping = pinger:wait()
    assert.equal(0, status, out .. web:log())
    for n = 1, 1000 do
      assert.equal("0 token" .. n .. "\n", helper.read_file(dir .. "/out." .. n))
    end
    assert.equal(0, ping.code, ping.stdout .. ping.stderr)
    assert.is_true(tonumber(ping.stdout) < 2, "a ping took " .. ping.stdout)
    helper.shell(("rm -f %s/out.* %s/done"):format(dir, dir))
  end)

  promise("every kind of ending reaches the client: status, cap, time limit", function()
    assert.equal("9 ", (curl("'http://x/exec?n=1&script=exit%209'")))
    local big = curl("'http://x/exec?n=1&script=head%20-c%20300000%20/dev/zero%20%7C%20tr%20%22%5C0%22%20x'")
    assert.equal(65536 + 2, #big)
    local took, answer = helper.timed(curl, "http://x/timeout")
    assert.equal("nil ExecTimedOut partial\n", answer)
    assert.is_true(took >= 1 and took < 10)
  end)

  promise("a scope of a request owns a sandbox of its own", function()
    assert.equal("from user\n", (curl("http://x/scoped")))
  end)

  promise("a collection of garbage ends no scope of a request that goes on", function()
    for _ = 1, 5 do
      assert.equal("still here\n", (curl("http://x/collected")))
    end
  end)

  promise("several commands at once in one request", function()
    assert.equal("a\nb\n", (curl("http://x/all")))
  end)

  promise("work in a timer can wait", function()
    assert.equal("in a timer\n", (curl("http://x/timer")))
  end)

  promise("phases that cannot wait say so and name the phase", function()
    local init = curl("http://x/init")
    assert.is_truthy(init:match("^CannotWait .*init"), init)
    local headers = curl("-D - http://x/phases")
    assert.is_truthy(headers:match("X%-Kind: CannotWait"), headers)
    assert.is_truthy(headers:match("header_filter"), headers)
  end)

  promise("a visitor who leaves takes the scope of the request along, and what it waits for (B48)", function()
    local function running()
      return tonumber((helper.shell(("pgrep -fc '^sleep %s$'"):format(helper.mark(4711))):match("^%d+")))
    end
    -- They leave once all are served: of one who has left before nginx came to his request it hears nothing.
    local pids = helper.shell(("for how in start exec streamed adopted; do for i in 1 2 3 4 5; do "
      .. "curl -s --max-time 30 --unix-socket %s/s http://x/abort?how=$how >/dev/null 2>&1 & echo $!; done; done")
      :format(dir)):gsub("%s", " ")
    assert.is_truthy(helper.eventually(function() return running() == 20 end, 10), "not all are served")
    helper.shell("kill " .. pids)
    assert.is_truthy(helper.eventually(function() return running() == 0 end, 10), "some are still there")
  end)

  promise("a handler that raises closes its scope", function()
    curl("http://x/raise")
    assert.is_truthy(helper.eventually(function()
      return (helper.shell(("pgrep -fc '^sleep %s$'"):format(helper.mark(4712)))):match("^0")
    end, 10))
  end)

  promise("requests are forwarded to a server in the sandbox", function()
    local server = sandbar.assert(box:start("mkdir -p w/app && cd w && echo the page > app/page && exec python3 -m http.server 3000"))
    sandbar.assert(box:port(3000):wait { timeout = 10 })
    local page = curl("-i http://x/app/page")
    assert.is_truthy(page:match("200") and page:match("the page\n$"), page)
    local none = curl("-i http://x/app/none")
    assert.is_truthy(none:match("404"), none)
    server:kill { signal = "KILL" }
    server:close()
    local closed = curl("-i http://x/app/none")
    assert.is_truthy(closed:match("502"), closed)
  end)

  promise("a reload in the middle of work loses no request, and the old workers leave", function()
    local old = {}
    for _ = 1, 20 do
      old[curl("http://x/pid")] = true
    end
    local urls = {}
    for n = 1, 100 do
      urls[n] = ("url = \"http://x/exec?script=sleep%%200.3;echo%%20ok\"\noutput = \"%s/r.%d\"\n"):format(dir, n)
    end
    helper.write_file(dir .. "/urls", table.concat(urls))
    local line = ("curl -sS --no-progress-meter --max-time 60 -Z --parallel-max 20 --unix-socket %s/s -K %s/urls")
      :format(dir, dir)
    local load = helper.start_lua("os.exit(os.execute(" .. ("%q"):format(line) .. ") and 0 or 1)", { timeout = 90 })
    for _ = 1, 3 do
      assert(helper.eventually(function() return curl("http://x/ping") == "pong\n" end, 5))
      helper.shell("kill -HUP " .. helper.read_file(dir .. "/pid"))
    end
    local record = load:wait()
    assert.equal(0, record.code, record.stderr .. web:log())
    for i = 1, 100 do
      assert.equal("0 ok\n", helper.read_file(dir .. "/r." .. i))
    end
    assert.is_truthy(helper.eventually(function()
      for pid in pairs(old) do
        if helper.proc.alive(tonumber(pid:match("%d+"))) then
          return nil, pid
        end
      end
      return true
    end, 20), "an old worker stays")
    helper.shell(("rm -f %s/r.*"):format(dir))
  end)

  promise("it leaves quickly when asked, idle and gracefully, without an alarm in its log", function()
    curl("http://x/exec?n=1") -- a pump is running
    local took = helper.timed(web.stop, web, "QUIT")
    assert.is_true(took < 10, "QUIT took " .. took)
    for line in web:log():gmatch("[^\n]+") do
      local level = line:match("^%d+/%d+/%d+ [%d:]+ %[(%a+)%]") -- other lines belong to a traceback
      local expected = line:find("on purpose", 1, true) or line:find("client prematurely closed", 1, true)
      assert.is_truthy(expected or not level or level == "notice" or level == "info", line)
      assert.is_nil(line:find("exited on signal", 1, true), line)
    end
    web:run()
  end)
end)
end)
