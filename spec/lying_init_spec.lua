-- check: long
-- check: no user
-- A supervisor and a pid 1 that lies: only that sandbox ends, nothing of it stays, nobody waits for it.
local helper = require "spec.helper"

local BUILD = os.getenv("SPEC_BUILD") or "build"

local FULL = 6 -- what a supervisor keeps ready: two slots, four spares

describe("a pid 1", function()
  helper.guard { each = false }

  local root
  setup(function()
    root = helper.root()
  end)

  -- What a supervisor of such sandboxes answers to the words of sup_drive.
  local function drive(words)
    return ("env SUP_LINGER=500 %s/c/sup_drive %s/supervisor/supervisor %s/spec/lying_init %s %s"):format(BUILD, BUILD, BUILD,
      root, words)
  end

  local function stats()
    local text = helper.sh("timeout 10 %s", drive("stats"))
    return tonumber(text:match("live=(%d+)")), tonumber(text:match("pooled=(%d+)")), tonumber(text:match("open_fds=(%d+)"))
  end

  it("that lies in any way ends its own sandbox, and leaves the supervisor as it was", function()
    if not helper.read_file(BUILD .. "/c/sup_drive") then
      helper.skip("`make c-tests` builds the program that drives the supervisor")
    end
    -- The first one starts the supervisor; it is the one that behaves.
    local text = helper.sh("timeout 20 %s", drive("create good hostname=good ';' stats"))
    assert.is_truthy(text:find("create -> type 1:", 1, true), text)
    local fds
    assert.is_truthy(helper.eventually(function()
      local live, pooled, open = stats()
      fds = open
      return live == 1 and pooled == FULL
    end, 30), "the stocks were never full")

    -- Of these nobody knows before five seconds are over. A flood of messages holds up nobody else meanwhile.
    local slow = assert(io.popen(("timeout 30 %s & timeout 30 %s & timeout 30 %s; wait"):format(
      drive("create silent hostname=silent"), drive("create mute hostname=mute"), drive("create flood hostname=flood")), "r"))
    for _ = 1, 5 do
      assert.is_true(helper.timed(stats) < 3)
    end
    local late = slow:read("*a")
    slow:close()
    assert.equal(3, select(2, late:gsub("create %-> type 2:", "")), late)

    for _, lie in ipairs {
      "short", "empty", "noise", "beyond", "unknown", "versionless", "twice", "descriptors", "spilled", "answers",
      "refusing", "closing", "ending",
    } do
      local took, said = helper.timed(function()
        return helper.sh("timeout 20 %s", drive(("create %s hostname=%s"):format(lie, lie)))
      end)
      assert.is_truthy(said:find("create -> type 2:", 1, true), lie .. ": " .. said)
      assert.is_true(took < 5, lie .. " was waited for")
    end

    local last
    assert.is_truthy(helper.eventually(function()
      local live, pooled, open = stats()
      last = ("%s live, %s pooled, %s descriptors; before: 1, %d, %s"):format(live, pooled, open, FULL, fds)
      return live == 1 and pooled == FULL and open <= fds -- then some may have been on their way out
    end, 30), last)
    assert.equal("good\n", helper.sh("ls %s/v1/s", root))
    assert.is_truthy(helper.sh("timeout 20 %s", drive("destroy good")):find("type 1:", 1, true))
  end)
end)
