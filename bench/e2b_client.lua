-- A program that uses hosted sandboxes, and times itself: e2b_client.lua URL MODE [ARGUMENT]. Prints what it measured and,
-- last, the most memory it had, in kB. The same as e2b_client.mjs.
--   one         one command in a sandbox of its own
--   exec N      N commands, one after the other: seconds of the median, of the 99th percentile
--   flight N    N commands, 32 at a time: seconds
--   output      200 MB of output: seconds
--   up FILE     a file of 100 MiB to the sandbox, down FILE from it: seconds
local sandbar = require "sandbar"
local assert = sandbar.assert
local url, mode, argument = arg[1], arg[2], arg[3]

local boxes = assert(sandbar.open { provider = "e2b", api_key = "e2b_" .. ("7"):rep(40), api_url = url, sandbox_url = url })
local box = assert(boxes:create { lifetime = 600 })
local measured = {}

local function run()
  assert(box:exec { "true" })
end

local function timed(fn, ...)
  local now = require("benchlib").now
  local start = now()
  fn(...)
  measured[#measured + 1] = now() - start
end

local modes = { one = run }

function modes.exec(n)
  for _ = 1, 50 do
    run()
  end
  for _ = 1, n do
    timed(run)
  end
  table.sort(measured)
  measured = { measured[#measured // 2 + 1], measured[math.ceil(#measured * 0.99)] }
end

function modes.flight(n)
  local left = n
  timed(sandbar.run, function()
    local all = {}
    for i = 1, 32 do
      all[i] = function()
        while left > 0 do
          left = left - 1
          run()
        end
      end
    end
    assert(sandbar.all(all))
  end)
end

function modes.output()
  timed(function()
    local r = assert(box:exec({ "head", "-c", "200000000", "/dev/zero" }, { max_output = 2 ^ 28 }))
    _G.assert(#r.stdout >= 200000000)
  end)
end

function modes.up(path)
  timed(function()
    assert(box.files:upload(path, "/f"))
  end)
end

function modes.down(path)
  timed(function()
    assert(box.files:download("/f", path))
  end)
end

modes[mode](tonumber(argument) or argument)
assert(box:destroy())
for line in io.lines "/proc/self/status" do
  measured[#measured + 1] = line:match "^VmHWM:%s*(%d+)"
end
print(table.concat(measured, " "))
