-- What a sandbox's relay costs the bytes that go through it, against pasta, which is what others give a network
-- namespace: the same client in each, the same server on the host. pasta leads to the host's loopback by the address of
-- the gateway, the relay to an address of the host that its policy lists: both are the loopback device to the kernel.
--
-- A round trip is four wake-ups, and between two processors each of them takes twice its time: so that is measured on
-- one, too, where it does not depend on where the scheduler puts whom.
local PORT = 39118

-- The gateway and our address at the interface to it.
local function addresses()
  local route = io.popen("ip -4 route show default 2>/dev/null"):read("a")
  local gateway, device = route:match("default via (%S+) dev (%S+)")
  local own = gateway and io.popen("ip -4 -o addr show dev " .. device .. " scope global"):read("a"):match("inet ([%d.]+)")
  return gateway, own
end

return function(bench)
  local sandbar, lib = bench.sandbar, bench.lib
  local assert = sandbar.assert
  local gateway, own = addresses()
  if not own then
    bench.skip("relay", "this machine has no gateway")
    return
  end
  local box, err = bench.provider:create_scoped { network = { allow = { own } } }
  if not box then
    bench.skip("relay", tostring(err))
    return
  end
  local server = lib.start { bench.tools .. "/wire", "server", tostring(PORT), session = true }
  assert(box.files:upload(bench.tools .. "/wire", "/home/user/wire"))
  assert(box.files:chmod("/home/user/wire", "755"))

  -- What the client says, a number; nil where it gave up.
  local function relay(what, n)
    return tonumber(assert(box:exec { "/home/user/wire", "client", own, tostring(PORT), what, tostring(n) }).stdout)
  end
  -- A client whose pasta has ended stays, and what reads from it waits: it has a limit of its own.
  local client = ("timeout 20 %s/wire client %s %d"):format(bench.tools, gateway, PORT)
  local function pasta(what, n)
    local line = "timeout 25 pasta --config-net --quiet --runas 0 -- %s %s %d </dev/null 2>/dev/null"
    local out = io.popen(line:format(client, what, n))
    local text = out:read("a")
    out:close()
    return tonumber(text)
  end
  os.execute("sleep 0.2")
  local missing = not bench.has("pasta") and "pasta is not installed"
    or not pasta("rtt", 10) and "pasta does not work here"

  local rounds = math.max(bench.pairs // 5, 5)
  local function compare(name, what, n, show, bound)
    if missing then
      bench.skip(name, missing)
      return
    end
    local ours, theirs, ratios, stalled = {}, {}, {}, 0
    for _ = 1, rounds do
      local a, b = _G.assert(relay(what, n)), pasta(what, n)
      if b then
        ours[#ours + 1], theirs[#theirs + 1], ratios[#ratios + 1] = a, b, what == "rtt" and a / b or b / a
      else
        stalled = stalled + 1 -- as that of 2023 does now and then
      end
    end
    if #ours < rounds / 2 then
      bench.skip(name, ("pasta stalled in %d of %d rounds"):format(stalled, rounds))
      return
    end
    bench.row(name, show(bench.median(ours), n), show(bench.median(theirs), n), bench.median(ratios), bound)
  end
  -- Server, relay and whatever runs inside; what we start comes after us.
  local function place(on)
    local pids = io.popen("pgrep -P " .. bench.supervisor()):read("a") .. server
    for pid in pids:gmatch("%d+") do
      on(tonumber(pid))
    end
    on(0)
  end
  local function micros(us)
    return ("%.1f us"):format(us)
  end
  local function rate(seconds, n)
    return bench.rate(n, seconds)
  end
  local bytes = 128 << 20
  place(function(pid) lib.pin(pid, 0) end)
  compare("relay: round trip of a byte / pasta, one processor", "rtt", 2000, micros, "<= 1.2")
  place(lib.unpin)
  compare("relay: round trip of a byte / pasta", "rtt", 2000, micros, "<= 1.2")
  compare("relay: to the server / pasta", "out", bytes, rate, ">= 0.8")
  compare("relay: from the server / pasta", "in", bytes, rate, ">= 0.8")
  lib.stop(server)
  assert(box:destroy())
end
