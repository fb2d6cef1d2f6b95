-- Fifty one after the other without a pause: what each costs once the stock of spares is used up.
return function(bench)
  local sandbar, lib, ms = bench.sandbar, bench.lib, bench.ms
  local assert, provider = sandbar.assert, bench.provider
  local COUNT, ROUNDS = 50, math.max(3, bench.pairs // 20)

  -- After a pause, which is also the end of what the one before has left to others.
  local function each(fn)
    return function()
      os.execute("sleep 0.5")
      local start = lib.now()
      for _ = 1, COUNT do
        fn()
      end
      return (lib.now() - start) / COUNT
    end
  end
  local function whole()
    local box = assert(provider:create_scoped { template = "base" })
    assert(assert(box:exec { "true" }).ok)
    assert(box:destroy())
  end
  local function creates()
    local boxes = {}
    local took = each(function()
      boxes[#boxes + 1] = assert(provider:create_scoped { template = "base" })
    end)()
    for _, box in ipairs(boxes) do
      assert(box:destroy())
    end
    return took
  end

  local times, ratios = bench.interleave(ROUNDS, creates, each(function()
    return (lib.spawn { "true" })
  end))
  bench.row("create, 50 in a row / raw posix_spawn", ms(times[1]), ms(times[2]), ratios[2])

  local bubblewrap, reason = require("bubblewrap")(bench)
  if not bubblewrap then
    bench.skip("create + true + destroy, 50 in a row / bubblewrap", reason)
    return
  end
  times, ratios = bench.interleave(ROUNDS, each(whole), each(bubblewrap))
  bench.row("the same + true + destroy / bubblewrap", ms(times[1]), ms(times[2]), ratios[2], "<= 0.65")
end
