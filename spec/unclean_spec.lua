-- check: only 5.4
-- Sandboxes after an unclean end of everything: their files are there, and they start again. Overlays are mounted
-- without syncs of their own, and such an overlay refuses its directories after a crash until somebody who knows
-- better says otherwise: the supervisor.
local faults = require "spec.support.faults"
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("unclean:", function()
  helper.guard()

  local sandboxes = helper.open()

  -- All at once, as far as nobody looks in between: the supervisor first, so that it learns of nothing.
  local function kill_all(box, word)
    local sleeper = sandbar.assert(box:start { "sleep", word })
    local supervisor = inside.supervisor(helper.root())
    -- It has its arguments a moment after it was started.
    local pid1 = helper.eventually(function()
      return inside.pid1(word)
    end)
    assert.is_truthy(pid1, "no pid 1")
    assert.is_truthy(supervisor, "no supervisor")
    sandbar.assert(sleeper:detach())
    faults.let_go(box, sandboxes)
    helper.shell(("kill -9 %d %d"):format(supervisor, pid1))
    assert.is_truthy(helper.eventually(function()
      return not helper.proc.alive(pid1) and not helper.proc.alive(supervisor)
    end))
  end

  -- What a record looks like after a restart of the machine: another boot of the host.
  local function pretend_reboot(id)
    local path = ("%s/v1/s/%s/record"):format(helper.root(), id)
    local record = helper.read_file(path)
    local boot = helper.read_file("/proc/sys/kernel/random/boot_id"):sub(1, 36)
    local body, found = record:sub(17):gsub(boot:gsub("%-", "%%-"), "01234567-89ab-4def-8123-456789abcdef")
    assert.is_true(found > 0)
    local hash = 0xcbf29ce484222325 -- FNV-1a
    for i = 1, #body do
      hash = (hash ~ body:byte(i)) * 0x100000001b3
    end
    helper.write_file(path, record:sub(1, 12) .. ("<I4"):pack(hash & 0xffffffff) .. body)
  end

  local function check(id, n)
    local box = sandbar.assert(sandboxes:connect(id, { resume = true }))
    if box.state ~= "running" then
      sandbar.assert(box:resume())
    end
    assert.equal(("line\n"):rep(n), sandbar.assert(box.files:read("log")))
    return box
  end

  it("a kill of everything leaves the files, again and again", function()
    local box = sandbar.assert(sandboxes:create { id = "killed" })
    for n = 1, 3 do
      sandbar.assert(sandbar.assert(box:exec("echo line >>log; sync log; mkdir -p deep/$$; ls -d /usr/bin")).ok)
      kill_all(box, helper.mark("7171" .. n))
      box = check("killed", n)
    end
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("after a restart of the machine a sandbox is paused with its files", function()
    local box = sandbar.assert(sandboxes:create { id = "restarted" })
    for n = 1, 2 do
      sandbar.assert(box:exec("echo line >>log; sync"))
      kill_all(box, helper.mark("7272" .. n))
      pretend_reboot("restarted")
      assert.equal("paused", sandbar.assert(sandboxes:info("restarted")).state)
      box = check("restarted", n)
    end
    sandbar.assert(box:destroy())
    box:close()
  end)

  it("a command that runs while its sandbox is destroyed ends with NotFound or NotRunning, soon", function()
    for i = 1, 10 do
      local box = sandbar.assert(sandboxes:create { id = "torn" .. i })
      local other = sandbar.assert(sandboxes:connect("torn" .. i))
      local result, err, took
      sandbar.assert(sandbar.run(function()
        local task = sandbar.spawn(function()
          result, err = box:exec { "sleep", "60" }
        end)
        sandbar.sleep(0.05)
        local seconds = helper.timed(function() sandbar.assert(other:destroy()) task:wait() end)
        took = seconds
        return true
      end))
      assert.is_nil(result)
      assert.is_true(err.kind == "NotFound" or err.kind == "NotRunning", err.kind)
      assert.is_true(took < 2)
      box:close()
      other:close()
    end
  end)
end)
