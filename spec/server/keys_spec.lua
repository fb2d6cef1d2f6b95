-- check: no asan
-- check: no user
-- Keys of `sandbar serve` and the operator's file of them.

local helper = require "spec.helper"
helper.guard()

local keys = require "sandbar.server.keys"
local sandbar = require "sandbar"
local store = require "sandbar.server.store"

describe("keys", function()
  it("that were made with one that the operator has taken away were good for ever", function()
    local dir = helper.dir()
    local kept = sandbar.assert(store.open(dir))
    local file = helper.write_file(helper.scratch() .. "/keys", ("a"):rep(20) .. " one\n" .. ("b"):rep(20) .. " two\n")
    local function opened()
      return sandbar.assert(keys.open(kept, file))
    end
    local function team(all, key)
      local who = all:check {
        get = function(_, name)
          return name == "x-api-key" and key or nil
        end,
      }
      return who and who.team
    end
    local _, made = opened():create("one", "made")
    assert.equal("one", team(opened(), made))
    helper.write_file(file, ("b"):rep(20) .. " two\n")
    local all = opened()
    assert.is_nil(team(all, made))
    assert.equal("two", team(all, ("b"):rep(20)))
    sandbar.assert(all:create("two", "another")) -- which keeps it, for when the team has one again
    helper.write_file(file, ("c"):rep(20) .. " one\n")
    assert.equal("one", team(opened(), made))
    os.remove(file)
    kept:close()
    helper.remove(dir)
  end)
end)
