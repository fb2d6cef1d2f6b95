-- check: only 5.4
-- check: no asan
-- check: long
-- Scenario: a game server of 20 ticks a second with 24 players, each with a script in a sandbox of his own that gets a
-- line a tick and answers one. Some scripts behave badly.
local helper = require "spec.helper"
local scenario = require "spec.support.scenario"

local PROGRAM = [==[
local system = require "system"
local SECONDS, TICK, PLAYERS, MIB = 60, 0.05, 24, 1048576
local TICKS = SECONDS / TICK
local MISSED = 10 -- answers in a row that a script may owe
-- A good script keeps what it counts in memory, and writes every tick to its save file before it answers.
local GOOD = [[
local count, save = 0, assert(io.open("save", "a"))
for line in io.lines() do
  count = count + 1
  save:write(line, "\n")
  save:flush()
  io.write(('{"tick":%d,"version":VERSION,"count":%d}\n'):format(line:match('"tick":(%d+)'), count))
  io.flush()
end
]]
local ANSWER = "local function answer(line, more) io.write('{\"tick\":', line:match('\"tick\":(%d+)'), ',\"said\":\"', "
  .. "more or 'yes', '\"}\\n') io.flush() end "
local BAD = {
  loop = "for line in io.lines() do while true do end end",
  memory = "for line in io.lines() do local t = ('x'):rep(1 << 10):rep(1 << 20) answer(line, #t) end",
  flood = "for line in io.lines() do while true do io.write(('x'):rep(8192)) end end",
  silent = "for line in io.lines() do end",
  twice = "for line in io.lines() do answer(line) answer(line) end",
  exits = "io.read('l') os.exit(3)",
  closes = "read line; exec <&-; exec sleep 1000", -- for the shell, Lua does not close it
  forks = "for line in io.lines() do answer(line, os.execute(\"i=0; while [ $i -lt 500 ]; do sleep 1000 & i=$((i + 1)); "
    .. "done\") and 'yes' or 'too many') end",
  network = "local said for line in io.lines() do said = said or os.execute(\"exec 2>/dev/null; "
    .. "bash -c 'exec 3<>/dev/tcp/192.0.2.1/80 && read -t 3 <&3'\") and 'open' or 'refused' answer(line, said) end",
  files = "io.read('l') for i = 1, 10000 do assert(io.open('f' .. i, 'w')):close() end "
    .. "for line in io.lines() do answer(line) end",
  long = "for line in io.lines() do io.write(('y'):rep(2000000), '\\n') io.flush() end",
}
local NAMES = { "loop", "memory", "flood", "silent", "twice", "exits", "closes", "forks", "network", "files", "long" }
local can = call(sandboxes:capabilities())
if not can.limit_memory then -- it would take the machine's memory, not its sandbox's
  BAD.memory = BAD.loop
end

local players = {}
for i = 1, PLAYERS do
  -- The first is the one whose script is replaced, the next four are the team that pauses.
  players[i] = { id = i, bad = NAMES[i - (PLAYERS - #NAMES)], version = 1, answers = 0, ticks = 0, late = 0,
    ends = {}, waits = {}, delay = 0.1, team = i >= 2 and i <= 5 }
  players[i].program = players[i].bad == "closes" and "sh" or "lua5.4"
end

-- A script ended, or is ended, for `why`. It starts again later, each time after a longer pause.
local function stop(p, why)
  local process = p.process
  p.process, p.waiting = nil, nil
  p.ended, p.again, p.delay = helper.now(), helper.now() + p.delay, math.min(p.delay * 2, 4)
  p.stopping = sandbar.spawn(function()
    local r, err
    if why == "ended" then
      r, err = process:wait { timeout = 5 }
    else
      r, err = process:kill { signal = "KILL" }
    end
    call(r, err)
    if why == "Closed" and r.reason ~= "signal" then why = "ended" end -- it had, before it was heard of
    p.ends[#p.ends + 1] = { why = why, reason = r.reason, exit_code = r.exit_code,
      stderr = process.stderr:read("a", { timeout = 1 }) or "" }
    process:close()
    return true
  end)
end

-- Hears a player's script until it is another one's turn.
local function listen(p, process)
  while p.process == process do
    local line, err = process.stdout:read("l", { max = 65536 })
    if p.process ~= process then return true end
    local tick = line and tonumber(line:match('^{"tick":(%d+),'))
    if not line then
      if err and err.kind == "LimitExceeded" then stop(p, "output")
      else stop(p, err and tostring(err) or "ended") end
    elseif tick == p.waiting then
      p.answers, p.failures, p.waiting, p.last = p.answers + (p.swapping and 0 or 1), 0, nil, tick
      p.late = p.late + (helper.now() - p.told > 0.02 and 1 or 0)
      p.refused = p.refused or line:find("refused", 1, true)
      if line:find("too many", 1, true) then stop(p, "processes") end
      local version, count = line:match('"version":(%d+),"count":(%d+)}$')
      if not p.bad then
        same(tostring(p.speaks), version, "the version")
        holds(tonumber(count) > p.count, "what it counted is gone")
        p.count = tonumber(count)
      end
      if p.swapping then
        p.first, p.swapping = helper.now() - p.swapping, nil
      end
    elseif not tick or tick <= p.last then -- one that comes late is owed already
      if p.bad then stop(p, "answers twice") else error("player " .. p.id .. " said " .. line) end
    end
  end
  return true
end

local tasks = {}
local function spawn(fn, ...)
  tasks[#tasks + 1] = sandbar.spawn(fn, ...)
end
local function run(p)
  local process = call(p.box:start({ p.program, "script" }, { stdin = "pipe", stderr = "tail" }))
  if p.ended then
    p.waits[#p.waits + 1], p.ended = helper.now() - p.ended, nil
  end
  p.ticks = p.ticks - (p.waiting and 1 or 0) -- what an older one was asked, and cannot answer any more
  p.process, p.waiting, p.failures, p.last, p.count, p.speaks = process, nil, 0, 0, 0, p.version
  spawn(listen, p, p.process)
end
local function upload(p)
  local bad = p.bad and (p.program == "sh" and "" or ANSWER) .. BAD[p.bad]
  call(p.box.files:write("script", bad or (GOOD:gsub("VERSION", p.version))))
end

local function tell(p, tick)
  if not p.process or p.paused then return end
  if p.waiting then
    p.failures = p.failures + 1
    if p.bad and p.failures >= MISSED then return stop(p, "no answer in time") end
  end
  local text = ('{"tick":%d,"map":"caves","players":[1,2,3]}\n'):format(tick)
  local taken, err = p.process.stdin:write(text, { timeout = 0 })
  if taken == #text then
    -- A version that is new has half a second until it answers.
    p.waiting, p.told, p.ticks = tick, helper.now(), p.ticks + (p.swapping and 0 or 1)
  elseif err.kind ~= "Timeout" then
    stop(p, err.kind)
  end
end

-- A new version of the first player's script, with three empty files and one of data.
local function swap(p)
  local began = helper.now()
  p.version = p.version + 1
  call(p.box.files:write_many { { path = "mark 1", data = "" }, { path = "mark 2", data = "" },
    { path = ".mark", data = "" }, { path = "data", data = ("d"):rep(10000) } })
  upload(p)
  local old = p.process
  run(p)
  p.swapping, p.first = began, nil
  call(old:kill { signal = "KILL" })
  old:close()
  return true
end

local function pause(p)
  p.paused, p.ticks, p.waiting = true, p.ticks - (p.waiting and 1 or 0), nil
  same("memory", call(p.box:pause()))
  sandbar.sleep(5)
  call(p.box:resume())
  p.paused = false
  return true
end

-- Time that this thread wanted the processor and others had it.
local function queued()
  return tonumber(helper.read_file("/proc/thread-self/schedstat"):match("^%d+ (%d+)")) / 1e9
end
local blocked = {}
-- What the library took of the loop's time. Whatever it does, a frame has no room for more than 50 ms of it.
local function timed(what, fn, ...)
  local before, began = queued(), helper.now()
  fn(...)
  local took = helper.now() - began
  if took > 0.005 then took = took - (queued() - before) end
  if took > 0.05 then blocked[#blocked + 1] = ("%s took %.3f s"):format(what, took) end
  return took
end

local scope, firsts = sandbar.new_scope(), {}
-- What may wait is done by tasks: that is how such a host works.
local function driven(fn)
  local task = sandbar.spawn(fn)
  while task.state == "running" do
    sandbar.step(0.01)
    system.sleep(0.001)
  end
  return call(task:wait { timeout = 0 })
end
driven(function()
  for _, p in ipairs(players) do
    p.box = call(sandboxes:create_scoped({
      lifetime = 600, network = p.bad == "network" and { allow = { "192.0.2.7" } } or nil,
      limits = { processes = 32, memory = can.limit_memory and 32 * MIB or nil, cpus = can.limit_cpu and 0.5 or nil },
    }, scope))
    upload(p)
    run(p)
  end
  return true
end)

local began, waited = helper.now(), queued()
for tick = 1, TICKS do
  local due, spent = began + tick * TICK, 0
  spent = spent + timed("writing", function()
    for _, p in ipairs(players) do tell(p, tick) end
  end)
  for _, p in ipairs(players) do
    if p.again and helper.now() >= p.again and p.stopping.state ~= "running" then
      p.again = nil
      spawn(function() run(p) return true end)
    end
  end
  if tick % 100 == 50 then spawn(swap, players[1]) end
  if tick % 100 == 99 then firsts[#firsts + 1] = players[1].first or math.huge end
  if tick == TICKS / 2 then
    for _, p in ipairs(players) do
      if p.team then spawn(pause, p) end
    end
  end
  repeat
    spent = spent + timed("a step", sandbar.step, 0.005)
    system.sleep(math.max(0, math.min(0.001, due - helper.now())))
  until helper.now() >= due
  if spent > 0.05 then blocked[#blocked + 1] = ("tick %d took %.3f s"):format(tick, spent) end
end

waited = queued() - waited
-- On a machine that has no processor left nobody answers in time, whatever the library does. Then that is not judged, and
-- said; all the rest is.
local judged = waited < 0.1 * SECONDS
if not judged then
  helper.write_file(arguments[1], ("the loop waited %.1f of %d s for a processor"):format(waited, SECONDS))
end
local function in_time(value, what)
  return not judged or holds(value, what)
end
driven(function()
  for _, task in ipairs(tasks) do
    if task.state ~= "running" then call(task:wait { timeout = 0 }) end -- others are listening
  end
  holds(#blocked == 0, table.concat(blocked, "; "))
  for _, first in ipairs(firsts) do in_time(first < 0.5, "the new version's first answer took " .. first) end
  local WHY = { loop = "no answer in time", memory = can.limit_memory and "ended" or "no answer in time", flood = "output",
    silent = "no answer in time", twice = "answers twice", exits = "ended", closes = "Closed", forks = "processes",
    files = "no answer in time", long = "output" }
  local REASON = { memory = can.limit_memory and "memory" or "signal", exits = "exit" }
  for _, p in ipairs(players) do
    local who = ("player %d (%s)"):format(p.id, p.bad or "good")
    if not p.bad or p.bad == "network" then
      same(0, #p.ends, who .. " ended: " .. (p.ends[1] and p.ends[1].why or ""))
      in_time(p.answers >= 0.99 * p.ticks, ("%s answered %d of %d"):format(who, p.answers, p.ticks))
      in_time(p.late <= 0.1 * p.ticks, ("%s was late %d times of %d"):format(who, p.late, p.ticks))
      in_time(p.ticks >= (p.team and TICKS - 110 or TICKS - 3 * #firsts), who .. " had " .. p.ticks .. " ticks")
      holds(not p.team or p.ticks < TICKS - 90, who .. " missed no ticks")
    else
      -- Who makes files is done with it sooner or later.
      holds(#p.ends >= (judged and 10 or 3) or p.bad == "files", who .. " ended " .. #p.ends .. " times")
      for _, ended in ipairs(p.ends) do
        if judged or ended.why ~= "no answer in time" then
          same(WHY[p.bad], ended.why, who)
          same(REASON[p.bad] or "signal", ended.reason, who)
          same(p.bad == "exits" and 3 or 137, ended.exit_code, who)
        end
      end
      for i, wait in ipairs(p.waits) do
        local delay = math.min(0.1 * 2 ^ (i - 1), 4)
        holds(wait >= delay and (wait < delay + 1 or not judged), ("%s waited %.2f s instead of %.2f s"):format(who, wait, delay))
      end
    end
    if p.bad == "network" then
      holds(p.refused, "the attempt")
      local denied = call(p.box:info()).denied
      same("192.0.2.1", denied[1] and denied[1].host, "what is reported")
      same(1, #denied)
    elseif p.bad == "forks" then -- contained: what is there is below the limit
      holds(call(p.box:metrics()).processes <= 33, "processes")
    elseif p.bad == "files" then
      holds(call(p.box.files:exists("f1000")), "files")
    elseif not p.bad then -- every line of every version, in order
      local last, n = 0, 0
      for tick in call(p.box.files:read("save")):gmatch('{"tick":(%d+),[^\n]*\n') do
        holds(tonumber(tick) > last, "the save file of player " .. p.id)
        last, n = tonumber(tick), n + 1
      end
      holds(n >= p.answers and last >= p.last and n <= TICKS,
        ("%d lines in the save file of player %d"):format(n, p.id))
    end
  end
  for _, name in ipairs { "mark 1", "mark 2", ".mark" } do
    same(0, call(players[1].box.files:stat(name)).size, name)
  end
  return true
end)
for _, p in ipairs(players) do p.process = nil end -- nobody listens any more
local stopping = helper.now()
driven(function() call(scope:close()) return true end)
in_time(helper.now() - stopping < 3, "stopping took " .. helper.now() - stopping)
driven(function()
  for _, task in ipairs(tasks) do call(task:wait { timeout = 10 }) end
  return true
end)
players, tasks = nil, nil
driven(function() finish() return true end)
]==]

describe("scenario S07", function()
  helper.guard()

  it("a game server with its players' scripts", function()
    helper.need_program("lua5.4")
    local note = helper.scratch() .. "/busy"
    scenario.run(PROGRAM, { timeout = 150, args = { note } })
    local busy = helper.read_file(note)
    os.remove(note)
    if busy then
      helper.skip("all but the times was checked: " .. busy)
    end
  end)
end)
