-- What a spec asks of the local engine, clause by clause, before anything is allocated. Each clause is
-- one function: it adds fields of the create request, or says why not. The spec itself is never changed.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local values = require "sandbar.values"

local network = lazy "sandbar.local.network"

local LIFETIME = 3600
local MAX_EXECS = 64
local MAX_ENV = 262144
local MAX_PATH = 4095
local MAX_TEXT = { user = 256, cwd = MAX_PATH }

local spec = {}

-- Limits that are whole numbers, in the order they are told: the field of the request in which each travels, the least
-- (1 unless said) and the most (2^53) that it may be.
local WHOLE_LIMITS = {
  { "disk", "limit_disk", 16777216, 2 ^ 43 },
  { "files", "limit_files" },
  { "max_commands", "limit_started" },
  { "max_concurrent_execs", "limit_commands" },
  { "max_env", "limit_env" },
  { "max_output", "limit_output", 1, 2 ^ 31 },
  { "memory", "limit_memory", 4194304 },
  { "processes", "limit_processes", 2 }, -- pid 1 is one, with a shell
}

local invalid, unsupported, no_zero = values.invalid, values.unsupported, values.no_zero

-- ---- the clauses, in the order they are told ----

local clauses = {}

local function clause(name, fn)
  clauses[#clauses + 1] = { name = name, fn = fn }
end

clause("id", function(s, f)
  if s.id == nil then
    f.id = core.uuid()
    return "a random UUID"
  end
  local id, err = values.check_id(s.id)
  f.id = id
  return id, err
end)

clause("snapshot", function(s, f)
  if s.snapshot == nil then
    return nil
  end
  if s.template ~= nil then
    return invalid("snapshot", "snapshot: it has its template, no other can be given")
  end
  local name, err = values.check_id(s.snapshot, "snapshot")
  f.snapshot = name
  return name, err
end)

clause("template", function(s, f)
  local template = s.template
  if s.snapshot ~= nil then
    return nil
  end
  if template == nil or template == "base" then
    f.template = "base"
    return "base"
  end
  if type(template) == "string" then
    local name, err = values.check_id(template, "template")
    f.template = name
    return name, err
  end
  for key in pairs(template) do
    if key ~= "rootfs" then
      return unsupported("template", ("template: %s is not known here, only 'rootfs'"):format(
        errors.quoted(tostring(key))))
    end
  end
  local path = template.rootfs
  if type(path) ~= "string" or path:sub(1, 1) ~= "/" then
    return invalid("template", "template.rootfs: an absolute path is needed")
  end
  if #path > MAX_PATH then
    return invalid("template", ("template.rootfs: a path has %d bytes at most"):format(MAX_PATH))
  end
  local ok, err = no_zero("template", path)
  if not ok then
    return nil, err
  end
  f.rootfs = path
  return "the tree at " .. path
end)

clause("prepare", function(s)
  if s.prepare ~= nil then
    return "runs with network, before the policy holds"
  end
end)

clause("lifetime", function(s, f)
  local ms, err = values.check_lifetime(s.lifetime == nil and LIFETIME or s.lifetime)
  f.lifetime_ms = ms
  return ms and ("%g s"):format(ms / 1000), err
end)

clause("on_expiry", function(s, f, scoped)
  local what = s.on_expiry or (scoped and "destroy" or "pause_disk")
  if what ~= "destroy" and what ~= "pause_disk" and what ~= "pause" then
    return invalid("on_expiry", ("on_expiry: %s is none of \"pause_disk\", \"pause\", \"destroy\""
      ):format(errors.quoted(what)))
  end
  f.on_expiry = what
  return what
end)

clause("auto_resume", function(s, f)
  if not s.auto_resume then
    return nil
  end
  if s.on_expiry ~= "pause" then
    return invalid("auto_resume", "auto_resume: it needs on_expiry = \"pause\", said explicitly")
  end
  f.auto_resume = 1
  return "by the next call"
end)

clause("labels", function(s, f)
  local list, err = values.check_labels(s.labels or {}, "labels")
  f.label = list
  return list and s.labels and ("%d recorded"):format(#list), err
end)

local CPUS_LEAST, CPUS_MOST = 0.01, 8192

local function is_whole(value, least, most)
  return value >= least and value % 1 == 0 and value <= most
end

clause("limits.cpus", function(s, f)
  local value = s.limits and s.limits.cpus
  if value == nil then
    return nil
  end
  if not (value >= CPUS_LEAST and value <= CPUS_MOST) then
    return invalid("limits.cpus", ("limits.cpus: a number from %g to %d is needed"):format(CPUS_LEAST, CPUS_MOST))
  end
  f.limit_cpu = math.floor(value * 1000 + 0.5)
  return ("%g of a processor's time"):format(value)
end)

clause("limits.wall_time", function(s, f)
  local value = s.limits and s.limits.wall_time
  if not value then
    return nil
  end
  local ms, err = values.check_lifetime(value, "limits.wall_time")
  f.limit_wall_ms = ms
  return ms and ("%g s, pauses not counted"):format(ms / 1000), err
end)

for _, limit in ipairs(WHOLE_LIMITS) do
  local name, field, least, most = limit[1], limit[2], limit[3] or 1, limit[4] or 2 ^ 53
  local said = "limits." .. name
  clause(said, function(s, f)
    local value = s.limits and s.limits[name]
    if value == nil then
      return nil
    end
    if not is_whole(value, least, most) then
      return invalid(said, ("%s: a whole number from %d to %.0f is needed"):format(said, least, most))
    end
    f[field] = value
    return ("%d"):format(value)
  end)
end

clause("env", function(s, f)
  local list, err = values.check_env(s.env or {}, s.limits and s.limits.max_env or MAX_ENV)
  f.env = list
  return list and s.env and ("%d variables"):format(#list), err
end)

for _, name in ipairs { "user", "cwd" } do
  clause(name, function(s, f)
    local value = s[name]
    if value == nil then
      return nil
    end
    if value == "" then
      return invalid(name, name .. " is empty")
    elseif #value > MAX_TEXT[name] then
      return invalid(name, ("%s: %d bytes at most"):format(name, MAX_TEXT[name]))
    end
    local ok, err = no_zero(name, value)
    f[name] = value
    return ok and value, err
  end)
end

clause("network", function(s, f)
  if s.network ~= nil and s.network ~= "deny" then
    return network.check(s.network, f)
  end
  f.network = "deny"
  return "deny: only the sandbox's own loopback"
end)

clause("public_ports", function(s)
  if s.public_ports then
    return unsupported("public_ports", "public_ports: there is no public address here")
  end
end)

clause("allow_setuid", function(s, f)
  f.allow_setuid = s.allow_setuid ~= nil and (s.allow_setuid and 1 or 0) or nil
  return s.allow_setuid and "set-user-ID programs keep their meaning inside" or nil
end)

-- ---- running ----

-- The fields of the create request, or nil and the first refusal.
function spec.fields(merged, scoped)
  local fields = { limit_commands = not merged.snapshot and MAX_EXECS or nil } -- a snapshot has its own
  for _, c in ipairs(clauses) do
    local _, err = c.fn(merged, fields, scoped)
    if err then
      return nil, err
    end
  end
  return fields
end

-- Every clause with its verdict, for provider:explain.
function spec.explain(merged, scoped)
  local out, ok = {}, true
  for _, c in ipairs(clauses) do
    local told, err = c.fn(merged, {}, scoped)
    if err then
      ok = false
      out[#out + 1] = {
        clause = err.clause or c.name,
        verdict = "refused",
        kind = err.kind,
        message = err.message,
      }
    elseif told then
      out[#out + 1] = { clause = c.name, verdict = "enforced", message = told }
    end
  end
  return out, ok
end

return spec
