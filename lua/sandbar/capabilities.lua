-- Capabilities: what a provider claims, and whether a program's expectations hold. Names are the contract's; what is
-- not claimed is false. What they are worth is measured by measuring.lua.

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

-- One expectation: its clause and, where it does not hold, the refusal.
local function judge(key, want, claims)
  local listed = type(key) == "number"
  local name = listed and want or key
  local clause = "expect." .. tostring(name)
  if not known[name] then
    return clause, errors.new {
      kind = "InvalidArgument", clause = clause,
      message = ("expect: there is no capability %q"):format(tostring(name)),
    }
  elseif listed and not claims[name] or not listed and claims[name] ~= want then
    return clause, errors.new {
      kind = "Unsupported", clause = clause,
      message = ("expect: %s is %s here, %s is wanted"):format(name, tostring(claims[name]),
        listed and "it" or tostring(want)),
    }
  end
  return clause
end

-- `expect` is a list of names that must not be false, or a table name = value. An array of { clause, err } in the order
-- of the names.
function capabilities.judge(expect, claims)
  local out = {}
  for key, want in pairs(expect) do
    local clause, err = judge(key, want, claims)
    out[#out + 1] = { clause = clause, err = err }
  end
  table.sort(out, function(a, b) return a.clause < b.clause end)
  return out
end

-- True, or the first refusal, with all of them as its reasons.
function capabilities.check(expect, claims)
  local first, reasons, texts = nil, {}, {}
  for _, each in ipairs(capabilities.judge(expect, claims)) do
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
