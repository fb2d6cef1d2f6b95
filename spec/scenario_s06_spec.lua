-- check: only 5.4
-- check: no asan
-- check: long
-- check: limit 300
-- Scenario: a long-lived sandbox for each of three users, sixty days of visits in a few minutes. Each visit asks for it
-- from two processes at once; between visits it expires or is paused.
local helper = require "spec.helper"
local scenario = require "spec.support.scenario"

local PROGRAM = [==[
local policy = require "sandbar.policy"
local USERS = { "ana+test@example.org", "50% off & more=yes", "\230\151\165\230\156\172 / \195\188n\195\175" }
local DAYS, LIFETIME = 60, 20
local DAEMON = "n=$(cat counter 2>/dev/null || echo 0); "
  .. "while :; do n=$((n + 1)); echo $n > next; mv next counter; sleep 0.1; done"

local home = os.getenv("HOME")
local child = helper.write_file(home .. "/child.lua", [[
local sandbar = require "sandbar"
local users = sandbar.assert(require "sandbar.policy".per_user {
  provider = sandbar.assert(sandbar.open { root = arg[1], linger = 0 }),
  spec = { lifetime = tonumber(arg[2]), on_expiry = "pause", env = { GREETING = "grüß 'Gott' & 50%" } } })
io.write(sandbar.assert(users:get(arg[3], { min_lifetime = tonumber(arg[2]) })).id)
]])
local users = call(policy.per_user { provider = sandboxes, spec = { lifetime = LIFETIME, on_expiry = "pause",
  env = { GREETING = "grüß 'Gott' & 50%" } } })

local function listed(key)
  local found = call(sandboxes:list { labels = { ["sandbar.user"] = key } })
  same(1, #found, "sandboxes of " .. key)
  return found[1]
end
local state = {}
for i, key in ipairs(USERS) do
  state[i] = { key = key, markers = "", counter = 0 }
end

-- The daemon's process, if it is listed as running.
local function daemon(box)
  for _, p in ipairs(call(box:processes())) do
    if p.tag == "daemon" and p.running then return p end
  end
end

local function visit(u, day)
  if day > 1 then same("paused", listed(u.key).state, "before the visit") end
  local other = io.popen(("%s %s %s %d %s"):format(helper.interpreter(), child, helper.quote(root), LIFETIME,
    helper.quote(u.key)))
  local box = call(users:get(u.key, { min_lifetime = LIFETIME }))
  local id = other:read("a")
  other:close()
  u.id = u.id or box.id
  same(u.id, box.id, "its id")
  same(u.id, id, "its id in the other process")
  same("running", listed(u.key).state)
  -- time
  local inside = tonumber(call(box:exec("date +%s")).stdout)
  holds(math.abs(inside - os.time()) <= 1, "time inside is off by " .. inside - os.time())
  same("grüß 'Gott' & 50% /home/user", call(box:exec("printf '%s %s' \"$GREETING\" \"$HOME\"")).stdout, "its environment")
  -- what was there yesterday
  if day > 1 then
    same(u.markers, call(box.files:read("markers")), "markers")
    same(1048576, call(box.files:stat("big")).size)
    same(("%04d"):format(day - 1), call(box.files:read("big")):sub(-4), "yesterday's file")
    local counter = tonumber(call(box.files:read("counter")))
    holds(counter >= u.counter, ("the counter went from %d to %d"):format(u.counter, counter))
    if u.kept == "memory" then
      same(u.pid, holds(daemon(box), "the daemon is listed").pid, "the daemon's pid")
    else
      same(nil, daemon(box), "a daemon after a pause to disk")
    end
  end
  -- today
  u.markers = u.markers .. day .. "\n"
  call(box.files:write("markers", day .. "\n", { flag = "a" }))
  call(box.files:write("big", ("%04d"):format(day):rep(262144)))
  if not daemon(box) then
    local p = call(box:start(DAEMON, { detached = true, tag = "daemon", stdout = "ignore", stderr = "ignore" }))
    u.pid = p.pid
    p:close()
    holds(helper.eventually(function() return box.files:exists("counter") end), "the daemon counts")
  end
  if day % 10 == 0 then -- only to look
    local ends = call(box:info()).ends_at
    local looking = call(sandboxes:connect(box.id))
    same(ends, call(looking:info()).ends_at, "looking changed the end")
    looking:close()
  end
  if day == 30 then
    call(box:set_lifetime(3000))
    local ends = call(box:info()).ends_at
    call(sandboxes:connect(box.id, { lifetime = 5 })):close()
    same(ends, call(box:info()).ends_at, "a short lifetime of connect")
  end
  if day == 31 then
    call(box:snapshot("copy"))
    local copy = call(sandboxes:create { snapshot = "copy", labels = { ["sandbar.user"] = "copy of " .. u.key } })
    holds(copy.id ~= box.id, "the copy's id")
    same(u.markers, call(copy.files:read("markers")))
    same("grüß 'Gott' & 50%\n", call(copy:exec("echo \"$GREETING\"")).stdout, "the copy's environment")
    call(copy.files:write("markers", "changed"))
    call(box.files:write("only here", ""))
    same(u.markers, call(box.files:read("markers")), "changes cross")
    same(false, call(copy.files:exists("only here")), "changes cross")
    same(copy.id, listed("copy of " .. u.key).id)
    call(copy:destroy())
    copy:close()
    call(sandboxes.snapshots:delete("copy"))
  end
  u.counter = tonumber(call(box.files:read("counter")))
  return box
end

for day = 1, DAYS do
  for _, u in ipairs(state) do
    local box = visit(u, day)
    if day % 2 == 0 then
      call(box:set_lifetime(0.5))
      u.kept = "memory"
    else
      u.kept = day % 4 == 1 and "memory" or "disk"
      same(u.kept, call(box:pause { keep = u.kept }))
    end
    box:close()
  end
  for _, u in ipairs(state) do
    holds(helper.eventually(function() return sandboxes:info(u.id).state == "paused" end, 20), "it is paused")
    same(u.kept, call(sandboxes:info(u.id)).kept, "what was kept")
  end
end
-- 8
for i = 1, 2 do call(sandboxes:destroy(state[i].id)) end
for i = 1, 2 do
  same("NotFound", select(2, sandboxes:info(state[i].id)).kind)
  same(0, #call(sandboxes:list { labels = { ["sandbar.user"] = state[i].key } }))
end
same(1, #call(sandboxes:list()))
same(state[3].id, listed(state[3].key).id)
local fresh = call(users:get(state[1].key))
same(false, call(fresh.files:exists("markers")), "a new one is empty")
call(fresh:destroy())
fresh:close()
call(sandboxes:destroy(state[3].id))
os.remove(child)
finish()
]==]

describe("scenario S06", function()
  helper.guard()

  it("a long-lived box for each user", function()
    scenario.run(PROGRAM, { timeout = 280 })
  end)
end)
