-- Pauses with and without memory, snapshots, copies: against creates, and syncs of the same file system.
return function(bench)
  local sandbar, lib, ms = bench.sandbar, bench.lib, bench.ms
  local assert, provider = sandbar.assert, bench.provider
  local function timed(fn)
    local start = lib.now()
    fn()
    return lib.now() - start
  end
  local function create()
    local box
    local took = timed(function() box = assert(provider:create_scoped {}) end)
    box:close()
    return took
  end
  local function sync()
    return lib.sync(bench.root)
  end
  local function ended(box)
    assert(box:destroy())
    box:close()
  end

  local box = assert(provider:create_scoped {})
  for _ = 1, 10 do
    assert(box:start({ "sleep", "3600" }, { detached = true, stdout = "ignore", stderr = "ignore" }))
  end
  local times = bench.interleave(bench.pairs, function()
    assert(box:pause())
    assert(box:resume())
  end)
  bench.row("memory pause + resume, 10 processes / 3 ms", ms(times[1]), "3.00 ms", times[1] / 0.003, "<= 1")
  ended(box)

  -- Each pair does the same work before it, so that a sync has as much to write in both.
  box = assert(provider:create_scoped {})
  local n = math.max(bench.pairs // 4, 10)
  local function write()
    assert(box.files:write("f", ("x"):rep(4096)))
  end
  local resumed = {}
  times = bench.interleave(n, function()
    write()
    local took = timed(function() assert(box:pause { keep = "disk" }) end)
    resumed[#resumed + 1] = timed(function() assert(box:resume()) end)
    return took + resumed[#resumed]
  end, function()
    write()
    return 2 * create() + sync()
  end)
  bench.row("disk pause + resume / 2 creates + a sync", ms(times[1]), ms(times[2]), times[1] / times[2], "<= 1")
  bench.row("resume from a disk pause / create", ms(bench.median(resumed)), ms(bench.median { create(), create(), create() }),
    bench.median(resumed) / bench.median { create(), create(), create() })
  ended(box)

  local size = 100
  box = assert(provider:create_scoped {})
  assert(box:exec(("head -c %dM /dev/zero >big"):format(size)))
  assert(box:pause { keep = "disk" })
  local taken = 0
  n = math.min(n, 50) -- a sandbox stands on 64 at most
  times = bench.interleave(n, function()
    taken = taken + 1
    return timed(function() assert(box:snapshot("bench" .. taken)) end)
  end, function()
    local f = _G.assert(io.open(bench.root .. "/one", "wb")) -- a sync of nothing would be none
    f:write("x")
    f:close()
    return 0.001 + sync()
  end)
  bench.row(("snapshot of a stopped one, %d MB / 1 ms + a sync"):format(size), ms(times[1]), ms(times[2]), times[1] / times[2], "<= 1")
  ended(box)
  for i = 1, taken do
    assert(provider.snapshots:delete("bench" .. i))
  end

  box = assert(provider:create_scoped {})
  assert(box:exec("head -c 10M /dev/zero >big"))
  assert(box:pause { keep = "disk" })
  times = bench.interleave(n, function()
    local copies
    local took = timed(function() copies = assert(box:fork(10)) end)
    for _, copy in ipairs(copies) do
      ended(copy)
    end
    return took
  end, function()
    local took = 0
    for _ = 1, 10 do
      took = took + create()
    end
    return took
  end)
  bench.row("fork(10) of a stopped one / 10 creates", ms(times[1]), ms(times[2]), times[1] / times[2], "<= 1")
  ended(box)
end
