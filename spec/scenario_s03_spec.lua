-- check: only 5.4
-- check: no asan
-- check: long
-- Scenario: a table is uploaded, computed with, drawn, and what comes of it is downloaded; a file of 100 MiB goes there
-- and back beside it.
local helper = require "spec.helper"
local scenario = require "spec.support.scenario"

local PROGRAM = [==[
local CSV = "month,region,units,price\n2026-01,north,10,2.50\n2026-01,s\195\188d,4,3.00\n2026-02,north,7,2.50\n" ..
  "2026-02,s\195\188d,9,3.00\n2026-03,north,0,2.50\n2026-03,s\195\188d,5,3.10\n"
local NAME = "ventes 2026 (s\195\188d).csv"
local ANALYSIS = [=[
import csv, json, os, struct, sys, time, zlib
rows = list(csv.DictReader(open(sys.argv[1], encoding="utf-8", newline="")))
sums = {}
for i in range(3):
    print("step %d of 3" % (i + 1), file=sys.stderr, flush=True)
    time.sleep(1)
for row in rows:
    sums[row["region"]] = sums.get(row["region"], 0) + int(row["units"]) * float(row["price"])
sums["total"] = sum(sums.values())
os.makedirs("out", exist_ok=True)
with open("out/result.json", "w", encoding="utf-8") as f: json.dump(sums, f, ensure_ascii=False)
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
pixels = b"".join(b"\0" + bytes([255 if x < y else 0 for x in range(64)]) for y in range(64))
with open("out/chart.png", "wb") as f:
    f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b""))
for region, value in sums.items(): print("%-6s %6.2f" % (region, value))
]=]
local MIB = 1048576
local bytes = {}
for i = 0, 255 do bytes[i + 1] = string.char(i) end
local BLOCK = table.concat(bytes):rep(MIB / 256)

local box = call(sandboxes:create { lifetime = 900 })
-- 1: the large file as a stream of 8 MiB a second
same(149, #CSV, "the table's size")
call(box.files:write(NAME, CSV))
call(box.files:write("analyse.py", ANALYSIS))
helper.write_file("/proc/self/clear_refs", "5") -- from here on VmHWM is the transfers' peak
local before = rss()
local sent, began = 0, helper.now()
call(box.files:write("big.bin", function()
  if sent == 100 then return nil end
  sent = sent + 1
  sandbar.sleep(math.max(began + sent / 8 - helper.now(), 0))
  return BLOCK
end))
holds(helper.now() - began > 12, "the throttle")
-- 2
local function analyse()
  local times = {}
  local r = call(box:exec({ "python3", "analyse.py", NAME }, { timeout = 60, on_output = function(data, fd)
    if fd == 2 then
      for _ in data:gmatch("[^\n]+") do times[#times + 1] = helper.now() end
    end
  end }))
  same(0, r.exit_code, r.stderr)
  same("step 1 of 3\nstep 2 of 3\nstep 3 of 3\n", r.stderr, "progress")
  same("north   42.50\ns\195\188d     54.50\ntotal   97.00\n", r.stdout, "table")
  for i = 2, 3 do
    local gap = times[i] - times[i - 1]
    holds(gap > 0.7 and gap < 1.6, "the lines are " .. gap .. " s apart")
  end
  same('{"north": 42.5, "s\195\188d": 54.5, "total": 97.0}', call(box.files:read("out/result.json")), "result")
  return call(box.files:read("out/chart.png"))
end
local chart = analyse()
same("\137PNG\r\n\26\n", chart:sub(1, 8), "the picture")
-- 3
local inside = call(box:exec({ "sha256sum", "big.bin" })).stdout:match("^%x+")
-- 4
local file = call(box.files:open("out/chart.png"))
same(chart, call(file:read("a")), "read once more")
file:close()
local target = os.getenv("HOME") .. "/back"
call(box.files:download("out", target))
same(chart, helper.read_file(target .. "/chart.png"), "downloaded")
local seen, last = 0, 0
call(box.files:download("big.bin", target .. "/big.bin", { on_progress = function(p)
  seen = seen + 1
  last = p
end }))
holds(seen > 1, "progress")
same(100 * MIB, last, "all of it")
local back = helper.sh("sha256sum %s", target .. "/big.bin"):match("^%x+")
local made = helper.sh("python3 -c 'import hashlib; b = bytes(range(256)) * 4096; h = hashlib.sha256(); "
  .. "[h.update(b) for i in range(100)]; print(h.hexdigest())'"):match("^%x+")
same(made, inside, "the sum inside")
same(made, back, "the sum of what came back")
holds(memory("VmHWM") - before < 32768, "memory grew by " .. memory("VmHWM") - before .. " kB")
helper.sh("rm -r %s", target)
-- 5: where the machine can limit memory
if call(sandboxes:capabilities()).limit_memory then
  local small = call(sandboxes:create { lifetime = 300, limits = { memory = 256 * MIB } })
  local r = call(small:exec({ "python3", "-c", "x = b'x' * (2 << 30); print(len(x))" }, { timeout = 60 }))
  same("memory", r.reason)
  same(137, r.exit_code)
  same("alive\n", call(small:exec("echo alive")).stdout)
  call(small:destroy())
  small:close()
end
-- 6
same(chart, analyse(), "the second time")
call(box:destroy())
box:close()
BLOCK, chart, bytes = nil, nil, nil
finish()
]==]

describe("scenario S03", function()
  helper.guard()

  it("a data analysis", function()
    helper.need_program("python3")
    scenario.run(PROGRAM, { timeout = 150 })
  end)
end)
