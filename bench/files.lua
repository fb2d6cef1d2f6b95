-- 100 MiB into and out of a file in the sandbox, against dd on the same file system.
return function(bench)
  local sandbar, lib = bench.sandbar, bench.lib
  local assert = sandbar.assert
  local box = assert(bench.provider:create_scoped {})
  local bytes = 100 << 20
  local block = ("x"):rep(262144)
  local host = bench.root .. "/dd"

  local function write_chunks()
    local f = assert(box.files:open("/home/user/big", "w"))
    for _ = 1, bytes // #block do
      assert(f:write(block))
    end
    assert(f:close())
  end
  local function read_chunks()
    local f = assert(box.files:open("/home/user/big", "r"))
    local total = 0
    while true do
      local data = f:read(#block)
      if not data then
        break
      end
      total = total + #data
    end
    f:close()
    _G.assert(total == bytes)
  end
  local function dd(arguments)
    return function()
      local took, status = lib.spawn { "sh", "-c", "exec dd " .. arguments .. " 2>/dev/null" }
      _G.assert(status == 0, "dd failed")
      return took
    end
  end
  write_chunks()
  local times, ratios = bench.interleave(9, dd("if=/dev/zero of=" .. host .. " bs=256k count=400"), write_chunks)
  bench.row("write 100 MiB in chunks / dd bs=256k", bench.rate(bytes, times[2]), bench.rate(bytes, times[1]), ratios[2], ">= 0.5")
  times, ratios = bench.interleave(9, dd("if=" .. host .. " of=/dev/null bs=256k"), read_chunks)
  bench.row("read 100 MiB in chunks / dd bs=256k", bench.rate(bytes, times[2]), bench.rate(bytes, times[1]), ratios[2], ">= 0.5")

  local whole = dd("if=" .. host .. " of=/dev/null bs=100M")
  times, ratios = bench.interleave(9, function()
    local took = whole()
    local start = lib.now()
    local copy = block:rep(bytes // #block) -- one copy into a Lua string
    _G.assert(#copy == bytes)
    return took + lib.now() - start
  end, function()
    local data = assert(box.files:read("/home/user/big"))
    _G.assert(#data == bytes)
  end)
  bench.row("files:read of 100 MiB / dd bs=100M + a copy", bench.rate(bytes, times[2]), bench.rate(bytes, times[1]), ratios[2], ">= 0.5")
  os.remove(host)
  box:destroy()
end
