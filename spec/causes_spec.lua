-- check: only 5.4
-- What is said of a process's end, by every way to die and on every road on which one can hear of it (B06).
local helper = require "spec.helper"
local inside = require "spec.support.inside"

local sandbar = require "sandbar"

-- Those that end a program.
local SIGNALS = {
  HUP = 1, INT = 2, QUIT = 3, ILL = 4, TRAP = 5, ABRT = 6, BUS = 7, FPE = 8, KILL = 9, USR1 = 10, SEGV = 11, USR2 = 12,
  PIPE = 13, ALRM = 14, TERM = 15, STKFLT = 16, XCPU = 24, XFSZ = 25, VTALRM = 26, PROF = 27, IO = 29, PWR = 30, SYS = 31,
}

-- { command, exit_code, signal, reason, options }
local ENDS = {}
for _, code in ipairs { 0, 1, 7, 126, 127, 130, 137, 255 } do
  ENDS[#ENDS + 1] = { "exit " .. code, code, nil, "exit" }
end
for name, number in pairs(SIGNALS) do
  ENDS[#ENDS + 1] = { ("kill -%d $$"):format(number), 128 + number, "SIG" .. name, "signal" }
end
ENDS[#ENDS + 1] = { "kill -34 $$", 162, "SIGRTMIN+0", "signal" }
ENDS[#ENDS + 1] = { "sh -c 'kill -9 $PPID'; sleep 60", 137, "SIGKILL", "signal" } -- by another
ENDS[#ENDS + 1] = { "sh -c 'kill -9 $$'; exit $?", 137, nil, "exit" } -- a child's, passed on
ENDS[#ENDS + 1] = { "trap 'exit 5' TERM; kill $$; sleep 60", 5, nil, "exit" }
ENDS[#ENDS + 1] = { "ulimit -f 0; exec 2>&1; printf x >f; kill -9 $$", 153, "SIGXFSZ", "signal" }
ENDS[#ENDS + 1] = { "sleep 60", 137, "SIGKILL", "limit", { time_limit = 0.2 } }
ENDS[#ENDS + 1] = { "trap '' TERM INT HUP; while :; do sleep 1; done", 137, "SIGKILL", "limit", { time_limit = 0.2 } }
ENDS[#ENDS + 1] = { "exit 3", 3, nil, "exit", { time_limit = 60 } }

local function with(opts, more)
  local all = {}
  for _, from in ipairs { opts or {}, more } do
    for k, v in pairs(from) do
      all[k] = v
    end
  end
  return all
end

-- How one hears of it: fn(box, command, options) -> record.
local ROADS = {
  exec = function(box, cmd, opts)
    return box:exec(cmd, opts)
  end,
  ["exec with on_output"] = function(box, cmd, opts)
    return box:exec(cmd, with(opts, { on_output = function() end }))
  end,
  ["exec on a terminal"] = function(box, cmd, opts)
    return box:exec(cmd, with(opts, { pty = { cols = 80, rows = 24 } }))
  end,
  wait = function(box, cmd, opts)
    return sandbar.assert(box:start(cmd, opts)):wait { timeout = 20 }
  end,
  ["wait twice"] = function(box, cmd, opts)
    local p = sandbar.assert(box:start(cmd, opts))
    sandbar.assert(p:wait { timeout = 20 })
    return p:wait { timeout = 20 }
  end,
  ["attach after the end"] = function(box, cmd, opts)
    local p = sandbar.assert(box:start(cmd, opts))
    sandbar.assert(p:wait { timeout = 20 })
    return sandbar.assert(box:attach(sandbar.assert(p:reference()))):wait { timeout = 20 }
  end,
}

describe("the cause of an end", function()
  helper.guard()

  local sandboxes = helper.open()

  local function check(what, r, exit_code, signal, reason)
    assert.same({ what, exit_code, signal or "none", reason, exit_code == 0 },
      { what, r.exit_code, r.signal or "none", r.reason, r.ok })
  end

  for road, fn in pairs(ROADS) do
    it("is told the same by " .. road, function()
      inside.with_box(sandboxes, function(box)
        for _, e in ipairs(ENDS) do
          check(e[1], sandbar.assert(fn(box, e[1], e[5])), e[2], e[3], e[4])
        end
      end)
    end)
  end

  it("is the first one: a timeout stays one although it took KILL", function()
    inside.with_box(sandboxes, function(box)
      for _, road in ipairs { "exec", "exec with on_output", "exec on a terminal" } do
        local r, err = ROADS[road](box, "trap '' TERM; sleep 60; sleep 60", { timeout = 0.3 })
        assert.is_nil(r)
        assert.equal("ExecTimedOut", err.kind)
        check(road, err.result, 137, "SIGKILL", "timeout")
      end
    end)
  end)

  it("is the signal of a kill, or what the program made of it", function()
    inside.with_box(sandboxes, function(box)
      for how, e in pairs {
        ["exec sleep 60"] = { 143, "SIGTERM", "signal" },
        ["trap '' TERM; echo ready; while :; do sleep 1; done"] = { 137, "SIGKILL", "signal" },
        ["trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"] = { 0, nil, "exit" },
      } do
        local p = sandbar.assert(box:start(how))
        if how:find("ready", 1, true) then
          assert.equal("ready", p.stdout:read("l"))
        end
        check(how, sandbar.assert(p:kill { grace = how:find("''", 1, true) and 0.2 or 20 }), e[1], e[2], e[3])
        check(how, sandbar.assert(p:wait { timeout = 20 }), e[1], e[2], e[3])
      end
    end)
  end)

  it("is SIGKILL at the end of a scope, and SIGTERM at a pause that keeps the disk", function()
    inside.with_box(sandboxes, function(box)
      local p
      sandbar.scope(function(scope)
        p = sandbar.assert(box:start({ "sleep", "60" }, { scope = scope }))
      end)
      check("scope", sandbar.assert(p:wait { timeout = 20 }), 137, "SIGKILL", "signal")
      p = sandbar.assert(box:start({ "sleep", "60" }))
      sandbar.assert(box:pause { keep = "disk" })
      check("pause", sandbar.assert(p:wait { timeout = 20 }), 143, "SIGTERM", "signal")
    end)
  end)

  it("is not made up where nobody can know: the sandbox is destroyed, or its pid 1 is killed", function()
    local box = sandbar.assert(sandboxes:create { lifetime = 120 })
    local p = sandbar.assert(box:start({ "sleep", "60" }))
    sandbar.assert(box:destroy())
    local r, err = p:wait { timeout = 20 }
    assert.is_nil(r)
    assert.equal("NotFound", err.kind)
    box:close()

    box = sandbar.assert(sandboxes:create { lifetime = 120 })
    local word = helper.mark(7533)
    p = sandbar.assert(box:start({ "sleep", word }))
    local pid1 = assert(helper.eventually(function() return inside.pid1(word) end))
    assert(os.execute("kill -9 " .. pid1))
    r, err = p:wait { timeout = 20 }
    assert.is_nil(r)
    assert.is_true(err.kind == "OutcomeUnknown" or err.kind == "NotRunning", tostring(err))
    assert.is_truthy(helper.eventually(function()
      local info = sandbar.assert(box:info())
      return info.state == "failed" and info.cause.reason == "pid1"
    end))
    sandbar.assert(box:destroy())
    box:close()
  end)
end)
