-- Building a template: each step that changes files runs in a sandbox of its own, which begins with the files of the
-- step before and whose own become a layer. A step whose key is known is not run.

local copied = require "sandbar.copied"
local core = require "sandbar.core"
local digest = require "sandbar.digest"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local link = require "sandbar.link"
local sandbox = require "sandbar.sandbox"
local spec = require "sandbar.local.spec"
local steps = require "sandbar.steps"
local wait = require "sandbar.wait"

local source = lazy "sandbar.local.source"

local OP = "templates:build"
local TAIL = 4096 -- of what a failed step has written, in the error
local LIFETIME = 86400
local POLL = 0.05
local ATTEMPTS = 3

-- Another build makes this step now, or has just made it. What is in the way of a step itself is AlreadyExists, too.
local TAKEN = errors.new { kind = "AlreadyExists", op = OP, message = "another build is at this step" }

local Build = {}
Build.__index = Build

function Build:tell(event)
  if self.on_progress then
    event.name, event.steps = self.name, self.count
    self.on_progress(event)
  end
end

function Build:left()
  return link.left(self.deadline)
end

-- ---- sandboxes to build in ----

-- One that begins with the step `at` (nil: the base template), and ends with fn(box).
function Build:inside(at, network, fn)
  local result, err = require("sandbar.scope").run(function(scope)
    local fields, why = spec.fields({ network = network, limits = self.limits, lifetime = LIFETIME,
      labels = { ["sandbar.build"] = self.name } }, true)
    if not fields then
      return nil, why
    end
    if at then
      fields.template, fields.snapshot = nil, at
    end
    fields.owned = 1
    local r
    r, why = self.driver:create(fields, self:left())
    local box
    if r then
      box, why = sandbox.new(r, { driver = self.driver, scope = scope })
    end
    if not box then
      return nil, why
    end
    return fn(box)
  end)
  return result, err
end

-- ---- keys ----

function Build:known(key)
  local listed, there = self.driver:templates("", { key }, self:left())
  if not listed then
    return nil, there
  end
  return there[1] == key
end

-- make(key) makes the step unless it is there. Another build may be at it, too: then its result is waited for.
function Build:ensure(key, make)
  while true do
    local there, err = self:known(key)
    if there == nil then
      return nil, err
    elseif there then
      return "cached"
    end
    local made
    made, err = make(key)
    if made then
      return "made"
    elseif err ~= TAKEN then
      return nil, err
    end
    made, err = wait.sleep(POLL)
    if made and self.deadline and core.now() >= self.deadline then
      made, err = nil, wait.timed_out(OP, "timeout", self.timeout)
    end
    if not made then
      return nil, err
    end
  end
end

-- Makes the step of this key, of a sandbox or a directory.
function Build:put(key, of)
  local ok, err = self.driver:step(key, of, self:left())
  if not ok and err.kind == "AlreadyExists" then
    err = TAKEN
  end
  return ok, err
end

-- The step of this key: what is on the disk of a sandbox, or (subtree) of a directory in its root.
function Build:seal(box, key, subtree, note)
  local ok, err = box:pause { keep = "disk", timeout = self:left() }
  if not ok then
    return nil, err
  end
  return self:put(key, { id = box.id, subtree = subtree, note = note })
end

-- ---- the steps ----

-- Whom steps run as: root, where there is one.
function Build:user()
  return self.at.user or not self.single and "root" or nil
end

local function failed(step, result, tail)
  local how = result.signal and "ended by " .. result.signal or ("exited with %d"):format(result.exit_code or -1)
  return nil, errors.new {
    kind = "CommandFailed", op = OP, step = step.number, result = result,
    message = errors.with_output(("step %d (%s %s) %s"):format(step.number, step.kind, step.text, how),
      errors.last_of(tail, TAIL)),
  }
end

-- Runs one command in the box, as the step says, and tells what it writes.
function Build:execute(box, step, cmd, opts)
  local tail, kept = "", TAIL + errors.LONGEST_SECRET
  opts.timeout = self:left()
  opts.on_output = function(data)
    tail = (tail .. data):sub(-kept)
    self:tell { event = "output", step = step.number, data = data }
  end
  local r, err = box:exec(cmd, opts)
  if not r then
    if err.kind == "ExecTimedOut" then
      return nil, wait.timed_out(OP, "timeout", self.timeout)
    end
    return nil, err
  elseif not r.ok then
    return failed(step, r, tail)
  end
  return true
end

-- Why a step cannot be done, with which one it is. What ends the build from outside is told as it is.
local FROM_OUTSIDE = { Timeout = true, Cancelled = true, Closed = true, Forked = true, CannotWait = true }

local function at_step(step, err)
  if not errors.is(err) or type(err.step) == "number" or FROM_OUTSIDE[err.kind] then
    return err
  end
  local told = copied(err)
  told.op, told.step, told.cause = OP, step.number, err
  told.message = ("step %d (%s %s): %s"):format(step.number, step.kind, step.text, err.message)
  return errors.new(told)
end

local do_step = {}

function do_step.run(self, box, step)
  return self:execute(box, step, steps.runnable(step.command, 1),
    { env = self.at.env, cwd = self.at.cwd or "/", user = self:user() })
end

-- Where a path of a step's leads: relative ones start in the working directory.
local function resolve(self, path)
  if path:sub(1, 1) == "/" then
    return path
  end
  return ((self.at.cwd or "/") .. "/" .. path):gsub("//+", "/")
end

function do_step.copy(self, box, step)
  local given, to = step.given, resolve(self, step.given.to)
  local root = not self.single and "root" or nil
  local r, err = box.files:upload(given.copy, to, { user = root, mode = given.mode, timeout = self:left() })
  if not r then
    return nil, err
  end
  local skipped = #r.skipped
  if skipped > 0 and r.files + r.links + r.directories == 0 then
    return nil, errors.new { kind = "InvalidArgument", op = OP, message = "a pipe, socket or device cannot be copied" }
  elseif skipped > 0 then
    self:tell { event = "output", step = step.number,
      data = skipped .. " entries were left out: pipes, sockets, devices\n" }
  end
  if not given.owner then
    return true
  end
  if to:sub(-1) == "/" and r.directories == 0 then
    to = to .. given.copy:match("([^/]+)/*$")
  end
  return self:execute(box, step, { "chown", "-hR", given.owner, to }, { cwd = "/", user = root })
end

function do_step.workdir(self, box, step)
  local path = resolve(self, step.given.workdir)
  local made, err = box.files:mkdir(path, { user = not self.single and self:user() or nil, timeout = self:left() })
  if made == nil and err.kind == "AlreadyExists" then
    return nil, errors.new { kind = err.kind, op = OP, message = "something that is no directory is there" }
  end
  return made ~= nil, err -- false: it was there
end

-- What a step adds to what is told and remembered, whether or not it has to be run.
local note = {}

function note.env(at, step)
  for name, value in pairs(step.given.env) do
    at.env[name] = value
  end
end

function note.workdir(at, step, self)
  at.cwd = resolve(self, step.given.workdir)
end

function note.user(at, step)
  at.user = step.given.user
end

function note.start(at, step)
  at.start = step.list
end

function note.ready(at, step)
  at.ready = step.list
end

-- What of a step's inputs belongs into its key.
function Build:inputs(step)
  if step.kind ~= "copy" then
    return ""
  end
  local given = step.given
  local tree, err = digest.tree(given.copy, self.deadline, OP)
  if not tree then
    return nil, err
  end
  return digest.of { tree, given.to, given.owner or "", given.mode or "" }
end

function Build:step(step)
  local began = core.now()
  self:tell { event = "step", step = step.number, kind = step.kind, text = step.text }
  local inputs, err = self:inputs(step)
  if not inputs then
    return nil, err
  end
  local at, how = self.at, "noted"
  -- Of the parts, not of the text for people, which joins them.
  local key = digest.of { "step", at.key, step.kind, digest.of(step.command or step.list or { step.text }), inputs }
  local run = do_step[step.kind]
  if run then
    local name = (self.cache and "=" or "=once-") .. key -- as the supervisor knows it: nobody will look for it again
    how, err = self:ensure(name, function()
      return self:inside(at.step, self.network, function(box)
        local ok, why = run(self, box, step)
        if not ok then
          return nil, why
        end
        return self:seal(box, name)
      end)
    end)
    if not how then
      return nil, err
    end
    at.step = name
    at.chain[#at.chain + 1] = name
  end
  if note[step.kind] then
    note[step.kind](at, step, self)
  end
  at.key = key
  self.done[#self.done + 1] = { kind = step.kind, text = step.text, cached = how == "cached" }
  self:tell { event = "done", step = step.number, kind = step.kind, cached = how == "cached",
    seconds = core.now() - began }
  return true
end

-- ---- the whole ----

local function environment(env)
  local out = {}
  for name, value in pairs(env) do
    out[#out + 1] = name .. "=" .. value
  end
  table.sort(out)
  return out
end

-- What we were at was deleted or replaced by somebody else: there is no step any more to go on from.
function Build:is_overtaken(err)
  return err.kind == "NotFound" and self.at and self.at.step and self:known(self.at.step) == false
end

function Build:run(from, list)
  self.at, self.done = nil, {}
  local hello, err = self.driver:hello(self:left())
  if not hello then
    return nil, err
  end
  self.single = hello.fields.mode_name == "single"
  self.at, err = source.begin(self, from)
  if not self.at then
    return nil, err
  end
  if not self.cache then -- no key is like one there has been
    self.at.key = digest.of { self.at.key, core.uuid() }
  end
  for _, step in ipairs(list) do
    local ok, why = self:step(step)
    if not ok then
      return nil, at_step(step, why)
    end
  end
  local at = self.at
  local ok, why = self.driver:publish({
    template = self.name, snapshot = at.step, digest = at.key, step_key = at.chain, env = environment(at.env),
    user = at.user, cwd = at.cwd, start = at.start, ready = at.ready,
  }, self:left())
  if not ok then
    return nil, why
  end
  self:tell { event = "built", digest = at.key, seconds = core.now() - self.began }
  return { name = self.name, digest = at.key, steps = self.done }
end

local build = {}

-- `opts`: of templates:build, checked; timeout in seconds or false.
function build.run(driver, opts, timeout)
  local list, err = steps.parse(opts.steps or {})
  if not list then
    return nil, err
  end
  local self = setmetatable({
    driver = driver, name = opts.name, network = opts.network, limits = opts.limits, cache = opts.cache ~= false,
    on_progress = opts.on_progress, timeout = timeout, deadline = link.deadline(timeout), count = #list, done = {},
    began = core.now(),
  }, Build)
  local built
  local attempts = 0
  repeat
    attempts = attempts + 1
    built, err = self:run(opts.from or "base", list)
  until built or attempts == ATTEMPTS or not self:is_overtaken(err)
  if not built then
    err = errors.from(link.told(err, timeout), OP)
    self:tell { event = "failed", step = type(err.step) == "number" and err.step or nil, error = err }
    return nil, err
  end
  return built
end

return build
