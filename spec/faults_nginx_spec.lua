-- check: long
-- check: only 5.4
-- check: no asan
-- check: limit 120
-- What went wrong elsewhere inside a web worker (B48), line by line, with one worker of a real nginx: nothing blocks it, the
-- phases that cannot wait say so, visitors who leave and reloads take nothing along that is not theirs.
local helper = require "spec.helper"
local nginx = require "spec.support.nginx"
local sandbar = require "sandbar"

local INIT = [[
  init_by_lua_block {
    sb = require "sandbar"
    provider = sb.assert(sb.open { root = "ROOT", linger = 0 })
    phases = { init = select(2, provider:info("web")) }
  }
  init_worker_by_lua_block { phases.init_worker = select(2, provider:info("web")) }
]]

local LOCATIONS = [[
    location = /pid { content_by_lua_block { ngx.say(ngx.worker.pid()) } }
    location = /exec { content_by_lua_block {
      local box = sb.assert(provider:connect("web"))
      local r = sb.assert(box:exec({ "sh", "-c", ngx.unescape_uri(ngx.var.arg_line) }, { timeout = 30 }))
      box:close()
      ngx.print(r.exit_code, " ", r.stdout)
    } }
    location = /leave { content_by_lua_block {
      local box = sb.assert(provider:connect("web"))
      sb.scope(function(scope)
        scope:adopt(box)
        box:exec({ "sleep", "LEAVES" }, ngx.var.arg_streamed and { on_output = function() end } or nil)
      end)
    } }
    location = /stream { content_by_lua_block {
      local box = sb.assert(provider:connect("web"))
      local r = sb.assert(box:exec("for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; sleep 0.5; done", {
        on_output = function(data) ngx.print(data) ngx.flush(true) end }))
      box:close()
      ngx.say("end ", r.exit_code)
    } }
    location = /phases {
      header_filter_by_lua_block { phases.header_filter = select(2, provider:info("web")) }
      log_by_lua_block { phases.log = select(2, provider:info("web")) }
      content_by_lua_block {
        ngx.timer.at(0, function()
          local box = sb.assert(provider:connect("web"))
          phases.timer = sb.assert(box:exec("echo works")).stdout
          box:close()
        end)
        ngx.say("asked")
      }
    }
    location = /told { content_by_lua_block {
      for _, phase in ipairs { "init", "init_worker", "header_filter", "log", "timer" } do
        local told = phases[phase]
        ngx.say(phase, ": ", type(told) == "table" and told.kind .. " " .. told.message or tostring(told))
      end
    } }
]]

describe("inside a web worker (B48),", function()
  helper.guard { each = false, seconds = 30 }
describe("", function()
  local sandboxes, box, dir, web
  local why_not = nginx.missing()
  local leaves = helper.mark(4848)

  local function curl(arguments)
    return (helper.shell(("curl -sS --no-progress-meter --max-time 60 --unix-socket %s/s %s"):format(dir, arguments)))
  end

  setup(function()
    if why_not then
      return
    end
    sandboxes = helper.open()
    box = sandbar.assert(sandboxes:create_scoped { id = "web",
      limits = { processes = 1000, max_concurrent_execs = 250 } })
    web = nginx.start { init = INIT, locations = LOCATIONS, values = { ROOT = helper.root(), LEAVES = leaves }, limit = 110 }
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

  before_each(function()
    if why_not then
      helper.skip(why_not)
    end
  end)

  it("one slow command stalled every visitor", function()
    local slow = assert(io.popen(("curl -sS --max-time 60 --unix-socket %s/s 'http://x/exec?line=sleep%%205;echo%%20slow'"):format(dir)))
    local worst, n = 0, 0
    local ends = helper.now() + 4.5
    while helper.now() < ends do
      -- What nginx itself took, from the request's first byte to the answer's last.
      local out = curl("-w '%{time_total}' http://x/ping")
      local seconds = tonumber(out:match("^pong\n([%d.]+)$"))
      assert.is_truthy(seconds, out)
      worst, n = math.max(worst, seconds), n + 1
      sandbar.sleep(0.05)
    end
    assert.is_true(n > 10)
    assert.is_true(worst < 0.1, ("a ping took %.3f s"):format(worst))
    assert.equal("0 slow\n", slow:read("*a"))
    slow:close()
  end)

  it("a phase in which nothing can wait said \"API disabled\"", function()
    assert.equal("asked\n", curl("http://x/phases"))
    local told = assert(helper.eventually(function()
      local out = curl("http://x/told")
      return not out:find(": nil", 1, true) and out
    end))
    for _, phase in ipairs { "init", "init_worker", "header_filter", "log" } do
      local line = told:match("%f[%a]" .. phase .. ": ([^\n]*)")
      assert.matches("^CannotWait ", line)
      assert.is_truthy(line:find("its " .. phase .. " phase", 1, true), line)
    end
    assert.is_truthy(told:find("timer: works\n", 1, true), told)
  end)

  it("the work of a visitor who left went on", function()
    local worker = curl("http://x/pid"):match("%d+")
    local function running()
      return tonumber((helper.shell("pgrep -fc '^sleep " .. leaves .. "$'"):match("^%d+")))
    end
    local function descriptors()
      return tonumber((helper.shell(("ls /proc/%s/fd | wc -l"):format(worker)):match("%d+")))
    end
    curl("'http://x/exec?line=true'")
    local before = descriptors()
    helper.shell(("for how in '' streamed=1; do for i in 1 2 3 4 5; do curl -s --max-time 60 --unix-socket %s/s "
      .. "http://x/leave?$how & p=\"$p $!\"; done; done; sleep 1; kill $p; wait"):format(dir))
    local left = helper.now()
    assert.is_truthy(helper.eventually(function() return running() == 0 end, 5), "it goes on")
    assert.is_true(helper.now() - left < 3)
    assert.is_truthy(helper.eventually(function() return descriptors() <= before + 2 end, 5),
      ("%d descriptors, %d before"):format(descriptors(), before))
    assert.equal("0 on\n", curl("'http://x/exec?line=echo%20on'"))
  end)

  it("two hundred commands at once were too many for one worker", function()
    local urls = {}
    for n = 1, 200 do
      urls[n] = ("url = \"http://x/exec?line=sleep%%202;echo%%20%d\"\noutput = \"%s/out.%d\"\n"):format(n, dir, n)
    end
    helper.write_file(dir .. "/urls", table.concat(urls))
    local took = helper.timed(function()
      local out, status = helper.shell(("curl -sS --no-progress-meter --max-time 60 -Z --parallel-max 200 --unix-socket %s/s -K %s/urls")
        :format(dir, dir))
      assert.equal(0, status, out)
    end)
    for n = 1, 200 do
      assert.equal(("0 %d\n"):format(n), helper.read_file(("%s/out.%d"):format(dir, n)))
    end
    assert.is_true(took < 20, ("it took %.1f s"):format(took)) -- one after the other 400
  end)

  it("a reload in the middle of a stream cut it", function()
    local old = tonumber(curl("http://x/pid"):match("%d+"))
    local stream = assert(io.popen(("curl -sSN --max-time 60 --unix-socket %s/s http://x/stream"):format(dir)))
    assert.equal("line 1", stream:read("*l"))
    helper.shell("kill -HUP " .. helper.read_file(dir .. "/pid"))
    for i = 2, 10 do
      assert.equal("line " .. i, stream:read("*l"))
    end
    assert.equal("end 0", stream:read("*l"))
    stream:close()
    assert.is_truthy(helper.eventually(function() return not helper.proc.alive(old) end, 10), "the old worker stays")
    assert.equal("0 new\n", curl("'http://x/exec?line=echo%20new'"))
    local log = helper.read_file(dir .. "/error.log")
    for line in log:gmatch("[^\n]+") do
      local level = line:match("^%d+/%d+/%d+ [%d:]+ %[(%a+)%]")
      assert.is_truthy(not level or level == "notice" or level == "info" or line:find("prematurely closed", 1, true), line)
    end
  end)
end)
end)
