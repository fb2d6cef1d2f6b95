-- What a spec asks of the vendor, clause by clause, before anything is allocated. Each clause is one function: it
-- adds to the plan of a create, or says why not. The spec itself is never changed.

local core = require "sandbar.core"
local identity = require "sandbar.e2b.identity"
local lazy = require "sandbar.lazy"
local policy = require "sandbar.e2b.policy"
local shape = require "sandbar.shape"
local values = require "sandbar.values"

local http = lazy "sandbar.http"

local LIFETIME = 3600
local MAX_ENV = 262144
local MAX_OUTPUT = 2 ^ 31

local spec = {}

--- What programs see as Host of requests to their ports, with every provider.
spec.HOST = "localhost:${PORT}"

local invalid, unsupported = values.invalid, values.unsupported

local clauses = {}

local function clause(name, fn)
  clauses[#clauses + 1] = { name = name, fn = fn }
end

-- The vendor's name of a template or snapshot: [namespace/]name[:tag].
local function check_reference(text, what)
  local rest = text:match("^[a-z0-9_-]+/(.*)$") or text
  if #text > 256 or not rest:match("^[a-z0-9_-]+$") and not rest:match("^[a-z0-9_-]+:[a-z0-9_.-]+$") then
    return invalid(what, ("%s: %q is not [namespace/]name[:tag] of a-z 0-9 _ -"):format(what, text))
  end
  return text
end
spec.check_reference = check_reference

clause("id", function(s, plan)
  if s.id == nil then -- who creates it gives it one
    return "a random UUID"
  end
  local id, err = values.check_id(s.id)
  plan.id, plan.chosen = id, true
  return id and id .. ": looked for before and after; of two hosts that see nothing of each other both may have it", err
end)

clause("template", function(s, plan)
  if s.snapshot ~= nil then
    if s.template ~= nil then
      return invalid("snapshot", "snapshot: it has its template, no other can be given")
    end
    local name, err = check_reference(s.snapshot, "snapshot")
    plan.template, plan.snapshot = name, name
    return name, err
  end
  local template = s.template or "base"
  if type(template) ~= "string" then
    return unsupported("template", "template: the vendor's are known by name only")
  end
  local name, err = check_reference(template, "template")
  plan.template = name
  return name, err
end)

clause("prepare", function(s, plan)
  plan.prepare = s.prepare
  return s.prepare ~= nil and "runs with network, before the policy holds" or nil
end)

clause("lifetime", function(s, plan)
  local ms, err = values.check_lifetime(s.lifetime == nil and LIFETIME or s.lifetime)
  plan.lifetime = ms and math.ceil(ms / 1000)
  return ms and ("%d s, whole seconds; the vendor's plan may allow less"):format(plan.lifetime), err
end)

clause("on_expiry", function(s, plan, scoped)
  local what = s.on_expiry or (scoped and "destroy" or "pause_disk")
  if what ~= "destroy" and what ~= "pause_disk" and what ~= "pause" then
    return invalid("on_expiry", ("on_expiry: %q is none of \"pause_disk\", \"pause\", \"destroy\""):format(what))
  end
  plan.on_expiry = what
  return what
end)

clause("auto_resume", function(s, plan)
  if not s.auto_resume then
    return nil
  elseif s.on_expiry ~= "pause" then
    return invalid("auto_resume", "auto_resume: it needs on_expiry = \"pause\", said explicitly")
  end
  plan.auto_resume = true
  return "by traffic to it"
end)

clause("labels", function(s, plan)
  local labels = s.labels or {}
  local list, err = values.check_labels(labels, "labels")
  local ok = list
  if list then
    ok, err = identity.check_labels(labels)
  end
  for name, value in pairs(ok and labels or {}) do
    if not http.is_text(name) or not http.is_text(value) then
      return invalid("labels", ("labels: %q is not UTF-8, and the vendor takes nothing else"):format(name))
    end
  end
  if not ok then
    return nil, err
  end
  plan.labels, plan.label = labels, list
  return s.labels and ("%d kept as metadata"):format(#list) or nil
end)

for _, name in ipairs { "memory", "cpus", "processes", "disk", "files", "wall_time", "max_commands",
  "max_concurrent_execs" } do
  local said = "limits." .. name
  clause(said, function(s)
    if s.limits and s.limits[name] then
      return unsupported(said, ("%s: %s"):format(said, name == "wall_time" and "the vendor counts a lifetime anew with "
        .. "each resume; say lifetime" or "a sandbox has what its template was built with, and nothing here bounds it"))
    end
  end)
end

for name, most in pairs { max_output = MAX_OUTPUT, max_env = 2 ^ 53 } do
  local said = "limits." .. name
  clause(said, function(s, plan)
    local value = s.limits and s.limits[name]
    if value == nil then
      return nil
    elseif value < 1 or value % 1 ~= 0 or value > most then
      return invalid(said, ("%s: a whole number from 1 to %.0f is needed"):format(said, most))
    end
    plan[name] = value
    return ("%d, by every handle of this create"):format(value)
  end)
end

clause("env", function(s, plan)
  local list, err = values.check_env(s.env or {}, s.limits and s.limits.max_env or MAX_ENV)
  for name, value in pairs(list and s.env or {}) do
    if type(value) == "string" and not (http.is_text(name) and http.is_text(value)) then
      return invalid("env", ("env: %s is not UTF-8, and the vendor takes nothing else"):format(name))
    end
  end
  plan.env = list and s.env
  return list and s.env and ("%d variables"):format(#list), err
end)

for _, name in ipairs { "user", "cwd" } do
  clause(name, function(s, plan)
    local value = s[name]
    if value == nil then
      return nil
    elseif value == "" then
      return invalid(name, name .. " is empty")
    end
    local ok, err = values.no_zero(name, value)
    plan[name] = value
    return ok and value, err
  end)
end

clause("network", function(s, plan)
  plan.network = {}
  local told, err, internet = policy.map(s.network, plan.network)
  plan.policy, plan.internet = s.network or "deny", internet
  return told, err
end)

clause("public_ports", function(s, plan)
  plan.network.allowPublicTraffic = s.public_ports and true or false
  plan.network.maskRequestHost = spec.HOST
  return s.public_ports and "anybody who knows the address reaches the ports"
    or "ports need the traffic token (all of them: the vendor has one switch)"
end)

clause("allow_setuid", function(s)
  if s.allow_setuid == false then
    return unsupported("allow_setuid", "allow_setuid = false: the vendor leaves set-user-ID programs their meaning")
  end
  return s.allow_setuid and "set-user-ID programs keep their meaning inside" or nil
end)

--- The plan of a create, or nil and the first refusal.
function spec.plan(merged, scoped)
  local plan = {}
  for _, c in ipairs(clauses) do
    local _, err = c.fn(merged, plan, scoped)
    if err then
      return nil, err
    end
  end
  return plan
end

--- Every clause with its verdict, and whether all hold.
function spec.explain(merged)
  local out, ok, plan = {}, true, { network = {} }
  for _, c in ipairs(clauses) do
    local told, err = c.fn(merged, plan, false)
    if err then
      ok = false
      out[#out + 1] = { clause = err.clause or c.name, verdict = "refused", kind = err.kind, message = err.message }
    elseif told then
      out[#out + 1] = { clause = c.name, verdict = "enforced", message = told }
    end
    plan.network = plan.network or {}
  end
  return out, ok
end

--- The body of the create that a plan is for. `open`: without the policy, for what is prepared first.
function spec.body(plan, token, open)
  local network = {}
  for key, value in pairs(plan.network) do
    network[key] = value
  end
  if open then
    network.allowOut, network.denyOut, network.rules = nil, nil, nil
  end
  local pauses = plan.on_expiry ~= "destroy"
  local memory, internet
  if pauses then
    memory = plan.on_expiry == "pause"
  end
  if not open and plan.internet == false then
    internet = false
  end
  return {
    templateID = plan.template,
    timeout = plan.lifetime,
    metadata = identity.metadata(plan.id, token, plan.labels, {
      lifetime = plan.lifetime, on_expiry = plan.on_expiry, user = plan.user, cwd = plan.cwd, snapshot = plan.snapshot,
    }),
    envVars = plan.env,
    autoPause = pauses,
    autoPauseMemory = memory,
    autoResume = plan.auto_resume and { enabled = true } or nil,
    allow_internet_access = internet,
    network = network,
  }
end

--- The same as the fields of a record, of one that has just been made.
function spec.fields(plan, vendor_id)
  local now = core.wall()
  local network = plan.network
  local out = {
    id = plan.id, provider_id = vendor_id, state = { "running" }, label = plan.label,
    template = not plan.snapshot and plan.template or nil, snapshot = plan.snapshot, started_ms = now * 1000,
    ends_ms = (now + plan.lifetime) * 1000, lifetime_ms = plan.lifetime * 1000, on_expiry = plan.on_expiry,
    auto_resume = plan.auto_resume and 1 or nil, user = plan.user, cwd = plan.cwd,
    limit_output = plan.max_output, limit_env = plan.max_env,
    network = plan.internet == false and "deny" or network.allowOut and "rules" or "allow",
    net_allow = network.allowOut, net_deny = {},
  }
  return out
end

--- As of the local provider, with what a spec says for this one.
function spec.merge(defaults, given)
  return shape.merge(defaults, given, "e2b")
end

return spec
