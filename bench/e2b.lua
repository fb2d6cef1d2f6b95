-- The E2B provider beside the official SDK on Node, both against a canned server that starts nothing: what the clients
-- themselves cost. Each measure is a program of its own (e2b_client.lua, e2b_client.mjs), in turn with the other one's.
local CALLS, FLIGHT = 2000, 4000
local FILE = 104857600
local OUTPUT = 200e6
local NPM = "build/npm"

return function(bench)
  local dir = bench.root .. "/e2b"
  local here = io.popen("pwd"):read("l")
  local rounds = math.max(3, bench.pairs // 20)

  if not bench.has("node") or not bench.read(NPM .. "/node_modules/e2b/package.json") then
    return bench.skip("hosted sandboxes beside the SDK", "node or the npm package e2b (.ci/npm) is not there")
  end
  os.execute(("mkdir %s && head -c %d /dev/urandom >%s/file"):format(dir, FILE, dir))
  local made = assert(io.open(dir .. "/made", "w"))
  made:write('{"sandboxID":"i0123456789abcdefghij","templateID":"base","clientID":"6532622b","envdVersion":"0.6.13",',
    '"envdAccessToken":"token"}')
  made:close()
  local canned = bench.lib.start { "sh", "-c", ("exec %s/canned %s/made >%s/port"):format(bench.tools, dir, dir) }
  os.execute(("for i in $(seq 200); do [ -s %s/port ] && exit; sleep 0.05; done"):format(dir))
  local url = "http://127.0.0.1:" .. assert(bench.read(dir .. "/port")):match("%d+")

  -- What a program says: numbers; and the seconds from its start to its end.
  local function run(line)
    local start = bench.lib.now()
    local pipe = assert(io.popen(line))
    local text = pipe:read("a")
    assert(pipe:close(), line)
    local numbers = { seconds = bench.lib.now() - start }
    for word in text:gmatch("%S+") do
      numbers[#numbers + 1] = assert(tonumber(word), text)
    end
    return numbers
  end

  local function ours(mode)
    return run(("exec %s bench/e2b_client.lua %s %s"):format(arg[-1], url, mode))
  end
  local function peer(mode)
    return run(("exec node bench/e2b_client.mjs %s/%s %s %s"):format(here, NPM, url, mode))
  end

  -- The medians of each number, by turns: ours, and the peers' in their order.
  local function turns(...)
    local all, out = {}, {}
    for round = 1, rounds do
      for i, fn in ipairs { ... } do
        all[i] = all[i] or {}
        for key, value in pairs(fn()) do
          all[i][key] = all[i][key] or {}
          all[i][key][round] = value
        end
      end
    end
    for i, of in ipairs(all) do
      out[i] = {}
      for key, list in pairs(of) do
        out[i][key] = bench.median(list)
      end
    end
    return table.unpack(out)
  end
  local function both(mode)
    return turns(function()
      return ours(mode)
    end, function()
      return peer(mode)
    end)
  end

  local ms, rate = bench.ms, bench.rate
  local function memory(kb)
    return ("%.1f MB"):format(kb / 1e3)
  end
  local function per_second(seconds)
    return ("%.0f /s"):format(FLIGHT / seconds)
  end

  local function commands()
    local us, them = both("exec " .. CALLS)
    bench.row('hosted exec{"true"} / the SDK\'s, p50', ms(us[1]), ms(them[1]), us[1] / them[1], "<= 0.125")
    bench.row("  p99", ms(us[2]), ms(them[2]), us[2] / them[2], "<= 0.125")
    us, them = both("flight " .. FLIGHT)
    bench.row("  32 in flight (rates)", per_second(us[1]), per_second(them[1]), them[1] / us[1], ">= 15")
    bench.row("  resident memory under that load", memory(us[2]), memory(them[2]), us[2] / them[2], "<= 0.1")
    us, them = both("one")
    bench.row("a program with one hosted command / the SDK's", ms(us.seconds), ms(them.seconds), us.seconds / them.seconds,
      "<= 0.05")
    bench.row("  resident memory", memory(us[1]), memory(them[1]), us[1] / them[1], "<= 0.143")
    us, them = both("output")
    bench.row("200 MB of output / the SDK (rates)", rate(OUTPUT, us[1]), rate(OUTPUT, them[1]), them[1] / us[1], ">= 15")
  end

  local function files(what, mode, curl)
    local function mine()
      return ours(mode)
    end
    local function row(who, bound, us, them)
      bench.row(("  %s of 100 MiB / %s (rates)"):format(what, who), rate(FILE, us[1]), rate(FILE, them[1]), them[1] / us[1],
        bound)
    end
    if bench.has("curl") then
      row("curl", ">= 0.9", turns(mine, function()
        return run("exec curl -sS -w '%{time_total}' " .. curl)
      end))
    else
      bench.skip(("  %s of 100 MiB / curl"):format(what), "curl is not installed")
    end
    row("the SDK", ">= 4", both(mode))
  end

  local ok, err = xpcall(function()
    commands()
    files("upload", "up " .. dir .. "/file", ("-o %s/told -X POST -H 'content-type: application/octet-stream' -T %s/file '%s/files?path=/f'"):format(
      dir, dir, url))
    files("download", "down " .. dir .. "/got", ("-o %s/got '%s/files?path=/f'"):format(dir, url))
  end, debug.traceback)
  bench.lib.stop(canned, 15)
  os.execute("rm -rf " .. dir)
  if not ok then
    error(err, 0)
  end
end
