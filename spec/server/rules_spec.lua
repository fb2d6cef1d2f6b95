-- check: no asan
-- check: no user
-- Rules and secrets of `sandbar serve` while several things happen at once, with sandboxes that are none.

local helper = require "spec.helper"
helper.guard()

local catalog = require "sandbar.server.catalog"
local errors = require "sandbar.errors"
local reply = require "sandbar.server.reply"
local rules = require "sandbar.server.rules"
local sandbar = require "sandbar"
local secrets = require "sandbar.server.secrets"
local spread = require "sandbar.server.spread"
local wait = require "sandbar.wait"

local assert_ok = sandbar.assert

-- A store that keeps nothing.
local function no_store()
  return {
    load = function(_, _, default)
      return default
    end,
    save = function()
      return true
    end,
  }
end

-- Settings of team t by which requests to a.test get what is in a secret.
local function settings(name)
  return rules.settings("t", { rules = { ["a.test"] = { { transform = { headers = {
    Authorization = name and ("${e2b.secrets.%s}"):format(name) or "plain",
  } } } } } })
end

-- What a policy sends to a.test: "secret", "plain" or nothing.
local function sent(policy)
  local set = type(policy) == "table" and policy.inject and policy.inject[1].set_headers.Authorization
  return type(set) == "userdata" and "secret" or set or nil
end

local function failed(kind, id)
  return nil, errors.new { kind = kind, id = id, message = kind }
end

-- All of it: provider (a table with the calls that a test gives it), secrets with "token", rules.
local function world(provider)
  local kept = assert_ok(secrets.open(no_store()))
  local one = assert_ok(kept:add("t", "token", "value"))
  return assert_ok(rules.open(no_store(), provider, kept)), kept, one
end

-- A sandbox's handle: `policy` is what it keeps to.
local function box_of(policy)
  return {
    policy = policy,
    update_network = function(self, new)
      self.policy = new
      return true
    end,
    close = function() end,
  }
end

describe("rules of sandboxes", function()
  it("were lost, or the request failed, when others came and went while those that are gone were looked for", function()
    local provider, ids, asked = {}, {}, 0
    local all = world(provider)
    for i = 1, 20 do
      ids[i] = ("i%d"):format(i)
    end
    provider.list = function() -- once for all of them
      asked = asked + 1
      for i, id in ipairs(ids) do
        all.map[id] = i > 10 and settings() or nil -- by another request, which has looked as well
        for j = 1, 64 do
          all.map[("j%s-%d"):format(id, j)] = settings()
        end
      end
      return { { id = "i20", state = "gone" } }
    end
    for _, id in ipairs(ids) do
      all.map[id] = settings()
    end
    provider.create = function()
      return box_of()
    end
    assert_ok(all:create({ id = "new" }, settings()))
    assert.equal(1, asked)
    for _, id in ipairs(ids) do
      assert.is_nil(all:of(id))
    end
    assert.truthy(all:of "new")
    assert.truthy(all:of "ji1-64")
  end)

  it("are kept while it cannot be told which sandboxes there are", function()
    local all = world { list = function() return failed "Unavailable" end,
      create = function() return box_of() end }
    all.map.first = settings()
    assert_ok(all:create({ id = "second" }, settings()))
    assert.truthy(all:of "first")
  end)

  it("were dropped when another sandbox was made while theirs was not there yet", function()
    local provider, there = {}, {}
    provider.list = function()
      return there
    end
    local all = world(provider)
    local function made(_, spec)
      there[#there + 1] = { id = spec.id, state = "running" }
      return box_of()
    end
    provider.create = function(_, spec)
      provider.create = made
      assert_ok(all:create({ id = "second" }, settings()))
      return made(_, spec)
    end
    assert_ok(all:create({ id = "first" }, settings()))
    assert.truthy(all:of "first")
    assert.truthy(all:of "second")
  end)

  it("do not outlive a create that failed", function()
    local all = world { list = function() return {} end,
      create = function() return failed "NoSpace" end }
    local box, err = all:create({ id = "first" }, settings())
    assert.is_nil(box)
    assert.equal("NoSpace", err.kind)
    assert.is_nil(all:of "first")
  end)

  it("had a secret that was taken away while their sandbox was being made, or got them", function()
    local provider = { list = function() return { { id = "first", state = "running" } } end }
    local all, kept, one = world(provider)
    local box
    provider.create = function(_, spec)
      box = box_of(spec.network)
      assert_ok(kept:remove(one))
      return box
    end
    local own = settings "token"
    local policy = all:policy(own)
    assert.equal("secret", sent(policy))
    assert_ok(all:create({ id = "first", network = policy }, own))
    assert.is_nil(sent(box.policy))

    assert_ok(all:change("first", box, settings()))
    one = assert_ok(kept:add("t", "token", "value"))
    box.update_network = function(self, new)
      self.policy = new
      if one then
        assert_ok(kept:remove(one))
        one = nil
        assert.same({ "second" }, all:naming("t", "token"))
      end
      return true
    end
    assert_ok(all:change("second", box, settings "token"))
  end)

  it("left a sandbox with a secret that was gone, of which nobody was told", function()
    local all, kept, one = world { list = function() return {} end }
    all.provider.create = function(_, spec)
      local box = box_of(spec.network)
      if one then
        assert_ok(kept:remove(one))
        one = nil
      end
      box.update_network = function()
        return failed "Busy"
      end
      return box
    end
    local tries = {
      Unavailable = "Busy; sandbox \"first\" goes on, since it could not be removed: Unavailable", NotFound = "Busy",
    }
    for kind, told in pairs(tries) do
      one = one or assert_ok(kept:add("t", "token", "value"))
      all.provider.destroy = function()
        return failed(kind)
      end
      local box, err = all:create({ id = "first" }, settings "token")
      assert.is_nil(box)
      assert.same({ 409, told }, { reply.of(err) })
    end
  end)

  it("that could not be put in their place are those of before", function()
    local all = world { list = function() return { { id = "first", state = "running" } } end,
      create = function() return box_of() end }
    local before = settings()
    assert_ok(all:create({ id = "first" }, before))
    local box = box_of()
    box.update_network = function()
      return failed "Busy"
    end
    assert.is_nil((all:change("first", box, settings "token")))
    assert.equal(before, all:of "first")
  end)

  it("of two changes that both failed were those of the first", function()
    local all = world {}
    local before = settings()
    all.map.first = before
    local entered, go, box = wait.signal(), wait.signal(), box_of()
    box.update_network = function()
      if not entered.fired then
        wait.fire(entered)
        assert_ok(wait.on(go, 10, "spec"))
      end
      return failed "Busy"
    end
    assert_ok(sandbar.all { function()
      assert.is_nil((all:change("first", box, settings "token")))
      return true
    end, function()
      assert_ok(wait.on(entered, 10, "spec"))
      local second = sandbar.assert(sandbar.spawn(all.change, all, "first", box, settings "token"))
      sandbar.sleep(0) -- it has come
      wait.fire(go)
      assert.is_nil((second:wait()))
      return true
    end })
    assert.equal(before, all:of "first")
  end)

  it("come last that were given last", function()
    local all, kept, one = world {}
    all.map.first = settings "token"
    local entered, go, box = wait.signal(), wait.signal(), box_of()
    box.update_network = function(self, new)
      if not entered.fired then
        wait.fire(entered)
        assert_ok(wait.on(go, 10, "spec"))
      end
      self.policy = new
      return true
    end
    assert_ok(sandbar.all { function()
      return all:apply("first", box)
    end, function()
      assert_ok(wait.on(entered, 10, "spec"))
      assert_ok(kept:remove(one))
      wait.fire(go)
      return all:apply("first", box)
    end })
    assert.is_nil(sent(box.policy))
  end)
end)

describe("a secret that was taken away", function()
  local all, kept, one, list

  -- Three sandboxes that have it, and what it is told to them by.
  local function three(retry)
    all, kept, one = world {}
    list = {}
    for _, id in ipairs { "a", "b", "c" } do
      all.map[id] = settings "token"
      list[id] = box_of(all:policy(all.map[id]))
    end
    local boxes = {
      running = function(_, id)
        return { box = list[id] }
      end,
      is_away = function(err)
        return err.kind == "NotRunning"
      end,
    }
    return spread.new(all, boxes, retry)
  end

  -- From now on its handle refuses as often with this kind: a signal for when it has given in.
  local function refuse(id, kind, times)
    local given_in = wait.signal()
    list[id].update_network = function(self, new)
      times = times - 1
      if times >= 0 then
        return failed(kind, id)
      end
      self.policy = new
      wait.fire(given_in)
      return true
    end
    return given_in
  end

  it("was used on by every sandbox behind one that was Busy, and by that one", function()
    for _, id in ipairs { "a", "b", "c" } do
      local to = three(0)
      assert_ok(kept:remove(one))
      local given_in = refuse(id, "Busy", 3)
      local ok, err = to:to(all:naming("t", "token"))
      assert.is_nil(ok)
      assert.equal("Busy", err.kind)
      for other in pairs(list) do
        assert.equal(other == id and "secret" or nil, sent(list[other].policy))
      end
      assert_ok(wait.on(given_in, 10, "spec"))
      assert.is_nil(sent(list[id].policy))
      assert_ok(to:to { id })
      assert.is_nil(next(to.under_way))
    end
  end)

  it("was used on by a sandbox whose pause had begun and then was refused", function()
    local to = three(0)
    assert_ok(kept:remove(one))
    local given_in = refuse("b", "NotRunning", 2)
    assert_ok(to:to(all:naming("t", "token")))
    assert_ok(wait.on(given_in, 10, "spec"))
    assert.is_nil(sent(list.b.policy))
    assert_ok(to:to { "b" })
  end)

  it("was never told again to a sandbox after an error on the way, and who told it waited for ever", function()
    local to = three(0)
    assert_ok(kept:remove(one))
    local given_in = refuse("b", "Busy", 0)
    local taken = list.b.update_network
    list.b.update_network = function(self)
      self.update_network = taken
      error "broken"
    end
    local ok, err = to:to { "a", "b", "c" }
    assert.is_nil(ok)
    assert.equal("Internal", err.kind)
    assert.truthy(err.message:find("broken", 1, true))
    assert_ok(wait.on(given_in, 10, "spec"))
    assert.is_nil(sent(list.b.policy))
    assert_ok(to:to { "b" })
    assert.is_nil(next(to.under_way))
  end)

  it("was used on when the server had ended on the way", function()
    local to = three(0)
    assert_ok(kept:remove(one))
    to:begin()
    assert_ok(to:to { "a", "b", "c" })
    for _, box in pairs(list) do
      assert.is_nil(sent(box.policy))
    end
  end)

  it("is not waited for by a server that ends", function()
    local to = three(3600)
    assert_ok(kept:remove(one))
    refuse("a", "Busy", 2)
    assert.is_nil((to:to { "a" }))
    local running = to.under_way.a.task
    to:shut()
    running:wait { timeout = 10 }
    assert.is_nil(next(to.under_way))
  end)
end)

describe("what could not be kept while other things were", function()
  local store

  before_each(function()
    store = no_store()
  end)

  -- Begins what fails when the function that this gives is called; what is kept meanwhile is kept.
  local function begin(...)
    local go, save = wait.signal(), store.save
    function store.save()
      store.save = save
      assert_ok(wait.on(go, 10, "spec"))
      return failed "NoSpace"
    end
    local task = assert_ok(sandbar.spawn(...))
    sandbar.sleep(0) -- it waits
    return function()
      wait.fire(go)
      local done, err = task:wait { timeout = 10 }
      assert.is_nil(done)
      assert.equal("NoSpace", err.kind)
    end
  end

  it("took another one's secret away instead of its own", function()
    local kept = assert_ok(secrets.open(store))
    local fails = begin(kept.add, kept, "t", "one", "v")
    local two = assert_ok(kept:add("t", "two", "v"))
    fails()
    assert.is_nil(kept:find("t", "one"))
    assert.equal(two, kept:find("t", "two"))
  end)

  it("was put back to where there was no more place", function()
    local kept = assert_ok(secrets.open(store))
    local one, two = assert_ok(kept:add("t", "one", "v")), assert_ok(kept:add("t", "two", "v"))
    local fails = begin(kept.remove, kept, two)
    assert_ok(kept:remove(one))
    fails()
    assert.is_nil(kept:find("t", "one"))
    assert.equal(two, kept:find("t", "two"))
  end)

  it("took another one's template or build away instead of its own", function()
    local all = assert_ok(catalog.open(store, {}))
    local fails = begin(all.entry, all, "t", "one", "template")
    local two = assert_ok(all:entry("t", "two", "template"))
    fails()
    assert.same({ two }, all.list)

    fails = begin(all.add, all, { team = "t", name = "two", kind = "template", tags = { "a" }, of = "x" })
    local _, build = assert_ok(all:add { team = "t", name = "two", kind = "template", tags = { "b" }, of = "y" })
    fails()
    assert.same({ build }, two.builds)
  end)
end)
