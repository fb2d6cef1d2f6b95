-- check: only 5.4
-- check: no asan
-- A program with a newer library meets the supervisor of an older one, and the other way round. The libraries of
-- later versions are this one, with other numbers (build/spec/next: the next protocol, build/spec/later: the one
-- after).
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

describe("a library upgrade", function()
  helper.guard { seconds = 25 }

  local root, own

  before_each(function()
    root = helper.dir()
    own = sandbar.assert(sandbar.open { root = root, linger = 0 })
  end)
  after_each(function()
    own:close()
    helper.remove(root)
  end)

  -- Runs code with the library of that version. The test's own end is told on standard input.
  local function with(version, code)
    return helper.start_lua(([[
      package.cpath = %q .. package.cpath
      local sandbar = require "sandbar"
      local own = sandbar.assert(sandbar.open { root = %q, linger = 0 })
      local function say(...) print(...) io.stdout:flush() end
    ]]):format(("build/spec/%s/?.so;"):format(version), root) .. code)
  end

  local function supervisor()
    return inside.supervisor(root)
  end

  it("takes the supervisor's place, and nobody notices", function()
    local box = sandbar.assert(own:create_scoped { id = "old" })
    sandbar.assert(box.files:write("f", "kept"))
    local p = sandbar.assert(box:start({ "sh", "-c", "while read -r x; do echo got $x; done" }, { stdin = "pipe" }))
    sandbar.assert(own:create { id = "paused" }):pause { keep = "memory" }
    local before = supervisor()
    local child = with("next", [[
      local box = sandbar.assert(own:connect("old"))
      assert(sandbar.assert(box.files:read("f")) == "kept")
      local new = sandbar.assert(own:create_scoped { id = "new" })
      assert(sandbar.assert(new:exec("true")).ok)
      say("here")
      io.read("l")
    ]])
    sandbar.scope(function(scope)
      local over, calls = false, 0
      scope:spawn(function() -- all the time there is something to do, and all of it is done
        while not over do
          assert.is_true(sandbar.assert(box:exec("true")).ok)
          sandbar.assert(own:info("old"))
          sandbar.assert(box:set_lifetime(100))
          calls = calls + 1
          sandbar.sleep(0.005)
        end
      end)
      assert.is_truthy(helper.eventually(function()
        sandbar.sleep(0.01)
        local now = supervisor()
        return now and now ~= before
      end), "the older one is still there")
      local n = calls
      assert.is_truthy(helper.eventually(function() sandbar.sleep(0.01) return calls > n + 3 end))
      over = true
    end)
    local after = supervisor()
    assert.equal("here", child:line())
    sandbar.assert(p.stdin:write("this\n"))
    assert.equal("got this", sandbar.assert(p.stdout:read("l")))
    local paused = sandbar.assert(own:connect("paused", { resume = true }))
    assert.is_true(sandbar.assert(paused:exec("true")).ok)
    sandbar.assert(paused:destroy())
    paused:close()
    assert.equal(after, supervisor()) -- an older library asks nobody to leave
    child:signal("KILL")
    child:wait()
    p:close()
    box:close()
  end)

  it("serves programs of the version before, which ask nobody to leave", function()
    local child = with("next", [[
      local box = sandbar.assert(own:create { id = "new" })
      sandbar.assert(box.files:write("f", "new"))
      say("made")
      sandbar.sleep(20)
    ]])
    assert.equal("made", child:line())
    local newer = supervisor()
    local box = sandbar.assert(own:connect("new"))
    assert.equal("new", sandbar.assert(box.files:read("f")))
    sandbar.assert(box:pause())
    sandbar.assert(box:resume())
    local copies = sandbar.assert(box:fork(2))
    for _, copy in ipairs(copies) do
      assert.equal("new", sandbar.assert(copy.files:read("f")))
      sandbar.assert(copy:destroy())
      copy:close()
    end
    sandbar.assert(box:destroy())
    box:close()
    assert.equal(newer, supervisor())
    child:signal("KILL")
    child:wait()
  end)

  local LATER = [[
    local box, err = own:create_scoped {}
    say(box and "made" or err.kind .. ": " .. err.message)
    if box then assert(sandbar.assert(box:exec("true")).ok) end
  ]]

  it("of two versions at once waits until nobody is left whom the newer one would not serve", function()
    local box = sandbar.assert(own:create { id = "old", lifetime = 300 })
    local before = supervisor()
    local record = with("later", LATER):wait()
    assert.is_true(record.ok, record.stderr)
    assert.is_truthy(record.stdout:match("^Unsupported: [^\n]*version 1 and does not serve version 3"), record.stdout)
    assert.equal(before, supervisor())
    assert.is_true(sandbar.assert(box:exec("true")).ok)
    box:close()
    sandbar.assert(own:list()) -- and its connection ends, since nothing needs it
    assert.is_truthy(helper.eventually(function()
      record = with("later", LATER):wait()
      return record.stdout == "made\n"
    end), record.stdout .. record.stderr)
    assert.is_not.equal(before, supervisor())
    local gone, err = own:connect("old")
    assert.is_nil(gone)
    assert.equal("Unsupported", err.kind)
    assert.is_truthy(err.message:find("version 3 ", 1, true), err.message)
    record = with("next", [[sandbar.assert(own:destroy("old"))]]):wait()
    assert.is_true(record.ok, record.stderr)
  end)

  it("that is killed at any step, on either side, leaves sandboxes whole and the next call working", function()
    local box = sandbar.assert(own:create { id = "kept", lifetime = 600 })
    sandbar.assert(box.files:write("f", "kept"))
    local p = sandbar.assert(box:start({ "sh", "-c", "n=0; while read -r x; do n=$((n+1)); echo $n; done" },
      { stdin = "pipe", detached = true }))
    local asleep = sandbar.assert(own:create { id = "asleep", lifetime = 600 })
    sandbar.assert(asleep.files:write("f", "kept"))
    sandbar.assert(asleep:pause { keep = "memory" })
    local NEXT = [[
      say("begun")
      local new, err = own:create { id = "new", lifetime = 600 }
      if not new then say(err.kind) os.exit(0, true) end
      local r, why = new:exec("echo there", { timeout = 20 })
      say(r and r.stdout:gsub("\n", "") or why.kind)
      sandbar.assert(new:close())
    ]]
    local length, told = nil, 0 -- of a hand-over that nobody disturbs, in seconds
    local rounds = inside.times(4) > 4 and 60 or 4
    for round = 0, rounds do
      sandbar.assert(own:list())
      local before = supervisor()
      -- One that ends takes the supervisor that it starts with it, and the older one waits 5 s for another:
      -- the first asks for something that only the next one answers.
      local child = with("next", NEXT .. (round == 0 and "sandbar.assert(own:list())" or ""))
      assert.equal("begun", child:line())
      local began = helper.now()
      if round == 0 then
        assert.is_truthy(helper.eventually(function()
          local now = supervisor()
          return now and now ~= before
        end, 15), "it is not handed over")
        length = helper.now() - began
      else
        sandbar.sleep(length * 1.2 * ((round * 7) % rounds) / rounds)
        local victims = { supervisor(), inside.next_supervisor(root), before, child.pid }
        for i, pid in pairs(round % 5 == 4 and victims or { victims[round % 5 + 1] }) do
          assert.is_truthy(i)
          helper.shell("kill -9 " .. pid .. " 2>/dev/null")
        end
      end
      local record = child:wait()
      local said = record.stdout:match("^begun\n(%w+)")
      if said then
        told = told + (said == "there" and 1 or 0)
        assert.is_truthy(said == "there" or sandbar.errors[said], record.stdout)
        assert.is_true(said ~= "Internal" and said ~= "Timeout", said)
      end
      assert.is_truthy(record.stderr == "" or record.stderr == "Killed\n", record.stderr)
      -- Whoever has the place now: what was there is there.
      sandbar.assert(p.stdin:write("x\n"), round)
      assert.equal(tostring(round + 1), sandbar.assert(p.stdout:read("l", { timeout = 20 })), round)
      assert.equal("kept", sandbar.assert(box.files:read("f")))
      local states = {}
      for _, info in ipairs(sandbar.assert(own:list())) do
        states[info.id] = info.state
      end
      assert.equal("running", states.kept, round)
      assert.equal("paused", states.asleep, round)
      if states.new then
        assert.equal("running", states.new, round)
        local new = sandbar.assert(own:connect("new"))
        assert.is_true(sandbar.assert(new:exec("true", { timeout = 20 })).ok)
        sandbar.assert(new:destroy())
        new:close()
      else
        assert.is_not.equal("there", said, round)
      end
      -- An older one has the next round's place again.
      local pid = supervisor()
      if pid then
        helper.shell("kill -9 " .. pid)
        assert(helper.eventually(function() return not helper.proc.alive(pid) end))
      end
    end
    assert.is_true(told > rounds / 4, told .. " of " .. rounds)
    sandbar.assert(asleep:resume())
    assert.equal("kept", sandbar.assert(asleep.files:read("f")))
    sandbar.assert(asleep:destroy())
    asleep:close()
    sandbar.assert(box:destroy())
    p:close()
    box:close()
  end)

  it("that is undone leaves alone what the newer version has written", function()
    local box = sandbar.assert(own:create { id = "newer" })
    local p = sandbar.assert(box:start({ "sleep", helper.mark(7171) }, { detached = true }))
    sandbar.assert(box:snapshot("layer"))
    local path = root .. "/v1/s/newer/record"
    local function version(n) -- of the record's format
      local f = assert(io.open(path, "r+b"))
      f:seek("set", 8)
      f:write(string.char(n))
      f:close()
      local pid = supervisor()
      helper.shell("kill -9 " .. pid)
      assert.is_truthy(helper.eventually(function() return not helper.proc.alive(pid) end))
    end
    version(2)
    local info = sandbar.assert(own:info("newer"))
    assert.same({ "failed", "record" }, { info.state, info.cause.reason })
    assert.equal("Unsupported", select(2, own:destroy("newer")).kind)
    assert.equal("NotRunning", select(2, box:resume()).kind)
    assert.equal("AlreadyExists", select(2, own:create { id = "newer" }).kind)
    version(1)
    info = sandbar.assert(own:info("newer"))
    assert.equal("running", info.state, info.cause and info.cause.message)
    assert.is_true(sandbar.assert(p:running()))
    sandbar.assert(box:destroy())
    sandbar.assert(own.snapshots:delete("layer"))
    p:close()
    box:close()
  end)
end)
