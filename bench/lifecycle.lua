-- Create and destroy, against a raw spawn, bubblewrap and crun; a whole script against a raw spawn.
return function(bench)
  local sandbar, lib, ms = bench.sandbar, bench.lib, bench.ms
  local assert, provider = sandbar.assert, bench.provider
  local function raw_spawn()
    return (lib.spawn { "true" })
  end
  local function create()
    local start = lib.now()
    local box = assert(provider:create_scoped { template = "base" })
    local took = lib.now() - start
    box:close()
    return took
  end
  local function whole()
    local box = assert(provider:create_scoped { template = "base" })
    local result = assert(box:exec { "true" })
    assert(result.ok)
    assert(box:destroy())
  end

  for _ = 1, 10 do
    whole()
    raw_spawn()
  end
  local times, ratios = bench.interleave(bench.pairs, create, raw_spawn)
  bench.row("create / raw posix_spawn of true", ms(times[1]), ms(times[2]), ratios[2], "<= 1.0")

  assert(provider.templates:build { name = "prepared", network = "deny", steps = { { run = "echo 1 > /tmp/1" }, { env = { A = "1" } } } })
  local function create_prepared()
    local start = lib.now()
    local box = assert(provider:create_scoped { template = "prepared" })
    local took = lib.now() - start
    box:close()
    return took
  end
  create_prepared()
  times, ratios = bench.interleave(bench.pairs, create_prepared, create)
  bench.row("create with a prepared template / create", ms(times[1]), ms(times[2]), ratios[2])

  local bubblewrap, reason = require("bubblewrap")(bench)
  if not bubblewrap then
    bench.skip("create + true + destroy / bubblewrap", reason)
  else
    times, ratios = bench.interleave(bench.pairs, whole, bubblewrap)
    bench.row("create + true + destroy / bubblewrap, overlay", ms(times[1]), ms(times[2]), ratios[2], "<= 0.65")
  end

  if not bench.has("crun") then
    bench.skip("create + true + destroy / crun", "crun is not installed")
  else
    lib.hide_mount("/sys/fs/cgroup/unified") -- crun refuses hybrid hosts; our supervisor runs already
    local bundle = bench.root .. "/crun"
    os.execute(("mkdir -p %s && cp -a %s/bwrap/lower %s/rootfs && cd %s && crun spec"):format(bundle, bench.root, bundle, bundle))
    local spec = bench.read(bundle .. "/config.json")
    spec = spec and spec:gsub('"terminal": true', '"terminal": false'):gsub('"sh"', '"true"')
      :gsub('"mounts": %[', '"mounts": [ { "destination": "/usr", "type": "none", "source": "/usr", "options": ["rbind", "ro"] },')
    local config = assert(io.open(bundle .. "/config.json", "w"))
    config:write(spec)
    config:close()
    local n = 0
    local function crun()
      n = n + 1
      local took, status = lib.spawn { "crun", "--cgroup-manager=disabled", "run", "-b", bundle, "sbb" .. n }
      _G.assert(status == 0, "crun failed")
      return took
    end
    local ok, why = pcall(crun)
    if ok then
      times, ratios = bench.interleave(bench.pairs, whole, crun)
      bench.row("create + true + destroy / crun", ms(times[1]), ms(times[2]), ratios[2], "<= 0.5")
    else
      bench.skip("create + true + destroy / crun", "it does not start here: " .. tostring(why))
    end
  end

  local script = bench.root .. "/one.lua"
  local f = assert(io.open(script, "w"))
  f:write(([[
local sandbar = require "sandbar"
local assert = sandbar.assert
local box = assert(assert(sandbar.open { root = %q, linger = 600 }):create_scoped {})
assert(assert(box:exec { "true" }).ok)
box:close()
]]):format(bench.root))
  f:close()
  local function one()
    local took, status = lib.spawn { arg[-1], script }
    _G.assert(status == 0, "the script failed")
    return took
  end
  times, ratios = bench.interleave(bench.pairs, one, raw_spawn)
  bench.row("a one-command script / raw spawn", ms(times[1]), ms(times[2]), ratios[2], "<= 6")
end
