-- port:fetch against libcurl straight to the same server on the host's loopback.
--
-- Where server and client run decides more than what they do: on one processor an answer of the bare server takes
-- 25 us, on two 90 to 120, since a virtual one has to be woken. Left to the scheduler that changes from run to run, and
-- not for both servers alike. So a page is fetched with client and servers on one processor, and with the servers on
-- another; the bodies in pieces with the servers on another.

-- The process of the sandbox's server as the host sees it.
local function outer_pid(bench, command)
  local list = assert(io.popen("pgrep -nf '^" .. command .. "'"))
  for pid in list:lines() do
    if bench.read("/proc/" .. pid .. "/cmdline"):find(command, 1, true) == 1 then
      list:close()
      return tonumber(pid)
    end
  end
  error("the sandbox's server is not to be seen")
end

return function(bench)
  local sandbar, lib = bench.sandbar, bench.lib
  local assert = sandbar.assert
  local box = assert(bench.provider:create_scoped {})
  assert(box.files:upload(bench.tools .. "/httpd", "/home/user/httpd"))
  assert(box.files:chmod("/home/user/httpd", "755"))
  local server = assert(box:start { "/home/user/httpd", "3000" })
  local port = box:port(3000)
  assert(port:fetch { path = "/", wait = 10 })

  local pid = lib.start { bench.tools .. "/httpd", "39117", session = true }
  os.execute("sleep 0.2")
  local url = "http://127.0.0.1:39117"
  lib.fetch(url .. "/")

  local inner = outer_pid(bench, "/home/user/httpd")
  local times, ratios
  lib.pin(0, 0)
  for processor = 0, 1 do
    local where = processor == 0 and "one processor" or "two processors"
    if processor == 1 and not bench.read("/sys/devices/system/cpu/cpu1/topology/core_id") then
      bench.skip("port:fetch of a small page, " .. where, "there is one")
    else
      lib.pin(pid, processor)
      lib.pin(inner, processor)
      times, ratios = bench.interleave(bench.pairs * 5, function()
        local page = assert(port:fetch { path = "/" })
        _G.assert(page.status == 200)
      end, function()
        return (lib.fetch(url .. "/"))
      end)
      bench.row("port:fetch of a small page / libcurl, " .. where, ("%.0f us"):format(times[1] * 1e6),
        ("%.0f us"):format(times[2] * 1e6), ratios[2], "<= 1.3")
    end
  end

  local bytes = 32 << 20
  local path = "/big/" .. bytes
  local function straight()
    return (lib.fetch(url .. path))
  end
  local function pieces_of(size)
    return function()
      local page = assert(port:fetch { path = path, stream = true })
      local total = 0
      for data in function() return page.body:read(size) end do
        total = total + #data
      end
      _G.assert(total == bytes)
    end
  end
  -- libcurl, with its own size of buffer (16 KiB), throws the bytes away in its write callback, or (as a program
  -- must that wants to read them) copies them into a buffer of 256 KiB
  local function kept()
    return (lib.fetch(url .. path, true))
  end
  for _, size in ipairs { 65536, 262144 } do
    local name = ("32 MiB in pieces of %d KiB / libcurl, "):format(size / 1024)
    times, ratios = bench.interleave(bench.pairs, straight, pieces_of(size))
    bench.row(name .. "unread", bench.rate(bytes, times[2]), bench.rate(bytes, times[1]), ratios[2], ">= 0.8")
    times, ratios = bench.interleave(bench.pairs, kept, pieces_of(size))
    bench.row(name .. "kept", bench.rate(bytes, times[2]), bench.rate(bytes, times[1]), ratios[2], ">= 0.8")
  end

  local block = ("x"):rep(262144)
  times, ratios = bench.interleave(bench.pairs, function()
    local took = straight()
    local start = lib.now()
    local copy = block:rep(bytes // #block) -- one copy into a Lua string
    _G.assert(#copy == bytes)
    return took + lib.now() - start
  end, function()
    local page = assert(port:fetch { path = path })
    _G.assert(#page.body == bytes)
  end)
  bench.row("... whole / libcurl, host + a copy", bench.rate(bytes, times[2]), bench.rate(bytes, times[1]), ratios[2], ">= 0.8")
  lib.unpin()
  lib.stop(pid)
  server:kill { signal = "KILL" }
  box:destroy()
end
