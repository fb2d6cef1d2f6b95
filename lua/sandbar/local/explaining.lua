-- What would become of a spec: each clause with its verdict. Some are right in themselves and more than this machine
-- can do; for those it is asked what it can.

local capabilities = require "sandbar.capabilities"
local spec = require "sandbar.local.spec"

local explaining = {}

local LIMITS = {
  ["limits.memory"] = "limit_memory", ["limits.cpus"] = "limit_cpu", ["limits.disk"] = "limit_disk",
}

-- The capability that a clause of `merged` takes, or nothing.
local function needed(clause, merged)
  if clause == "allow_setuid" then
    return merged.allow_setuid and "setuid"
  elseif clause == "network" then
    local policy = merged.network
    local opens = policy == "allow" or type(policy) == "table" and next(policy.allow or {}) ~= nil
    return opens and "name_rules"
  end
  return LIMITS[clause]
end

-- { ok, clauses } of a merged spec. `claimed()` gives what the machine can do, or nil and an error;
-- `measured` is what was measured of it, if it was.
function explaining.spec(merged, claimed, measured)
  local clauses, ok = spec.explain(merged, false)
  for _, c in ipairs(clauses) do
    local need = c.verdict == "enforced" and needed(c.clause, merged)
    if need then
      local have, err = claimed()
      if not have then
        return nil, err
      elseif not have[need] then
        ok, c.verdict, c.kind = false, "refused", "Unsupported"
        c.message = ("%s: this machine cannot do it (%s is false)"):format(c.clause, need)
      end
    end
  end
  if merged.expect then
    local have, err = claimed()
    if not have then
      return nil, err
    end
    for _, each in ipairs(capabilities.judge(merged.expect, have, measured)) do
      local refusal = each.err
      ok = ok and not refusal
      clauses[#clauses + 1] = {
        clause = each.clause, verdict = refusal and "refused" or "enforced", kind = refusal and refusal.kind,
        message = refusal and refusal.message or "it holds here",
      }
    end
  end
  return { ok = ok, clauses = clauses }
end

return explaining
