-- What policies share: their options, the spec they make sandboxes from, ids that stand for any key.

local check = require "sandbar.check"
local copied = require "sandbar.copied"
local errors = require "sandbar.errors"

local common = {}

local NEEDED = { "create", "create_scoped", "connect", "each", "list", "info", "destroy" }
local MAX_ID = 128

--- The options of a policy, with a provider among them. `level`: how far out the caller is, as in check.
function common.options(fname, opts, schema, level)
  level = (level or 1) + 1
  opts = check.options(fname, 1, opts, schema, level)
  local provider = opts.provider
  if type(provider) ~= "table" and type(provider) ~= "userdata" then
    check.fail(fname, 1, "option 'provider': provider expected, got " .. check.type_name(provider), level)
  end
  for _, name in ipairs(NEEDED) do
    if provider[name] == nil then
      check.fail(fname, 1, ("option 'provider': it has no method '%s'"):format(name), level)
    end
  end
  return opts
end

function common.invalid(op, message)
  return nil, errors.new { kind = "InvalidArgument", op = op, message = message }
end

common.copy = copied

-- What is asked of the machine, which is for the first sandbox to do.
local ASKED = { "expect", "network", "allow_setuid" }

-- What the provider thinks of the spec, so that a wrong one is known before the first sandbox.
local function look(fname, provider, spec, level)
  if not provider.explain then
    return true
  end
  spec = copied(spec)
  for _, key in ipairs(ASKED) do
    spec[key] = nil
  end
  local ok, told = pcall(provider.explain, provider, spec)
  if not ok then
    error(type(told) == "string" and told:gsub("^.-:%d+: ", ""):gsub("'explain'", ("'%s'"):format(fname)) or told,
      level + 2)
  end
  for _, clause in ipairs(told and told.clauses or {}) do
    if clause.verdict == "refused" then
      return nil, errors.new { kind = clause.kind, op = fname, clause = clause.clause, message = clause.message }
    end
  end
  return true
end

--- A copy of `spec` with `labels` added; `own` are the keys the policy sets itself. nil and an error where it says
--- something about these, or the provider would refuse it.
function common.spec(fname, provider, spec, own, labels, level)
  spec = copied(spec)
  for _, key in ipairs(own) do
    if spec[key] ~= nil then
      return common.invalid(fname, ("spec.%s: the policy decides that"):format(key))
    end
  end
  if spec.labels == nil or type(spec.labels) == "table" then
    spec.labels = copied(spec.labels)
    for key, value in pairs(labels) do
      if spec.labels[key] ~= nil and spec.labels[key] ~= value then
        return common.invalid(fname, ("spec.labels: %q is the policy's own"):format(key))
      end
      spec.labels[key] = value
    end
  end
  local ok, err = look(fname, provider, spec, (level or 1) + 1)
  if not ok then
    return nil, err
  end
  return spec
end

--- The name of a policy is the beginning of its ids.
function common.check_name(fname, name)
  if not name:find("^%w[%w._-]*$") or #name > 40 then
    return common.invalid(fname, ("name: %q is not 1 to 40 of A-Z a-z 0-9 . _ - with the first one alphanumeric"
      ):format(name))
  end
  return name
end

local function hex(byte)
  return ("_%02x"):format(byte:byte())
end

--- The id that stands for `key`, any bytes: another one for every other key.
function common.id(name, key)
  local text = key:gsub("[^%w]", hex)
  if #name + 1 + #text > MAX_ID then -- no shorter key has a dash behind the name
    text = "sha256-" .. require("sandbar.http").sha256(key):gsub(".", function(byte)
      return ("%02x"):format(byte:byte())
    end)
  end
  return name .. "-" .. text
end

function common.closed(op)
  return nil, errors.new { kind = "Closed", op = op, message = "the policy is closed" }
end

return common
