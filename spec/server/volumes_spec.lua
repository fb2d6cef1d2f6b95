-- check: no asan
-- check: no user
-- Volumes under tasks that ask at the same moment: over a provider that takes its time, and counts.

local helper = require "spec.helper"
helper.guard()

local errors = require "sandbar.errors"
local sandbar = require "sandbar"
local volumes = require "sandbar.server.volumes"

-- A provider whose calls let other tasks have their turn; `boxes`: the handles it gave, `made`: the sandboxes there are.
local function slow_provider()
  local provider = { boxes = {}, made = {} }
  local function handle(id)
    local box = { id = id, files = {} }
    function box.files:mkdir() -- luacheck: ignore 212
      sandbar.sleep(0)
      provider.made[id] = "whole"
      return true
    end
    function box:close()
      self.closed = true
    end
    function box:set_lifetime()
      sandbar.sleep(0)
      return provider.made[id] == "whole" and not self.asleep
    end
    provider.boxes[#provider.boxes + 1] = box
    return box
  end
  function provider:create(opts) -- luacheck: ignore 212
    sandbar.sleep(0)
    provider.made[opts.id] = "begun"
    return handle(opts.id)
  end
  function provider:connect(id) -- luacheck: ignore 212
    sandbar.sleep(0)
    if not provider.made[id] then
      return nil, errors.new { kind = "NotFound", message = "no sandbox " .. id }
    end
    return handle(id)
  end
  function provider:destroy(id) -- luacheck: ignore 212
    sandbar.sleep(0)
    provider.made[id] = nil
    return true
  end
  return provider
end

-- `list`: what the store has.
local function opened(list)
  local provider = slow_provider()
  local store = { seed = "seed" }
  function store:load(_, default) -- luacheck: ignore 212
    return list or default
  end
  function store:save() -- luacheck: ignore 212
    sandbar.sleep(0)
    return true
  end
  return sandbar.assert(volumes.open(store, provider)), provider
end

-- The handles that have not been closed.
local function open_handles(provider)
  local out = {}
  for _, box in ipairs(provider.boxes) do
    out[#out + 1] = not box.closed and box or nil
  end
  return out
end

describe("a volume", function()
  it("that was still being made was opened without its directory", function()
    local all, provider = opened()
    local made = sandbar.spawn(all.add, all, "team", "one")
    local box
    repeat
      sandbar.sleep(0)
      local one = all:named("team", "one")
      box = one and sandbar.assert(all:open(one))
    until box
    assert.equal("whole", provider.made[box.id])
    assert.equal("one", sandbar.assert(made:wait()).name)
    all:shut()
    assert.same({}, open_handles(provider))
  end)

  it("lost the handle of one request to another that came at the same moment", function()
    local all, provider = opened()
    local one = sandbar.assert(all:add("team", "one"))
    for _ = 1, 2 do -- the first time, and after it has gone to sleep
      local function request()
        local box = sandbar.assert(all:open(one))
        sandbar.sleep(0)
        assert.is_nil(box.closed)
        return box
      end
      local got = sandbar.assert(sandbar.all { request, request, request })
      assert.equal(got[1], got[2])
      assert.equal(got[1], got[3])
      assert.equal(1, #open_handles(provider))
      got[1].asleep = true
    end
    all:shut()
    assert.same({}, open_handles(provider))
  end)

  it("that a server was making when it was killed had no directory, and was no volume for ever", function()
    local kept = {}
    for i, state in ipairs { "none", "begun" } do
      kept[i] = { id = state, team = "team", name = state, sandbox = "v" .. i, created = i, making = true }
    end
    local all, provider = opened(kept)
    provider.made.v2 = "begun"
    for _, one in ipairs(all:of("team")) do
      sandbar.assert(all:open(one))
      assert.equal("whole", provider.made[one.sandbox])
      assert.is_nil(one.making)
    end
    all:shut()
    assert.same({}, open_handles(provider))
  end)

  it("that could not be made is none", function()
    local all, provider = opened()
    function provider:create() -- luacheck: ignore 212
      return nil, errors.new { kind = "NoSpace", message = "there is no room" }
    end
    local one, err = all:add("team", "one")
    assert.is_nil(one)
    assert.equal("NoSpace", err.kind)
    assert.same({}, all:of("team"))
  end)

  it("that is removed is opened by nobody any more, and keeps no handle", function()
    local all, provider = opened()
    local one = sandbar.assert(all:add("team", "one"))
    local removing = sandbar.spawn(all.remove, all, one)
    local opening = sandbar.spawn(all.open, all, one)
    sandbar.assert(removing:wait())
    local box, err = opening:wait()
    assert.is_nil(box)
    assert.equal("NotFound", err.kind)
    assert.same({}, open_handles(provider))
    assert.same({}, provider.made)
    assert.same({}, all:of("team"))
  end)
end)
