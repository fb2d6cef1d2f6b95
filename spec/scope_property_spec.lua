-- Random programs of scopes, forks, tasks, failures and cancellations. Whatever they do: what was acquired is
-- released exactly once, newest first, and before anything older in the scopes around it.
-- A failing run names its seed; SPEC_SEED=n runs that one alone.

local helper = require "spec.helper"
local sandbar = require "sandbar"

helper.guard()

local PROGRAMS = 150

-- The same numbers on every Lua.
local function generator(seed)
  local state = seed % 2147483647
  if state == 0 then
    state = 1
  end
  return function(n)
    state = (state * 16807) % 2147483647
    return state % n + 1
  end
end

local function new_world(seed)
  return { random = generator(seed), clock = 0, resources = {}, scopes = {}, steps = 0 }
end

local function tick(world)
  world.clock = world.clock + 1
  return world.clock
end

-- What a scope handle stands for: its place in the scopes around it, and how many entries it has had.
local function track(world, handle, path, parallel)
  local node = { handle = handle, path = path, parallel = parallel, count = 0 }
  world.scopes[#world.scopes + 1] = node
  return node
end

local function place(node)
  node.count = node.count + 1
  local path = {}
  for i, step in ipairs(node.path) do
    path[i] = step
  end
  path[#path + 1] = { node = node, at = node.count }
  return path
end

local function maybe_wait(world)
  local what = world.random(4)
  if what == 1 then
    sandbar.sleep(0)
  elseif what == 2 then
    sandbar.sleep(0.0002)
  end
end

local function maybe_fail(world, one_in, name)
  local what = world.random(one_in)
  if what == 1 then
    return true, nil, name .. " failed"
  elseif what == 2 then
    error(name .. " raised", 0)
  end
  return false
end

local function acquire(world, node)
  local resource = { node = node, released = 0 }
  return node.handle:acquire(function()
    maybe_wait(world)
    local failed, _, err = maybe_fail(world, 12, "acquire")
    if failed then
      return nil, err
    end
    world.resources[#world.resources + 1] = resource
    resource.path = place(node)
    return resource
  end, function(value)
    assert(value == resource)
    resource.released = resource.released + 1
    resource.from = tick(world)
    maybe_wait(world)
    resource.to = tick(world)
    local failed, _, err = maybe_fail(world, 8, "release")
    if failed then
      return nil, err
    end
  end)
end

local body

local function nested_scope(world, path, depth)
  local parallel = world.random(4) == 1
  return sandbar.scope({ parallel = parallel }, function(handle)
    return body(world, track(world, handle, path, parallel), depth + 1)
  end)
end

local actions = {
  acquire, acquire, acquire,
  function(world)
    maybe_wait(world)
  end,
  function(world, node, depth) -- a child, closed by its parent or before
    local parallel = world.random(4) == 1
    if node.handle:state() ~= "open" then
      return
    end
    local child = track(world, node.handle:fork { parallel = parallel }, place(node), parallel)
    local ok, err = sandbar.pcall(body, world, child, depth + 1)
    if world.random(3) == 1 then
      child.handle:close { ok = ok, reasons = {} }
    end
    if not ok then
      error(err, 0)
    end
  end,
  function(world, node, depth) -- a scope inside
    return nested_scope(world, node.path, depth)
  end,
  function(world, node, depth) -- a task, left alone, waited for, or cancelled
    if node.handle:state() ~= "open" then
      return
    end
    local path = place(node)
    local task = node.handle:spawn(function()
      maybe_wait(world)
      return nested_scope(world, path, depth + 1)
    end)
    local what = world.random(4)
    if what == 1 then
      sandbar.pcall(task.wait, task)
    elseif what == 2 then
      task:cancel()
    elseif what == 3 then
      sandbar.pcall(task.wait, task, { timeout = 0.0001 })
      task:cancel()
      sandbar.pcall(task.wait, task)
    end
  end,
  function(_, node) -- the scope is closed from inside its body
    node.handle:close()
  end,
}

function body(world, node, depth)
  for _ = 1, world.random(5) do
    world.steps = world.steps + 1
    if depth > 4 or world.steps > 120 then
      acquire(world, node)
      break
    end
    local failed, _, err = maybe_fail(world, 30, "body")
    if failed then
      return nil, err
    end
    actions[world.random(#actions)](world, node, depth)
  end
  return "value"
end

local function newer_inside(path, older)
  local own = older.path[#older.path]
  for _, step in ipairs(path) do
    if step.node == own.node then
      return step.at > own.at
    end
  end
  return false
end

local function verify(world)
  for _, node in ipairs(world.scopes) do
    assert(node.handle:state() == "closed", "a scope was left " .. node.handle:state())
    assert(node.handle:pending() == 0, "a scope kept entries")
  end
  for i, resource in ipairs(world.resources) do
    assert(resource.released == 1, ("resource %d was released %d times"):format(i, resource.released))
  end
  for i, older in ipairs(world.resources) do
    if not older.node.parallel then
      for j, newer in ipairs(world.resources) do
        if newer_inside(newer.path, older) then
          assert(newer.to < older.from, ("resource %d was released before the newer %d"):format(i, j))
        end
      end
    end
  end
end

local function run_program(seed)
  local world = new_world(seed)
  local how = world.random(3)
  local function program()
    return nested_scope(world, {}, 0)
  end
  if how == 1 then
    pcall(program)
  elseif how == 2 then
    pcall(sandbar.run, program)
  else -- cancelled from outside at some moment
    pcall(sandbar.scope, function(scope)
      local task = scope:spawn(program)
      for _ = 1, world.random(4) do
        maybe_wait(world)
      end
      task:cancel()
    end)
  end
  verify(world)
  return world
end

describe("any program of scopes and tasks", function()
  it("releases everything exactly once, newest first, before what is older", function()
    local only = tonumber(os.getenv("SPEC_SEED"))
    local first = only or os.time() % 1000000
    local resources = 0
    for seed = first, only or first + PROGRAMS - 1 do
      local ok, err = pcall(run_program, seed)
      if not ok then
        error(("SPEC_SEED=%d: %s"):format(seed, tostring(err)), 0)
      end
      resources = resources + #err.resources
    end
    -- About 200 of 150 programs, give or take 20.
    assert.is_true(only ~= nil or resources > PROGRAMS / 3, "the programs acquire too little to show anything")
  end)
end)
