-- check: only 5.4
-- check: no asan
-- check: long
-- check: limit 3000
-- A sandbox that has made a million files and directories 100,000 deep: what is asked of it ends, with an answer or with
-- the word for what is too much; nobody else is held up, and all of it goes with the sandbox (escape probe 56).
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local sandbar = require "sandbar"

local FILES, DEEP, NAMES = 1000000, 100000, 1000
local PATIENCE = { timeout = 600 }

local MAKE = [[
import os, sys
files, deep, names = map(int, sys.argv[1:])
for name in "many", "deep", "names": os.mkdir(name)
for i in range(files): os.mknod("many/f%d" % i)
for i in range(names): os.mkdir("names/" + "%03d" % i + "n" * 252)
os.chdir("deep")
for i in range(deep): os.mkdir("d"); os.chdir("d")
]]
local COUNT = [[
import os
print(sum(1 for _ in os.scandir("many")), len(os.listdir("names")))
os.chdir("deep")
deep = 0
while "d" in os.listdir("."): os.chdir("d"); deep += 1
print(deep)
]]

describe("a million files", function()
  helper.guard { seconds = 600 }

  local sandboxes = helper.open()

  local function run(box, code, ...)
    local r = sandbar.assert(box:exec({ "python3", "-c", code, ... }, PATIENCE))
    assert.is_true(r.ok, r.stderr)
    return r.stdout
  end

  local function most(pid)
    return tonumber(helper.proc.status(pid, "VmHWM"):match("%d+")) / 1024
  end

  local function is_empty(dir) -- of directories, and there is nothing else
    return lfs.attributes(helper.root() .. "/v1/" .. dir, "nlink") == 2
  end

  local function too_much(list, err)
    assert.is_nil(list)
    assert.equal("LimitExceeded", err.kind, tostring(err))
  end

  it("and directories deeper than any path hold nobody up and leave nothing (escape probe 56)", function()
    local box = sandbar.assert(sandboxes:create_scoped {})
    local beside = sandbar.assert(sandboxes:create_scoped {})
    local all = ("%d %d\n%d\n"):format(FILES, NAMES, DEEP)
    local function others_go_on()
      local r = sandbar.assert(beside:exec("echo here", { timeout = 10 }))
      assert.equal("here\n", r.stdout)
    end
    local function whole(of)
      assert.equal(all, run(of, COUNT))
    end
    local making = sandbar.assert(box:start { "python3", "-c", MAKE, tostring(FILES), tostring(DEEP), tostring(NAMES) })
    others_go_on()
    assert.is_true(sandbar.assert(making:wait(PATIENCE)).ok)
    making:close()

    -- What is looked at.
    too_much(box.files:list("many", PATIENCE))
    too_much(box.files:list("deep", { depth = false, timeout = 600 }))
    assert.equal(NAMES, #sandbar.assert(box.files:list("names", PATIENCE)))
    assert.equal(FILES / 100, #sandbar.assert(box.files:glob("many/f*77", PATIENCE)))
    local told = #sandbar.assert(box.files:glob("deep/**", PATIENCE)) -- as deep as a path can say
    assert.is_true(told > 1000 and told < DEEP, told)
    local paths = sandbar.assert(box.files:glob("many/*", PATIENCE))
    assert.equal(FILES, #paths)
    others_go_on()

    -- What is kept of it. What is begun in vain keeps nothing still.
    local taken, err = box:snapshot("million", { timeout = 1 })
    assert.is_nil(taken)
    assert.equal("Timeout", err.kind)
    assert.equal("memory", sandbar.assert(box:pause(PATIENCE)))
    sandbar.assert(box:resume())
    assert.equal("million", sandbar.assert(box:snapshot("million", PATIENCE)))
    others_go_on()
    local copy = sandbar.assert(sandboxes:create_scoped { snapshot = "million" })
    whole(copy)
    sandbar.assert(copy:destroy(PATIENCE))
    copy:close()
    assert.equal("disk", sandbar.assert(box:pause { keep = "disk", timeout = 600 }))
    for _, each in ipairs(sandbar.assert(box:fork(2, PATIENCE))) do
      each:close()
    end
    sandbar.assert(box:resume(PATIENCE))
    whole(box)

    -- And its end, with that of everything else.
    local supervisor = inside.supervisor(helper.root())
    assert.is_true(most(supervisor) < 64, most(supervisor) .. " MiB in the supervisor")
    assert.is_true(most("self") < 320, most("self") .. " MiB here")
    sandbar.assert(box:destroy(PATIENCE))
    sandbar.assert(sandboxes.snapshots:delete("million"))
    others_go_on()
    sandbar.assert(beside:destroy())
    beside:close()
    box:close()
    assert.same({}, sandbar.assert(sandboxes:list()))
    assert.is_truthy(helper.eventually(function()
      return is_empty("trash") and is_empty("l")
    end, 1200))
  end)
end)
