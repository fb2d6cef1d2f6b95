-- check: only 5.4
-- check: no asan
-- check: no user
-- The policies of sandbar.policy: one sandbox a user, a named one, a pool of waiting ones, labels for cleaning up.
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local policy = require "sandbar.policy"
local sandbar = require "sandbar"

local AWKWARD = { "ana+test@example.org", "50% off & more=yes", "\230\151\165\230\156\172 / \195\188n\195\175",
  ("long"):rep(100), "-", "_2d" }

-- What another process does with the policy: `line` is Lua, with `users` and `sandboxes` in reach.
local CHILD = [==[
local sandbar = require "sandbar"
local policy = require "sandbar.policy"
local assert = sandbar.assert
local sandboxes = assert(sandbar.open { root = (...), linger = 0 })
local users = assert(policy.per_user { provider = sandboxes, spec = { lifetime = 600 } })
print("ready")
io.stdout:flush()
local gate = (...) .. "/gate"
while not io.open(gate) do sandbar.sleep(0.001) end
]==]

-- Runs `line` in `n` processes that begin at the same moment, and `also` in one more: the records of run_lua.
local function together(n, line, also)
  local gate = helper.root() .. "/gate"
  local children, records = {}, {}
  for i = 1, n do
    children[i] = helper.start_lua(CHILD .. line, { args = { helper.root() } })
  end
  if also then
    children[n + 1] = helper.start_lua(CHILD .. also, { args = { helper.root() } })
  end
  for i = 1, #children do
    assert.equal("ready", children[i]:line(), "a child")
  end
  helper.write_file(gate, "")
  for i, child in ipairs(children) do
    records[i] = child:wait()
    if not records[i].ok then
      error(records[i].stderr)
    end
  end
  os.remove(gate)
  return records
end

describe("policies", function()
  helper.guard()
  local sandboxes = helper.open()
  local function gone(labels)
    for info in sandboxes:each { labels = labels } do
      sandbar.assert(sandboxes:destroy(info.id))
    end
  end

  after_each(function()
    gone {}
  end)

  describe("per_user", function()
    local users = sandbar.assert(policy.per_user { provider = sandboxes, spec = { lifetime = 600 } })

    it("finds, makes and tells users apart, whatever their names are", function()
      local ids = {}
      for _, user in ipairs(AWKWARD) do
        local box = sandbar.assert(users:get(user))
        assert.equal("running", box.state)
        assert.is_nil(ids[box.id])
        ids[box.id] = true
        local again = sandbar.assert(users:get(user))
        assert.equal(box.id, again.id)
        local found = sandbar.assert(sandboxes:list { labels = { ["sandbar.user"] = user } })
        assert.equal(1, #found)
        assert.equal(box.id, found[1].id)
        box:close()
        again:close()
      end
    end)

    it("gives fifty coroutines of a process one sandbox", function()
      local fns = {}
      for i = 1, 50 do
        fns[i] = function()
          local box = sandbar.assert(users:get("ann"))
          local id = box.id
          box:close()
          return id
        end
      end
      local ids = sandbar.assert(sandbar.all(fns))
      for i = 2, 50 do
        assert.equal(ids[1], ids[i])
      end
      assert.equal(1, #sandbar.assert(sandboxes:list()))
    end)

    it("gives eight processes one sandbox: when there is none, a paused one, one that is being destroyed", function()
      local line = [[
        local box = assert(users:get("ann"))
        assert(box:exec("true", { check = true }))
        print(box.id)
      ]]
      for _, before in ipairs { "none", "paused", "destroyed" } do
        if before == "paused" then
          local box = sandbar.assert(users:get("ann"))
          sandbar.assert(box:pause())
          box:close()
        elseif before == "destroyed" then
          local box = sandbar.assert(users:get("ann"))
          sandbar.assert(box.files:write("big", ("x"):rep(1000000)))
          box:close()
          line = [[if not pcall(function()]] .. line .. [[ end) then print(assert(users:get("ann")).id) end]]
        end
        local n = before == "none" and 8 or 4
        local records = together(n, line, before == "destroyed" and [[assert(sandboxes:destroy("user-ann"))]])
        for i = 2, n do
          assert.equal(records[1].stdout, records[i].stdout, before)
        end
        assert.is_true(#sandbar.assert(sandboxes:list()) <= 1, before)
      end
    end)

    it("tells each caller why, while the first attempts fail, and makes one when they no longer do", function()
      local broken = true
      local flaky = setmetatable({}, { __index = function(_, name)
        return function(_, ...)
          if name == "create" and broken then
            sandbar.sleep(0.05)
            return nil, { kind = "NoSpace", message = "no room yet" }
          end
          return sandboxes[name](sandboxes, ...)
        end
      end })
      local some = sandbar.assert(policy.per_user { provider = flaky })
      local function get()
        local box, err = some:get("ann")
        if box then
          box:close()
        end
        return box and box.id or err.kind
      end
      assert.same({ "NoSpace", "NoSpace", n = 2 }, sandbar.all { get, get })
      local _, second = sandbar.assert(sandbar.all { function()
        sandbar.sleep(0.02)
        broken = false
        return true
      end, get })
      assert.is_nil(second)
      local ids = sandbar.all { get, get, get }
      assert.equal(ids[1], ids[2])
      assert.equal(ids[1], ids[3])
      assert.is_truthy(ids[1]:find("^user%-ann$"))
    end)

    it("does not let one user wait for another's slow creation", function()
      local slow = setmetatable({}, { __index = function(_, name)
        return function(_, spec, ...)
          if name == "create" and spec.id == "user-slow" then
            sandbar.sleep(0.6)
          end
          return sandboxes[name](sandboxes, spec, ...)
        end
      end })
      local some = sandbar.assert(policy.per_user { provider = slow })
      local order = {}
      sandbar.assert(sandbar.all {
        function() sandbar.assert(some:get("slow")):close() order[#order + 1] = "slow" return true end,
        function() sandbar.assert(some:get("slow")):close() order[#order + 1] = "slow" return true end,
        function() sandbar.assert(some:get("quick")):close() order[#order + 1] = "quick" return true end,
      })
      assert.same({ "quick", "slow", "slow" }, order)
    end)

    it("never shortens a life, lengthens it on demand, and wakes with the lifetime of the spec", function()
      local box = sandbar.assert(users:get("ann"))
      local ends = box.ends_at
      sandbar.assert(users:get("ann")):close()
      sandbar.assert(users:get("ann", { min_lifetime = 5 })):close()
      assert.equal(ends, sandbar.assert(box:info()).ends_at)
      sandbar.assert(users:get("ann", { min_lifetime = "1 hour" })):close()
      assert.is_true(math.abs(box:info().ends_at - ends - 3000) < 60)
      sandbar.assert(box:pause { keep = "disk" })
      local woken = sandbar.assert(users:get("ann", { min_lifetime = 5 }))
      assert.equal("running", woken.state)
      assert.is_true(math.abs(woken:info().ends_at - ends - 3000) < 60)
      sandbar.assert(woken:pause())
      sandbar.assert(users:get("ann", { min_lifetime = 7200 })):close()
      assert.is_true(math.abs(box:info().ends_at - ends - 6600) < 60)
      box:close()
      woken:close()
      box = sandbar.assert(users:get("bob", { min_lifetime = 1200 })) -- a new one as well
      assert.is_true(math.abs(box.ends_at - ends - 600) < 60)
      box:close()
    end)

    it("wakes a sandbox whose pid 1 was killed, with its files", function()
      local box = sandbar.assert(users:get("ann"))
      sandbar.assert(box.files:write("kept", "data"))
      local word = helper.mark(7577)
      sandbar.assert(box:start({ "sleep", word }, { detached = true }))
      local pid1 = assert(helper.eventually(function() return inside.pid1(word) end))
      assert(os.execute("kill -9 " .. pid1))
      assert.is_truthy(helper.eventually(function() return box:info().state == "failed" end))
      local again = sandbar.assert(users:get("ann"))
      assert.equal("data", again.files:read("kept"))
      box:close()
      again:close()
    end)

    it("of two with one id, which a provider of several places may have, takes the oldest that lives", function()
      local asked = {}
      local double = setmetatable({
        connect = function(_, id, opts)
          asked[#asked + 1] = id
          if id == "user-ann" then
            return nil, { kind = "Ambiguous", message = "two" }
          end
          return { id = "user-ann", state = "running", opts = opts }
        end,
        list = function(_, opts)
          assert.equal("ann", opts.labels["sandbar.user"])
          return { { id = "user-ann", provider_id = "b", created_at = 7 }, { id = "user-ann", provider_id = "a",
            created_at = 5 } }
        end,
      }, { __index = function() return function() error("not to be called") end end })
      double.explain = false
      local some = sandbar.assert(policy.per_user { provider = double })
      sandbar.assert(some:get("ann"))
      assert.same({ "user-ann", "a" }, asked)
    end)

    it("refuses what it cannot mean, and what the provider would", function()
      local function refused(...)
        local made, err = policy.per_user(...)
        assert.is_nil(made)
        return err
      end
      assert.equal("InvalidArgument", refused { provider = sandboxes, spec = { id = "x" } }.kind)
      assert.equal("InvalidArgument", refused { provider = sandboxes, name = "a b" }.kind)
      assert.equal("InvalidArgument", refused { provider = sandboxes, spec = { lifetime = -1 } }.kind)
      local err = refused { provider = sandboxes, spec = { labels = { ["sandbar.user"] = "me" } } }
      assert.equal("InvalidArgument", err.kind)
      local ok, raised = pcall(policy.per_user, { provider = sandboxes, spec = { lifetme = 1 } })
      assert.is_false(ok)
      assert.is_truthy(tostring(raised):find("'lifetme'", 1, true), raised)
      ok, raised = pcall(policy.per_user, { spec = {} })
      assert.is_false(ok)
      assert.is_truthy(tostring(raised):find("provider expected, got nil", 1, true), raised)
      for _, user in ipairs { "", "a\0b" } do
        local box
        box, err = users:get(user)
        assert.is_nil(box)
        assert.equal("InvalidArgument", err.kind)
      end
      local other = sandbar.assert(policy.per_user { provider = sandboxes })
      other:close()
      assert.equal("Closed", select(2, other:get("ann")).kind)
      -- A sandbox of somebody else's with the user's id is not taken over.
      local stranger = sandbar.assert(sandboxes:create { id = "user-eve" })
      local box
      box, err = users:get("eve", { timeout = 0.3 })
      assert.is_nil(box)
      assert.equal("WrongOwner", err.kind, tostring(err))
      stranger:close()
    end)
  end)

  describe("declared", function()
    it("is made once, paused at its end, woken by the next use, and replaced with its template", function()
      local one = sandbar.assert(policy.declared { provider = sandboxes, name = "db", spec = { lifetime = 600 } })
      local box = sandbar.assert(one:get())
      assert.equal("pause", box:info().on_expiry)
      sandbar.assert(box.files:write("kept", "data"))
      local counter = sandbar.assert(box:start({ "sleep", "1000" }, { detached = true }))
      sandbar.assert(box:set_lifetime(0.05))
      assert.is_truthy(helper.eventually(function() return box:info().state == "paused" end))
      local again = sandbar.assert(one:get())
      assert.equal(box.id, again.id)
      assert.equal("running", again.state)
      assert.is_true(sandbar.assert(again:attach(counter.pid)):running())
      counter:close()
      again:close()
      sandbar.assert(box:snapshot("v2"))
      box:close()
      local next_one = sandbar.assert(policy.declared { provider = sandboxes, name = "db", spec = { snapshot = "v2" } })
      local replaced = sandbar.assert(next_one:get())
      assert.is_true(replaced.id ~= box.id)
      assert.equal("data", replaced.files:read("kept"))
      local found = sandbar.assert(sandboxes:list { labels = { ["sandbar.declared"] = "db" } })
      assert.equal(1, #found)
      assert.equal(replaced.id, found[1].id)
      sandbar.assert(replaced:destroy())
      replaced:close()
      sandbar.assert(sandboxes.snapshots:delete("v2"))
    end)

    it("is the same for two processes that replace it at once", function()
      sandbar.assert(sandbar.assert(policy.declared { provider = sandboxes, name = "two" }):get()):close()
      local box = sandbar.assert(sandboxes:create {})
      sandbar.assert(box:snapshot("v3"))
      sandbar.assert(box:destroy())
      local records = together(3, [[
        local p = assert(policy.declared { provider = sandboxes, name = "two", spec = { snapshot = "v3" } })
        local box = assert(p:get())
        assert(box:exec("true", { check = true }))
        print(box.id)
      ]])
      for i = 2, 3 do
        assert.equal(records[1].stdout, records[i].stdout)
      end
      assert.equal(1, #sandbar.assert(sandboxes:list()))
      gone {}
      sandbar.assert(sandboxes.snapshots:delete("v3"))
    end)

    it("left the old one for ever, when who replaced it was killed in between", function()
      sandbar.assert(sandbar.assert(policy.declared { provider = sandboxes, name = "cut" }):get()):close()
      local box = sandbar.assert(sandboxes:create {})
      sandbar.assert(box:snapshot("v4"))
      sandbar.assert(box:destroy())
      local record = helper.run_lua(([[
        local sandbar = require "sandbar"
        local own = sandbar.assert(sandbar.open { root = %q, linger = 0 })
        local cut = setmetatable({}, { __index = function(_, name)
          return function(_, ...)
            if name == "list" then
              os.execute("kill -9 $PPID")
            end
            return own[name](own, ...)
          end
        end })
        sandbar.assert(require("sandbar.policy.declared").new { provider = cut, name = "cut", spec = { snapshot = "v4" } }):get()
      ]]):format(helper.root()))
      assert.is_false(record.ok)
      local labels = { ["sandbar.declared"] = "cut" }
      assert.equal(2, #sandbar.assert(sandboxes:list { labels = labels }))
      local new = sandbar.assert(policy.declared { provider = sandboxes, name = "cut", spec = { snapshot = "v4" } })
      local old = sandbar.assert(policy.declared { provider = sandboxes, name = "cut" })
      sandbar.assert(old:get()):close() -- the older version still runs somewhere: it takes nothing away from the newer
      assert.equal(2, #sandbar.assert(sandboxes:list { labels = labels }))
      box = sandbar.assert(new:get())
      local found = sandbar.assert(sandboxes:list { labels = labels })
      assert.equal(1, #found)
      assert.equal(box.id, found[1].id)
      sandbar.assert(box:destroy())
      box:close()
      sandbar.assert(sandboxes.snapshots:delete("v4"))
    end)

    it("decides what its end is", function()
      local made, err = policy.declared { provider = sandboxes, name = "x", spec = { on_expiry = "destroy" } }
      assert.is_nil(made)
      assert.equal("InvalidArgument", err.kind)
      assert.is_truthy(policy.declared { provider = sandboxes, name = "x", spec = { on_expiry = "pause",
        auto_resume = true } })
    end)
  end)

  describe("pool", function()
    it("has sandboxes ready, fills itself up, and leaves nothing when it is closed", function()
      local waiting = sandbar.assert(policy.pool { provider = sandboxes, spec = { labels = { pool = "p" } }, size = 2 })
      local function full()
        sandbar.sleep(0.005)
        return waiting.ready == 2
      end
      assert.is_truthy(helper.eventually(full))
      sandbar.scope(function(scope)
        local before = {}
        for i, info in ipairs(sandbar.assert(sandboxes:list())) do
          before[i] = info.id
        end
        local box = sandbar.assert(waiting:get { scope = scope })
        assert.is_true(box.id == before[1] or box.id == before[2])
        assert.is_true(box.owned)
        sandbar.assert(box:exec("true", { check = true }))
      end)
      assert.is_truthy(helper.eventually(full))
      -- One that has ended meanwhile is not handed out.
      local ids = {}
      for info in sandboxes:each() do
        ids[info.id] = true
        sandbar.assert(sandboxes:destroy(info.id))
      end
      local box = sandbar.assert(waiting:get())
      assert.is_nil(ids[box.id])
      sandbar.assert(box:exec("true", { check = true }))
      sandbar.assert(box:close())
      sandbar.assert(waiting:close())
      assert.same({}, sandbar.assert(sandboxes:list()))
      assert.equal("Closed", select(2, waiting:get()).kind)
      assert.is_true(waiting:close())
    end)

    it("gives many takers a sandbox each, more than it has", function()
      local waiting = sandbar.assert(policy.pool { provider = sandboxes, size = 2 })
      local fns = {}
      for i = 1, 8 do
        fns[i] = function()
          local box = sandbar.assert(waiting:get())
          local id = box.id
          sandbar.assert(box:close())
          return id
        end
      end
      local seen = {}
      for _, id in ipairs(sandbar.assert(sandbar.all(fns))) do
        assert.is_nil(seen[id])
        seen[id] = true
      end
      sandbar.assert(waiting:close())
      assert.same({}, sandbar.assert(sandboxes:list()))
    end)

    it("that is lost takes its sandboxes along", function()
      local waiting = sandbar.assert(policy.pool { provider = sandboxes, size = 1 })
      assert.is_truthy(helper.eventually(function()
        sandbar.sleep(0.005)
        return waiting.ready == 1
      end))
      waiting = nil -- luacheck: ignore 311
      assert.is_truthy(helper.eventually(function()
        collectgarbage()
        return #sandbar.assert(sandboxes:list()) == 0
      end))
    end)

    it("tells why there is none", function()
      local waiting = sandbar.assert(policy.pool { provider = sandboxes, size = 1,
        spec = { template = { rootfs = "/nonexistent" } } })
      local box, err = waiting:get()
      assert.is_nil(box)
      assert.equal("NotFound", err.kind)
      assert.is_true(waiting:close())
      local raising = setmetatable({ explain = false }, { __index = function()
        return function() error("a fault of the provider's", 0) end
      end })
      waiting = sandbar.assert(policy.pool { provider = raising, size = 3 })
      assert.is_false(pcall(waiting.get, waiting))
      assert.is_true(waiting:close { timeout = 2 })
      local made
      made, err = policy.pool { provider = sandboxes, size = 0 }
      assert.is_nil(made)
      assert.equal("InvalidArgument", err.kind)
    end)
  end)

  describe("cleanup", function()
    it("labels everything, finds it again from anywhere, and destroys what is left", function()
      local mine = sandbar.assert(policy.cleanup { provider = sandboxes, stack = "shop", stage = "dev", binding = "jobs" })
      local other = sandbar.assert(policy.cleanup { provider = sandboxes, stack = "shop", stage = "prod" })
      local to = sandbar.assert(mine:get())
      assert.equal(to, mine:get())
      local box = sandbar.assert(to:create { labels = { job = "1" } })
      assert.same({ job = "1", stack = "shop", stage = "dev", binding = "jobs" }, box.labels)
      sandbar.scope(function(scope)
        assert.equal("dev", sandbar.assert(to:create_scoped({}, scope)).labels.stage)
      end)
      local users = sandbar.assert(policy.per_user { provider = to }) -- policies take it
      sandbar.assert(users:get("ann")):close()
      local copy = sandbar.assert(box:fork(1))[1]
      assert.equal("jobs", copy.labels.binding)
      copy:close()
      box:close()
      sandbar.assert(sandbar.assert(other:get()):create {}):close()
      local plain = sandbar.assert(sandboxes:create {})
      local n = 0
      for info in mine:each() do
        assert.equal("dev", info.labels.stage)
        n = n + 1
      end
      assert.equal(3, n)
      assert.equal(3, mine:destroy())
      assert.equal(0, mine:destroy())
      assert.equal("running", plain:info().state)
      plain:close()
      assert.equal(1, other:destroy { timeout = 10 })
      local made, err = to:create { labels = { stage = "prod" } }
      assert.is_nil(made)
      assert.equal("InvalidArgument", err.kind)
      mine:close()
      assert.equal("Closed", select(2, mine:get()).kind)
    end)
  end)
end)
