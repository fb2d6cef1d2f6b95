-- Looking for sandboxes at the vendor: every page of its list, and the one that has an id.

local address = require "sandbar.e2b.address"
local errors = require "sandbar.errors"
local identity = require "sandbar.e2b.identity"
local link = require "sandbar.link"
local record = require "sandbar.e2b.record"

local finding = {}

local MOST = 100 -- of a page
local EITHER = { "running", "paused" }

-- What is no list, or has something in it that is no sandbox.
local function broken(op, why)
  return nil, errors.new { kind = "Protocol", op = op, message = "the list of sandboxes is broken: " .. why }
end

--- One page: entries that match, and the token of the next one. `query`: filter (metadata), states, limit, after.
function finding.page(client, query, timeout, op)
  local list, answer = client:call {
    op = op, method = "GET", path = "/v2/sandboxes", timeout = timeout, repeatable = true, array = true,
    query = {
      { "metadata", address.filter(query.filter) },
      { "state", table.concat(query.states or EITHER, ",") },
      { "limit", query.limit or MOST },
      query.after and { "nextToken", query.after } or nil,
    },
  }
  if not list then
    return nil, answer
  end
  local out = {}
  for i = 1, #list do
    local entry = list[i]
    if not record.vendor_id(entry.sandboxID) then
      return broken(op, "an entry without an id")
    elseif identity.matches(entry.metadata, query.filter) then
      out[#out + 1] = entry
    end
  end
  local after = answer.headers["x-next-token"]
  if after == "" or after == query.after then
    after = nil
  end
  return out, after
end

--- Everything that matches.
function finding.all(client, filter, timeout, op)
  local deadline, found, after = link.deadline(timeout), {}, nil
  local seen = {}
  repeat
    local page, more = finding.page(client, { filter = filter, after = after }, link.left(deadline), op)
    if not page then
      return nil, link.told(more, timeout)
    end
    for _, entry in ipairs(page) do
      if not seen[entry.sandboxID] then -- one that moved to another page meanwhile
        seen[entry.sandboxID] = true
        found[#found + 1] = entry
      end
    end
    after = more
  until not after
  return found
end

--- The one sandbox with an id; nil and NotFound, or Ambiguous: of several none is picked.
function finding.one(client, id, timeout, op)
  local found, err = finding.all(client, identity.filter { id = id }, timeout, op)
  if not found then
    return nil, errors.from(err, op, { id = id })
  elseif #found == 0 then
    return nil, errors.new { kind = "NotFound", op = op, id = id, message = ("there is no sandbox %s"):format(id) }
  elseif #found > 1 then
    local ids = {}
    for i, entry in ipairs(found) do
      ids[i] = record.vendor_id(entry.sandboxID)
    end
    table.sort(ids)
    return nil, errors.new { kind = "Ambiguous", op = op, id = id, ids = ids,
      message = ("%d sandboxes have the id %s: %s"):format(#ids, id, table.concat(ids, ", ")) }
  end
  return found[1]
end

--- Which of several came first: by start, then by the vendor's id.
function finding.first(entries)
  local best, best_at, best_id
  for _, entry in ipairs(entries) do
    local at, id = record.time(entry.startedAt) or math.huge, record.vendor_id(entry.sandboxID)
    if not best or at < best_at or at == best_at and id < best_id then
      best, best_at, best_id = entry, at, id
    end
  end
  return best
end

return finding
