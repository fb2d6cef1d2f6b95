-- What every spec shares: a private state root, the leftover check, child interpreters, a look at /proc.
--
--   local helper = require "spec.helper"
--   helper.guard()                          -- at the top of the file: checks after each test and at the end
--   local sandboxes = helper.open()         -- the local provider on this file's own state root, linger 0
--
-- Runs on every Lua the library runs on; needs only what busted brings (lfs, system).

local busted = require "busted"
local lfs = require "lfs"
local luassert = require "luassert"
local system = require "system"

local helper = {}

local unpack = table.unpack or unpack -- luacheck: ignore 143
local scratch, state_root
local made_scratch = false

-- --- strings, files, commands -----------------------------------------------------------------------

function helper.quote(s)
  return "'" .. tostring(s):gsub("'", "'\\''") .. "'"
end

function helper.read_file(path)
  local f, err = io.open(path, "rb")
  if not f then
    return nil, err
  end
  local data = f:read("*a")
  f:close()
  return data
end

function helper.write_file(path, data)
  local f = assert(io.open(path, "wb"))
  assert(f:write(data))
  assert(f:close())
  return path
end

--- Runs a shell line; returns its output (both streams) and its exit status. Programs of the system do not get
--- the sanitizer's library, which is preloaded into our interpreter: some hang with it.
function helper.shell(line)
  local f = assert(io.popen("unset LD_PRELOAD; { " .. line .. "\n} 2>&1; echo \" $?\"", "r"))
  local all = f:read("*a")
  f:close()
  local out, status = all:match("^(.*) (%d+)\n$")
  return out, tonumber(status)
end

--- The output of a shell line (a format and its values) that must succeed.
function helper.sh(line, ...)
  local out, status = helper.shell(line:format(...))
  assert(status == 0, out)
  return out
end

-- --- time -------------------------------------------------------------------------------------------

helper.now = system.monotime

--- What a call has given is an error of this kind: the error.
function helper.kind(expected, value, err)
  luassert.is_nil(value)
  luassert.equal(expected, err and err.kind, tostring(err))
  return err
end

--- Waits until fn() gives something true, looking every few milliseconds; for things the library gives no
--- event for (processes going away). Returns what fn gave, or nil and the last second result.
function helper.eventually(fn, seconds)
  local deadline = helper.now() + (seconds or 5)
  while true do
    local got, why = fn()
    if got then
      return got
    end
    if helper.now() >= deadline then
      return nil, why
    end
    system.sleep(0.005)
  end
end

--- How long fn took, and what it returned first.
function helper.timed(fn, ...)
  local start = helper.now()
  local result = fn(...)
  return helper.now() - start, result
end

-- --- directories ------------------------------------------------------------------------------------

--- This file's scratch directory (short: unix sockets live below it). Removed by guard() at the end.
function helper.scratch()
  if not scratch then
    scratch = os.getenv("SPEC_DIR")
    if not scratch then
      scratch = helper.shell("mktemp -d /tmp/sb.XXXXXX"):match("%S+")
      made_scratch = true
    end
  end
  return scratch
end

local counter = 0

--- A fresh directory below the scratch directory.
function helper.dir(name)
  counter = counter + 1
  local path = ("%s/%s%d"):format(helper.scratch(), name or "d", counter)
  assert(lfs.mkdir(path))
  return path
end

--- The state root of this spec file.
function helper.root()
  if not state_root then
    state_root = helper.scratch() .. "/r"
    assert(lfs.mkdir(state_root))
    assert(os.execute("chmod 700 " .. helper.quote(state_root)))
  end
  return state_root
end

--- Removes a directory tree, also one that holds files of our subordinate ids. A supervisor on its way out
--- may still be emptying its trash there.
function helper.remove(path)
  local quoted = helper.quote(path)
  return helper.eventually(function()
    local _, status = helper.shell("rm -rf " .. quoted .. " 2>/dev/null")
    if status ~= 0 then
      helper.shell("unshare --user --map-root-user --map-auto rm -rf " .. quoted)
    end
    if lfs.symlinkattributes(path, "mode") then
      return nil, path .. " cannot be removed"
    end
    return true
  end, 5)
end

--- The local provider on the file's root, leaving at once when idle.
function helper.open(options)
  local sandbar = require "sandbar"
  local all = { provider = "local", root = helper.root(), linger = 0 }
  for k, v in pairs(options or {}) do
    all[k] = v
  end
  return sandbar.assert(sandbar.open(all))
end

-- --- /proc ------------------------------------------------------------------------------------------

local proc = {}
helper.proc = proc

--- Own process id.
function proc.self()
  return tonumber((helper.read_file("/proc/self/stat"):match("^%d+")))
end

--- Open descriptors of a process: { [number] = what it points to }.
function proc.fds(pid)
  local dir = ("/proc/%s/fd"):format(pid or "self")
  local ok, iter, state = pcall(lfs.dir, dir)
  local found = {}
  if not ok then
    return found
  end
  for name in iter, state do
    local target = tonumber(name) and lfs.symlinkattributes(dir .. "/" .. name, "target")
    if target and target ~= ("/proc/%s/fd"):format(proc.self()) then
      found[tonumber(name)] = target
    end
  end
  return found
end

--- { pid, name, state, parent, group, session, start } or nil.
function proc.stat(pid)
  local text = helper.read_file(("/proc/%s/stat"):format(pid))
  if not text or text == "" then
    return nil
  end
  local id, name, rest = text:match("^(%d+) %((.*)%) (.*)$")
  local field = {}
  for word in rest:gmatch("%S+") do
    field[#field + 1] = word
  end
  return {
    pid = tonumber(id), name = name, state = field[1], parent = tonumber(field[2]),
    group = tonumber(field[3]), session = tonumber(field[4]), start = tonumber(field[20]),
  }
end

--- A line of /proc/<pid>/status ("VmRSS", "Threads", "SigIgn", ...) as text.
function proc.status(pid, key)
  local text = helper.read_file(("/proc/%s/status"):format(pid or "self"))
  return text and ("\n" .. text):match("\n" .. key .. ":%s*([^\n]*)")
end

--- The argument vector of a process, as an array.
function proc.cmdline(pid)
  local words = {}
  for word in (helper.read_file(("/proc/%s/cmdline"):format(pid)) or ""):gmatch("([^%z]*)%z") do
    words[#words + 1] = word
  end
  return words
end

--- A number that no other run of a spec has among the arguments of its commands, for what looks for such a command
--- from outside: `sleep` takes it, a regular expression finds no other by it.
function helper.mark(number)
  return ("%d.%d"):format(number, proc.self())
end

--- Does it run (a zombie does not)?
function proc.alive(pid)
  local stat = proc.stat(pid)
  return stat ~= nil and stat.state ~= "Z" and stat.state ~= "X"
end

--- Every process: { [pid] = stat }.
function proc.all()
  local all = {}
  for name in lfs.dir("/proc") do
    if name:match("^%d+$") then
      all[tonumber(name)] = proc.stat(name)
    end
  end
  return all
end

--- The living children (or with deep = true descendants) of a process, as an array of stats.
function proc.children(pid, deep)
  local all, found, parents = proc.all(), {}, { [pid or proc.self()] = true }
  repeat
    local more = false
    for id, stat in pairs(all) do
      if parents[stat.parent] and not parents[id] and stat.state ~= "Z" then
        found[#found + 1] = stat
        all[id] = nil
        parents[id] = deep or nil
        more = more or deep
      end
    end
  until not more
  return found
end

--- Processes that have anything below `dir` open, as working directory, root or program, and (deep) their
--- descendants: the supervisor of a state root and every sandbox under it.
function proc.of_dir(dir)
  local found, all = {}, proc.all()
  local me = proc.self()
  local function below(path)
    return path and (path == dir or path:sub(1, #dir + 1) == dir .. "/")
  end
  for pid, stat in pairs(all) do
    local hit = pid ~= me and stat.state ~= "Z"
    if hit then
      hit = false
      for _, link in ipairs { "cwd", "root", "exe" } do
        hit = hit or below(lfs.symlinkattributes(("/proc/%d/%s"):format(pid, link), "target"))
      end
      for _, target in pairs(hit and {} or proc.fds(pid)) do
        hit = hit or below(target)
      end
    end
    if hit then
      found[pid] = stat
    end
  end
  for pid in pairs(found) do
    for _, stat in ipairs(proc.children(pid, true)) do
      if stat.pid ~= me then
        found[stat.pid] = stat
      end
    end
  end
  return found
end

--- Mount points at or below `dir`, in the mount namespace of a process (default: ours).
function proc.mounts(dir, pid)
  local found = {}
  for line in (helper.read_file(("/proc/%s/mountinfo"):format(pid or "self")) or ""):gmatch("[^\n]+") do
    if line:find(dir, 1, true) then
      found[#found + 1] = line
    end
  end
  return found
end

-- --- leftovers --------------------------------------------------------------------------------------

local function outstanding()
  local core = package.loaded["sandbar.core"]
  return core and core.outstanding and core.outstanding() or 0
end

local function pending()
  local core = package.loaded["sandbar.core"]
  local mailbox = core and core.mailbox and core.mailbox()
  return mailbox and mailbox.pending and mailbox:pending() or 0
end

local function names(stats)
  local list = {}
  for _, stat in pairs(stats) do
    list[#list + 1] = ("process %d (%s): %s"):format(stat.pid, stat.name, table.concat(proc.cmdline(stat.pid), " "))
  end
  return list
end

--- What is there now, to be compared with later: descriptors and children of this process.
function helper.snapshot()
  collectgarbage()
  collectgarbage()
  local children = {}
  for _, stat in ipairs(proc.children()) do
    children[stat.pid] = true
  end
  return { fds = proc.fds(), children = children }
end

-- What the runtime keeps once it has been used: the images it runs, the directory of a state root it has a
-- connection to.
local function runtimes_own(target)
  return target:find("^/dev/") or target:find("^/memfd:")
    or state_root and (target == state_root or target == state_root .. "/v1")
end

local function look(before, final)
  local found = {}
  local function add(list)
    for _, item in ipairs(list) do
      found[#found + 1] = item
    end
  end
  if outstanding() > 0 then
    add { ("%d releases not done"):format(outstanding()) }
  end
  if pending() > 0 then
    add { ("%d operations not done"):format(pending()) }
  end
  for fd, target in pairs(proc.fds()) do
    -- The runtime's own descriptors come with the first operation and stay: anonymous ones are counted
    -- by growth below, named ones must not appear at all.
    if before.fds[fd] ~= target and target:sub(1, 1) == "/" and not runtimes_own(target) then
      add { ("descriptor %d: %s"):format(fd, target) }
    end
  end
  for _, stat in ipairs(proc.children()) do
    if not before.children[stat.pid] then
      add(names { stat })
    end
  end
  if final and state_root then
    add(names(proc.of_dir(state_root)))
    add(proc.mounts(state_root))
    -- The trash as well: an ordinary user does not see who still empties it.
    for _, part in ipairs { "/v1/s", "/v1/p", "/v1/trash" } do
      if lfs.attributes(state_root .. part, "mode") == "directory" then
        for name in lfs.dir(state_root .. part) do
          if name ~= "." and name ~= ".." then
            add { "directory " .. state_root .. part .. "/" .. name }
          end
        end
      end
    end
  end
  return found
end

-- Waits until the supervisor of the file's state root has left, which holds this lock as long as it lives: a look at
-- every process and what it has open, again and again, would cost more than what is waited for.
local function supervisor_left(seconds)
  local lock = state_root and state_root .. "/v1/life.lock"
  if lock and lfs.attributes(lock) then
    helper.shell(("flock --shared --timeout %g %s true"):format(seconds, helper.quote(lock)))
  end
end

--- Nothing is left over within `seconds` (releases run behind the program's back): true, or nil and a list
--- in one string. `final` also wants the state root empty of sandboxes and the supervisor gone.
function helper.leftovers(before, final, seconds)
  local found
  seconds = seconds or 5
  if final then
    collectgarbage()
    collectgarbage()
    seconds = seconds - helper.timed(supervisor_left, seconds)
  end
  local clean = helper.eventually(function()
    collectgarbage()
    found = look(before, final)
    return #found == 0
  end, seconds)
  if clean then
    return true
  end
  return nil, "left over: " .. table.concat(found, "; ")
end

--- Anonymous descriptors (sockets, pipes, eventfds, pidfds) of this process: a number to compare.
function helper.anonymous_fds()
  local n = 0
  for _, target in pairs(proc.fds()) do
    if target:match("^%a+:") then
      n = n + 1
    end
  end
  return n
end

--- Checks for leftovers after each test of the file and, with the state root's supervisor, at its end;
--- then removes the scratch directory. options.each = false: only at the end (for files whose tests
--- build on each other). options.growth: how many anonymous descriptors the file may end with more
--- (default 16: the runtime's own and one connection to the supervisor).
function helper.guard(options)
  options = options or {}
  local before, fds_before
  busted.setup(function()
    before = helper.snapshot()
    fds_before = helper.anonymous_fds()
  end)
  if options.each ~= false then
    busted.after_each(function()
      local clean, found = helper.leftovers(before, false)
      if not clean then
        before = helper.snapshot() -- the next test is not to blame
        error(found, 0)
      end
    end)
  end
  busted.teardown(function()
    local clean, found = helper.leftovers(before, true, options.seconds or 20)
    local growth = helper.anonymous_fds() - fds_before
    local removed, why = true, nil
    if scratch then
      for name in lfs.dir(scratch) do
        if name ~= "." and name ~= ".." then
          local ok, reason = helper.remove(scratch .. "/" .. name)
          if not ok then
            removed, why = nil, reason
          end
        end
      end
      if made_scratch then
        lfs.rmdir(scratch)
        scratch, made_scratch = nil, false
      end
      state_root = nil
    end
    if not clean then
      error(found, 0)
    end
    if growth > (options.growth or 16) then
      error(("left over: %d descriptors more than at the start"):format(growth), 0)
    end
    if not removed then
      error("left over: " .. why, 0)
    end
  end)
end

-- --- skipping ---------------------------------------------------------------------------------------

local current_pending
busted.subscribe({ "test", "start" }, function(element)
  current_pending = element.env and element.env.pending
  return nil, true
end)

--- Ends the running test as skipped. The reason is printed by spec/run.
function helper.skip(reason)
  assert(current_pending, "skip outside a test")(reason)
end

function helper.is_root()
  if helper.uid == nil then
    helper.uid = tonumber((helper.shell("id -u"):match("%d+")))
  end
  return helper.uid == 0
end

function helper.need_root()
  if not helper.is_root() then
    helper.skip("needs root")
  end
end

function helper.need_user()
  if helper.is_root() then
    helper.skip("is about an ordinary user; check runs this file as one as well")
  end
end

--- Skips unless the program is on PATH; returns its path.
function helper.need_program(name)
  local path, status = helper.shell("command -v " .. helper.quote(name))
  if status ~= 0 then
    helper.skip(name .. " is not installed")
  end
  return (path:gsub("%s+$", ""))
end

--- Which Lua this is: "5.1" ... "5.4" or "luajit".
helper.lua = type(jit) == "table" and "luajit" or _VERSION:match("%d%.%d") -- luacheck: ignore 113

-- --- child interpreters -----------------------------------------------------------------------------

local function plain_interpreter(version)
  if version == helper.lua and os.getenv("SPEC_LUA") then
    return os.getenv("SPEC_LUA")
  end
  return version == "luajit" and "luajit" or "lua" .. version
end

-- A program that starts the interpreter with the sanitizer's library, which shell() keeps from all others.
local function preloading(library)
  local path = helper.scratch() .. "/lua"
  if not lfs.attributes(path) then
    helper.write_file(path, ("#!/bin/sh\nLD_PRELOAD=%s exec %s \"$@\"\n"):format(library, plain_interpreter(helper.lua)))
    assert(os.execute("chmod 755 " .. helper.quote(path)))
  end
  return path
end

--- The path of an interpreter: this one, or that of another version ("5.1", "luajit").
function helper.interpreter(version)
  version = version or helper.lua
  local preload = os.getenv("LD_PRELOAD")
  if preload and version == helper.lua then
    return preloading(preload)
  end
  return plain_interpreter(version)
end

local function child_line(code, options)
  local file = options.file
  if not file then
    counter = counter + 1
    file = helper.write_file(("%s/child%d.lua"):format(helper.scratch(), counter), code)
  end
  local words = { "exec env" }
  for k, v in pairs(options.env or {}) do
    words[#words + 1] = helper.quote(k .. "=" .. v)
  end
  words[#words + 1] = helper.quote(options.interpreter or helper.interpreter())
  words[#words + 1] = helper.quote(file)
  for _, v in ipairs(options.args or {}) do
    words[#words + 1] = helper.quote(v)
  end
  return table.concat(words, " "), not options.file and file or nil
end

--- Runs a Lua program in an interpreter of its own, with this one's paths. Options: args, env, file (run
--- this instead of code), interpreter, timeout (30), stdin (a string).
--- Returns { ok, code, signal, stdout, stderr, timed_out, seconds }.
function helper.run_lua(code, options)
  local child = helper.start_lua(code, options)
  return child:wait()
end

local child_methods = {}
local child_meta = { __index = child_methods }

--- The same, running beside us: { pid }, :line() (next line of its output, nil at the end), :signal(name),
--- :wait() -> the record of run_lua. The time limit kills it; wait() must be called.
function helper.start_lua(code, options)
  options = options or {}
  local line, file = child_line(code, options)
  counter = counter + 1
  local base = ("%s/out%d"):format(helper.scratch(), counter)
  local input = "/dev/null"
  if options.stdin then
    input = helper.write_file(base .. ".in", options.stdin)
  end
  local script = ("timeout -k 2 %s sh -c %s <%s 2>%s; echo $? >%s"):format(
    options.timeout or 30, helper.quote("echo $$; " .. line), helper.quote(input),
    helper.quote(base .. ".err"), helper.quote(base .. ".rc"))
  local pipe = assert(io.popen(script, "r"))
  return setmetatable({
    pid = tonumber(pipe:read("*l")), pipe = pipe, base = base, file = file, input = options.stdin and input,
    started = helper.now(), lines = {},
  }, child_meta)
end

function child_methods:line()
  local line = self.pipe:read("*l")
  if line then
    self.lines[#self.lines + 1] = line .. "\n"
  end
  return line
end

function child_methods:signal(name)
  return helper.shell(("kill -%s %d"):format(name or "KILL", self.pid))
end

function child_methods:wait()
  if self.record then
    return self.record
  end
  local rest = self.pipe:read("*a") or ""
  self.pipe:close()
  local code = tonumber((helper.read_file(self.base .. ".rc") or ""):match("%d+")) or -1
  local record = {
    stdout = table.concat(self.lines) .. rest,
    stderr = helper.read_file(self.base .. ".err") or "",
    code = code, ok = code == 0, timed_out = code == 124 or nil,
    signal = code > 128 and code - 128 or nil,
    seconds = helper.now() - self.started,
  }
  for _, path in ipairs { self.base .. ".rc", self.base .. ".err", self.file or "", self.input or "" } do
    os.remove(path)
  end
  self.record = record
  return record
end

--- Calls fn with every argument list in turn, naming the failing one.
function helper.each_of(list, fn)
  for _, args in ipairs(list) do
    local ok, err = pcall(fn, unpack(args))
    if not ok then
      error(("with (%s): %s"):format(tostring(args[1]), tostring(err)), 0)
    end
  end
end

return helper
