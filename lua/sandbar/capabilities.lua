-- Capabilities: what a provider claims, and whether a program's expectations hold. Names are the contract's; what is
-- not claimed is false. What they are worth is measured by measuring.lua.

local check = require "sandbar.check"
local errors = require "sandbar.errors"

local capabilities = {}

capabilities.names = {
  "workspace_coherent", "filesystem_isolated", "process_isolated", "network_isolated",
  "egress_restricted", "privilege_isolated", "tree_kill", "signals", "pause_memory", "pause_disk",
  "memory_survives_reboot", "survives_service_stop", "snapshot", "fork", "watch", "open_files",
  "append", "atomic_write", "xattrs", "signed_urls", "pty", "output_tail", "spool", "raw_ports",
  "websocket", "public_url", "setuid", "name_rules", "deny_over_allow", "inject_http",
  "inject_https", "udp", "limit_memory", "limit_cpu", "limit_processes", "limit_disk",
  "oom_reported", "release_after_exit",
}

local known = {}
for _, name in ipairs(capabilities.names) do
  known[name] = true
end

-- Every name, false where `claims` says nothing.
function capabilities.complete(claims)
  local out = {}
  for _, name in ipairs(capabilities.names) do
    out[name] = claims[name] or false
  end
  return out
end

local RANK = { exact = 3, descendants = 2, group = 1 }

-- Is `seen`, which was measured, less than `claim`?
local function less(seen, claim)
  if RANK[claim] then
    return (RANK[seen] or 0) < RANK[claim]
  end
  return claim and type(claim) ~= "table" and seen ~= claim
end

-- What counts of a capability: the claim, or what was measured if that is less, and by what it was seen then.
local function worth(name, claims, measured)
  local claim, m = claims[name], measured and measured[name]
  if m and less(m.value, claim) then
    local value = type(m.value) == "table" and table.concat(m.value, ",") or m.value
    return value, (" (measured: %s)"):format((tostring(m.evidence):sub(1, 200):gsub("%c", "?")))
  end
  return claim, ""
end

local MOST = 2 * #capabilities.names -- expectations: each by name and by value
local SHOWN = 64 -- bytes of a name or value that nobody knows

-- Raises for what no expectations are. `level`: as in check.lua.
function capabilities.shape(fname, index, expect, level)
  for key, want in pairs(expect) do
    if type(key) == "number" then
      if type(want) ~= "string" then
        check.fail(fname, index, ("option 'expect': element %s: string expected, got %s"):format(key,
          check.type_name(want)), level + 1)
      end
    elseif type(key) ~= "string" then
      check.fail(fname, index, ("option 'expect': strings expected as keys, got %s"):format(check.type_name(key)),
        level + 1)
    elseif type(want) ~= "string" and type(want) ~= "boolean" then
      check.fail(fname, index, ("option 'expect': '%s': boolean or string expected, got %s"):format(key:sub(1, SHOWN),
        check.type_name(want)), level + 1)
    end
  end
end

-- One expectation: its clause and, where it does not hold, the refusal.
local function judge(key, want, claims, measured)
  local listed = type(key) == "number"
  local name = listed and want or key
  local clause = "expect." .. name:sub(1, SHOWN)
  if not known[name] then
    return clause, errors.new {
      kind = "InvalidArgument", clause = clause,
      message = ("expect: there is no capability %q"):format(name:sub(1, SHOWN)),
    }
  end
  local value, why = worth(name, claims, measured)
  if listed and not value or not listed and value ~= want then
    return clause, errors.new {
      kind = "Unsupported", clause = clause,
      message = ("expect: %s is %s here, %s is wanted%s"):format(name, tostring(value),
        listed and "it" or tostring(want):sub(1, SHOWN), why),
    }
  end
  return clause
end

-- `expect` is a list of names that must not be false, or a table name = value. `measured`: what measuring.lua has
-- found, or nil. An array of { clause, err } in the order of the names; of more than there can be, only that.
function capabilities.judge(expect, claims, measured)
  local out = {}
  for key, want in pairs(expect) do
    if #out == MOST then
      return { { clause = "expect", err = errors.new {
        kind = "InvalidArgument", clause = "expect",
        message = ("expect: more than %d, there are %d capabilities"):format(MOST, #capabilities.names),
      } } }
    end
    local clause, err = judge(key, want, claims, measured)
    out[#out + 1] = { clause = clause, err = err }
  end
  table.sort(out, function(a, b) return a.clause < b.clause end)
  return out
end

-- True, or the first refusal, with all of them as its reasons.
function capabilities.check(expect, claims, measured)
  local first, reasons, texts = nil, {}, {}
  for _, each in ipairs(capabilities.judge(expect, claims, measured)) do
    if each.err then
      first = first or each.err
      reasons[#reasons + 1] = each.err
      texts[#texts + 1] = each.err.message
    end
  end
  if not first then
    return true
  end
  return nil, errors.new {
    kind = first.kind, clause = first.clause, message = table.concat(texts, "; "), reasons = reasons,
  }
end

return capabilities
