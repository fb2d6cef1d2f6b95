-- Find or create: the one sandbox of an id, whoever else looks for it at the same time. The provider makes an id once;
-- who comes second connects to what the first one has made. What is paused or has failed is woken, with its files.

local duration = require "sandbar.duration"
local errors = require "sandbar.errors"
local link = require "sandbar.link"
local wait = require "sandbar.wait"

local common = require "sandbar.policy.common"

local keyed = {}

local PATIENCE = 30 -- seconds for a sandbox of this id to be made or unmade by somebody else, without a timeout
local DEFAULT_LIFETIME = 3600

-- Of several of one id (a provider with copies in several places) the oldest that lives.
local function oldest(provider, labels, timeout)
  local found, err = provider:list { labels = labels, state = { "running", "paused" }, timeout = timeout }
  if not found then
    return nil, err
  end
  table.sort(found, function(a, b)
    local first, second = a.created_at or a.started_at or 0, b.created_at or b.started_at or 0
    if first ~= second then
      return first < second
    end
    return tostring(a.provider_id or a.id) < tostring(b.provider_id or b.id)
  end)
  return found[1] and (found[1].provider_id or found[1].id)
end

local function connect(provider, id, labels, lifetime, deadline)
  local function to(which)
    return provider:connect(which, { expect_labels = labels, lifetime = lifetime, timeout = link.left(deadline) })
  end
  local box, err = to(id)
  if not box and err.kind == "Ambiguous" then
    local which, why = oldest(provider, labels, link.left(deadline))
    if which then
      return to(which)
    end
    return nil, why or err
  end
  return box, err
end

-- A running one, or nil and an error.
local function existing(provider, id, labels, lifetime, deadline)
  local box, err = connect(provider, id, labels, lifetime, deadline)
  if box and box.state == "running" or err and err.kind ~= "NotRunning" then
    return box, err
  end
  if not box then -- it has no lifetime that could be extended
    box, err = connect(provider, id, labels, nil, deadline)
    if not box then
      return nil, err
    end
  end
  -- With the lifetime it has had, unless that is too short: between a resume and a second call it could end.
  local known, why = box:info { timeout = link.left(deadline) }
  local longer = known and lifetime and (known.lifetime or 0) < lifetime and lifetime or nil
  local ok = known
  if known and known.state == "running" then -- woken by somebody else meanwhile: look again
    ok, why = nil, errors.new { kind = "Busy", id = id, message = "the sandbox was being woken" }
  elseif known then
    ok, why = box:resume { lifetime = longer, timeout = link.left(deadline) }
  end
  if ok and lifetime and (box.ends_at or 0) < os.time() + lifetime - 1 then -- somebody else was first
    ok, why = connect(provider, id, labels, lifetime, deadline)
    if ok then
      box:close()
      return ok
    end
  end
  if not ok then
    box:close()
    return nil, why
  end
  return box
end

-- The longer of the spec's lifetime and the least.
local function lifetime_of(spec, least)
  local given = spec.lifetime == nil and DEFAULT_LIFETIME or spec.lifetime
  local seconds = duration.parse(given, "lifetime")
  return seconds and least and least > seconds and least or given
end

-- There is one of this id: is it somebody else's? Found by its labels it was not.
local function strange(provider, id, labels, timeout)
  local info = provider:info(id, { timeout = timeout })
  for key, value in pairs(info and labels or {}) do
    if (info.labels or {})[key] ~= value then
      return errors.new {
        kind = "WrongOwner", id = id, message = ("sandbox %s is there, but not with the label %s"):format(id, key),
      }
    end
  end
end

--- A handle of the sandbox `id` with these labels, which is made from `spec` if it is not there. `least`: seconds it
--- shall live at least. A second result `true` tells that it was made here.
function keyed.get(op, provider, id, labels, spec, least, timeout)
  local deadline = link.deadline(timeout)
  local patience = link.deadline(timeout or PATIENCE)
  local pause = 0.002
  local err
  while true do
    local box
    box, err = existing(provider, id, labels, least, deadline)
    if box then
      return box
    end
    if err.kind == "NotFound" then
      local own = common.copy(spec)
      own.id, own.lifetime = id, lifetime_of(spec, least)
      box, err = provider:create(own, { timeout = link.left(deadline) })
      if box then
        return box, true
      end
      if err.kind == "AlreadyExists" then
        err = strange(provider, id, labels, link.left(deadline)) or err
      end
    end
    -- Made by somebody else, or paused or destroyed between two looks: look again.
    if err.kind ~= "AlreadyExists" and err.kind ~= "NotRunning" and err.kind ~= "NotFound" and err.kind ~= "Busy"
      or link.left(patience) == 0 then
      return nil, link.told(errors.from(err, op, { id = id }), timeout)
    end
    local ok, why = wait.sleep(math.min(pause, link.left(patience)))
    if not ok then
      return nil, why
    end
    pause = math.min(pause * 2, 0.1)
  end
end

return keyed
