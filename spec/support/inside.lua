-- What specs look at inside a sandbox, with the tools every image has.

local helper = require "spec.helper"
local lfs = require "lfs"
local sandbar = require "sandbar"

local inside = {}

-- The process that holds the lock `name` of a state root, or nil.
local function holder(root, name)
  local inode = lfs.attributes(root .. "/v1/" .. name, "ino")
  for line in (helper.read_file("/proc/locks") or ""):gmatch("[^\n]+") do
    local pid, of = line:match("^%d+: FLOCK%s+%S+%s+WRITE%s+(%d+) %x+:%x+:(%d+) ")
    if pid and tonumber(of) == inode then
      return tonumber(pid)
    end
  end
end

-- The supervisor of a state root, or nil. Works for every user: the lock is public, its descriptors are not.
function inside.supervisor(root)
  return holder(root, "life.lock")
end

-- The one that starts, or waits for another's place, or nil.
function inside.next_supervisor(root)
  return holder(root, "boot.lock")
end

-- Seen from outside: the pid 1 of the sandbox in which a command with this word among its arguments runs.
function inside.pid1(word)
  local all = helper.proc.all()
  for pid in pairs(all) do
    local hit = false
    for _, arg in ipairs(helper.proc.cmdline(pid)) do
      hit = hit or arg == word
    end
    local stat = hit and all[pid]
    while stat and stat.parent > 1 do
      local up = all[stat.parent]
      if helper.proc.cmdline(stat.pid)[1] == "init" then
        return stat.pid
      end
      stat = up
    end
    if stat and helper.proc.cmdline(stat.pid)[1] == "init" then -- its supervisor is gone
      return stat.pid
    end
  end
end

-- A process of the supervisor's that does some work for it, or nil.
local function worker()
  local supervisor = inside.supervisor(helper.root())
  for pid, stat in pairs(helper.proc.all()) do
    if stat.parent == supervisor and helper.proc.cmdline(pid)[1] == helper.proc.cmdline(supervisor)[1] then
      return pid
    end
  end
end

local function quiet()
  return helper.sh("ls -A %s", helper.quote(helper.root() .. "/v1/trash")) == "" and not worker()
end

-- The task that takes a snapshot in `fn`, and the process that copies for it, which is stopped.
function inside.copying(scope, fn)
  assert(helper.eventually(quiet, 20))
  local task = scope:spawn(fn)
  sandbar.sleep(0)
  local job = assert(helper.eventually(worker))
  helper.sh("kill -STOP %d", job)
  return task, job
end

-- The argument vectors of all processes, one a line, without the ones that do the looking.
function inside.commands(box)
  local r = sandbar.assert(box:exec("for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null", {
    env = { LOOKING = "1" },
  }))
  local out = {}
  for line in r.stdout:gmatch("[^\n]+") do
    if not line:find("/proc/[0-9]*", 1, true) and line ~= "" and not line:find("^tr ") then
      out[#out + 1] = line
    end
  end
  return out
end

-- How many processes have this text in their argument vector.
function inside.count(box, text)
  local n = 0
  for _, line in ipairs(inside.commands(box)) do
    if line:find(text, 1, true) then
      n = n + 1
    end
  end
  return n
end

-- How many processes are in this state ("Z").
function inside.in_state(box, letter)
  local r = sandbar.assert(box:exec("cat /proc/[0-9]*/stat 2>/dev/null"))
  local n = 0
  for line in r.stdout:gmatch("[^\n]+") do
    if line:match("^%d+ %(.*%) (%a)") == letter then
      n = n + 1
    end
  end
  return n
end

-- Runs fn(box, scope) in a fresh scoped sandbox.
function inside.with_box(sandboxes, fn, spec)
  sandbar.scope(function(scope)
    fn(sandbar.assert(sandboxes:create_scoped(spec or {}, scope)), scope)
  end)
end

-- Where a program built from spec/support is.
function inside.built(name)
  return (os.getenv("SPEC_BUILD") or "build") .. "/spec/" .. name
end

-- Puts such a program into the sandbox's home; its path there.
function inside.program(box, name)
  local path = "/home/user/" .. name
  sandbar.assert(box.files:upload(inside.built(name), path))
  sandbar.assert(box.files:chmod(path, "755"))
  return path
end

-- How often a race is tried: 200 times in the long suite.
function inside.times(short)
  local long = os.getenv("SANDBAR_LONG") or os.getenv("SPEC_LONG")
  return long and long ~= "" and 200 or short
end

-- A size that costs time and is nothing to the Lua: in full under Lua 5.4, smaller elsewhere and under a sanitizer.
function inside.size(full, smaller)
  local plain = (os.getenv("SPEC_SANITIZER") or "") == ""
  return plain and helper.lua == "5.4" and full or smaller
end

return inside
