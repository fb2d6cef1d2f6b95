-- Policies: the usual ways to have sandboxes, as small objects over a provider.
--
--   local policy = require "sandbar.policy"
--   local users = policy.per_user { provider = sandboxes, spec = { lifetime = "1 hour" } }
--   local box = users:get("ann")

local lazy = require "sandbar.lazy"

local policy = {}

--- One long-lived sandbox for each user.
function policy.per_user(options)
  local made, err = lazy("sandbar.policy.per_user").new(options)
  return made, err
end

--- One long-lived sandbox with a name, made anew when its template changes.
function policy.declared(options)
  local made, err = lazy("sandbar.policy.declared").new(options)
  return made, err
end

--- Sandboxes that wait, ready to be taken.
function policy.pool(options)
  local made, err = lazy("sandbar.policy.pool").new(options)
  return made, err
end

--- A provider whose sandboxes carry labels, and what is left of them.
function policy.cleanup(options)
  local made, err = lazy("sandbar.policy.cleanup").new(options)
  return made, err
end

return policy
