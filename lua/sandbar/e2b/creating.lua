-- Creates: at most one sandbox an id, none without a release, and what a lost answer has made is found again.
--
-- A recipe (see http.recipe) is there before the request is sent: until the vendor's id is known it finds the sandbox
-- by the token in its metadata. So a program that ends in the middle leaves nothing, and neither does a wait that
-- ends early.

local address = require "sandbar.e2b.address"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local finding = require "sandbar.e2b.finding"
local identity = require "sandbar.e2b.identity"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local own = require "sandbar.own"
local record = require "sandbar.e2b.record"
local spec = require "sandbar.e2b.spec"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local turns = lazy "sandbar.turns"

local creating = {}

local SETTLE, SETTLE_FIRST = 5, 0.1 -- seconds: how long a lost create is looked for
local UNDO = 15
local OLDEST_DAEMON = { 0, 1, 0 }
local NO_KEEPER = { settled = function() end } -- of an injected transport: nothing but its caller can release

-- ---- what an answer gives ----

local function older(version, than)
  local parts = {}
  for number in tostring(version):gmatch("%d+") do
    parts[#parts + 1] = tonumber(number)
  end
  for i = 1, 3 do
    if (parts[i] or 0) ~= than[i] then
      return (parts[i] or 0) < than[i]
    end
  end
  return false
end

local function secret_of(value)
  return type(value) == "string" and value ~= "" and core.secret(value) or nil
end

--- How a sandbox is reached, of the answer to a create, connect or detail call: domain, daemon_version and, as secrets,
--- daemon_token and traffic_token (of a detail call never).
function creating.access(answer, domain)
  local own_domain, network = answer.domain, answer.network
  return {
    private = type(network) == "table" and network.allowPublicTraffic == false,
    vendor_id = record.vendor_id(answer.sandboxID),
    domain = type(own_domain) == "string" and own_domain ~= "" and own_domain or domain,
    daemon_version = tostring(answer.envdVersion or ""),
    daemon_token = secret_of(answer.envdAccessToken),
    traffic_token = secret_of(answer.trafficAccessToken),
  }
end

-- ---- both generations ----

-- No sandbox has this id.
local NOBODY = "none"

-- Something on the way has no such path, or the server itself.
local function is_no_path(answer)
  return answer.foreign and (answer.status == 404 or answer.status == 405)
end

-- Does the server know the first generation of paths only? Asked by a call that changes nothing.
local function knows_first_only(client, op, timeout)
  local value, answer = client:call { op = op, method = "POST", path = "/v2/sandboxes/" .. NOBODY .. "/connect",
    body = { timeout = 0 }, repeatable = true, timeout = timeout }
  return not value and is_no_path(answer)
end

--- A POST that has a second generation of its path: that first, then, where the server knows no such path, the first.
--- What must not be done twice is not asked for again because of one answer that anything on the way may have given.
--- `old`: what the body is there.
function creating.post(client, call, old)
  local path, deadline = call.path, link.deadline(call.timeout)
  if client.generation ~= 1 then
    call.path = "/v2" .. path
    local value, answer, _, open = client:call(call)
    if value or not is_no_path(answer) then
      return value, answer, nil, open
    elseif not call.repeatable and not knows_first_only(client, call.op, link.left(deadline)) then
      return nil, answer, nil, true
    end
    client.generation = 1
  end
  call.timeout = link.left(deadline)
  call.path, call.body = path, old or call.body
  local value, answer, _, open = client:call(call)
  if not value and answer.foreign then -- neither is there: it says nothing about generations
    client.generation = nil
  end
  return value, answer, nil, open
end

-- ---- the create itself ----

local function already(id, op)
  return errors.new { kind = "AlreadyExists", op = op, id = id, message = ("there is a sandbox %s already"):format(id) }
end

-- What a create has made whose answer is lost, or nil: nothing is there, as far as can be seen.
local function settle(client, plan, token, timeout)
  local limit = timeout and math.min(timeout, SETTLE) or SETTLE
  local deadline, pause = link.deadline(limit), SETTLE_FIRST
  while true do
    local found = finding.all(client, identity.filter { id = plan.id, token = token }, link.left(deadline), "create")
    if found and found[1] then
      local id = record.vendor_id(found[1].sandboxID)
      -- Its tokens: the detail call has not all of them. A connect shortens no life.
      return creating.post(client, {
        op = "create", method = "POST", path = "/sandboxes/" .. id .. "/connect", id = plan.id, repeatable = true,
        timeout = timeout, body = { timeout = plan.lifetime },
      })
    end
    if link.left(deadline) <= pause or not wait.sleep(pause) then
      return nil
    end
    pause = pause * 2
  end
end

-- What undoes a create: the recipe and its release; of an injected transport, which has no port, a stand-in that knows
-- only what it is bound to.
local function recipe_for(client, plan, token)
  if client.injected then
    local stand_in = { op = function() end, cancel = function() end }
    function stand_in:bind(target)
      self.target = target
    end
    function stand_in:fire()
      if self.target then
        task.shield(function()
          client:call { op = "create", method = "DELETE", path = self.target, timeout = UNDO, repeatable = true }
        end)
      end
    end
    return stand_in, stand_in
  end
  return client:recipe {
    what = "sandbox", id = plan.id, key = "sandboxID", mark = token, prefix = client:target("/sandboxes/"),
    find = client:target("/v2/sandboxes", {
      { "metadata", address.filter(identity.filter { id = plan.id, token = token }) },
      { "state", "running,paused" },
    }),
  }
end

-- The answer to the request, its release bound to it; or nil, an error, and no sandbox.
local function request(client, plan, token, release, timeout, op)
  local deadline = link.deadline(timeout)
  local body = spec.body(plan, token, plan.prepare ~= nil)
  local old = spec.body(plan, token, plan.prepare ~= nil)
  old.secure = true
  local answer, err, _, open = creating.post(client, {
    op = op, method = "POST", path = "/sandboxes", id = plan.id, timeout = timeout, body = body,
    kinds = { [504] = "Unavailable" },
  }, old)
  if not answer and open then
    if err.kind ~= "Cancelled" then
      answer = settle(client, plan, token, link.left(deadline))
    end
    if not answer then
      release:fire() -- it goes on looking for a while
      if err.kind == "Timeout" or err.kind == "Cancelled" then
        return nil, err
      end
      return nil, errors.new { kind = "OutcomeUnknown", op = op, id = plan.id, cause = err, status = err.status,
        message = "the answer to the create was lost, and nothing of it is to be seen: " .. err.message }
    end
  elseif not answer then
    release:cancel()
    if client.journal then
      client.journal:done(token)
    end
    return nil, err
  end
  return answer
end

-- Of several with our id the first keeps it. True, or nil and AlreadyExists; ours is gone then.
local function check_after(client, plan, vendor_id, release, timeout, op)
  local found, err = finding.all(client, identity.filter { id = plan.id }, timeout, op)
  if found then
    local first = finding.first(found)
    if #found == 0 or record.vendor_id(first.sandboxID) == vendor_id then
      return true
    end
    err = already(plan.id, op)
  end
  release:fire()
  task.shield(function()
    own.finish(release, UNDO, { what = "sandbox", op = op, id = plan.id })
  end)
  return nil, err
end

local function create(client, plan, timeout, op)
  local deadline = link.deadline(timeout)
  if plan.chosen then
    local found, err = finding.all(client, identity.filter { id = plan.id }, timeout, op)
    if not found then
      return nil, errors.from(err, op, { id = plan.id })
    elseif #found > 0 then
      return nil, already(plan.id, op)
    end
  end
  local token = client:uuid()
  if client.journal then
    local noted, why = client.journal:intent("sandbox", token, plan.id, link.left(deadline))
    if not noted then
      return nil, errors.from(why, op, { id = plan.id })
    end
  end
  local recipe, release = recipe_for(client, plan, token)
  if not recipe then
    return nil, errors.from(release, op)
  end
  local keeper = client.injected and NO_KEEPER or own.keeper(release)
  local answer, err = request(client, plan, token, release, link.left(deadline), op)
  if not answer then
    return nil, err
  end
  local access = type(answer) == "table" and creating.access(answer, client.domain)
  if not access or not access.vendor_id then
    release:fire()
    return nil, errors.new { kind = "Protocol", op = op, id = plan.id, message = "the answer to the create has no id" }
  end
  recipe:bind(client.injected and "/sandboxes/" .. access.vendor_id
    or client:target("/sandboxes/" .. access.vendor_id))
  local ok = true
  if older(access.daemon_version, OLDEST_DAEMON) then
    ok, err = nil, errors.new { kind = "Unsupported", op = op, id = plan.id, clause = "template",
      message = ("the template's daemon is %s, too old to be spoken to"):format(access.daemon_version) }
    release:fire()
  elseif plan.chosen then
    ok, err = check_after(client, plan, access.vendor_id, release, link.left(deadline), op)
  end
  if not ok then
    return nil, err
  end
  access.create_token = token
  return { fields = spec.fields(plan, access.vendor_id), access = access, release = release, keeper = keeper }
end

--- { fields, access, release, keeper (see own.keeper) } of a new sandbox, or nil, an error and no sandbox.
function creating.run(client, plan, timeout, op)
  if client.injected and op == "create_scoped" then
    return nil, errors.new { kind = "Unsupported", op = op, clause = "transport",
      message = "transport: what is injected cannot release anything once Lua has ended; use create" }
  end
  local function all()
    return create(client, plan, timeout, op)
  end
  if not plan.chosen then
    return all()
  end
  client.creating = client.creating or {}
  local r, err = turns.run(client.creating, plan.id, link.deadline(timeout), op, all)
  return r, err and errors.from(err, op, { id = plan.id })
end

return creating
