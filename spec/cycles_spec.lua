-- check: only 5.4
-- check: limit 900
-- Nothing grows: create, exec, destroy, over and over. 60 cycles here, 5,000 with SANDBAR_LONG=1 (SPEC_LONG).
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local sandbar = require "sandbar"

local LONG = inside.times(1) > 1

describe("cycles", function()
  helper.guard()

  local function count_dir(path)
    local n = 0
    local ok, iter, state = pcall(lfs.dir, path)
    if not ok then
      return 0
    end
    for name in iter, state do
      n = n + (name:sub(1, 1) ~= "." and 1 or 0)
    end
    return n
  end

  local function kilobytes(pid, key)
    local text = helper.proc.status(pid, key)
    return text and tonumber(text:match("%d+")) or 0
  end

  -- What may not grow, of this process, of the supervisor, of the machine.
  local function measure(root)
    collectgarbage()
    collectgarbage()
    local supervisor = inside.supervisor(root)
    local function lines_of(path)
      local _, n = (helper.read_file(path) or ""):gsub("\n", "")
      return n
    end
    local fds = 0
    for _ in pairs(helper.proc.fds()) do
      fds = fds + 1
    end
    local others = 0
    for _ in pairs(helper.proc.fds(supervisor)) do -- only root may look
      others = others + 1
    end
    local group = (helper.read_file(("/proc/%d/cgroup"):format(supervisor)) or ""):match("/(sandbar%-%x+)/") or "none"
    local groups = helper.shell(("find /sys/fs/cgroup -type d -path '*/%s/*' 2>/dev/null | wc -l"):format(group))
    return {
      descriptors = fds,
      ["supervisor's descriptors"] = others,
      ["memory in kB"] = kilobytes("self", "VmRSS"),
      ["supervisor's memory in kB"] = kilobytes(supervisor, "VmRSS"),
      mounts = lines_of("/proc/self/mountinfo"),
      ["supervisor's mounts"] = lines_of(("/proc/%d/mountinfo"):format(supervisor)),
      ["control groups"] = tonumber(groups),
      directories = count_dir(root .. "/v1/s") + count_dir(root .. "/v1/trash"),
      ["processes of the supervisor"] = #helper.proc.children(supervisor),
      threads = kilobytes("self", "Threads"),
    }
  end

  -- How much each may differ.
  local SLACK = {
    descriptors = 4, ["supervisor's descriptors"] = 12, ["memory in kB"] = 4096, ["supervisor's memory in kB"] = 2048,
    mounts = 2, ["supervisor's mounts"] = 4, ["control groups"] = 12, directories = 2,
    ["processes of the supervisor"] = 4, threads = 2,
  }

  -- The supervisor keeps a stock of prepared slots and sandboxes, filled up when it has nothing else to do:
  -- looked at once nothing moves for half a second.
  local function steady(root)
    local last, since, moved
    local at_rest = helper.eventually(function()
      local now = measure(root)
      for what, value in pairs(now) do
        if not what:find("memory", 1, true) and (not last or last[what] ~= value) then
          moved = ("%s: %s, then %d"):format(what, last and last[what], value)
          last, since = now, helper.now()
          return nil
        end
      end
      return helper.now() - since > 0.5 and now
    end, 20)
    return at_rest or error("the supervisor does not come to rest: " .. moved)
  end

  local function flat(root, cycle, n, warm)
    for i = 1, warm do
      cycle(i)
    end
    local before = steady(root)
    for i = 1, n do
      cycle(i)
    end
    local after = steady(root)
    for what, value in pairs(after) do
      assert.is_true(value - before[what] <= SLACK[what],
        ("%s went from %d to %d in %d cycles"):format(what, before[what], value, n))
    end
  end

  it("of create, exec and destroy leave everything as it was", function()
    local root = helper.root()
    local sandboxes = helper.open { linger = 60 }
    flat(root, function()
      local box = sandbar.assert(sandboxes:create_scoped {})
      assert.is_true(sandbar.assert(box:exec { "true" }).ok)
      sandbar.assert(box:destroy())
      box:close()
    end, LONG and 5000 or 60, LONG and 200 or 30)
    helper.open():list() -- linger 0: the supervisor leaves with the file's end
  end)

  it("of processes, files, connections and failures in one sandbox do so as well", function()
    local root = helper.root()
    local sandboxes = helper.open { linger = 60 }
    inside.with_box(sandboxes, function(box)
      flat(root, function(i)
        local p = sandbar.assert(box:start({ "cat" }, { stdin = "pipe" }))
        p.stdin:write("x\n")
        assert.equal("x", p.stdout:read("l", { timeout = 5 }))
        if i % 2 == 0 then
          p:kill { signal = "KILL" }
        end
        p:close()
        box:exec { "no-such-program" }
        box:exec("sleep 60", { timeout = 0.001 })
        sandbar.assert(box.files:write("f", "data"))
        local f = sandbar.assert(box.files:open("f"))
        f:read(1)
        f = i % 2 == 0 and f:close() -- half of them are left to the collector
        box.files:read("none")
        box:port(9):connect()
        local again = sandbar.assert(sandboxes:connect(box.id))
        again:exec { "true" }
        again = i % 2 == 0 and again:close()
        assert.is_truthy(f == true or again == false)
        if i % 10 == 0 then
          collectgarbage()
        end
      end, LONG and 1000 or 40, LONG and 100 or 20)
    end)
    helper.open():list()
  end)
end)
