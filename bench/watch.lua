-- How long after a write its event is in Lua, beside an echo through a process inside; the bound is on milliseconds. And
-- what a watch costs: to begin, flat and for a tree of 200 directories.
return function(bench)
  local sandbar, lib = bench.sandbar, bench.lib
  local assert = sandbar.assert
  local box = assert(bench.provider:create_scoped {})
  assert(box:exec("mkdir -p D T; i=0; while [ $i -lt 200 ]; do mkdir -p T/d$((i%20))/e$i; i=$((i+1)); done", { check = true }))
  local w = assert(box.files:watch("D", { recursive = true }))
  local f = assert(box.files:open("D/f", "w"))
  assert(w:next { timeout = 5 })
  local cat = assert(box:start({ "cat" }, { stdin = "pipe" }))
  local times = bench.interleave(bench.pairs, function()
    cat.stdin:write("x\n")
    assert(cat.stdout:read("l"))
  end, function()
    local began = lib.now()
    assert(f:write("x"))
    local event = assert(w:next { timeout = 5 })
    _G.assert(event.type == "write" and event.path == "f")
    return lib.now() - began
  end)
  bench.row("write to its event in Lua, ms / echo by cat", bench.ms(times[2]), bench.ms(times[1]), times[2] * 1e3, "<= 1")
  cat:kill { signal = "KILL" }
  f:close()
  w:close()
  local function begin(path, recursive)
    return function()
      local began = lib.now()
      local watch = assert(box.files:watch(path, { recursive = recursive }))
      local took = lib.now() - began
      watch:close()
      assert(box.files:stat("D")) -- its worker has a moment to end
      return took
    end
  end
  local function stat()
    assert(box.files:stat("D"))
  end
  local ratios
  times, ratios = bench.interleave(bench.pairs, begin("D", false), stat, begin("T", true))
  bench.row("begin a watch / files:stat", bench.ms(times[1]), bench.ms(times[2]), ratios[2])
  bench.row("begin one of 220 directories / files:stat", bench.ms(times[3]), bench.ms(times[2]), times[3] / times[2])
  box:destroy()
end
