-- check: only 5.4
-- check: limit 600
-- Processes killed at any moment: a sandbox's pid 1, the supervisor, the program, all of them in any order. Every
-- call ends, with a result or a typed error, what it says is so, and nothing is left.
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local core = require "sandbar.core"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local PRELUDE = faults.PRELUDE
local kill, supervisor, typed, with_root = faults.kill, faults.supervisor, faults.typed, faults.with_root

describe("kill -9 of", function()
  helper.guard { seconds = 25 } -- a supervisor that its caller no longer needs waits for one 5 s

  local sandboxes = helper.open()

  describe("pid 1", function()
    it("fails what is open with typed errors, and the state says so with its cause", function()
      helper.need_root() -- an ordinary user has no right over a process of his sub-ids
      for _ = 1, inside.times(3) do
        local box = sandbar.assert(sandboxes:create { id = "hurt" })
        sandbar.assert(box.files:write("f", "data"))
        local p = sandbar.assert(box:start({ "cat", "/dev/fd/0", "mark.8181" }, { stdin = "pipe" }))
        local file = sandbar.assert(box.files:open("f"))
        local pid = assert(inside.pid1("mark.8181"))
        local results = sandbar.assert(sandbar.all {
          function() return { box:exec("sleep 60") } end,
          function() return { box:exec("sleep 60", { on_output = function() end }) } end,
          function() return { p:wait { timeout = 20 } } end,
          function() return { true, p.stdout:read("l", { timeout = 20 }) } end, -- its end, or an error
          function()
            sandbar.sleep(0.05)
            assert(kill(pid))
            return {}
          end,
        })
        for i = 1, 3 do
          assert.is_nil(results[i][1])
          typed(results[i][2], "operation " .. i)
          assert.is_not.equal("Timeout", results[i][2].kind)
        end
        assert.is_nil(results[4][2])
        if results[4][3] then
          typed(results[4][3])
        end
        local info
        assert.is_truthy(helper.eventually(function()
          info = sandbar.assert(sandboxes:info("hurt"))
          return info.state == "failed"
        end), "it is " .. tostring(info.state))
        assert.is_truthy(info.cause, "no cause is told")
        local r, err = box:exec("true")
        assert.is_nil(r)
        assert.equal("NotRunning", typed(err))
        r, err = p.stdin:write("x")
        assert.is_nil(r)
        typed(err)
        file:close()
        sandbar.assert(sandboxes:destroy("hurt"))
        p:close()
        box:close()
      end
    end)

    it("leaves nothing of a scoped sandbox", function()
      helper.need_root()
      local box = sandbar.assert(sandboxes:create_scoped {})
      sandbar.assert(box:start { "sleep", "8282.8282" })
      assert(kill(assert(inside.pid1("8282.8282"))))
      local r, err = box:exec("true", { timeout = 10 })
      assert.is_nil(r)
      typed(err)
      box:close()
      assert.equal("NotFound", select(2, sandboxes:info(box.id)).kind)
    end)
  end)

  describe("the supervisor", function()
    it("between two calls does not matter to the next ones", function()
      for _ = 1, inside.times(5) do
        local box = sandbar.assert(sandboxes:create { id = "calm" })
        local scoped = sandbar.assert(sandboxes:create_scoped { id = "scoped" })
        local calls = {
          function() return box:exec("true") end,
          function() return scoped:exec("true") end,
          function() return sandboxes:info("calm") end,
          function() return sandboxes:list() end,
          function() return sandboxes:create { id = "second" } end,
          function() return sandboxes:destroy("second") end,
          function() return box:set_lifetime(100) end,
          function() return box:pause { keep = "disk" } end,
          function() return box:resume() end,
          function() return box:exec("true") end,
          function() return scoped:destroy() end,
          function() return box:destroy() end,
        }
        for i, call in ipairs(calls) do
          local pid = supervisor()
          if pid then
            kill(pid)
            assert.is_truthy(helper.eventually(function() return not helper.proc.alive(pid) end))
          end
          local value, err = call()
          assert.is_truthy(value, ("call %d: %s"):format(i, tostring(err)))
          if type(value) == "userdata" then
            value:close()
          end
        end
        assert.same({}, sandbar.assert(sandboxes:list()))
        box:close()
        scoped:close()
      end
    end)

    -- It has the request, and answers no more.
    it("that does not answer is nothing its caller notices", function()
      local box = sandbar.assert(sandboxes:create { id = "calm" })
      local calls = {
        function() return sandboxes:create { id = "second" } end,
        function() return box:set_lifetime(100) end,
        function() return box:port(80):expose() end,
        function() return sandboxes:info("second") end,
        function() return sandboxes:list() end,
        function() return sandboxes:destroy("second") end,
        function() return sandboxes:create_scoped { id = "scoped" } end,
        function() return box:pause { keep = "disk" } end,
        function() return box:resume() end,
        function() return box:destroy() end,
      }
      for i, call in ipairs(calls) do
        local pid
        assert.is_truthy(helper.eventually(function()
          sandbar.assert(sandboxes:list())
          pid = supervisor()
          return pid and helper.shell("kill -STOP " .. pid) == ""
        end))
        local results = sandbar.assert(sandbar.all {
          function() return { call() } end,
          function()
            sandbar.sleep(0.05)
            assert(kill(pid))
            return {}
          end,
        })
        assert.is_truthy(results[1][1], ("call %d: %s"):format(i, tostring(results[1][2])))
        if type(results[1][1]) == "userdata" then
          results[1][1]:close()
        end
      end
      assert.same({}, sandbar.assert(sandboxes:list()))
      box:close()
    end)

    it("a create that comes again with its token finds what it made, or makes it", function()
      local engine = core.engine { root = helper.root(), linger = 0 }
      local function create(token)
        local r, err = wait.op(engine:create { id = "asked", token = token, template = "base", lifetime_ms = 60000 }, 20,
          "create")
        if r then
          r.release:cancel()
          r.object:close()
        end
        return r and r.fields.boot, err
      end
      local function destroy(token)
        return sandbar.assert(wait.op(engine:request("destroy", { id = "asked", token = token }), 20, "destroy"))
      end
      local boot = sandbar.assert(create("first"))
      assert.equal(boot, sandbar.assert(create("first")))
      assert.equal("AlreadyExists", select(2, create("second")).kind)
      assert.equal("AlreadyExists", select(2, sandboxes:create { id = "asked" }).kind)
      destroy("second") -- what that one made is gone, since there is another
      assert.equal("running", sandbar.assert(sandboxes:info("asked")).state)

      kill(supervisor())
      assert.equal(boot, sandbar.assert(create("first")))

      local box = sandbar.assert(sandboxes:connect("asked"))
      sandbar.assert(sandbar.assert(box:start { "sleep", "8686.8686" }):detach())
      local pid1
      assert.is_truthy(helper.eventually(function()
        pid1 = inside.pid1("8686.8686")
        return pid1
      end))
      box:close()
      helper.shell(("kill -9 %d %d"):format(supervisor(), pid1))
      local again, err
      assert.is_truthy(helper.eventually(function() -- the dead one may be on its way out still
        again, err = create("first")
        return again or err.kind ~= "Unavailable" and err.kind ~= "NotFound"
      end))
      assert.is_truthy(again, tostring(err))
      assert.is_not.equal(boot, again)
      destroy("first")
      assert.equal("NotFound", select(2, sandboxes:info("asked")).kind)
    end)

    it("at any moment leaves sandboxes whole or gone, and the next call works", function()
      with_root(function(root, own)
        sandbar.assert(own:list()) -- the lock file is there once a supervisor has run
        local killer = helper.start_lua([[
          local inode = io.popen("stat -c %i " .. arg[1] .. "/v1/life.lock"):read("l")
          local seed, rounds = tonumber(arg[2]), tonumber(arg[3])
          math.randomseed(seed)
          print("ready")
          io.stdout:flush()
          local killed = 0
          for _ = 1, rounds do
            os.execute("sleep " .. math.random() * 0.15)
            for line in io.lines("/proc/locks") do
              local pid, of = line:match("^%d+: FLOCK%s+%S+%s+WRITE%s+(%d+) %x+:%x+:(%d+) ")
              if of == inode and os.execute("kill -9 " .. pid .. " 2>/dev/null") then killed = killed + 1 end
            end
          end
          print(killed)
        ]], { args = { root, os.time(), inside.times(30) }, timeout = 200 })
        local line = killer:line()
        while line == nil do
          line = killer:line()
        end
        local n, unknown = 0, 0
        local over
        -- Of what is asked of a supervisor the outcome is always known: only a command's may not be.
        local function note(value, err)
          if value == nil then
            local kind = typed(err, "in the loop")
            assert.is_not.equal("Timeout", kind, tostring(err))
            unknown = unknown + (kind == "OutcomeUnknown" and 1 or 0)
          end
          return value, err
        end
        local function known(value, err)
          assert.is_not.equal("OutcomeUnknown", err and err.kind, tostring(err))
          return note(value, err)
        end
        repeat
          n = n + 1
          local id = "b" .. n
          local box = known(own:create { id = id, lifetime = 300, labels = { n = tostring(n) } })
          if box then
            note(box:exec("echo kept >f", { timeout = 20 }))
            known(box:set_lifetime(400, { timeout = 20 }))
            if n % 2 == 0 then
              known(box:pause { keep = "disk", timeout = 20 })
            end
            if n % 3 ~= 0 and known(box:destroy { timeout = 20 }) then
              assert.equal("NotFound", typed(select(2, own:info(id)), id))
            end
            box:close()
          else
            assert.equal("NotFound", typed(select(2, own:info(id)), id .. " was not made"))
          end
          over = not helper.proc.alive(killer.pid)
        until over or n > 2000
        local record = killer:wait()
        assert.is_true(record.ok, record.stderr)
        assert.is_true(tonumber(record.stdout:match("(%d+)%s*$")) > 3, "too few were killed: " .. record.stdout)
        for _, info in ipairs(sandbar.assert(own:list())) do
          local where = info.id .. " is " .. info.state
          if info.state == "running" or info.state == "paused" then
            local box = sandbar.assert(own:connect(info.id, { resume = true }), where)
            local r, err = box:exec("true", { timeout = 20 })
            assert.is_truthy(r and r.ok, where .. ": " .. tostring(err))
            box:close()
          else
            assert.equal("failed", info.state, where)
            assert.is_truthy(sandbar.assert(own:info(info.id)).cause, where)
          end
          sandbar.assert(own:destroy(info.id))
        end
        assert.is_true(unknown < n)
        for name in lfs.dir(root .. "/v1/s") do
          assert.is_truthy(name:sub(1, 1) == ".", "left over: " .. name)
        end
      end)
    end)
  end)

  describe("the program", function()
    it("ends what is scoped, keeps what is not, and drains its processes", function()
      for _ = 1, math.min(inside.times(3), 50) do
        local child = helper.start_lua(PRELUDE .. [[
          local scoped = sandbar.assert(sandboxes:create_scoped { id = "scoped" })
          local kept = sandbar.assert(sandboxes:create { id = "kept" })
          sandbar.assert(scoped:start { "sleep", "8383" })
          -- Both would wedge on a full pipe if nobody took what they write.
          local p = sandbar.assert(kept:start("head -c 3000000 /dev/zero | tr '\\0' x; echo last words", { tag = "piped" }))
          sandbar.assert(kept:start("head -c 3000000 /dev/zero; echo >done; sleep 8484", { stdout = "tail" }))
          sandbar.assert(p.stdout:read(10))
          local f = sandbar.assert(kept.files:open("f", "w"))
          sandbar.assert(f:write("half"))
          sandbar.spawn(function() kept:exec("sleep 8585") end)
          sandbar.spawn(function() kept.files:write("never", function() sandbar.sleep(60) return "x" end) end)
          sandbar.sleep(0.1)
          say("ready")
          sandbar.sleep(60)
        ]], { args = { helper.root() } })
        assert.equal("ready", child:line())
        child:signal("KILL")
        child:wait()
        assert.is_truthy(helper.eventually(function()
          return select(2, sandboxes:info("scoped")) ~= nil
        end), "the scoped sandbox lives on")
        local kept = sandbar.assert(sandboxes:connect("kept"))
        assert.equal("running", kept.state)
        assert.is_truthy(helper.eventually(function()
          return kept.files:exists("done")
        end), "a process wedged")
        assert.is_truthy(helper.eventually(function()
          for _, entry in ipairs(sandbar.assert(kept:processes())) do
            if entry.tag == "piped" and entry.running then
              return nil
            end
          end
          return true
        end), "the process whose pipe nobody reads wedged")
        local p = sandbar.assert(kept:attach { tag = "piped" })
        assert.equal(0, sandbar.assert(p:wait { timeout = 10 }).exit_code)
        assert.equal("xlast words\n", sandbar.assert(p.stdout:read("a", { timeout = 10 })):sub(-12))
        p:close()
        assert.is_false((kept.files:exists("never")))
        assert.equal("half", kept.files:read("f"))
        assert.is_truthy(helper.eventually(function()
          for _, entry in ipairs(sandbar.assert(kept.files:list("."))) do
            if entry.name:find("^%.sb%-") then
              return nil
            end
          end
          return true
        end))
        sandbar.assert(kept:destroy())
        kept:close()
      end
    end)
  end)
end)
