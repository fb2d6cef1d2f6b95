-- What is done in a new sandbox before its create returns: `prepare`, with network; then the policy that was asked for;
-- then what its template has started, until that is ready. Until all is done the sandbox is this process's, and ends
-- with it; a failure destroys it.

local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local exit = require "sandbar.exit"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local nested = require "sandbar.nested"
local steps = require "sandbar.steps"
local task = require "sandbar.task"
local wait = require "sandbar.wait"

local trust = lazy "sandbar.local.trust"

local POLL_FIRST, POLL_MOST, PORT_SLICE = 0.02, 0.5, 0.5
local UNDO = 10
local TAIL, TAIL_TIMEOUT = 2048, 5

local launch = {}

-- ---- prepare ----

local function prepare(box, what, deadline, timeout)
  if type(what) == "function" then
    local ok, err = what(box)
    if ok == nil and err ~= nil or ok == false then
      return nil, errors.is(err) and err or errors.new {
        kind = "CommandFailed", op = "prepare", cause = err, message = "prepare failed: " .. tostring(err or "false"),
      }
    end
    return true
  end
  for i, cmd in ipairs(what) do
    local r, err = box:exec(cmd, { timeout = link.left(deadline) })
    if not r then
      return nil, err.kind == "ExecTimedOut" and wait.timed_out("prepare", "timeout", timeout) or err
    elseif not r.ok then
      return nil, errors.new {
        kind = "CommandFailed", op = "prepare", result = r,
        message = errors.with_output(("command %d of prepare %s"):format(i, r.signal and "ended by " .. r.signal
          or ("exited with %d"):format(r.exit_code)), errors.last_of(r.stderr, 1024)),
      }
    end
  end
  return true
end

-- Raises for what no list of commands is. `level`: as in check.lua.
function launch.shape(fname, what, level)
  if type(what) ~= "table" then
    return
  end
  if check.holed(what) then
    check.fail(fname, 1, "option 'prepare': the list has a hole", level + 1)
  end
  for i, cmd in ipairs(what) do
    if type(cmd) ~= "string" and type(cmd) ~= "table" then
      check.fail(fname, 1, ("option 'prepare': element %d: string or table expected, got %s"):format(i,
        check.type_name(cmd)), level + 1)
    end
  end
end

-- ---- start and ready ----

-- The last of what it has written. It is killed for that: what still runs writes no end.
local function tail_of(box, process)
  process:kill { grace = 0, timeout = TAIL_TIMEOUT }
  local reader, out = box:attach(process.pid, { timeout = TAIL_TIMEOUT }), {}
  for _, name in ipairs(reader and { "stdout", "stderr" } or {}) do
    local stream = reader[name]
    out[#out + 1] = stream and stream:read("a", { timeout = TAIL_TIMEOUT }) or ""
  end
  if reader then
    reader:close()
  end
  return errors.last_of(table.concat(out), TAIL)
end

local function not_ready(box, process, why, cause)
  local ended = process:wait { timeout = 0 }
  local tail = tail_of(box, process)
  if ended then
    why = why .. (", and the start command has " .. (ended.signal and "been ended by " .. ended.signal
      or ("exited with %d"):format(ended.exit_code)))
  end
  return nil, errors.new {
    kind = "StartFailed", op = "create", result = ended, cause = cause, output = tail,
    message = errors.with_output("the template's start command is not ready: " .. why, tail),
  }
end

local function passes(box, ready, left)
  if ready[2] == "port" then
    return box:port(tonumber(ready[3])):wait { timeout = math.min(left, PORT_SLICE) }
  end
  local r, err = box:exec(steps.runnable(ready, 2), { timeout = left })
  return r and r.ok, err
end

local function start(box, command, ready, deadline)
  local process, err = box:start(steps.runnable(command, 1), { stdout = "tail", stderr = "tail", detached = true,
    tag = "sandbar.start", timeout = link.left(deadline) })
  if not process then
    return nil, err
  end
  if not ready or #ready == 0 then
    process:close()
    return true
  end
  local limit = tonumber(ready[1])
  local by = core.now() + limit
  if deadline and deadline < by then
    by = deadline
  end
  local pause = POLL_FIRST
  while true do
    local left = math.max(by - core.now(), 0)
    local ok, why = passes(box, ready, left)
    if ok then
      process:close()
      return true
    elseif why and why.kind ~= "Timeout" and why.kind ~= "ExecTimedOut" then
      return nil, why
    elseif core.now() >= by then
      return not_ready(box, process, ("not within %g s"):format(limit), why)
    elseif not process:running() then
      return not_ready(box, process, "it has ended", why)
    end
    ok, why = wait.sleep(math.min(pause, left))
    if not ok then
      return nil, why
    end
    pause = math.min(pause * 2, POLL_MOST)
  end
end

-- `plan`: authority (to be trusted), prepare, policy (what holds after it; nil: what holds already), start, ready, keep
-- (it is to outlive this process), timeout and deadline. True; or nil and an error, and the sandbox is gone.
function launch.run(driver, box, plan)
  local function all()
    local ok, err = true, nil
    local authority = plan.authority
    if plan.prepare then
      ok, err = prepare(box, plan.prepare, plan.deadline, plan.timeout)
      if ok and plan.policy then
        ok, err = driver:update_network(box.id, plan.policy, link.left(plan.deadline))
        authority = ok and err
      end
    end
    if ok and authority then
      ok, err = trust.install(box.files, authority, link.left(plan.deadline))
    end
    if ok and plan.start and #plan.start > 0 then
      ok, err = start(box, plan.start, plan.ready, plan.deadline)
    end
    if ok and plan.keep then
      ok, err = driver:keep(box.id, link.left(plan.deadline))
    end
    return ok, err
  end
  local r = nested.try(all)
  if r.ok and r[1] then
    return true
  end
  task.shield(function()
    box:destroy { timeout = UNDO }
  end)
  return exit.pass_on(r)
end

return launch
