-- check: long
-- check: only 5.4
-- check: limit 400
-- The "what went wrong elsewhere" of lifecycle and clocks with the times and numbers they were seen with. The short forms
-- are in lifetime_spec, pause_memory_spec, provider_spec, process_spec and faults_clocks_spec.
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local sandbar = require "sandbar"

describe("faults of lifecycle:", function()
  helper.guard { seconds = 25 }

  local sandboxes = helper.open()

  local function create(spec)
    return sandbar.assert(sandboxes:create(spec or {}))
  end

  local function ends(box)
    sandbar.assert(box:destroy())
    box:close()
  end

  local function kind_of(r, err)
    assert.is_nil(r)
    return err.kind
  end

  it("a command without any limit was ended by one after a minute, and nobody knew it then (B13)", function()
    local box = create()
    local p = sandbar.assert(box:start("sleep 90; echo done", { tag = "server" }))
    local pid = p.pid
    sandbar.sleep(75)
    local listed
    for _, entry in ipairs(sandbar.assert(box:processes())) do
      listed = listed or entry.pid == pid and entry.running
    end
    assert.is_true(listed)
    sandbar.assert(p:detach())
    local again = sandbar.assert(box:attach { tag = "server" })
    local r = sandbar.assert(again:wait { timeout = 30 })
    assert.same({ 0, "exit" }, { r.exit_code, r.reason })
    assert.equal("done\n", sandbar.assert(again.stdout:read("a", { timeout = 5 })))
    again:close()
    sandbar.sleep(1)
    again = sandbar.assert(box:attach(pid))
    assert.equal(0, sandbar.assert(again:wait { timeout = 5 }).exit_code)
    again:close()
    ends(box)
  end)

  it("two who connected with different lifetimes left the shorter one (B28)", function()
    local box = create { id = "raced", lifetime = 1800 }
    for round = 1, 50 do
      local lifetimes = round % 2 == 0 and { 300, 3600 + round } or { 3600 + round, 300 }
      local results = sandbar.assert(sandbar.all {
        function() return sandboxes:connect("raced", { lifetime = lifetimes[1] }) end,
        function() return sandboxes:connect("raced", { lifetime = lifetimes[2] }) end,
      })
      for i = 1, 2 do
        sandbar.assert(results[i]):close()
      end
      local left = sandbar.assert(sandboxes:info("raced")).ends_at - os.time()
      assert.is_true(math.abs(left - 3600 - round) < 3, left)
    end
    ends(box)
  end)

  it("what was written after the first pause was lost in the second (B29)", function()
    local labels = { who = "b29", odd = "a b=c" }
    local rules = { allow = { "192.0.2.0/24", "b29.test" }, deny = { "192.0.2.7" } }
    local box = create { id = "often", lifetime = 1800, labels = labels, on_expiry = "pause", network = rules,
      env = { KEPT = "b 29" }, limits = { processes = 200 } }
    local network, limits = box:info().network, box:info().limits
    local function sums()
      return sandbar.assert(box:exec("find . -type f | LC_ALL=C sort | xargs sha256sum; find . | LC_ALL=C sort", { check = true })).stdout
    end
    for round = 1, 10 do
      sandbar.assert(box:exec(([[echo line %d >>log; head -c 1M /dev/urandom >new%d
        test ! -e new%d || mv new%d renamed%d; rm -f renamed%d]]):format(round, round, round - 1, round - 1, round - 1, round - 2),
        { check = true }))
      local before = sums()
      sandbar.assert(box.files:write("last", tostring(round))) -- and paused at once, nobody syncs
      if round % 2 == 1 then
        sandbar.assert(box:pause { keep = round % 4 == 1 and "disk" or "memory" })
      else
        sandbar.assert(box:set_lifetime(0.2))
        assert.is_truthy(helper.eventually(function()
          return sandbar.assert(sandboxes:info("often")).state == "paused"
        end, 15))
      end
      sandbar.assert(box:resume { lifetime = round % 2 == 0 and 1800 or nil }) -- the last set_lifetime counts
      assert.equal(tostring(round), sandbar.assert(box.files:read("last")))
      sandbar.assert(box:exec({ "rm", "last" }, { check = true }))
      assert.equal(before, sums(), "round " .. round)
      local info = sandbar.assert(box:info())
      assert.same({ "often", labels, "pause" }, { info.id, info.labels, info.on_expiry })
      assert.is_true(math.abs(info.ends_at - os.time() - 1800) < 10, ("round %d: %g s"):format(round, info.ends_at - os.time()))
      assert.same(network, info.network)
      assert.same(limits, info.limits)
      assert.equal("b 29 200\n", sandbar.assert(box:exec(
        "echo $KEPT $(sed -n 's/^Max processes *\\([0-9]*\\).*/\\1/p' /proc/self/limits)")).stdout)
    end
    ends(box)
  end)

  it("a command that was paused had lost its time, its output or its port (B30, B35)", function()
    local box = create { lifetime = 1800 }
    local answer = inside.program(box, "answer")
    local server = sandbar.assert(box:start { answer, "127.0.0.1", "3000", "serving", "both" })
    assert.equal("up", server.stdout:read("l", { timeout = 10 }))
    local counter = sandbar.assert(box:start("i=0; while :; do i=$((i+1)); echo $i; echo $i >>count; sleep 0.1; done"))
    local limited = sandbar.assert(box:start({ "sleep", "600" }, { time_limit = 10 }))
    local sleeper = sandbar.assert(box:start("sleep 3; echo slept"))
    sandbar.sleep(2)
    sandbar.assert(box:pause { keep = "memory" })
    sandbar.sleep(20)
    sandbar.assert(box:resume())
    local resumed = helper.now()
    local now = tonumber(sandbar.assert(box:exec("date +%s")).stdout)
    assert.is_true(math.abs(now - os.time()) <= 1)
    assert.equal("serving", sandbar.assert(box:port(3000):fetch { timeout = 10 }).body)
    assert.is_true(sandbar.assert(limited:running()))
    local r = sandbar.assert(sleeper:wait { timeout = 10, output = true }) -- at once or in what it had left, no error
    assert.same({ 0, "exit" }, { r.exit_code, r.reason })
    assert.equal("slept\n", sandbar.assert(sleeper.stdout:read("a", { timeout = 5 })))
    r = sandbar.assert(limited:wait { timeout = 20 })
    assert.equal("limit", r.reason)
    local had = helper.now() - resumed
    assert.is_true(had > 6 and had < 12, had)
    assert.is_true(sandbar.assert(counter:running()))
    sandbar.assert(counter:kill { signal = "KILL" })
    local last = 0
    for line in sandbar.assert(counter.stdout:read("a", { timeout = 5 })):gmatch("%d+") do
      assert.equal(last + 1, tonumber(line)) -- no gap
      last = last + 1
    end
    assert.is_true(last > 60, last)
    assert.is_true(math.abs(sandbar.assert(box:info()).ends_at - os.time() - 1800) < 60)
    for _, p in ipairs { server, counter, limited, sleeper } do
      p:close()
    end
    ends(box)
  end)

  it("a paused sandbox disappeared, or was said to be another's state (B31)", function()
    local running, paused, killed = create { id = "r" }, create { id = "p" }, create { id = "k" }
    sandbar.assert(paused:pause { keep = "disk" })
    sandbar.assert(killed:destroy())
    local function ids(filter)
      local list = {}
      for _, info in ipairs(sandbar.assert(sandboxes:list(filter))) do
        list[#list + 1] = info.id .. "=" .. info.state
      end
      table.sort(list)
      return table.concat(list, " ")
    end
    assert.equal("p=paused r=running", ids())
    assert.equal("r=running", ids { state = "running" })
    assert.equal("p=paused", ids { state = "paused" })
    assert.equal("p=paused r=running", ids { state = { "running", "paused" } })
    for _ = 1, 2 do
      assert.is_true(sandbar.assert(running:exec("true")).ok)
      assert.equal("NotRunning", kind_of(paused:exec("true")))
      assert.equal("NotRunning", kind_of(paused.files:read("f")))
      assert.equal("NotFound", kind_of(killed:exec("true")))
      assert.equal("NotFound", kind_of(killed.files:read("f")))
      assert.equal("NotFound", kind_of(killed:pause()))
      assert.equal("NotFound", kind_of(sandboxes:connect("k")))
      assert.equal("NotFound", kind_of(sandboxes:info("k")))
      sandbar.assert(paused:pause())
      sandbar.assert(sandboxes:connect("p")):close()
      sandbar.assert(killed:destroy())
    end
    for _ = 1, 20 do
      local over
      sandbar.assert(sandbar.all {
        function()
          sandbar.assert(paused:resume())
          over = true
          return true
        end,
        function()
          for _ = 1, 100 do
            local state = sandbar.assert(sandboxes:info("p")).state
            assert.is_truthy(state == "paused" or state == "running" or state == "starting", state)
          end
          return true
        end,
      })
      assert.is_true(over)
      sandbar.assert(paused:pause { keep = "disk" })
    end
    killed:close()
    ends(paused)
    ends(running)
  end)

  it("a walk through the disk that took longer than a sample waits began again with each, and told nobody", function()
    local box = create()
    assert.is_true(sandbar.assert(box:exec("mkdir d && cd d && seq 20000 | xargs touch")).ok)
    local pid = assert(inside.supervisor(helper.root()))
    local before = assert(helper.read_file(("/proc/%d/task/%d/children"):format(pid, pid)))
    local function walker()
      local now = assert(helper.read_file(("/proc/%d/task/%d/children"):format(pid, pid)))
      return (now:gsub("%d+ ", function(id) return before:find(id, 1, true) and "" or nil end))
    end
    local function metrics()
      return sandbar.assert(box:metrics { timeout = 20 })
    end
    local held
    local results = sandbar.assert(sandbar.all {
      metrics,
      function()
        local ends_at = helper.now() + 20
        repeat -- no wait in between: it takes some milliseconds
          held = walker()
        until held ~= "" or helper.now() > ends_at
        helper.shell("kill -STOP " .. held)
        return true
      end,
    })
    assert.matches("^%d+ $", held)
    assert.is_nil(results[1].disk)
    local took, later = helper.timed(metrics)
    assert.is_true(took < 3, took) -- it waits for none that another one has begun
    assert.is_nil(later.disk)
    assert.equal(held, walker())
    helper.shell("kill -CONT " .. held)
    assert.is_truthy(helper.eventually(function() return metrics().disk end, 20))
    for _ = 1, 20 do
      assert.is_truthy(metrics().disk)
      assert.equal("", walker())
    end
    ends(box)
  end)

  it("a filter came after the limit, and found nothing; a bad one found everything (B33)", function()
    local all = {}
    for i = 1, 250 do
      all[i] = create { id = ("n%03d"):format(i), labels = { seven = i % 35 == 1 and i < 240 and "yes" or "no" } }
      sandbar.assert(all[i]:pause { keep = "disk" })
    end
    local seen = {}
    for info in sandboxes:each { labels = { seven = "yes" }, page_size = 3 } do
      assert.is_nil(seen[info.id])
      seen[info.id] = true
      seen[#seen + 1] = info.id
    end
    assert.equal(7, #seen)
    assert.equal(3, #sandbar.assert(sandboxes:list { labels = { seven = "yes" }, limit = 3 }))
    assert.equal(250, #sandbar.assert(sandboxes:list { page_size = 7 }))
    assert.equal(0, #sandbar.assert(sandboxes:list { labels = { seven = "maybe" } }))
    assert.equal(0, #sandbar.assert(sandboxes:list { labels = { six = "yes" } }))
    assert.equal("InvalidArgument", kind_of(sandboxes:list { state = "unknown" }))
    for _, bad in ipairs { { page_size = 0 }, { page_size = -1 }, { limit = 0 }, { limit = -1 } } do
      assert.equal("InvalidArgument", kind_of(sandboxes:list(bad)))
    end
    for _, box in ipairs(all) do
      ends(box)
    end
  end)
end)
