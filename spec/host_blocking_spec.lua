local core = require "sandbar.core"
local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

describe("a plain script", function()
  it("blocks in its waits, and spawned tasks go on meanwhile", function()
    local log = {}
    local task = sandbar.spawn(function()
      for i = 1, 3 do
        log[#log + 1] = i
        sandbar.sleep(0.001)
      end
      core.advance(3600)
    end)
    assert.is_true(sandbar.sleep(3600))
    assert.same({ 1, 2, 3 }, log)
    task:wait()
  end)

  it("hears of everything else beside a task whose waits are over at once", function()
    local r = helper.run_lua(([[
      local sandbar = require "sandbar"
      local own = sandbar.assert(sandbar.open { root = %q, linger = 0 })
      local box = sandbar.assert(own:create_scoped())
      local over
      local spinner = sandbar.spawn(function()
        while not over do
          sandbar.sleep(0)
        end
      end)
      for _ = 1, 3 do
        print(sandbar.assert(box:exec({ "true" }, { timeout = 1 })).ok)
      end
      over = true
      spinner:wait()
      box:destroy()
    ]]):format(helper.dir("spun")), { timeout = 60 })
    assert.equal("", r.stderr)
    assert.equal("true\ntrue\ntrue\n", r.stdout)
  end)

  it("waits as long as it was told", function()
    local took = helper.timed(sandbar.sleep, "30ms")
    assert.is_true(took >= 0.03 and took < 1, took)
  end)

  it("waits inside pcall, metamethods, iterators and coroutines of its own on every Lua", function()
    local object = setmetatable({}, { __index = function() return sandbar.sleep(0.001) end })
    assert.same({ true, true }, { pcall(sandbar.sleep, 0.001) })
    assert.is_true(object.x)
    local turns = 0
    for ok in function(_, last) return not last and sandbar.sleep(0.001) or nil end do
      assert.is_true(ok)
      turns = turns + 1
    end
    assert.equal(1, turns)
    assert.is_true(coroutine.wrap(function() return sandbar.sleep(0.001) end)())
    table.sort({ 2, 1 }, function(a, b)
      assert.is_true(sandbar.sleep(0.001))
      return a < b
    end)
  end)

  it("is told when a wait can never end", function()
    local task
    task = sandbar.spawn(function()
      local other
      other = sandbar.spawn(function() return task:wait() end)
      return other:wait()
    end)
    local _, err = task:wait()
    assert.equal("CannotWait", err.kind)
    assert.truthy(err.message:find("no operation is under way", 1, true))
    task:cancel()
    sandbar.sleep(0)
  end)

  it("refuses times without a meaning and raises for what is no time", function()
    assert.equal("InvalidArgument", select(2, sandbar.sleep(-1)).kind)
    assert.equal("InvalidArgument", select(2, sandbar.sleep("60")).kind)
    assert.error_matches(function() sandbar.sleep() end, "bad argument #1 to 'sleep'")
  end)
end)

describe("a task", function()
  it("could never be started on Lua 5.1 once the scheduler had failed to load", function()
    local r = helper.run_lua [[
      local sandbar = require "sandbar"
      local name = "sandbar.host.scheduler"
      local carried = package.preload[name]
      package.preload[name] = function() error("too many open files\nfor now", 0) end
      local task, err = sandbar.spawn(function() end)
      print(task, err)
      package.preload[name] = carried
      print(sandbar.spawn(function() return "runs" end):wait())
    ]]
    assert.equal("nil\tspawn: tasks cannot be run: too many open files (CannotWait)\nruns\n", r.stdout)
    assert.equal("", r.stderr)
  end)
end)

describe("sandbar.run", function()
  it("returns what the function returned", function()
    assert.same({ 3, "x" }, { sandbar.run(function(a, b)
      sandbar.sleep(0.001)
      return a + b, "x"
    end, 1, 2) })
  end)

  it("raises what it raised and hands on nil and an error", function()
    assert.error_matches(function() sandbar.run(function() error("boom", 0) end) end, "boom")
    assert.same({ nil, "why" }, { sandbar.run(function() return nil, "why" end) })
  end)

  it("returns when every task has ended", function()
    local ended
    sandbar.run(function()
      sandbar.spawn(function()
        sandbar.sleep(0.005)
        ended = true
      end)
    end)
    assert.is_true(ended)
  end)

  it("inside a task is a plain call", function()
    assert.equal("x", sandbar.run(function() return sandbar.run(function() return "x" end) end))
  end)
end)

describe("sandbar.config", function()
  it("refuses what it does not know, and changes nothing then", function()
    assert.error_matches(function() sandbar.config { hots = "step" } end, "nearest known one is 'host'")
    local _, err = sandbar.config { host = "openresty" } -- taken, it broke at the next wait
    assert.equal("config: host 'openresty' works only inside nginx, which this is not (InvalidArgument)", tostring(err))
    assert.is_true(sandbar.sleep(0.001))
    _, err = sandbar.config { host = "toaster", drain = 1 }
    assert.equal("InvalidArgument", err.kind)
    assert.equal("InvalidArgument", select(2, sandbar.config { close_timeout = 0 }).kind)
    assert.equal("InvalidArgument", select(2, sandbar.config { drain = -1 }).kind)
    assert.is_true(sandbar.config { drain = 5, close_timeout = "30s", host = "blocking" })
  end)
end)

describe("loading sandbar", function()
  it("sets no global, starts no thread and needs no provider", function()
    local r = helper.run_lua([[
      local before = {}
      for k in pairs(_G) do before[k] = true end
      local sandbar = require "sandbar"
      for k in pairs(_G) do
        if not before[k] then print("global", k) end
      end
      print(package.loaded["sandbar.provider"], sandbar.version)
      local f = assert(io.open("/proc/self/status"))
      print(f:read("*a"):match("Threads:%s*(%d+)"))
    ]])
    assert.equal("nil\t" .. core.VERSION .. "\n1\n", r.stdout .. r.stderr)
  end)

  it("runs the tasks that something started in the middle of a wait without any", function()
    local r = helper.run_lua([[
      local sandbar = require "sandbar"
      debug.sethook(function() -- stands for the handler of a signal
        if debug.getinfo(2, "n").name == "await" then
          debug.sethook()
          sandbar.spawn(function() sandbar.sleep(0.001) print "ran" end)
        end
      end, "c")
      print("slept", sandbar.sleep(1.5))
    ]])
    assert.equal("ran\nslept\ttrue\n", r.stdout)
    assert.equal("", r.stderr)
  end)

  it("works in a coroutine that dies", function()
    local r = helper.run_lua([[
      local sandbar
      coroutine.wrap(function() sandbar = require "sandbar" end)()
      collectgarbage() collectgarbage()
      print(sandbar.sleep(0.001), sandbar.scope(function(s) s:defer(print) return "x" end) ~= nil)
    ]])
    assert.matches("true%s+true\n$", r.stdout)
    assert.equal("", r.stderr)
  end)
end)

describe("Ctrl-C", function()
  local function interrupted(code)
    local child = helper.start_lua(code, { timeout = 20 })
    assert.equal("ready", child:line())
    assert(helper.eventually(function() return helper.proc.stat(child.pid).state == "S" end))
    child:signal("INT")
    local r = child:wait()
    assert.is_true(r.seconds < 5, "it took " .. r.seconds)
    return r
  end

  it("raises out of a wait, and the scopes on the way are closed", function()
    local r = interrupted([[
      local sandbar = require "sandbar"
      sandbar.scope(function(scope)
        scope:defer(function(exit)
          sandbar.sleep(0.001)
          print("closed", exit.ok, exit.reasons[1].type)
        end)
        print "ready" io.stdout:flush()
        sandbar.sleep(60)
        print "slept"
      end)
    ]])
    assert.equal("ready\nclosed\tfalse\tdefect\n", r.stdout)
    assert.matches("interrupted!", r.stderr)
    assert.equal(1, r.code)
  end)

  it("ends spawned tasks with their scopes", function()
    local r = interrupted([[
      local sandbar = require "sandbar"
      sandbar.scope(function(scope)
        scope:spawn(function()
          return sandbar.scope(function(inner)
            inner:defer(function(exit) print("task closed", exit.reasons[1].type) end)
            return sandbar.sleep(60)
          end)
        end)
        sandbar.sleep(0)
        print "ready" io.stdout:flush()
        sandbar.sleep(60)
      end)
    ]])
    assert.equal("ready\ntask closed\tinterrupted\n", r.stdout)
    assert.matches("interrupted!", r.stderr)
  end)

  it("ends what sandbar.run runs, with time to clean up", function()
    local r = interrupted([[
      local sandbar = require "sandbar"
      sandbar.run(function()
        return sandbar.scope(function(scope)
          scope:defer(function() sandbar.sleep(0.001) print("cleaned up") end)
          print "ready" io.stdout:flush()
          return sandbar.sleep(60)
        end)
      end)
    ]])
    assert.equal("ready\ncleaned up\n", r.stdout)
    assert.matches("interrupted!", r.stderr)
  end)

  it("ends the program with clean-up when it comes while a task computes, whoever it is raised in", function()
    for _ = 1, 20 do
      local child = helper.start_lua([[
        local sandbar = require "sandbar"
        sandbar.run(function()
          sandbar.spawn(function() while sandbar.sleep(0.0003) do end end)
          return sandbar.scope(function(scope)
            scope:defer(function() sandbar.sleep(0.001) print("cleaned up") end)
            print "ready" io.stdout:flush()
            local n = 0
            repeat n = n + 1 until n % 100000 == 0 and not sandbar.sleep(0)
          end)
        end)
      ]], { timeout = 20 })
      assert.equal("ready", child:line())
      child:signal("INT")
      local r = child:wait()
      assert.is_falsy(r.timed_out)
      assert.equal("ready\ncleaned up\n", r.stdout)
      assert.matches("interrupted!", r.stderr)
    end
  end)

  -- The hook of a real Ctrl-C raises between any two instructions, here at every seventh of some rounds.
  it("loses no finalizer, no task and not itself, wherever in a running program it hits", function()
    local r = helper.run_lua([[
      local sandbar = require "sandbar"
      if jit then jit.off() end -- compiled code looks at no hook
      local in_tasks = rawget(_G, "jit") ~= nil -- the others raise in the main program
      sandbar.run(sandbar.all, {}) -- everything is loaded
      local function arm(k)
        debug.sethook(function() debug.sethook() error("interrupted!", 0) end, "", k)
      end
      for k = 1, 9000, 7 do
        local deferred, cleaned = false, false
        local function rounds()
          sandbar.spawn(function() while sandbar.sleep(0.0003) do end end)
          return sandbar.scope(function(scope)
            deferred = true
            scope:defer(function() sandbar.sleep(0.0001) cleaned = true end)
            if in_tasks then arm(k) end
            for _ = 1, 500 do
              if not sandbar.sleep(0) then break end
              local other = scope:spawn(function() return sandbar.sleep(0) end)
              local got, why = sandbar.all {
                function() return sandbar.sleep(0.00001) end,
                function() return other:wait() end,
              }
              if not got then error(why, 0) end
              sandbar.scope({ parallel = k % 2 == 0 }, function(inner)
                inner:defer(function() sandbar.sleep(0) end)
                inner:spawn(sandbar.sleep, 1)
                return true
              end)
            end
          end)
        end
        local ok, err = pcall(function()
          if not in_tasks then arm(k) end
          return sandbar.run(rounds)
        end)
        debug.sethook()
        if ok or not tostring(err):find("interrupted!$") or cleaned ~= deferred then
          print(k, ok, err, deferred, cleaned)
        end
      end
      print "done"
    ]], { timeout = 60 })
    assert.equal("done\n", r.stdout)
    assert.equal("", r.stderr)
  end)

  it("can be caught, and waits work afterwards", function()
    local r = interrupted([[
      local sandbar = require "sandbar"
      sandbar.spawn(function() print "ready" io.stdout:flush() end) -- runs inside of the wait
      local ok, err = pcall(sandbar.sleep, 60)
      print(ok, tostring(err):match("interrupted!"), sandbar.sleep(0.001), sandbar.pending())
    ]])
    assert.equal("ready\nfalse\tinterrupted!\ttrue\t0\n", r.stdout)
    assert.equal(0, r.code)
  end)
end)
