-- A command in a running sandbox against a raw spawn; a ping of pid 1 against a bare round trip.
return function(bench)
  local sandbar, lib, ms = bench.sandbar, bench.lib, bench.ms
  local assert = sandbar.assert
  local box = assert(bench.provider:create_scoped { id = "bench-exec" })
  local function exec()
    assert(box:exec { "true" })
  end
  for _ = 1, 10 do
    exec()
  end
  local times, ratios = bench.interleave(bench.pairs * 2, exec, function()
    return (lib.spawn { "true" })
  end)
  bench.row('exec{"true"} / raw posix_spawn', ms(times[1]), ms(times[2]), ratios[2], "<= 1.15")

  local line = io.popen(("%s/ping %s bench-exec 2000"):format(bench.tools, bench.root)):read("l")
  local echo, ping = (line or ""):match("(%S+) (%S+)")
  _G.assert(echo, "ping failed")
  bench.row("ping of pid 1 / bare seqpacket round trip", ping .. " us", echo .. " us", ping / echo, "<= 2")
  box:destroy()
end
