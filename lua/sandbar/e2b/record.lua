-- The vendor's answers in the words the handles are written in (those of record.lua, which are the engine's): times in
-- milliseconds, labels as a list, the policy of the network as rules.

local identity = require "sandbar.e2b.identity"
local record = require "sandbar.record"
local time = require "sandbar.e2b.time"

local fields = {}

fields.time = time.of

local function ms(text)
  local at = fields.time(text)
  return at and at * 1000
end

local function table_of(value)
  return type(value) == "table" and value or {}
end

--- A list of values of one type, as it was; nil: it is something else.
function fields.list(value, kind)
  local count = 0
  for _ in pairs(table_of(value)) do
    count = count + 1
  end
  for i = 1, count do
    if type(value[i]) ~= kind then
      return nil
    end
  end
  return type(value) == "table" and value or nil
end

-- What the vendor enforces, as a policy of the contract.
local function add_network(out, detail)
  local network = table_of(detail.network)
  local allow, deny = fields.list(network.allowOut, "string") or {}, fields.list(network.denyOut, "string") or {}
  out.net_inject = {}
  for host, rules in pairs(table_of(network.rules)) do
    for _, rule in ipairs(fields.list(rules, "table") or {}) do
      out.net_inject[#out.net_inject + 1] = "h" .. host
      for name in pairs(table_of(table_of(rule.transform).headers)) do
        out.net_inject[#out.net_inject + 1] = "s" .. name .. ":"
      end
    end
  end
  if detail.allowInternetAccess == false or #allow == 0 and deny[1] == "0.0.0.0/0" then
    out.network = "deny"
  elseif #allow > 0 or #deny > 0 or #out.net_inject > 0 then
    out.network, out.net_allow, out.net_deny = "rules", allow, #allow > 0 and {} or deny
  else
    out.network = "allow"
  end
end

--- The fields of an entry of a list, or of the detail of one. nil: it is not ours.
function fields.of(entry)
  local who = identity.read(entry.metadata)
  if not who then
    return nil
  end
  local labels = {}
  for name, value in pairs(who.labels) do
    labels[#labels + 1] = record.label(name, value)
  end
  table.sort(labels)
  local state = entry.state == "paused" and "paused" or entry.state == "running" and "running" or "failed"
  local lifecycle = table_of(entry.lifecycle)
  local out = {
    id = who.id,
    provider_id = fields.vendor_id(entry.sandboxID),
    state = { state },
    kept = state == "paused" and "unknown" or nil, -- the vendor does not say
    label = labels,
    template = not who.snapshot and (entry.alias or entry.templateID) or nil,
    snapshot = who.snapshot,
    started_ms = ms(entry.startedAt),
    ends_ms = state == "running" and ms(entry.endAt) or nil,
    lifetime_ms = who.lifetime and who.lifetime * 1000,
    on_expiry = lifecycle.onTimeout == "kill" and "destroy" or who.on_expiry,
    auto_resume = lifecycle.autoResume == true and 1 or nil,
    user = who.user,
    cwd = who.cwd,
  }
  if entry.network ~= nil or entry.allowInternetAccess ~= nil then
    add_network(out, entry)
  end
  return out
end

--- A sandbox id as the vendor has it, without what is no part of it; nil when it is none.
function fields.vendor_id(text)
  return type(text) == "string" and text:match("^([a-z0-9]+)%-?[a-z0-9]*$") or nil
end

return fields
