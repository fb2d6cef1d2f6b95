-- A scenario is a program of its own, so that what it prints and leaves can be seen. This is what all of them begin
-- with, how they are run, and what must hold at the end of each.

local assert = require "luassert"
local helper = require "spec.helper"
local lfs = require "lfs"

local scenario = {}

-- The program has: sandbar, helper, root, arguments (what `run` was given), sandboxes, `call` (a value, or the scenario
-- fails), `same`, `holds`, `rss` (kB), `finish` (the checks at the end that can be made from in there).
scenario.PRELUDE = [==[
package.loaded.busted = { subscribe = function() end } -- the helper is used without it
local sandbar = require "sandbar"
local helper = require "spec.helper"
local root = ...
local arguments = { select(2, ...) }
local function where() return debug.getinfo(3, "l").currentline end
local function call(value, err)
  if value == nil then error(("line %d: %s"):format(where(), tostring(err)), 0) end
  return value
end
local function same(expected, got, what)
  if expected ~= got then
    error(("line %d, %s: expected %q, got %q"):format(where(), what or "result", tostring(expected), tostring(got)), 0)
  end
end
local function holds(value, what)
  if not value then error(("line %d: %s"):format(where(), what or "does not hold"), 0) end
  return value
end
local function memory(key) return tonumber(helper.proc.status("self", key):match("%d+")) end
local function rss() return memory("VmRSS") end
local function open() return sandbar.assert(sandbar.open { root = root, linger = 0 }) end
local sandboxes = open()
do -- what the library opens for good is not the scenario's
  local box = sandbar.assert(sandboxes:create {})
  sandbar.assert(box:exec("true"))
  sandbar.assert(box:destroy())
  box:close()
end
collectgarbage() collectgarbage()
local fds_before, memory_before = helper.anonymous_fds(), rss()
local function finish()
  same(0, #call(sandboxes:list()), "sandboxes left")
  local more
  holds(helper.eventually(function()
    collectgarbage()
    more = helper.anonymous_fds() - fds_before
    return more <= 5
  end), "descriptors left")
  holds(rss() - memory_before < 65536, "memory grew by " .. rss() - memory_before .. " kB")
  for _, stat in pairs(helper.proc.all()) do
    holds(not (stat.parent == helper.proc.self() and stat.state == "Z"), "a defunct child")
  end
  print("done")
end
local _ = call, same, holds, rss, finish, arguments, memory, open
]==]

local function entries(path)
  local found = {}
  for name in lfs.dir(path) do
    if name ~= "." and name ~= ".." then
      found[#found + 1] = name
    end
  end
  return found
end

--- Runs the program after the prelude: it must say "done", nothing else, and leave nothing. `options`: args, timeout.
function scenario.run(program, options)
  local home = helper.dir("home")
  local args = { helper.root() }
  for _, arg in ipairs(options.args or {}) do
    args[#args + 1] = arg
  end
  local lines = select(2, scenario.PRELUDE:gsub("\n", "\n"))
  local r = helper.run_lua(scenario.PRELUDE .. program, {
    args = args, timeout = options.timeout or 120, env = { HOME = home, TMPDIR = home },
  })
  if not r.ok then -- what it had made shall not hide why it failed
    local sandboxes = helper.open()
    for info in sandboxes:each() do
      sandboxes:destroy(info.id)
    end
  end
  assert.equal("done\n", r.stdout, ("the program begins at line %d: %s"):format(lines + 1, r.stderr))
  assert.equal("", r.stderr)
  assert.equal(0, r.code)
  assert.same({}, entries(home))
  lfs.rmdir(home)
  assert.is_truthy(helper.eventually(function()
    return next(helper.proc.of_dir(helper.root())) == nil and not lfs.attributes(helper.root() .. "/v1/sock", "mode")
  end, 20)) -- as long as the guard of a spec's file waits
  assert.same({}, helper.proc.mounts(helper.root()))
  assert.same({}, entries(helper.root() .. "/v1/s"))
end

return scenario
