-- A command's output taken into Lua against a C reader of the same kind of pipe.
return function(bench)
  local sandbar, lib = bench.sandbar, bench.lib
  local assert = sandbar.assert
  local box = assert(bench.provider:create_scoped {})
  local bytes = 1 << 30
  local line = ("head -c %d /dev/zero"):format(bytes)

  local function into_lua()
    local p = assert(box:start(line, { stdout = "pipe" }))
    local start, total = lib.now(), 0
    while true do
      local data, err = p.stdout:read(262144)
      if not data then
        _G.assert(not err, tostring(err))
        break
      end
      total = total + #data
    end
    local took = lib.now() - start
    _G.assert(total == bytes)
    assert(p:wait())
    p:close()
    return took
  end
  into_lua()
  local before = tonumber(bench.read("/proc/self/status"):match("VmRSS:%s*(%d+)"))
  local times, ratios = bench.interleave(7, function()
    return (lib.drain(line))
  end, into_lua)
  bench.row("stdout into Lua / a C reader", bench.rate(bytes, times[2]), bench.rate(bytes, times[1]), ratios[2], ">= 0.5")
  local grown = tonumber(bench.read("/proc/self/status"):match("VmRSS:%s*(%d+)")) - before
  print(("%-46s grew by %d kB over %d GiB"):format("  resident memory of the reader", grown, 7))
  box:destroy()
end
