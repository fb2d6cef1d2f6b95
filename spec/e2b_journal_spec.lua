-- check: only 5.4
-- check: no user
-- The release journal of the E2B provider: programs that are killed at any moment, and those that come after them.

local helper = require "spec.helper"

local core = require "sandbar.core"
local hosttree = require "sandbar.hosttree"
local lfs = require "lfs"
local planes = require "spec.support.control_plane"
local sandbar = require "sandbar"

local assert_ok = sandbar.assert

describe("the release journal", function()
  local plane, dir

  planes.suite(function(started)
    plane = started
  end)

  before_each(function()
    dir = helper.dir("journal")
  end)

  local function files()
    local out = {}
    for name in lfs.dir(dir) do
      out[#out + 1] = name:match("%.log$") and name or nil
    end
    return out
  end

  -- A program with the journal that does `code` and is killed, unless it ends by itself.
  local function program(code)
    return helper.start_lua(([[
      local sandbar = require "sandbar"
      local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q, journal = %q,
        access_token = %q, team = "t" }, 1))
      %s
      print("done") io.stdout:flush()
      while true do sandbar.sleep(10) end
    ]]):format(planes.KEY, plane.url, dir, planes.TOKEN, code))
  end

  it("its directory was not synced: the file could be without a name after a crash of the machine", function()
    local told = helper.scratch() .. "/told"
    helper.run_lua(([[
      local sandbar = require "sandbar"
      local boxes = sandbar.assert(require("sandbar.e2b.provider").open({ api_key = %q, api_url = %q, journal = %q }, 1))
      sandbar.assert(boxes:create { lifetime = 60 })
    ]]):format(planes.KEY, plane.url, dir), { env = {
      LD_PRELOAD = (os.getenv("SPEC_BUILD") or "build") .. "/spec/tell_sync.so", TELL_SYNC = told,
    } })
    local text = helper.read_file(told)
    os.remove(told)
    local name = text:match "^rename (%S+%.log)\n"
    assert.is_string(name, text)
    assert.equal(("rename %s\nsync %s\nsync %s/%s\n"):format(name, dir, dir, name), text:match "^[^\n]+\n[^\n]+\n[^\n]+\n")
  end)

  local function kill(child)
    child:signal("KILL")
    child:wait()
  end

  it("what a killed program owned goes with the next one's first create, what it had made for others stays", function()
    local child = program [[
      a = sandbar.assert(boxes:create_scoped { lifetime = 600 })
      b = sandbar.assert(boxes:create { id = "kept", lifetime = 600 })
    ]]
    assert.equal("done", child:line())
    local next_one = plane:open { journal = dir }
    assert.equal(0, assert_ok(next_one:recover())) -- it lives
    assert.equal(2, #next_one:list())
    kill(child)
    next_one = plane:open { journal = dir }
    assert_ok(next_one:create { id = "mine", lifetime = 60 })
    local ids = {}
    for _, info in ipairs(next_one:list()) do
      ids[#ids + 1] = info.id
    end
    table.sort(ids)
    assert.same({ "kept", "mine" }, ids)
    assert.equal(1, #files()) -- ours
  end)

  it("several first creates at once each made a file, and those of all but the last were taken for a dead program's", function()
    local boxes = plane:open { journal = dir }
    sandbar.scope(function(scope)
      local tasks = {}
      for i = 1, 4 do
        tasks[i] = scope:spawn(function()
          return boxes:create_scoped({ lifetime = 60 }, scope)
        end)
      end
      for i = 1, 4 do
        assert_ok(tasks[i]:wait { timeout = 20 })
      end
      collectgarbage()
      assert.equal(1, #files())
      assert.equal(0, assert_ok(plane:open({ journal = dir }):recover()))
      assert.equal(4, #boxes:list())
      local text = helper.read_file(dir .. "/" .. files()[1])
      assert.equal(4, select(2, text:gsub("i [%x-]+ %d+ [%x-]+\n", "")), text)
    end)
  end)

  it("a process that was forked while its parent's file was made took that for its own, and could create nothing", function()
    local at, generation, forked = hosttree.at, core.generation, 0
    core.generation = function()
      return generation() + forked
    end
    function hosttree.at(op, what, ...)
      local value, err = at(op, what, ...)
      forked = forked + (what == "sync" and forked == 0 and 1 or 0)
      return value, err
    end
    local boxes, made = plane:open { journal = dir }, {}
    for i = 1, 2 do
      made[i] = boxes:create { lifetime = 60 }
    end
    core.generation, hosttree.at = generation, at
    assert.equal(2, #made)
    assert.equal(2, #files())
  end)

  it("a create that was under way is found by its token, now or when it comes", function()
    for _, what in ipairs { "hold", "stall" } do
      plane:faults { { method = "POST", path = "^/v2/sandboxes$", ["do"] = what } }
      local child = program [[ boxes:create { id = "under-way", lifetime = 600 } ]]
      assert(helper.eventually(function()
        for _, call in ipairs(plane:calls()) do
          if call == "POST /v2/sandboxes" then
            return true
          end
        end
      end, 10))
      kill(child)
      local next_one = plane:open { journal = dir }
      assert.equal(what == "hold" and 1 or 0, assert_ok(next_one:recover()))
      assert.equal(0, #next_one:list())
      assert.equal(what == "hold" and 0 or 1, #files()) -- of what was not seen, it may still come
    end
  end)

  -- Until the plane was asked for this.
  local function asked(wanted)
    assert(helper.eventually(function()
      for _, call in ipairs(plane:calls()) do
        if call:find(wanted) then
          return true
        end
      end
    end, 10), wanted)
  end

  it("B-05: the keys of a killed program stayed, and those that it was just given", function()
    local account = { journal = dir, access_token = planes.TOKEN, team = "t" }
    local child = program [[
      k = sandbar.assert(boxes.keys:create_scoped { name = "own" })
      sandbar.assert(boxes.keys:create { name = "kept" })
    ]]
    assert.equal("done", child:line())
    kill(child)
    plane:faults { { method = "POST", path = "^/api-keys$", ["do"] = "hold" } }
    child = program [[ boxes.keys:create { name = "lost" } ]]
    asked "^POST /api%-keys$"
    kill(child)
    assert.equal(1, #files()) -- the first one's went before the second one's key was asked for
    assert.equal(0, assert_ok(plane:open({ journal = dir }):recover())) -- which cannot ask for keys
    assert.equal(1, #files())
    local next_one = plane:open(account)
    assert.equal(1, assert_ok(next_one:recover()))
    local left = assert_ok(next_one.keys:list())
    assert.equal(1, #left)
    assert.equal("kept", left[1].name)
    assert.equal(0, #files())
    assert_ok(next_one.keys:delete(left[1].id))
  end)

  it("a key that was revoked in order made all that its program left stay for good", function()
    local child = program [[
      a = sandbar.assert(boxes:create_scoped { lifetime = 600 })
      k = sandbar.assert(boxes.keys:create_scoped { name = "own" })
      sandbar.assert(k:close())
    ]]
    assert.equal("done", child:line())
    kill(child)
    local next_one = plane:open { journal = dir, access_token = planes.TOKEN, team = "t" }
    assert.equal(1, assert_ok(next_one:recover()))
    assert.equal(0, #next_one:list())
  end)

  it("what one left of many could not be destroyed kept the others", function()
    local child = program [[
      a = sandbar.assert(boxes:create_scoped { lifetime = 600 })
      b = sandbar.assert(boxes:create_scoped { lifetime = 600 })
      c = sandbar.assert(boxes:create_scoped { lifetime = 600 })
    ]]
    assert.equal("done", child:line())
    kill(child)
    plane:faults { { method = "DELETE", times = 1, ["do"] = "status", status = 403 } }
    local next_one = plane:open { journal = dir }
    assert.equal("PermissionDenied", select(2, next_one:recover()).kind)
    assert.equal(1, #next_one:list())
    assert.equal(1, assert_ok(next_one:recover()))
    assert.equal(0, #next_one:list())
  end)

  it("a snapshot of fork(n) that the vendor keeps while copies stand on it stayed for good", function()
    plane:faults { { method = "DELETE", path = "^/templates/", times = 2, ["do"] = "status", status = 400,
      message = "there are running or paused sandboxes using it" } }
    local child = program [[ sandbar.assert(sandbar.assert(boxes:create { lifetime = 600 }):fork(1)) ]]
    assert.equal("done", child:line())
    kill(child)
    local next_one = plane:open { journal = dir }
    assert.equal(0, assert_ok(next_one:recover()))
    assert.equal(1, #next_one.snapshots:list())
    assert.equal(1, #files())
    assert.equal(1, assert_ok(next_one:recover()))
    assert.equal(0, #next_one.snapshots:list())
    assert.equal(2, #next_one:list())
    assert.equal(0, #files())
  end)

  it("the snapshot of a killed program's fork(n) stayed", function()
    plane:faults { { method = "POST", path = "/snapshots$", ["do"] = "hold" } }
    local child = program [[ sandbar.assert(boxes:create { lifetime = 600 }):fork(1) ]]
    asked "/snapshots$"
    kill(child)
    local next_one = plane:open { journal = dir }
    assert.equal(1, #next_one.snapshots:list())
    assert.equal(1, assert_ok(next_one:recover()))
    assert.equal(0, #next_one.snapshots:list())
    assert.equal(0, #files())
  end)

  it("what cannot be destroyed now is destroyed later", function()
    local child = program [[ a = sandbar.assert(boxes:create_scoped { lifetime = 600 }) ]]
    assert.equal("done", child:line())
    kill(child)
    plane:faults { { method = "DELETE", times = 99, ["do"] = "status", status = 403 } }
    local next_one = plane:open { journal = dir }
    local count, err = next_one:recover()
    assert.is_nil(count)
    assert.equal("PermissionDenied", err.kind)
    assert_ok(next_one:create { lifetime = 60 }) -- which does not fail of it
    plane:faults {}
    assert.equal(1, assert_ok(next_one:recover()))
    assert.equal(1, #next_one:list())
  end)

  it("nothing is created that could not be noted before, and no other's sandboxes are touched", function()
    local nowhere = plane:open { journal = dir .. "/none" }
    local box, err = nowhere:create { lifetime = 60 }
    assert.is_nil(box)
    assert.equal("NotFound", err.kind)
    for _, call in ipairs(plane:calls()) do
      assert.is_nil(call:match("^POST"))
    end
    helper.write_file(dir .. "/0000-x.log", "i 11111111-1111-4111-8111-111111111111 1 id\n") -- of another account
    local boxes = plane:open { journal = dir }
    local own = assert_ok(boxes:create { lifetime = 60 })
    local name
    for _, file in ipairs(files()) do
      name = file ~= "0000-x.log" and file or name
    end
    -- A line that was cut, and what is no line.
    helper.write_file(dir .. "/" .. name:sub(1, 17) .. "torn.log", "i nonsense\n\0\0\nk x\ni 1111")
    assert.equal(0, assert_ok(boxes:recover()))
    assert.equal("running", own:info().state)
    assert.equal(2, #files())
    local _, unfit = require("sandbar.e2b.provider").open(plane:options { journal = "relative" }, 2)
    assert.equal("InvalidArgument", unfit.kind)
  end)
end)
