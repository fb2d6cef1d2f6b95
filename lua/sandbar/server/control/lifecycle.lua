-- The control plane's calls that change how long a sandbox runs: connect, resume, pause, timeout. Handlers are as in
-- sandboxes.lua.

local body = require "sandbar.server.body"
local core = require "sandbar.core"
local described = require "sandbar.server.control.described"
local reply = require "sandbar.server.reply"
local sandboxes = require "sandbar.server.control.sandboxes"

local lifecycle = {}

local check_timeout, find, find_running = sandboxes.check_timeout, sandboxes.find, sandboxes.find_running
local refusal = reply.refusal

-- Of one that was woken: its log, its rules (what they name may have changed while it slept), its info.
local function woken(ctx, info, kept)
  local boxes = ctx.server.boxes
  boxes.journal:note(info.id, "sandbox resumed", { kept = kept })
  if ctx.server.rules:of(info.id) then
    local ok, err = ctx.server.spread:to { info.id }
    if not ok then
      return nil, err
    end
  end
  return boxes:info(info.id, ctx.team)
end

local function resume(ctx, info, lifetime, timeout)
  local entry = ctx.server.boxes.entries[info.id]
  local ok, err
  if entry then
    ok, err = entry.box:resume { lifetime = lifetime, timeout = timeout }
  else
    local box
    box, err = ctx.server.provider:connect(info.id, { resume = true, lifetime = lifetime, timeout = timeout })
    ok = box ~= nil
    if box then
      box:close()
    end
  end
  if not ok then
    return nil, err
  end
  return woken(ctx, info, info.kept)
end

lifecycle.resume = resume

-- Starts a sandbox from its disk, whatever its pause has kept: it is woken for that, paused to its disk at once, and
-- begins anew.
local function reboot(ctx, info, timeout)
  if info.kept ~= "memory" then
    return resume(ctx, info, timeout)
  end
  local box, err = ctx.server.provider:connect(info.id, { resume = true, lifetime = timeout })
  if not box then
    return nil, err
  end
  local ok
  ok, err = box:pause { keep = "disk" }
  if ok then
    ctx.server.boxes:cut(info.id)
    ok, err = box:resume { lifetime = timeout }
  end
  box:close()
  if not ok then
    return nil, err
  end
  return woken(ctx, info, "disk")
end

local CONNECT = { timeout = "integer", memory = "boolean" }

local function connect(ctx)
  local given, err = body.read(ctx.request, CONNECT)
  if not given then
    return nil, err
  elseif not given.timeout and not ctx.v2 then
    return nil, refusal(400, "validation error: timeout is missing")
  end
  local timeout
  timeout, err = check_timeout(given.timeout or sandboxes.V2_TIMEOUT)
  local info
  if timeout then
    info, err = find(ctx)
  end
  if not info then
    return nil, err
  end
  local status = 200
  if info.state == "running" then
    if (info.ends_at or 0) < core.wall() + timeout then
      local entry
      entry, err = find_running(ctx, 404)
      if entry then
        local ok
        ok, err = entry.box:set_lifetime(timeout)
        entry = ok and entry
      end
      if not entry then
        return nil, err
      end
      ctx.server.boxes:changed(info.id)
    end
  else
    status = 201
    info, err = (given.memory == false and reboot or resume)(ctx, info, timeout)
    if not info then
      return nil, err or refusal(404, "the sandbox is gone")
    end
  end
  return status, described.handed_over(ctx.server, info)
end

local function resume_old(ctx)
  local given, err = body.read(ctx.request, { timeout = "integer", autoPause = "boolean", memory = "boolean" })
  local timeout
  if given then
    timeout, err = check_timeout(given.timeout or sandboxes.V1_TIMEOUT)
  end
  local info
  if timeout then
    info, err = find(ctx)
  end
  if not info then
    return nil, err
  elseif info.state == "running" then
    return nil, refusal(409, ("sandbox %q is already running"):format(info.id))
  end
  info, err = (given.memory == false and reboot or resume)(ctx, info, timeout)
  if not info then
    return nil, err or refusal(404, "the sandbox is gone")
  end
  return 201, described.handed_over(ctx.server, info)
end

-- A pause takes the connections from outside with it.
local function take_pause(ctx, entry, keep)
  local kept, err = entry.box:pause { keep = keep }
  if not kept then
    if err.kind == "Busy" then
      return nil, refusal(503, err.message)
    end
    return nil, err
  end
  ctx.server.boxes:cut(entry.id)
  entry.note("sandbox paused", { kept = kept })
  return true
end

local function pause(ctx)
  local given, err = body.read(ctx.request, { memory = "boolean" })
  local entry
  if given then
    entry, err = find_running(ctx, 409)
  end
  if not entry then
    return nil, err
  end
  local ok
  ok, err = take_pause(ctx, entry, given.memory == false and "disk" or "memory")
  if not ok then
    return nil, err
  end
  return 204
end

-- ---- its end ----

-- Now, as if its time were over.
local function end_now(ctx, entry)
  if entry.info.on_expiry == "destroy" then
    return ctx.server.boxes:destroy(entry.id)
  end
  return take_pause(ctx, entry, entry.info.on_expiry == "pause" and "memory" or "disk")
end

local function timeout(ctx)
  local given, err = body.read(ctx.request, { timeout = "integer!" })
  local entry
  if given then
    entry, err = find_running(ctx, 404)
  end
  if not entry then
    return nil, err
  end
  local ok
  if given.timeout <= 0 then
    ok, err = end_now(ctx, entry)
  else
    ok, err = check_timeout(given.timeout)
    if ok then
      ok, err = entry.box:set_lifetime(given.timeout)
      ctx.server.boxes:changed(entry.id)
      entry.note("lifetime set", { seconds = ("%d"):format(given.timeout) })
    end
  end
  if not ok then
    return nil, err
  end
  return 204
end

local function refresh(ctx)
  local given, err = body.read(ctx.request, { duration = "integer" })
  local duration = given and math.max(given.duration or 15, 15)
  if duration and duration > 3600 then
    return nil, refusal(400, "validation error: duration is above 3600")
  end
  local entry
  if given then
    entry, err = find_running(ctx, 404)
  end
  if not entry then
    return nil, err
  end
  if (entry.info.ends_at or 0) < core.wall() + duration then
    local ok
    ok, err = entry.box:set_lifetime(duration)
    if not ok then
      return nil, err
    end
    ctx.server.boxes:changed(entry.id)
  end
  return 204
end

lifecycle.routes = {
  ["POST /sandboxes/{id}/connect"] = connect,
  ["POST /sandboxes/{id}/resume"] = resume_old,
  ["POST /sandboxes/{id}/pause"] = pause,
  ["POST /sandboxes/{id}/timeout"] = timeout,
  ["POST /sandboxes/{id}/refreshes"] = refresh,
}

--- Of the second generation: other defaults.
lifecycle.routes_v2 = { ["POST /v2/sandboxes/{id}/connect"] = connect }

return lifecycle
