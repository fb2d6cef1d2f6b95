-- check: only 5.4
-- check: no asan
-- The part of the escape suite that is looked at from outside: what the inside does to the processes that serve it, to the
-- sandbox beside it, and to what the host keeps for it. And what the host itself does: odd callers, clocks that are set.
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local sandbar = require "sandbar"

local MIB = 1048576
local BOUND = 64 * MIB -- of a kept stream
local PROBE = inside.built "probe"

describe("seen from outside:", function()
  helper.guard { seconds = 20 }

  local sandboxes = helper.open()
  local can

  setup(function()
    can = sandbar.assert(sandboxes:capabilities())
  end)

  local function with_box(fn, spec)
    inside.with_box(sandboxes, fn, spec)
  end

  local function has_root(box)
    local r = box:exec({ "true" }, { user = "root" })
    return r ~= nil and r.ok
  end

  -- What a process has in memory, in bytes.
  local function resident(pid)
    return tonumber(helper.read_file(("/proc/%d/status"):format(pid)):match("VmRSS:%s*(%d+)")) * 1024
  end

  it("output that nobody takes is kept by nobody's memory", function()
    with_box(function(box)
      local mark = helper.mark(9191)
      local all, before = {}, nil
      for _, where in ipairs { "pipe", "tail", "ignore", "spool" } do
        all[#all + 1] = sandbar.assert(box:start("yes; : " .. mark, { stdout = where, stderr = "ignore" }))
      end
      local pid1 = assert(helper.eventually(function() return inside.pid1("yes; : " .. mark) end))
      local supervisor = inside.supervisor(helper.root())
      local at = helper.now()
      repeat
        local now = { resident(supervisor), resident(pid1) }
        before = before or now
        for i, name in ipairs { "the supervisor", "pid 1" } do
          assert.is_true(now[i] - before[i] < 4 * MIB, name .. " grew by " .. now[i] - before[i])
        end
        assert.is_true(sandbar.assert(box:exec { "true" }).ok)
      until helper.now() - at > 0.5
      for _, p in ipairs(all) do
        sandbar.assert(p:kill { signal = "KILL" })
        p:close()
      end
    end)
  end)

  it("who takes all the memory that he may is the only one to lose something", function()
    local hog = { "tail", "/dev/zero" }
    if not can.limit_memory then -- then the receipt says so, and there is no sandbox that only seems to have a limit
      assert.is_nil(sandbar.assert(sandboxes:explain {}).limit_memory)
      local box, err = sandboxes:create { limits = { memory = 32 * MIB } }
      assert.is_nil(box)
      assert.equal("Unsupported", err.kind)
      return
    end
    with_box(function(free) -- the defence is the limit
      assert.is_true(sandbar.assert(free:exec("head -c 48M /dev/zero | tail >/dev/null")).ok)
    end)
    with_box(function(beside)
      -- As much as a sandbox of the other kind may have.
      local holder = sandbar.assert(beside:start({ "sh", "-c", "head -c 20M /dev/zero | tail -c 20M | (read x; sleep 60)" }))
      with_box(function(box)
        for _ = 1, inside.times(1) do
          assert.equal("memory", sandbar.assert(box:exec("head -c 48M /dev/zero | tail >/dev/null; exit $?")).reason)
          assert.equal("memory", sandbar.assert(box:exec(hog)).reason)
          assert.is_true(sandbar.assert(beside:exec { "true" }).ok)
        end
        assert.equal("running", sandbar.assert(box:info()).state)
      end, { limits = { memory = 32 * MIB } })
      assert.equal("Timeout", select(2, holder:wait { timeout = 0 }).kind) -- it is there still
      sandbar.assert(holder:kill { signal = "KILL" })
      holder:close()
    end, { limits = { memory = 32 * MIB } })
  end)

  -- ---- deadlines ----

  local SPOILT = {
    "sleep 60 & sleep 60 & kill -STOP -1; kill -STOP $$", -- all stand still
    "yes & yes >&2 & (while :; do sleep 60 & done); exec yes", -- a flood of output and processes
    "trap '' HUP INT TERM; setsid sleep 60 & while :; do sleep 1; done", -- deaf
  }

  it("a lifetime ends, whatever the processes do", function()
    local boxes = {}
    for i, line in ipairs(SPOILT) do
      boxes[i] = sandbar.assert(sandboxes:create { lifetime = 1, on_expiry = "destroy", limits = { processes = 64 } })
      sandbar.assert(boxes[i]:start(line, { detached = true })):close()
    end
    for i, box in ipairs(boxes) do
      local _, err
      assert.is_truthy(helper.eventually(function()
        _, err = sandboxes:info(box.id)
        return err
      end, 15), SPOILT[i])
      assert.equal("NotFound", err.kind)
      box:close()
    end
  end)

  it("a limit of a command ends it, whatever it does", function()
    for _, line in ipairs(SPOILT) do
      with_box(function(box)
        local took, r = helper.timed(box.exec, box, line, { time_limit = 0.3 })
        assert.is_true(took < 5, took)
        assert.equal("limit", r and r.reason, line)
      end, { limits = { processes = 64 } })
    end
  end)

  it("a lifetime ends while somebody outside has frozen its group", function()
    helper.need_root()
    local mark = helper.mark(9292)
    local box = sandbar.assert(sandboxes:create { lifetime = 1, on_expiry = "destroy" })
    sandbar.assert(box:start({ "sleep", mark }, { detached = true })):close()
    local pid1 = assert(helper.eventually(function() return inside.pid1(mark) end))
    local group = helper.read_file(("/proc/%d/cgroup"):format(pid1)):match("0::([^\n]*sandbar%-%x+/[^\n]*)")
    local mount = helper.shell("grep ' - cgroup2 ' /proc/self/mountinfo | cut -d' ' -f5"):match("%S+")
    if not group or not mount then
      helper.skip("there is no cgroup2 mount")
    end
    helper.write_file(mount .. group .. "/cgroup.freeze", "1")
    assert.is_truthy(helper.eventually(function()
      return not helper.proc.alive(pid1)
    end), "it stands still for ever")
    assert.is_truthy(helper.eventually(function()
      return select(2, sandboxes:info(box.id)) ~= nil
    end, 15))
    box:close()
  end)

  -- ---- the caller ----

  local LOOK = [[
    local sandbar = require "sandbar"
    local out = table.remove(arg, 1)
    local root = table.remove(arg, 1)
    local sandboxes = sandbar.assert(sandbar.open { root = root, linger = 0 })
    local box = sandbar.assert(sandboxes:create_scoped { env = { LEFT = "x" } })
    local r = sandbar.assert(box:exec("umask; cat /proc/self/limits; ls -l /proc/self/fd | wc -l; env | sort; pwd; id;"
      .. " grep -E '^(Sig|Shd|Cap|NoNew|Seccomp|Groups)' /proc/self/status; cut -d' ' -f19 /proc/self/stat; stat -c %a .",
      { timeout = 20 }))
    sandbar.assert(box.files:write("f", "data"))
    local text = r.stdout .. r.stderr .. sandbar.assert(box.files:stat("f")).mode .. "\n"
    sandbar.assert(box:destroy())
    local f = assert(io.open(out, "w"))
    f:write(text)
    f:close()
  ]]

  local EACH = {
    umask = "umask 0; PROGRAM",
    closed = "PROGRAM <&- >&- 2>&-",
    limits = "ulimit -S -f 20000; ulimit -S -s 512; ulimit -S -n 64; ulimit -S -c 0; ulimit -S -t 1000; PROGRAM",
    signals = "env --ignore-signal --block-signal PROGRAM",
    bare = "env -u HOME -u USER -u PATH -u LANG -u TMPDIR PROGRAM",
    nowhere = "d=$(mktemp -d) && cd $d && chmod 0 $d && rmdir $d && PROGRAM",
    -- Each of its waits is interrupted again and again.
    interrupted = "PROGRAM & p=$!; while kill -STOP $p && kill -CONT $p; do sleep 0.002; done 2>/dev/null; wait $p",
    descriptors = "exec 5</dev/null 9</etc/passwd 7</; PROGRAM",
  }

  it("an odd caller gets the same sandbox as any other", function()
    local file = helper.write_file(helper.scratch() .. "/look.lua", LOOK)
    local function look(name, how)
      local root, out = helper.dir(name), helper.scratch() .. "/" .. name .. ".out"
      helper.sh("chmod 700 %s", root)
      local said, status = helper.shell(how:gsub("PROGRAM", function()
        return ("%s %s %s %s"):format(helper.interpreter(), file, out, root)
      end))
      assert.equal(0, status, name .. ": " .. tostring(said))
      local text = assert(helper.read_file(out), name .. " got none")
      os.remove(out)
      assert.is_truthy(helper.eventually(function() return not inside.supervisor(root) end))
      helper.remove(root)
      return text
    end
    local usual = look("usual", "PROGRAM")
    assert.is_truthy(usual:find("Max open files", 1, true), usual)
    local callers = {
      all = "umask 0; ulimit -S -f 20000; ulimit -S -s 512; ulimit -S -n 64; ulimit -S -c 0; ulimit -S -t 1000;"
        .. " exec 5</dev/null 9</etc/passwd; env --ignore-signal --block-signal PROGRAM <&- >&- 2>&-",
    }
    if inside.times(1) > 1 then
      callers = EACH
    end
    for name, how in pairs(callers) do
      assert.equal(usual, look(name, how), name)
    end
    os.remove(file)
  end)

  it("a clock that is set moves no deadline", function()
    local r = helper.run_lua([[
      local sandbar = require "sandbar"
      local sandboxes = sandbar.assert(sandbar.open { root = arg[1], linger = 0 })
      local first, second = os.time(), os.time()
      assert(math.abs(first - second) > 86400) -- it is set all the time
      local box = sandbar.assert(sandboxes:create_scoped { lifetime = 300 })
      assert(sandbar.assert(box:exec({ "sleep", "0.2" }, { timeout = 20 })).ok)
      assert(sandbar.assert(box:exec({ "sleep", "60" }, { time_limit = 0.2 })).reason == "limit")
      local _, err = box:exec({ "sleep", "60" }, { timeout = 0.2 })
      assert(err and err.kind == "ExecTimedOut", tostring(err))
      local watch = sandbar.assert(box.files:watch("/tmp"))
      _, err = watch:next { timeout = 0.2 }
      assert(err and err.kind == "Timeout", tostring(err))
      watch:close()
      sandbar.run(function() sandbar.sleep(0.1) end)
      assert(sandbar.assert(box:info()).state == "running")
      sandbar.assert(box:set_lifetime(600))
      sandbar.assert(box:destroy())
      print("as always")
    ]], { env = { LD_PRELOAD = inside.built("step_clock.so") }, args = { helper.root() }, timeout = 20 })
    assert.equal("as always\n", r.stdout, r.stderr)
    if helper.is_root() then -- who else may look; a timer of the clock that can be set would have the number 0
      with_box(function(box)
        local mark = helper.mark(9393)
        sandbar.assert(box:start { "sleep", mark })
        local pid1 = assert(helper.eventually(function() return inside.pid1(mark) end))
        for _, pid in ipairs { inside.supervisor(helper.root()), pid1 } do
          local clocks = helper.shell(("grep -h clockid /proc/%d/fdinfo/* | sort -u"):format(pid))
          assert.is_truthy(clocks:find("clockid: %d"), clocks)
          assert.is_nil(clocks:find("clockid: 0", 1, true), pid .. " has " .. clocks)
        end
      end)
    end
  end)

  -- ---- what is kept for the sandbox ----

  it("kept output is found, changed and made longer by nobody inside", function()
    with_box(function(box)
      sandbar.assert(box.files:upload(PROBE, "/home/user/probe", { mode = "755" }))
      local line = "echo secret; read x; echo after; read y; head -c 70000000 /dev/zero; sleep 60; : " .. helper.mark(9494)
      local p = sandbar.assert(box:start(line, { stdout = "spool", stderr = "ignore", stdin = "pipe" }))
      assert.equal("secret", sandbar.assert(p.stdout:read("l", { timeout = 10 })))
      local attack = [[
        for f in /proc/[0-9]*/fd/*; do
          case $(readlink $f 2>/dev/null) in *deleted*|*spool*) echo found $f; echo changed >$f;; esac
        done
        find / -xdev -name '.sandbar-spool*' 2>/dev/null
        for f in 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo changed 2>/dev/null >/proc/1/fd/$f; done 2>/dev/null
        echo over]]
      for _, user in ipairs { "user", has_root(box) and "root" or nil } do
        local r = sandbar.assert(box:exec(attack, { user = user }))
        assert.equal("over\n", r.stdout)
        r = sandbar.assert(box:exec({ "/home/user/probe", "init_memory", "handles" }, { user = user }))
        assert.is_nil(r.stdout:find("worked:", 1, true), r.stdout)
      end
      local pid1 = assert(helper.eventually(function() return inside.pid1(line) end))
      -- Outside, whoever may look finds it at once.
      local function file()
        for fd, what in pairs(helper.proc.fds(pid1)) do
          if what:find("/#%d+ %(deleted%)") or what:find("spool", 1, true) then
            return ("/proc/%d/fd/%s"):format(pid1, fd)
          end
        end
      end
      if helper.is_root() then
        assert.equal("secret\n", helper.read_file(assert(file())))
      end
      sandbar.assert(p.stdin:write("\n"))
      assert.equal("after", sandbar.assert(p.stdout:read("l", { timeout = 10 })))
      sandbar.assert(p.stdin:write("\n"))
      if helper.is_root() then
        assert.is_truthy(helper.eventually(function()
          return tonumber((helper.shell("stat -Lc %s " .. file()))) == BOUND
        end), "it is not as long as the bound")
      end
      sandbar.assert(p:kill { signal = "KILL" })
      p:close()
    end)
  end)

  it("a template's step gets no further than a command, and changes no step of others", function()
    local dir = helper.dir("context")
    helper.sh("cp %s %s/probe && chmod 755 %s/probe && echo mine >%s/mine", PROBE, dir, dir, dir)
    local outside = helper.dir("outside")
    local words = { "/opt/probe", "mounts_old", "mounts_new", "chroot_out", "secrets", "init_memory", "descriptors",
      "namespaces", "capabilities", "devices", "routes", "groups", "upper=" .. helper.root() }
    local log = {}
    local function build(name, more)
      local steps = { { copy = dir .. "/probe", to = "/opt/probe" }, { run = "echo first >/opt/shared" } }
      for _, step in ipairs(more) do
        steps[#steps + 1] = step
      end
      return sandbar.assert(sandboxes.templates:build { name = name, network = "deny", steps = steps,
        on_progress = function(event) log[#log + 1] = event.event == "output" and event.data or "" end })
    end
    build("hostile", {
      { run = words },
      -- Over what a step before has left, and where a copy goes through a link of its own.
      { run = ("echo poisoned >/opt/shared; echo poisoned >/usr/bin/env; ln -s %s /opt/out"):format(outside) },
      { run = "ln -s ../../../../../../etc /opt/up" },
      { copy = dir .. "/mine", to = "/opt/up/mine" },
    })
    local text, tried = table.concat(log), 0
    for name, status in text:gmatch("# ([%w_]+): (%d+)\n") do
      assert.equal("0", status, name .. ":\n" .. text)
      tried = tried + 1
    end
    assert.equal(#words - 1, tried, text)
    assert.is_nil(helper.read_file("/etc/mine"))
    assert.equal("", (helper.shell("ls -A " .. outside)))
    local honest = build("honest", {})
    assert.is_true(honest.steps[2].cached)
    for name, content in pairs { hostile = "poisoned\n", honest = "first\n" } do
      local box = sandbar.assert(sandboxes:create_scoped { template = name })
      assert.equal(content, sandbar.assert(box:exec("cat /opt/shared; echo changed >/opt/shared")).stdout)
      box:destroy()
      box = sandbar.assert(sandboxes:create_scoped { template = name })
      assert.equal(content, sandbar.assert(box:exec("cat /opt/shared")).stdout)
      box:destroy()
    end
    for _, name in ipairs { "hostile", "honest" } do
      sandbar.assert(sandboxes.templates:delete(name))
    end
    helper.remove(dir)
    os.remove(outside)
  end)
end)
