-- Who is who at the vendor, which knows nothing but metadata: the logical id of a sandbox, the mark of this provider,
-- the token of the create that made it, and what else is to be known of it on other hosts. Names that begin with
-- "sandbar-" are ours; everything else is the program's labels.

local errors = require "sandbar.errors"

local identity = {}

local OURS = "sandbar-"
local MARK, MARK_VALUE = OURS .. "provider", "e2b"
local ID, TOKEN = OURS .. "id", OURS .. "token"

-- What is kept beside them, by what it is called in a record.
local KEPT = {
  lifetime = OURS .. "lifetime", on_expiry = OURS .. "on-expiry", user = OURS .. "user", cwd = OURS .. "cwd",
  snapshot = OURS .. "snapshot",
}

--- Metadata of a sandbox to be. `kept`: lifetime (seconds), on_expiry, user, cwd, snapshot.
function identity.metadata(id, token, labels, kept)
  local out = {}
  for name, value in pairs(labels) do
    out[name] = value
  end
  out[MARK], out[ID], out[TOKEN] = MARK_VALUE, id, token
  for name, key in pairs(KEPT) do
    if kept[name] ~= nil then
      out[key] = tostring(kept[name])
    end
  end
  return out
end

--- What metadata says: { id, token, labels, lifetime, ... }, or nil of a sandbox that is not ours.
function identity.read(metadata)
  if type(metadata) ~= "table" or metadata[MARK] ~= MARK_VALUE or type(metadata[ID]) ~= "string" then
    return nil
  end
  local out = { id = metadata[ID], token = metadata[TOKEN], labels = {} }
  for name, value in pairs(metadata) do
    if type(name) == "string" and type(value) == "string" and name:sub(1, #OURS) ~= OURS then
      out.labels[name] = value
    end
  end
  for name, key in pairs(KEPT) do
    out[name] = type(metadata[key]) == "string" and metadata[key] or nil
  end
  out.lifetime = tonumber(out.lifetime)
  return out
end

--- The filter for sandboxes of this provider: with an id, with a token, with labels.
function identity.filter(wanted)
  local out = { [MARK] = MARK_VALUE, [ID] = wanted.id, [TOKEN] = wanted.token }
  for name, value in pairs(wanted.labels or {}) do
    out[name] = value
  end
  return out
end

--- Does an entry have what a filter asks for? The other side is not taken at its word.
function identity.matches(metadata, filter)
  for name, value in pairs(filter) do
    if type(metadata) ~= "table" or metadata[name] ~= value then
      return false
    end
  end
  return true
end

--- True, or nil and InvalidArgument: labels that look like ours.
function identity.check_labels(labels)
  for name in pairs(labels) do
    if name:sub(1, #OURS) == OURS then
      return nil, errors.new { kind = "InvalidArgument", clause = "labels",
        message = ("labels: %q begins with %q, which the library keeps for itself"):format(name, OURS) }
    end
  end
  return true
end

--- True, or nil and WrongOwner: labels that are expected and are not there.
function identity.expect(labels, expected, id, op)
  for name, value in pairs(expected or {}) do
    if labels[name] ~= value then
      return nil, errors.new { kind = "WrongOwner", op = op, id = id,
        message = ("sandbox %s has not the label %s that is expected"):format(id, name) }
    end
  end
  return true
end

return identity
