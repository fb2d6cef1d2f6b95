-- The benchmark: ratios against peers measured in the same run, printed as a table.
-- Absolute times drift with the machine; a ratio is the median of interleaved pairs.
-- usage: lua5.4 bench/run.lua [case ...]; SANDBAR_PAIRS sets the number of pairs (default 100).
local sandbar = require "sandbar"
local lib = require "benchlib"

local bench = {
  lib = lib,
  sandbar = sandbar,
  pairs = tonumber(os.getenv("SANDBAR_PAIRS") or "") or 100,
  tools = os.getenv("SANDBAR_BENCH_TOOLS"), -- where httpd and ping were built
}

function bench.median(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  return sorted[(#sorted + 1) // 2]
end

--- Runs the functions in turn, `n` rounds, each returning seconds (or nothing: then it is timed);
--- returns the median of each, and of the ratio first/other round by round.
function bench.interleave(n, ...)
  local functions, times, ratios = { ... }, {}, {}
  for i = 1, #functions do
    times[i], ratios[i] = {}, {}
  end
  for round = 1, n do
    for i, fn in ipairs(functions) do
      local start = lib.now()
      times[i][round] = fn() or lib.now() - start
    end
    for i = 2, #functions do
      ratios[i][round] = times[1][round] / times[i][round]
    end
  end
  local medians, ratio_medians = {}, {}
  for i = 1, #functions do
    medians[i] = bench.median(times[i])
    ratio_medians[i] = i > 1 and bench.median(ratios[i]) or 1
  end
  return medians, ratio_medians
end

local failed = 0

--- One line of the table. `bound` is the target: "<= 1.15" or ">= 0.5", or nil where none was set.
function bench.row(what, ours, peer, ratio, bound)
  if not bound then
    print(("%-46s %14s %14s %8.2f   none"):format(what, ours, peer, ratio))
    return
  end
  local relation, limit = bound:match("^([<>]=) ([%d.]+)$")
  local met = relation == "<=" and ratio <= tonumber(limit) or relation == ">=" and ratio >= tonumber(limit)
  failed = failed + (met and 0 or 1)
  print(("%-46s %14s %14s %8.2f   %-8s %s"):format(what, ours, peer, ratio, bound, met and "met" or "MISSED"))
end

function bench.skip(what, reason)
  print(("%-46s skipped: %s"):format(what, reason))
end

function bench.ms(seconds)
  return ("%.2f ms"):format(seconds * 1e3)
end

function bench.rate(bytes, seconds)
  return ("%.0f MB/s"):format(bytes / seconds / 1e6)
end

function bench.has(program)
  return os.execute("command -v " .. program .. " >/dev/null 2>&1") == true
end

function bench.read(path)
  local f = io.open(path, "rb")
  local text = f and f:read("a")
  if f then
    f:close()
  end
  return text
end

--- The process that holds the lock of our state root.
function bench.supervisor()
  local inode = io.popen("stat -c %i " .. bench.root .. "/v1/life.lock"):read("l")
  for line in io.lines("/proc/locks") do
    local pid, of = line:match("FLOCK%s+%S+%s+WRITE%s+(%d+) %x+:%x+:(%d+) ")
    if of == inode then
      return pid
    end
  end
end

local all = { "lifecycle", "pauses", "exec", "streams", "files", "watch", "ports", "relay", "nginx", "scale" }
local wanted = #arg > 0 and arg or all

bench.root = assert(io.popen("mktemp -d /tmp/sbb.XXXXXX"):read("l"))
bench.provider = sandbar.assert(sandbar.open { root = bench.root, linger = 600 })

print(("%-46s %14s %14s %8s   %-8s"):format("case (medians)", "sandbar", "peer", "ratio", "target"))
local ok, err = xpcall(function()
  for _, name in ipairs(wanted) do
    dofile((arg[0]:gsub("run%.lua$", name .. ".lua")))(bench)
  end
end, debug.traceback)
-- the last caller asks for no linger, so that the supervisor leaves with us
sandbar.open({ root = bench.root, linger = 0 }):list()
os.execute("sleep 0.3; rm -rf --one-file-system " .. bench.root)
if not ok then
  io.stderr:write(tostring(err), "\n")
  os.exit(1, true)
end
print(failed == 0 and "every measured target met" or failed .. " targets missed")
