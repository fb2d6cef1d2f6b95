-- check: long
-- check: limit 900
-- Two programs do everything that there is to one sandbox, again and again: each call has one clear outcome, what is
-- on the disk is whole, and nothing is left.
local helper = require "spec.helper"

local lfs = require "lfs"
local sandbar = require "sandbar"

describe("two hosts with one sandbox", function()
  helper.guard { seconds = 25 }

  local WORK = [[
    local sandbar = require "sandbar"
    local own = sandbar.assert(sandbar.open { root = arg[1], linger = 1 })
    local who, rounds = arg[2], tonumber(arg[3])
    math.randomseed(tonumber(who))
    local kinds = {}
    for round = 1, rounds do
      local id, box = "shared" .. round, nil
      repeat -- one of the two makes it
        box = own:create { id = id } or own:connect(id)
      until box
      local named = 0
      local calls = {
        function() return box:pause() end,
        function() return box:pause { keep = "disk" } end,
        function() return box:resume() end,
        function() return box:exec("echo " .. who .. " >>f && sync f", { timeout = 20 }) end,
        function() return box:info() end,
        function()
          named = named + 1
          return box:snapshot(id .. "." .. who .. "." .. named)
        end,
        function()
          local copies, err = box:fork(1)
          if not copies then return nil, err end
          local r, why = copies[1]:exec("test ! -e f || ! grep -v '^[12]$' f", { timeout = 20 })
          assert(r and r.ok, tostring(why))
          assert(copies[1]:destroy())
          copies[1]:close()
          return true
        end,
      }
      local gone
      for n = 1, 8 do
        local r, err = calls[math.random(#calls)]()
        local kind = r and "ok" or err.kind
        kinds[kind] = (kinds[kind] or 0) + 1
        -- A command's outcome is unknown when the sandbox ran again before anybody could look why it was lost.
        if not r and kind ~= "NotRunning" and kind ~= "NotFound" and kind ~= "Busy"
          and not (kind == "OutcomeUnknown" and err.message:find("connection")) then
          print("round " .. round, err)
        end
        gone = kind == "NotFound"
        if gone then break end
      end
      local old = own:info(id)
      sandbar.assert(own:destroy(id))
      local info, err = box:info()
      local again = info and old and info.created_at ~= old.created_at -- the other one only begins this round
      if info and info.state ~= "gone" and not again or not info and err.kind ~= "NotFound" then
        print("round " .. round, info and info.state or err)
      end
      box:close()
    end
    print((kinds.ok or 0) > rounds and "done" or "hardly anything worked")
  ]]

  it("never see half a state, in 200 rounds", function()
    local root = helper.dir()
    local one = helper.start_lua(WORK, { args = { root, 1, 200 }, timeout = 600 })
    local two = helper.start_lua(WORK, { args = { root, 2, 200 }, timeout = 600 })
    for _, child in ipairs { one, two } do
      local r = child:wait()
      assert.equal("done\n", r.stdout, r.stderr)
    end
    local own = helper.open { root = root }
    for _, info in ipairs(sandbar.assert(own:list())) do
      assert.is_truthy(info.state == "running" or info.state == "paused", info.id .. " is " .. info.state)
      sandbar.assert(own:destroy(info.id)) -- the other one made it again after it had been destroyed
    end
    for _, one_of in ipairs(sandbar.assert(own.snapshots:list())) do
      local box = sandbar.assert(own:create_scoped { snapshot = one_of.name })
      assert.is_true(sandbar.assert(box:exec("test ! -e f || ! grep -v '^[12]$' f")).ok, one_of.name)
      box:close()
      sandbar.assert(own.snapshots:delete(one_of.name))
    end
    for _, where in ipairs { "s", "n", "l" } do
      for name in lfs.dir(root .. "/v1/" .. where) do
        assert.is_truthy(name:sub(1, 1) == ".", ("left over: %s/%s"):format(where, name))
      end
    end
    own:close()
    helper.remove(root)
  end)
end)
