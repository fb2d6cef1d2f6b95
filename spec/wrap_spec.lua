-- check: no user
-- check: only 5.4
-- Process ids that are given out again: nobody hits a stranger. The kernel is told which id comes next, which only root
-- can do, from outside.
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("a process id that was given out again", function()
  helper.guard()

  local sandboxes = helper.open()

  -- The next process of the sandbox has this pid. False: this machine cannot do that.
  local function next_pid(pid1, pid)
    local _, status = helper.shell(("nsenter -t %d -p sh -c 'echo %d >/proc/sys/kernel/ns_last_pid'"):format(pid1, pid - 1))
    return status == 0
  end

  -- fn(box, p, stranger, reference): p had the pid that the stranger has now.
  local function with_stranger(argv, opts, fn)
    if helper.shell("id -u"):match("%d+") ~= "0" then
      helper.skip("only root can choose the next process id")
      return
    end
    inside.with_box(sandboxes, function(box)
      local word = helper.mark(7622)
      sandbar.assert(box:start({ "sleep", word }))
      local pid1 = assert(helper.eventually(function() return inside.pid1(word) end))
      local p = sandbar.assert(box:start(argv, opts))
      local reference = sandbar.assert(p:reference())
      sandbar.assert(p:kill { signal = "KILL" })
      local stranger
      for _ = 1, 50 do -- a file operation's worker may be faster
        if not next_pid(pid1, p.pid) then
          helper.skip("the kernel has no ns_last_pid")
          return
        end
        stranger = sandbar.assert(box:start(argv, opts))
        if stranger.pid == p.pid then
          break
        end
        sandbar.assert(stranger:kill { signal = "KILL" })
      end
      assert.equal(p.pid, stranger.pid)
      fn(box, p, stranger, reference)
      assert.is_true(stranger:running())
      assert.is_nil((stranger:wait { timeout = 0.1 }))
      sandbar.assert(stranger:kill { signal = "KILL" })
    end)
  end

  it("is not found by the reference of the one that had it before", function()
    with_stranger({ "sleep", "351" }, { tag = "same" }, function(box, p, stranger, reference)
      local found, err = box:attach(reference)
      assert.is_nil(found)
      assert.equal("NotFound", err.kind)
      local mine = sandbar.assert(stranger:reference())
      assert.not_equal(reference, mine)
      for _, target in ipairs { mine, stranger.pid, { tag = "same" } } do
        local other = sandbar.assert(box:attach(target))
        assert.is_true(other:running())
        other:close()
      end
      assert.equal(137, sandbar.assert(p:wait { timeout = 20 }).exit_code)
    end)
  end)

  it("is not signalled or killed through the handle of the one that had it before", function()
    for _, opts in ipairs { {}, { detached = true }, { pty = { cols = 80, rows = 24 } } } do
      with_stranger({ "sleep", "352" }, opts, function(_, p)
        assert.equal(0, sandbar.assert(p:signal("KILL")).count)
        assert.equal(0, sandbar.assert(p:signal("KILL", { group = true })).count)
        assert.equal("SIGKILL", sandbar.assert(p:kill { signal = "KILL", timeout = 20 }).signal)
        assert.equal("SIGKILL", sandbar.assert(p:kill { timeout = 20 }).signal)
        p:close()
      end)
    end
  end)

  it("is not the leader's of a tree whose children live on", function()
    with_stranger("sleep 4713 & sleep 4713 & wait", {}, function(box, p)
      local q = sandbar.assert(box:start("setsid sleep 4714 & exit 0"))
      sandbar.assert(q:wait { timeout = 20 })
      assert.equal(1, inside.count(box, "sleep 4714"))
      sandbar.assert(q:kill { signal = "KILL", timeout = 20 })
      assert.equal(0, inside.count(box, "sleep 4714"))
      sandbar.assert(p:kill { signal = "KILL", timeout = 20 })
      assert.equal(2, inside.count(box, "sleep 4713") - 1) -- the shell's own words have it as well
    end)
  end)

  -- In a pid namespace of its own, so that nobody else's process takes the number.
  it("is not that of a sandbox, also where its supervisor has ended as well (escape probe 61)", function()
    if helper.shell("id -u"):match("%d+") ~= "0" then
      helper.skip("only root can choose the next process id")
      return
    end
    local file = helper.write_file(helper.scratch() .. "/reuse.lua", [[
      local sandbar = require "sandbar"
      local function say(line)
        local f = assert(io.popen(line))
        local text = f:read("*l")
        f:close()
        return text
      end
      local function alive(pid)
        return say(("kill -0 %d 2>/dev/null && echo yes"):format(pid)) == "yes"
      end
      local sandboxes = sandbar.assert(sandbar.open { root = arg[1], linger = 0 })
      local box = sandbar.assert(sandboxes:create { id = "victim", lifetime = 600 })
      sandbar.assert(box:start({ "sleep", "7633" }, { detached = true })):close()
      local pid1 = tonumber(say("ps -o ppid= -p $(pgrep -fx 'sleep 7633')"))
      say(("kill -9 $(pgrep -x sandbar-supervi) %d"):format(pid1))
      local until_then = os.time() + 10
      while alive(pid1) do
        assert(os.time() < until_then, "pid 1 does not end")
      end
      local stranger
      for _ = 1, 100 do
        say(("echo %d >/proc/sys/kernel/ns_last_pid"):format(pid1 - 2)) -- the shell is one less
        stranger = tonumber(say("setsid sleep 600 >/dev/null 2>&1 & echo $!"))
        if stranger == pid1 then
          break
        end
        say("kill -9 " .. stranger)
      end
      assert(stranger == pid1, "it is never the same")
      local info = sandbar.assert(sandboxes:info("victim"))
      print(info.state, info.cause and info.cause.reason)
      sandbar.assert(sandboxes:destroy("victim"))
      print(alive(stranger))
      say("kill -9 " .. stranger)
    ]])
    local root = helper.dir("reuse")
    helper.sh("chmod 700 %s", root)
    local said = helper.shell(("unshare --pid --mount-proc --fork --kill-child sh -c 'mount -t tmpfs none /run && %s %s %s; :'")
      :format(helper.interpreter(), file, root))
    assert.equal("failed\tpid1\ntrue\n", said)
    assert.is_truthy(helper.remove(root)) -- its supervisor ended in the middle of its work, with the namespace
    os.remove(file)
  end)
end)
