-- check: long
-- check: only 5.4
-- check: no asan
-- check: limit 600
-- A `sandbar serve` with much to do: many streams that wait, many clients with many commands, big files both ways.
local busted = require "busted"
local helper = require "spec.helper"
local serve = require "spec.support.serve"

local commands = require "spec.support.commands"
local sandbar = require "sandbar"

local STREAMS = 500
local CLIENTS, ROUNDS, COMMANDS = 64, 4, 25
local GROWTH = 16777216 -- bytes a server may have more after half of its work

describe("sandbar serve under load", function()
  local server, client

  setup(function()
    server = serve.start()
  end)

  teardown(function()
    server.stop()
  end)
  helper.guard { each = false }

  busted.before_each(function()
    client = commands.client(server)
  end)

  busted.after_each(function()
    client:close()
  end)

  local function resident()
    return tonumber(helper.read_file(("/proc/%d/status"):format(server.pid)):match("VmRSS:%s*(%d+)")) * 1024
  end

  it("has 500 streams that wait, answers others meanwhile, and tells them all in the end", function()
    local first = client:start("cat", "proto", true)
    local others = {}
    for i = 1, STREAMS - 1 do
      others[i] = client:connect(first.pid, i % 2 == 0 and "json" or "proto")
    end
    for i = 1, 20 do
      assert.equal(i .. "\n", (client:run("echo " .. i)))
    end
    client:input(first.pid, "hello")
    client:end_input(first.pid)
    for _, other in ipairs(others) do
      local out, ended = other:output()
      assert.equal("hello", out)
      assert.is_true(ended.exited)
      other:close()
    end
    assert.equal("hello", (first:output()))
    first:close()
  end)

  it("runs 100 commands for each of 64 clients, and has no more memory after the last than in the middle", function()
    local sizes = {}
    for round = 1, ROUNDS do
      local tasks = {}
      for i = 1, CLIENTS do
        tasks[i] = sandbar.spawn(function()
          for j = 1, COMMANDS do
            local text = ("%d-%d-%d\n"):format(round, i, j)
            local out, ended = client:run("echo " .. text:sub(1, -2), j % 2 == 0 and "json" or "proto")
            assert.equal(text, out)
            assert.is_true(ended.exited)
          end
          return true
        end)
      end
      for _, task in ipairs(tasks) do
        sandbar.assert(task:wait())
      end
      sizes[round] = resident()
    end
    assert.is_true(sizes[ROUNDS] - sizes[ROUNDS // 2] < GROWTH, table.concat(sizes, " "))
  end)
end)
