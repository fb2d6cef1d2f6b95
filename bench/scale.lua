-- Many sandboxes alive: the price of the next one, and what each costs the machine.
return function(bench)
  local sandbar, lib, ms = bench.sandbar, bench.lib, bench.ms
  local assert = sandbar.assert
  local boxes = {}

  local function available()
    local text = bench.read("/proc/meminfo")
    return tonumber(text:match("MemAvailable:%s*(%d+)"))
  end
  -- What the kernel keeps, in kB, and what it would give back: other programs change it less than what is available.
  local function kernel()
    local text, sum = bench.read("/proc/meminfo"), 0
    for _, name in ipairs { "SUnreclaim", "KernelStack", "PageTables", "Percpu" } do
      sum = sum + tonumber(text:match("\n" .. name .. ":%s*(%d+)") or 0)
    end
    return sum, tonumber(text:match("\nSReclaimable:%s*(%d+)"))
  end
  local function add(n)
    for _ = 1, n do
      boxes[#boxes + 1] = assert(bench.provider:create_scoped {})
    end
  end
  local function measure()
    local times = {}
    for i = 1, bench.pairs do
      local start = lib.now()
      local box = assert(bench.provider:create_scoped {})
      times[i] = lib.now() - start
      assert(box:destroy())
    end
    return bench.median(times)
  end

  add(10)
  local at_10 = measure()
  local before = available()
  add(190)
  local each = (before - available()) / 190
  local at_200 = measure()
  bench.row("create at 200 alive / at 10", ms(at_200), ms(at_10), at_200 / at_10, "<= 1.3")
  bench.row("machine memory of a sandbox / 400 kB", ("%.0f kB"):format(each), "400 kB", each / 400, "<= 1.0")
  local kernel_before, cache_before = kernel()
  add(800)
  local kept, cached = kernel()
  kept, cached = (kept - kernel_before) / 800, (cached - cache_before) / 800
  local at_1000 = measure()
  bench.row("create at 1000 alive / at 10", ms(at_1000), ms(at_10), at_1000 / at_10, "<= 1.3")

  -- Nothing is asked of any of them, nor of some with a way to the world.
  local reach = 0
  for _ = 1, 10 do
    local box = bench.provider:create_scoped { network = { allow = { "203.0.113.7" } } }
    reach = reach + (box and 1 or 0)
    boxes[#boxes + 1] = box
  end
  local supervisor = bench.supervisor()
  -- Of the supervisor, all that it has started, and our own other threads: ours waits for the sleep.
  local function switches()
    local n = 0
    local paths = io.popen(("pgrep -P %s | sed 's,.*,/proc/&/status,'; ls /proc/%d/task/*/status")
      :format(supervisor, lib.pid()))
    for path in paths:lines() do
      if not path:match("task/" .. lib.pid() .. "/") then
        for times in (bench.read(path) or ""):gmatch("voluntary_ctxt_switches:%s*(%d+)") do
          n = n + tonumber(times)
        end
      end
    end
    paths:close()
    for times in bench.read("/proc/" .. supervisor .. "/status"):gmatch("voluntary_ctxt_switches:%s*(%d+)") do
      n = n + tonumber(times)
    end
    return n
  end
  -- What is made ahead is made, and what a burst has made too many of is gone after a minute.
  local idle, tries = 1, 0
  while idle > 0 and tries < 5 do
    tries = tries + 1
    os.execute("sleep 5")
    local before_it = switches()
    os.execute("sleep 20")
    idle = switches() - before_it
  end
  bench.row(("wake-ups of %d idle ones in 20 s + 1, %d of them with a relay"):format(#boxes, reach), ("%d"):format(idle), "0",
    idle + 1, "<= 1")

  local pss, count = 0, 0
  for line in io.popen("grep -l '^Name:.*pid1\\|^Name:.*sandbar' /proc/[0-9]*/status 2>/dev/null"):lines() do
    local pid = line:match("%d+")
    local status = bench.read("/proc/" .. pid .. "/status") or ""
    if status:match("NSpid:%s*%d+%s+1\n") then
      local rollup = bench.read("/proc/" .. pid .. "/smaps_rollup")
      local kb = rollup and tonumber(rollup:match("\nPss:%s*(%d+)"))
      if kb then
        pss, count = pss + kb, count + 1
      end
    end
  end
  if count == 0 then
    bench.skip("memory of pid 1", "its smaps are not readable by this user")
  else
    each = kept + pss / count
    bench.row("kernel + PSS of each of 1000 / 400 kB", ("%.0f kB"):format(each), "400 kB", each / 400, "<= 1.0")
    bench.row("with the names and inodes it has cached", ("%.0f kB"):format(each + cached), "400 kB", (each + cached) / 400)
    bench.row("PSS of pid 1 / 64 kB", ("%.0f kB"):format(pss / count), "64 kB", pss / count / 64, "<= 1.0")
  end
  for _, box in ipairs(boxes) do
    assert(box:destroy())
  end
end
