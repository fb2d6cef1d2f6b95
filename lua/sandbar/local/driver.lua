-- The local provider's private side: requests to the engine, waited for, with the numbers of the contract
-- turned into the engine's. Sandboxes, links and the provider share one.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local root = require "sandbar.local.root"
local values = require "sandbar.values"
local wait = require "sandbar.wait"

local network, trust = lazy "sandbar.local.network", lazy "sandbar.local.trust"

local driver = {}

local Driver = {}
Driver.__index = Driver

-- No I/O, and none before the first request: a provider may be made before a program forks.
function driver.new(options)
  return setmetatable({ root = options.root, linger = options.linger, engines = {} }, Driver)
end

-- Each process generation has its own. A lost provider still serves the finalizers that run after its own.
function Driver:engine()
  local generation = core.generation()
  if self.generation ~= generation or core.collected(self.client) then
    self.root = self.root or root.default()
    self.client = core.engine { root = self.root, linger = self.linger }
    self.generation = generation
  end
  return self.client
end

-- What an operation comes to; `extra`: what an error of it says.
local function outcome(op, opname, timeout, extra)
  local r, err = wait.op(op, timeout, opname)
  if not r then
    return nil, errors.from(err, opname, extra)
  end
  return r
end

-- Submits and waits. What cannot be waited for is refused before it is sent. `meanwhile`: see wait.meanwhile.
function Driver:run(opname, timeout, submit, extra, meanwhile)
  local ok, err = wait.check(opname)
  if not ok and timeout ~= 0 then
    return nil, err
  end
  local op = submit(self:engine())
  if meanwhile and timeout ~= 0 then
    wait.meanwhile(op, meanwhile)
  end
  return outcome(op, opname, timeout, extra)
end

function Driver:request(opname, timeout, name, fields)
  return self:run(opname, timeout, function(engine)
    return engine:request(name, fields)
  end, fields.id and { id = fields.id })
end

-- The fields of an answer, or of each of its parts (`all`), where every one has what a true answer has.
local function complete(opname, all, ...)
  for _, name in ipairs { ... } do
    for _, fields in ipairs(all) do
      if fields[name] == nil then
        return nil, errors.new {
          kind = "Protocol", op = opname, message = ("the supervisor's answer lacks %s"):format(name),
        }
      end
    end
  end
  return all
end

function Driver:hello(timeout)
  return self:request("hello", timeout, "hello", { network = "?" }) -- what it can do for networks is tried out
end

-- The answers to these three have object and, for create, release.
function Driver:create(fields, timeout, meanwhile)
  return self:run("create", timeout, function(engine)
    return engine:create(fields)
  end, { id = fields.id }, meanwhile)
end

-- The same in two steps, so that several may be under way: the operation, and what it came to.
function Driver:begin_create(fields)
  return self:engine():create(fields)
end

function Driver:end_create(op, id, timeout)
  return outcome(op, "create", timeout, { id = id })
end

function Driver:connect(id, labels, timeout, opname)
  return self:run(opname or "connect", timeout, function(engine)
    return engine:connect { id = id, label = labels }
  end, { id = id })
end

-- `labels`: those it must have, as of connect; they are checked together with the resuming.
function Driver:resume(id, lifetime, timeout, labels)
  local ms, err
  if lifetime ~= nil then
    ms, err = values.check_lifetime(lifetime)
    if not ms then
      return nil, errors.from(err, "resume")
    end
  end
  return self:run("resume", timeout, function(engine)
    return engine:resume { id = id, lifetime_ms = ms, label = labels }
  end, { id = id })
end

function Driver:info(id, timeout)
  return self:request("info", timeout, "info", { id = id })
end

-- When it ends, in seconds of wall time. `extend`: never earlier than it would without this call.
function Driver:set_lifetime(id, lifetime, timeout, extend)
  local ms, err = values.check_lifetime(lifetime)
  if not ms then
    return nil, errors.from(err, "set_lifetime")
  end
  local r
  r, err = self:request("set_lifetime", timeout, "lifetime", {
    id = id, lifetime_ms = ms, extend = extend and 1 or nil,
  })
  if r then
    r, err = complete("set_lifetime", { r.fields or {} }, "ends_ms")
  end
  return r and r[1].ends_ms / 1000, err
end

-- The kind that was taken, or what a paused one has.
function Driver:pause(id, keep, timeout)
  if keep ~= "memory" and keep ~= "disk" then
    return nil, errors.new {
      kind = "InvalidArgument", op = "pause", id = id,
      message = ("keep: %s is neither \"memory\" nor \"disk\""):format(errors.quoted(keep)),
    }
  end
  local r, err = self:request("pause", timeout, "pause", { id = id, keep = keep })
  if r then
    return r.fields and r.fields.kept or keep
  end
  return nil, err
end

function Driver:destroy(id, timeout)
  local r, err = self:request("destroy", timeout, "destroy", { id = id })
  return r and true, err
end

-- Its name: the given one or a random one. A temporary one is deleted when this process ends.
function Driver:snapshot(id, name, temporary, timeout)
  local r, err = self:request("snapshot", timeout, "snapshot",
    { id = id, snapshot = name or core.uuid(), temporary = temporary and 1 or nil })
  if r then
    r, err = complete("snapshot", { r.fields or {} }, "snapshot")
  end
  return r and r[1].snapshot, err
end

function Driver:snapshots(timeout)
  local r, err = self:request("list", timeout, "list_snapshots", {})
  if not r then
    return nil, err
  end
  return complete("list", r.parts or {}, "snapshot", "created_ms")
end

function Driver:delete_snapshot(name, timeout)
  local r, err = self:request("delete", timeout, "delete_snapshot", { snapshot = name })
  return r and true, err
end

-- A step of a build by its key: of a sandbox at rest, of a directory in its root, or of one of the host's. `note` is
-- kept with it.
function Driver:step(key, of, timeout)
  local r, err = self:request("build", timeout, "snapshot",
    { id = of.id, subtree = of.subtree, rootfs = of.rootfs, data = of.note, snapshot = key })
  return r and true, err
end

-- Named templates, all of them or the one named; which of the steps there are; and the note of the last of those.
function Driver:templates(name, steps, timeout)
  local r, err = self:request("list", timeout, "list_templates", { template = name, step_key = steps })
  if not r then
    return nil, err
  end
  local last, parts = r.fields or {}
  parts, err = complete("list", r.parts or {}, "template", "created_ms")
  if not parts then
    return nil, err
  end
  return parts, last.step_key or {}, last.data
end

function Driver:publish(fields, timeout)
  local r, err = self:request("build", timeout, "template", fields)
  return r and true, err
end

function Driver:delete_template(name, timeout)
  local r, err = self:request("delete", timeout, "delete_template", { template = name })
  return r and true, err
end

-- A sandbox that was this process's until it was prepared is nobody's from now on.
function Driver:keep(id, timeout)
  local r, err = self:request("create", timeout, "keep", { id = id })
  return r and true, err
end

function Driver:expose(id, port, on, timeout)
  local r, err = self:request(on and "expose" or "unexpose", timeout, "expose",
    { id = id, port = port, on = on and 1 or 0 })
  return r and true, err
end

-- Adds an authority to rules that inject, unless the sandbox has one or there is nothing that it is good for.
local function add_authority(self, id, rules, timeout)
  local info, err = self:info(id, timeout)
  if not info or trust.has(info.fields.net_inject) then
    return nil, err
  end
  local hello
  hello, err = self:hello(timeout)
  for _, name in ipairs(hello and hello.fields.cap or {}) do
    if name == "inject_https" then
      return trust.add(rules)
    end
  end
  return nil, err
end

-- Returns once the new policy holds and what it does not allow is cut; and the authority that is to be trusted
-- from now on, if there is a new one.
function Driver:update_network(id, policy, timeout)
  local fields = { id = id }
  local ok, err = network.check(policy, fields)
  if not ok then
    return nil, errors.from(err, "update_network")
  end
  local authority
  if fields.net_inject and trust.is_needed(fields.net_inject) then
    authority, err = add_authority(self, id, fields.net_inject, timeout)
    if err then
      return nil, errors.from(err, "update_network")
    end
  end
  local r
  r, err = self:request("update_network", timeout, "network", fields)
  return r and true, r and authority or err
end

-- One page: records and, when there is more, what to ask for next.
function Driver:page(filter, after, timeout)
  local r, err = self:request("list", timeout, "list",
    { state = filter.state, label = filter.label, after = after, limit = filter.page_size })
  if not r then
    return nil, err
  end
  local next_one = r.fields and r.fields.next
  return r.parts or {}, next_one ~= "" and next_one or nil
end

return driver
