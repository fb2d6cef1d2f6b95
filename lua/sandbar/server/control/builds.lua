-- Building templates: a build is made, started with its steps, and asked for its state and its log until it has ended.
-- What is under way is known to this server only: one that ends ends its builds.

local body = require "sandbar.server.body"
local catalog = require "sandbar.server.catalog"
local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local ids = require "sandbar.server.ids"
local nested = require "sandbar.nested"
local paging = require "sandbar.server.paging"
local recipe = require "sandbar.server.control.recipe"
local reply = require "sandbar.server.reply"
local size = require "sandbar.server.size"
local stamp = require "sandbar.server.stamp"
local task = require "sandbar.task"
local uploads = require "sandbar.server.control.uploads"

local AT_ONCE = 8 -- builds under way
local KEPT = 200 -- builds that are told of
local MOST_LINES = 100000
local PAGE = 100
local IMAGES = { base = true, ["e2bdev/base"] = true }

local builds = {}

local refusal = reply.refusal

-- ---- logs ----

local function log(build, text, step, level)
  local entries, now = build.entries, core.wall()
  local at = stamp.text(now)
  for line in text:gmatch("[^\r\n]+") do
    if #entries == MOST_LINES then
      break
    end
    build.times[#entries + 1] = math.floor(now * 1000)
    entries[#entries + 1] = { timestamp = at, level = level or "info", message = encode.text(line), step = step }
  end
end

-- A step as its author wrote it.
local function spoken(given, step)
  local own = given.steps and given.steps[tonumber(step) or 0]
  if not own then
    return step
  end
  return ("[builder %s/%d] %s %s"):format(step, #given.steps, own.type, table.concat(own.args or {}, " "))
end

-- What the contract tells of a build, as lines of its log.
local function watch(build, plan, given)
  local at
  return function(event)
    local step = event.step and plan.origin[event.step] or "finalize"
    if event.event == "step" then
      if step ~= at then
        at = step
        log(build, spoken(given, step), step)
      end
    elseif event.event == "output" then
      log(build, event.data, step)
    elseif event.event == "done" and event.cached then
      log(build, ("[%s] CACHED"):format(step), step, "debug")
    end
  end
end

-- ---- the build ----

-- Why it failed, as its clients look for it.
local function reason_of(err, plan, given)
  local step = type(err.step) == "number" and plan.origin[err.step] or "finalize"
  local text = err.message
  local theirs = given.steps and given.steps[tonumber(step) or 0]
  local user = text:match("(%S+): the sandbox has no such user")
  if theirs and theirs.type == "RUN" then
    local why = user and ("command failed: unauthenticated: invalid username: '%s'"):format(user) or text
    text = ("failed to run command '%s': %s"):format(theirs.args[1], why)
  end
  return { message = encode.text(text), step = step, logEntries = encode.array {} }
end

local function run(server, build, given, plan, from)
  local name = server.catalog:expect(build.id)
  log(build, ("building %s"):format(build.name), "base")
  local built, err = server.provider.templates:build {
    name = name, from = from, steps = plan.steps, network = "allow", cache = not given.force, limits = build.limits,
    on_progress = watch(build, plan, given),
  }
  if built then
    local one, why = server.catalog:add { team = build.team, name = build.name, kind = "template", of = name,
      tags = build.tags, build = build.id, limits = build.limits }
    if not one then
      err = why
      server.provider.templates:delete(name)
    end
  end
  if err then
    build.status, build.reason = "error", reason_of(err, plan, given)
    log(build, build.reason.message, build.reason.step, "error")
  else
    build.status = "ready"
    log(build, "built", "finalize")
  end
  build.ended = core.wall()
end

-- The same, and its archives go.
local function run_with(archives, server, ...)
  local ok, err = nested.pcall(run, server, ...)
  task.shield(uploads.release, server, archives)
  if not ok then
    error(err, 0)
  end
end

-- ---- endpoints ----

-- The oldest one that has ended goes, or where none has the oldest one that nobody has started.
local function make_room(list)
  local waiting
  for i, one in ipairs(list) do
    if one.ended then
      table.remove(list, i)
      return
    end
    waiting = waiting or one.status == "waiting" and i
  end
  table.remove(list, waiting)
end

local function remember(server, build)
  server.builds = server.builds or {}
  local list = server.builds
  if #list >= KEPT then
    make_room(list)
  end
  list[#list + 1] = build
end

local function under_way(server)
  local count = 0
  for _, one in ipairs(server.builds or {}) do
    count = count + (one.status == "building" and 1 or 0)
  end
  return count
end

local CREATE = { name = "string", alias = "string", tags = "strings", cpuCount = "integer", memoryMB = "integer" }

local function create(ctx)
  local given, err = body.read(ctx.request, CREATE)
  if not given then
    return nil, err
  end
  local ref, why = ids.reference(given.name or given.alias or "")
  if not ref then
    return nil, refusal(400, why)
  elseif ref.namespace and ref.namespace ~= catalog.slug(ctx.team) then
    return nil, refusal(400, ("the namespace '%s' is not yours"):format(ref.namespace))
  elseif ref.name == "base" then
    return nil, refusal(409, "'base' is the template that is always there")
  end
  local tags = given.tags or {}
  for _, tag in ipairs(tags) do
    local ok = ids.reference("x:" .. tag)
    if not ok then
      return nil, refusal(400, ("invalid tag '%s'"):format(tag))
    end
  end
  if ref.tag then
    tags[#tags + 1] = ref.tag
  elseif #tags == 0 then
    tags[1] = "default"
  end
  local limits
  limits, err = size.asked(given)
  if limits then
    limits, err = size.held(ctx.server.provider, limits)
  end
  if not limits then
    return nil, err
  end
  local one
  one, err = ctx.server.catalog:entry(ctx.team, ref.name, "template")
  if not one then
    return nil, err
  elseif one.kind ~= "template" then
    return nil, refusal(409, ("'%s' is the name of a snapshot"):format(ref.name))
  end
  local build = { id = ids.uuid(), template = one.id, name = ref.name, team = ctx.team, tags = tags, status = "waiting",
    created = core.wall(), limits = limits, entries = {}, times = {} }
  remember(ctx.server, build)
  return 202, {
    templateID = one.id, buildID = build.id, public = false, tags = encode.array(tags),
    names = encode.array { catalog.slug(ctx.team) .. "/" .. ref.name }, aliases = encode.array { ref.name },
  }
end

-- The build a request names, or nil and a refusal with this status.
local function find(ctx, status)
  for _, one in ipairs(ctx.server.builds or {}) do
    if one.id == ctx.params.build and one.team == ctx.team
      and (one.template == ctx.params.template or one.name == ctx.params.template) then
      return one
    end
  end
  return nil, refusal(status, ("there is no build %s"):format(ctx.params.build))
end

-- What a build begins with: "base" or a template's local name; nil and a refusal.
local function from_of(ctx, given)
  if (given.fromImage or "") ~= "" and (given.fromTemplate or "") ~= "" then
    return nil, refusal(400, "fromImage and fromTemplate exclude each other")
  elseif (given.fromTemplate or "") ~= "" then
    local found, err = ctx.server.catalog:resolve(ctx.team, given.fromTemplate)
    if found and not found.template then
      return nil, refusal(400, "a build cannot begin with a snapshot here")
    end
    return found and found.template, err
  end
  local image = (given.fromImage or ""):gsub("^docker%.io/", ""):gsub(":latest$", "")
  if image == "" then
    return nil, refusal(400, "fromImage or fromTemplate is needed")
  elseif not IMAGES[image] then
    return nil, refusal(400, ("fromImage '%s': this server gets no images; e2bdev/base is this machine"):format(image))
  end
  return "base"
end

-- Does the client mean a build as it was before version 2.3.0 of its SDK? Nil and a refusal where the version makes no
-- sense.
local function is_old(request)
  local agent = request.headers:get("user-agent") or ""
  local version = agent:match("e2b%-js%-sdk/(%S*)") or agent:match("e2b%-python%-sdk/(%S*)")
  if not version then
    return false
  end
  local major, minor = version:match("^(%d+)%.(%d+)%.%d+")
  if not major then
    return nil, refusal(400, "the version of the SDK in User-Agent makes no sense")
  end
  return tonumber(major) < 2 or tonumber(major) == 2 and tonumber(minor) < 3
end

local START = {
  fromImage = "string", fromTemplate = "string", fromImageRegistry = "object", startCmd = "string", readyCmd = "string",
  steps = "array", force = "boolean",
}

local function start(ctx)
  local given, err = body.read(ctx.request, START)
  local build
  if given then
    build, err = find(ctx, 404)
  end
  if not build then
    return nil, err
  end
  local old, from, plan
  old, err = is_old(ctx.request)
  if old ~= nil then
    from, err = from_of(ctx, given)
  end
  local used = {}
  if from then
    plan, err = recipe.of(given, function(hash)
      local path = uploads.path(ctx.server, ctx.team, hash)
      used[hash] = path and true
      return path
    end, old)
  end
  if not plan then
    return nil, err
  elseif build.status ~= "waiting" then -- looked at last: two may have asked at once
    return nil, refusal(400, "build is not in waiting state")
  elseif under_way(ctx.server) >= AT_ONCE then
    return nil, refusal(429, ("%d builds are under way"):format(AT_ONCE))
  end
  build.status = "building"
  local archives = uploads.hold(ctx.server, ctx.team, build.template, used)
  build.task, err = task.spawn(run_with, archives, ctx.server, build, given, plan, from)
  if not build.task then
    build.status = "waiting"
    uploads.release(ctx.server, archives)
    return nil, err
  end
  return 202
end

local LEVELS = { debug = 1, info = 2, warn = 3, error = 4 }

local function status(ctx)
  local build, err = find(ctx, 400)
  if not build then
    return nil, err
  end
  local offset, limit
  offset, err = paging.number(ctx.query, "logsOffset", 0)
  if offset then
    limit, err = paging.number(ctx.query, "limit", PAGE)
  end
  if not limit then
    return nil, err
  end
  limit = math.min(limit, PAGE)
  local least = LEVELS[ctx.query.level or "debug"] or 1
  local entries = encode.array {}
  for i = offset + 1, math.min(offset + limit, #build.entries) do
    if LEVELS[build.entries[i].level] >= least then
      entries[#entries + 1] = build.entries[i]
    end
  end
  return 200, {
    templateID = build.template, buildID = build.id, status = build.status, logs = encode.array {},
    logEntries = entries, reason = build.reason,
  }
end

-- A page of the log as the query has it, by time from the cursor on.
local function page(build, query, cursor, limit)
  local least = LEVELS[query.level or "debug"] or 1
  local backward = query.direction == "backward"
  local out, count = encode.array {}, #build.entries
  for i = 1, count do
    local n = backward and count - i + 1 or i
    local one, at = build.entries[n], build.times[n]
    local fits = not cursor or backward and at <= cursor or not backward and at >= cursor
    if #out >= limit then
      break
    elseif fits and LEVELS[one.level] >= least then
      out[#out + 1] = one
    end
  end
  return out
end

local function logs(ctx)
  local build, err = find(ctx, 404)
  local limit, cursor
  if build then
    limit, err = paging.number(ctx.query, "limit", PAGE)
  end
  if limit and ctx.query.cursor then
    cursor, err = paging.number(ctx.query, "cursor")
  end
  if err then
    return nil, err
  end
  return 200, { logs = page(build, ctx.query, cursor, math.min(limit, PAGE)) }
end

--- Those of a template that this server has seen, the last one last.
function builds.of(server, template)
  local out = {}
  for _, one in ipairs(server.builds or {}) do
    if one.template == template then
      out[#out + 1] = one
    end
  end
  return out
end

--- Ends those under way.
function builds.stop(server)
  for _, one in ipairs(server.builds or {}) do
    if one.task and not one.ended then
      one.task:cancel("the server ends")
    end
  end
end

builds.routes = {
  ["POST /v3/templates"] = create,
  ["POST /v2/templates/{template}/builds/{build}"] = start,
  ["GET /templates/{template}/builds/{build}/status"] = status,
  ["GET /templates/{template}/builds/{build}/logs"] = logs,
}

return builds
