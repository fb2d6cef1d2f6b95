-- check: only 5.4
-- check: limit 900
-- Processes killed at any moment: a sandbox's pid 1, the supervisor, the program, all of them in any order. Every
-- call ends, with a result or a typed error, what it says is so, and nothing is left.
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local core = require "sandbar.core"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local PRELUDE, let_go, mark = faults.PRELUDE, faults.let_go, helper.mark
local kill, supervisor, typed, with_root = faults.kill, faults.supervisor, faults.typed, faults.with_root

describe("kill -9 of", function()
  helper.guard { seconds = 25 } -- a supervisor that its caller no longer needs waits for one 5 s

  local sandboxes = helper.open()

  -- A command has its arguments a moment after it was started.
  local function pid1_of(word)
    local pid = helper.eventually(function() return inside.pid1(word) end)
    assert.is_truthy(pid, "no pid 1 above " .. word)
    return pid
  end

  describe("pid 1", function()
    it("fails what is open with typed errors, and the state says so with its cause", function()
      for _ = 1, inside.times(3) do
        local box = sandbar.assert(sandboxes:create { id = "hurt" })
        sandbar.assert(box.files:write("f", "data"))
        local p = sandbar.assert(box:start({ "cat", "/dev/fd/0", mark(8181) }, { stdin = "pipe" }))
        local file = sandbar.assert(box.files:open("f"))
        local pid = pid1_of(mark(8181))
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
      local box = sandbar.assert(sandboxes:create_scoped {})
      sandbar.assert(box:start { "sleep", mark(8282) })
      assert(kill(pid1_of(mark(8282))))
      local r, err = box:exec("true", { timeout = 10 })
      assert.is_nil(r)
      typed(err)
      box:close()
      assert.equal("NotFound", select(2, sandboxes:info(box.id)).kind)
    end)
  end)

  describe("the supervisor", function()
    it("between two calls does not matter to the next ones", function()
      for _ = 1, math.min(inside.times(3), 17) do -- 12 kills a round
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

    it("that was destroying a sandbox leaves none that has failed", function()
      local box = sandbar.assert(sandboxes:create { id = "half-gone" })
      sandbar.assert(sandbar.assert(box:start { "sleep", mark(8787) }):detach())
      local pid1, pid = pid1_of(mark(8787)), supervisor()
      let_go(box, sandboxes)
      helper.shell(("kill -9 %d %d"):format(pid, pid1))
      assert.is_truthy(helper.eventually(function()
        return not helper.proc.alive(pid) and not helper.proc.alive(pid1)
      end))
      assert(os.remove(helper.root() .. "/v1/s/half-gone/record")) -- the first thing a destruction does
      assert.same({}, sandbar.assert(sandboxes:list()))
    end)

    it("in the middle of a pause: listed as paused ever after, never as running again", function()
      for _ = 1, inside.times(4) do
        local box = sandbar.assert(sandboxes:create { id = "stops" })
        local p = sandbar.assert(box:start("trap 'echo told; sleep 60' TERM; echo ready; while :; do sleep 60 & wait; done"))
        assert.equal("ready", p.stdout:read("l", { timeout = 20 }))
        local pid, listed = supervisor(), nil
        local results = sandbar.assert(sandbar.all {
          function() return { box:pause { keep = "disk", timeout = 20 } } end,
          function()
            assert.equal("told", p.stdout:read("l", { timeout = 20 })) -- by then the disk says that it is paused
            assert(kill(pid))
            listed = sandbar.assert(sandboxes:list())[1].state
            return {}
          end,
        })
        assert.is_truthy(results[1][1], tostring(results[1][2]))
        assert.equal("paused", listed)
        assert.equal("paused", sandbar.assert(sandboxes:info("stops")).state)
        p:close()
        sandbar.assert(box:destroy())
        box:close()
      end
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
      sandbar.assert(sandbar.assert(box:start { "sleep", mark(8686) }):detach())
      local pid1 = pid1_of(mark(8686))
      let_go(box, sandboxes)
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
        local notes = helper.dir("notes")
        local killer = helper.start_lua([[
          local inode = io.popen("stat -c %i " .. arg[1] .. "/v1/life.lock"):read("l")
          local seed, rounds = tonumber(arg[2]), tonumber(arg[3])
          math.randomseed(seed)
          local function note(name)
            local f = assert(io.open(arg[4] .. "/" .. name, "a"))
            f:write("x")
            f:close()
          end
          print("ready")
          io.stdout:flush()
          local killed = 0
          for _ = 1, rounds do
            os.execute("sleep " .. math.random() * 0.15)
            for line in io.lines("/proc/locks") do
              local pid, of = line:match("^%d+: FLOCK%s+%S+%s+WRITE%s+(%d+) %x+:%x+:(%d+) ")
              if of == inode then
                note "begun"
                killed = killed + (os.execute("kill -9 " .. pid .. " 2>/dev/null") and 1 or 0)
                note "done"
              end
            end
          end
          print(killed)
        ]], { args = { root, os.time(), inside.times(30), notes }, timeout = 200 })
        local line = killer:line()
        while line == nil do
          line = killer:line()
        end
        local n, unknown = 0, 0
        local over
        local function note(value, err)
          if value == nil then
            local kind = typed(err, "in the loop")
            assert.is_not.equal("Timeout", kind, tostring(err))
            unknown = unknown + (kind == "OutcomeUnknown" and 1 or 0)
          end
          return value, err
        end
        local function kills(how)
          return lfs.attributes(notes .. "/" .. how, "size") or 0
        end
        -- One request goes to four supervisors; on a busy machine all of them may be killed before they answer. The third
        -- result: how many were killed meanwhile, one too many where the killer was at it in the last moment.
        local function struck(fn)
          local before = kills("done")
          local value, err = fn()
          return value, err, kills("begun") - before
        end
        -- Else the outcome of what is asked of a supervisor is always known: only a command's may not be. The first of
        -- the four may have been killed just before.
        local function known(object, method, ...)
          local given = { n = select("#", ...), ... }
          local value, err, killed = struck(function() return object[method](object, table.unpack(given, 1, given.n)) end)
          assert.is_true(not (err and err.kind == "OutcomeUnknown") or killed >= 3,
            ("%d kills under it: %s"):format(killed, tostring(err)))
          return note(value, err)
        end
        local function is_gone(id)
          local info, err, killed
          repeat
            info, err, killed = struck(function() return own:info(id) end)
          until info or err.kind ~= "Unavailable" or killed == 0
          assert.equal("NotFound", typed(err, id), id .. " is still there")
        end
        repeat
          n = n + 1
          local id = "b" .. n
          local box, err = known(own, "create", { id = id, lifetime = 300, labels = { n = tostring(n) } })
          if box then
            note(box:exec("echo kept >f", { timeout = 20 }))
            known(box, "set_lifetime", 400, { timeout = 20 })
            if n % 2 == 0 then
              known(box, "pause", { keep = n % 4 == 0 and "memory" or "disk", timeout = 20 })
            end
            if n % 8 < 2 then
              known(box, "resume", { timeout = 20 })
              note(box:exec("echo kept >>f", { timeout = 20 }))
            end
            if n % 5 == 0 then
              note(box:snapshot("s" .. n, { timeout = 20 })) -- not asked for twice: its name would be taken
            end
            if n % 3 ~= 0 and known(box, "destroy", { timeout = 20 }) then
              is_gone(id)
            end
            box:close()
          elseif err.kind ~= "OutcomeUnknown" then
            is_gone(id)
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
        for _, one in ipairs(sandbar.assert(own.snapshots:list())) do
          local box = sandbar.assert(own:create { id = "copy", snapshot = one.name })
          assert.is_true(sandbar.assert(box:exec("test -f f", { timeout = 20 })).ok, one.name)
          sandbar.assert(box:destroy())
          box:close()
          sandbar.assert(own.snapshots:delete(one.name))
        end
        for _, where in ipairs { "s", "n", "l" } do
          for name in lfs.dir(root .. "/v1/" .. where) do
            assert.is_truthy(name:sub(1, 1) == ".", ("left over: %s/%s"):format(where, name))
          end
        end
      end)
    end)

    it("in the middle of fork(n) leaves each copy whole or gone, and the original as it was", function()
      with_root(function(root, own)
        local box = sandbar.assert(own:create { id = "source", lifetime = 300 })
        sandbar.assert(box:exec("for i in 1 2 3 4 5; do echo $i >f$i; done"))
        for round = 1, inside.times(3) do
          if round % 3 == 0 then
            sandbar.assert(box:pause { keep = "disk" })
          end
          local results = sandbar.assert(sandbar.all {
            function() return { box:fork(4, { timeout = 20 }) } end,
            function()
              sandbar.sleep(0.002 + (round * 7 % 50) / 1000)
              local pid = supervisor(root)
              if pid then kill(pid) end
              return {}
            end,
          })
          local copies, err = results[1][1], results[1][2]
          if not copies then
            assert.is_not.equal("Timeout", typed(err, "fork"), tostring(err))
          end
          for _, copy in ipairs(copies or {}) do
            copy:close()
          end
          local n = 0
          for _, info in ipairs(sandbar.assert(own:list())) do
            if info.id ~= "source" then
              n = n + 1
              local copy = sandbar.assert(own:connect(info.id, { resume = true }))
              assert.equal("1\n2\n3\n4\n5\n", sandbar.assert(copy:exec("cat f?", { timeout = 20 })).stdout)
              sandbar.assert(copy:destroy())
              copy:close()
            end
          end
          assert.is_true(copies == nil or n == 4, n .. " copies")
          if box:info().state == "paused" then
            sandbar.assert(box:resume())
          end
          assert.equal("5\n", sandbar.assert(box:exec("cat f5", { timeout = 20 })).stdout)
        end
        assert.same({}, sandbar.assert(own.snapshots:list()))
        sandbar.assert(box:destroy())
        box:close()
      end)
    end)
  end)

  describe("who builds a template,", function()
    local BUILD = PRELUDE .. [[
      say("begun")
      local built, err = sandboxes.templates:build { name = "kept", network = "deny",
        steps = { { run = "echo " .. arg[2] .. " >/tmp/which" }, { env = { A = arg[2] } }, { run = "head -c 1M /dev/zero >/tmp/much" } } }
      say(built and "built" or err.kind)
    ]]

    it("its supervisor or both, at any step, leave the old template or the new one, and nothing in between", function()
      with_root(function(root, own)
        local function which()
          local box = sandbar.assert(own:create_scoped { template = "kept" })
          local text = sandbar.assert(box:exec("cat /tmp/which; test ! -e /tmp/much || wc -c </tmp/much", { timeout = 20 })).stdout
          box:destroy()
          return text
        end
        local function build(text)
          sandbar.assert(own.templates:build { name = "kept", network = "deny", steps = { { run = "echo " .. text .. " >/tmp/which" },
            { env = { A = text } }, { run = "head -c 1M /dev/zero >/tmp/much" } } })
        end
        build("0")
        local now = "0\n1048576\n"
        for round = 1, math.min(inside.times(3), 60) do
          local child = helper.start_lua(BUILD, { args = { root, tostring(round) }, timeout = 40 })
          assert.equal("begun", child:line())
          sandbar.sleep((round * 37 % 250) / 1000)
          local pid = round % 3 ~= 1 and supervisor(root) or nil
          if round % 3 ~= 0 then
            child:signal("KILL")
          end
          if pid then
            kill(pid)
          end
          local said = child:wait().stdout:match("begun\n(%u%l+%a*)\n")
          if said then -- and why not
            typed({ kind = said }, "build")
            assert.is_not.equal("Timeout", said)
          end
          assert.is_truthy(helper.eventually(function()
            return #sandbar.assert(own:list()) == 0
          end, 15), "a build's sandbox is left")
          local new = ("%d\n1048576\n"):format(round)
          local there = which()
          assert.is_true(there == now or there == new, there)
          build(tostring(round))
          now = new
          assert.equal(new, which())
        end
        sandbar.assert(own.templates:delete("kept"))
        assert.is_truthy(helper.eventually(function()
          sandbar.assert(own.templates:list())
          local left = ""
          for _, where in ipairs { "s", "n", "m" } do -- what a step has made is kept for the next build
            for name in lfs.dir(root .. "/v1/" .. where) do
              left = left .. (name:find("^[.=]") and "" or where .. "/" .. name .. " ")
            end
          end
          return left == "", left
        end))
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

  -- A program with a scoped and a kept sandbox, a command in each, on a state root of its own; it ends with its
  -- scope when its input does. Gives the processes.
  local function program(root, word)
    local gate = helper.scratch() .. "/gate"
    helper.shell("rm -f " .. gate .. "; mkfifo " .. gate)
    local child = helper.start_lua(PRELUDE .. [[
      sandbar.scope(function(scope)
        local scoped = sandbar.assert(sandboxes:create_scoped({ id = "scoped" }, scope))
        local kept = sandbar.assert(sandboxes:create { id = "kept" })
        sandbar.assert(scoped:start { "sleep", arg[2] .. "1" })
        sandbar.assert(kept:start { "sleep", arg[2] .. "2" }):detach()
        sandbar.assert(kept.files:write("f", "kept"))
        say("up")
        io.open(arg[3]):read("a")
      end)
      say("over")
    ]], { args = { root, word, gate } })
    assert.equal("up", child:line())
    return {
      program = child.pid, supervisor = assert(supervisor(root)), scoped = pid1_of(word .. "1"),
      kept = pid1_of(word .. "2"), child = child, gate = assert(io.open(gate, "w")),
    }
  end

  -- The control group of a state root (as root): named for its device and inode.
  local function groups_of(root)
    local st = lfs.attributes(root)
    local hash = 0xcbf29ce484222325 -- FNV-1a
    for byte in ("<I8I8"):pack(st.dev, st.ino):gmatch(".") do
      hash = (hash ~ byte:byte()) * 0x100000001b3
    end
    return helper.shell(("find /sys/fs/cgroup -maxdepth 2 -name sandbar-%016x"):format(hash))
  end

  local function nothing_left(root, what)
    local left
    local clean = helper.eventually(function()
      left = groups_of(root) .. (inside.supervisor(root) and " its supervisor" or "")
      for _, stat in pairs(helper.proc.of_dir(root)) do
        left = left .. " process " .. stat.pid .. " " .. stat.name
      end
      for _, part in ipairs { "s", "p", "trash" } do
        for name in lfs.dir(root .. "/v1/" .. part) do
          left = left .. (name:match("^%.%.?$") and "" or " " .. part .. "/" .. name)
        end
      end
      left = left .. table.concat(helper.proc.mounts(root), " ")
      return left == ""
    end, 15)
    assert.is_truthy(clean, what .. " leaves " .. tostring(left))
  end

  describe("everything:", function()
    local function orders(names)
      if #names == 1 then
        return { names }
      end
      local all = {}
      for i, name in ipairs(names) do
        local rest = {}
        for k, other in ipairs(names) do
          rest[#rest + 1] = k ~= i and other or nil
        end
        for _, order in ipairs(orders(rest)) do
          table.insert(order, 1, name)
          all[#all + 1] = order
        end
      end
      return all
    end

    -- What the next supervisor finds.
    local function check(own, at, killed, what)
      local kept, err
      assert.is_truthy(helper.eventually(function()
        kept, err = own:connect("kept", { timeout = 20 })
        return kept and (not killed.kept or kept.state == "failed")
      end), what .. ": kept is " .. tostring(kept and kept.state or err))
      if killed.kept then
        assert.equal("pid1", sandbar.assert(kept:info()).cause.reason, what)
        sandbar.assert(kept:resume())
      end
      assert.equal("kept", sandbar.assert(kept.files:read("f")), what)
      sandbar.assert(kept:destroy())
      kept:close()
      if not killed.program then -- its scoped sandbox lives on, or can be seen to have failed, until its scope ends
        assert.is_truthy(helper.eventually(function()
          return sandbar.assert(own:info("scoped")).state == (killed.scoped and "failed" or "running")
        end), what)
        assert.equal(killed.scoped and "pid1" or nil, (sandbar.assert(own:info("scoped")).cause or {}).reason, what)
      end
      at.gate:close()
      local record = at.child:wait()
      assert.equal(killed.program and "up\n" or "up\nover\n", record.stdout, what .. ": " .. record.stderr)
      local info
      assert.is_truthy(helper.eventually(function()
        info, err = own:info("scoped")
        return err and err.kind == "NotFound"
      end), ("%s: the scoped sandbox is %s: %s"):format(what, info and info.state or err, info and info.cause and info.cause.message))
    end

    it("the program, the supervisor and pid 1, any of them in any order, leave nothing", function()
      local set = { "program", "supervisor", "pid 1" }
      local word = 8700
      -- In check-long also one by one, and with a look after each: a supervisor takes a moment to leave.
      local long = inside.times(1) > 1
      local function one_case(root, own, order, one_by_one)
        local what = table.concat(order, ", ") .. (one_by_one and ", each awaited" or ", at once")
        word = word + 1
        local at, killed, pids = program(root, mark(word)), {}, {}
        for _, name in ipairs(order) do
          for _, which in ipairs(name == "pid 1" and { "scoped", "kept" } or { name }) do
            killed[which] = true
            pids[#pids + 1] = at[which]
            if one_by_one then
              kill(at[which])
              assert.is_truthy(helper.eventually(function() return not helper.proc.alive(at[which]) end), what)
            end
          end
        end
        if not one_by_one then
          helper.shell("kill -9 " .. table.concat(pids, " "))
        end
        check(own, at, killed, what)
        for _, which in ipairs { "program", "scoped", "kept" } do
          assert.is_truthy(helper.eventually(function() return not helper.proc.alive(at[which]) end),
            ("%s: process %d (%s) is left"):format(what, at[which], which))
        end
        if long then
          nothing_left(root, what)
        end
      end
      with_root(function(root, own)
        for choice = 1, 2 ^ #set - 1 do
          local names = {}
          for i, name in ipairs(set) do
            names[#names + 1] = math.floor(choice / 2 ^ (i - 1)) % 2 == 1 and name or nil
          end
          for _, order in ipairs(orders(names)) do
            one_case(root, own, order, false)
            if long then
              one_case(root, own, order, true)
            end
          end
        end
        nothing_left(root, "all this")
      end)
    end)

    it("a scoped sandbox that is paused goes with its owner, whoever watches", function()
      for _, supervisor_too in ipairs { false, true } do
        with_root(function(root, own)
          local child = helper.start_lua(PRELUDE .. [[
            local box = sandbar.assert(sandboxes:create_scoped { id = "asleep" })
            sandbar.assert(box:pause { keep = "disk" })
            say("paused")
            sandbar.sleep(60)
          ]], { args = { root } })
          assert.equal("paused", child:line())
          if supervisor_too then
            kill(supervisor(root))
            assert.equal("paused", sandbar.assert(own:info("asleep")).state)
          end
          child:signal("KILL")
          child:wait()
          -- By the supervisor that is there: nobody asks.
          assert.is_truthy(helper.eventually(function()
            return lfs.attributes(root .. "/v1/s/asleep") == nil
          end), "it is still there")
          nothing_left(root, "its end")
        end)
      end
    end)

    it("the service that started the supervisor, by its control group, ends what is scoped and nothing else", function()
      helper.need_root()
      local mount = helper.shell("sed -n 's/^[^ ]* [^ ]* [^ ]* [^ ]* \\([^ ]*\\) .* - cgroup2 .*/\\1/p' /proc/self/mountinfo")
        :match("%S+")
      if not mount then
        helper.skip("there is no cgroup2 mount")
      end
      local service = mount .. "/spec-service-" .. helper.proc.self()
      finally(function()
        helper.shell("echo 1 >" .. service .. "/cgroup.kill")
        assert.is_truthy(helper.eventually(function() return lfs.rmdir(service) end), "its group is left")
      end)
      helper.sh("mkdir %s", service)
      with_root(function(root, own)
        local child = helper.start_lua([[
          local f = io.open(arg[3] .. "/cgroup.procs", "w")
          f:write("0")
          f:close()
        ]] .. PRELUDE .. [[
          local kept = sandbar.assert(sandboxes:create { id = "kept" })
          sandbar.assert(kept:start { "sleep", arg[2] }):detach()
          sandbar.assert(sandboxes:create_scoped { id = "scoped" })
          say("up")
          os.execute("exec sleep 1000")
        ]], { args = { root, mark(9090), service } })
        assert.equal("up", child:line())
        assert.is_true(sandbar.assert(own:capabilities()).survives_service_stop)
        local pid, pid1 = supervisor(root), pid1_of(mark(9090))
        helper.sh("echo 1 >%s/cgroup.kill", service)
        child:wait()
        assert.is_truthy(helper.eventually(function()
          return select(2, own:info("scoped")) and true
        end, 15))
        assert.equal(pid, supervisor(root))
        assert.equal(pid1, pid1_of(mark(9090)))
        local box = sandbar.assert(own:connect("kept"))
        assert.is_true(sandbar.assert(box:exec("true")).ok)
        box:close()
      end)
    end)

    it("groups of a state root that was removed under its killed supervisor go with the next one of any root", function()
      helper.need_root()
      if helper.shell("grep -c ' - cgroup2 ' /proc/self/mountinfo"):match("^0") then
        helper.skip("there is no cgroup2 mount")
      end
      local root = helper.dir("lost")
      helper.shell("chmod 700 " .. root)
      local lost = sandbar.assert(sandbar.open { root = root, linger = 0 })
      local box = sandbar.assert(lost:create {})
      sandbar.assert(sandbar.assert(box:start { "sleep", mark(8989) }):detach())
      local pid1, pid = pid1_of(mark(8989)), supervisor(root)
      local groups = groups_of(root) -- now: any other supervisor may sweep them once this one is dead
      assert.is_truthy(groups:find("sandbar-", 1, true), groups)
      let_go(box, lost)
      helper.shell(("kill -9 %d %d"):format(pid, pid1))
      assert.is_truthy(helper.eventually(function()
        return not helper.proc.alive(pid) and not helper.proc.alive(pid1)
      end))
      assert(helper.remove(root))
      assert(helper.eventually(function() -- its spares end a moment after it
        local events = helper.read_file(groups:match("[^\n]+") .. "/cgroup.events")
        return not events or events:find("populated 0", 1, true) -- or somebody else's supervisor was quicker
      end))
      with_root(function(_, own)
        sandbar.assert(own:list())
      end)
      assert.is_nil(lfs.attributes((groups:match("[^\n]+"))))
    end)
  end)
end)
