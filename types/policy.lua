---@meta sandbar.policy

--- The usual ways to have sandboxes, as objects over a provider.
---@class sandbar.policy
local policy = {}

--- One long-lived sandbox for each user, the same for every caller, process and worker.
---@param options { provider: sandbar.Provider, spec?: sandbar.Spec, name?: string } name: the beginning of the ids
---  (default "user"); policies of different names have different sandboxes
---@return sandbar.PerUser? policy
---@return sandbar.Error? err what the provider would refuse of the spec
function policy.per_user(options) end

--- One long-lived sandbox with a name, on_expiry = "pause". Its id tells what it was made from.
---@param options { provider: sandbar.Provider, name: string, spec?: sandbar.Spec }
---@return sandbar.Declared? policy
---@return sandbar.Error? err
function policy.declared(options) end

--- Sandboxes that wait, 1 to 1000 of them.
---@param options { provider: sandbar.Provider, spec?: sandbar.Spec, size: integer }
---@return sandbar.Pool? policy
---@return sandbar.Error? err
function policy.pool(options) end

--- Labels for everything that a deployment makes.
---@param options { provider: sandbar.Provider, stack: string, stage?: string, binding?: string }
---@return sandbar.Cleanup? policy
---@return sandbar.Error? err
function policy.cleanup(options) end

---@class sandbar.PerUser
local PerUser = {}

--- The user's sandbox, running: found by its id and the label "sandbar.user", woken, or made. Of several of one id the
--- oldest that lives. Its life is never shortened.
---@param user string
---@param options? { min_lifetime?: sandbar.Duration, timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox a handle of the caller's own
---@return sandbar.Error? err WrongOwner: a sandbox without the label has this id
function PerUser:get(user, options) end

---@return true
function PerUser:close() end

---@class sandbar.Declared
local Declared = {}

--- The sandbox, running: found, woken or made. Who makes it destroys those of its name that were made from another
--- template.
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox a handle of the caller's own
---@return sandbar.Error? err
function Declared:get(options) end

---@return true
function Declared:close() end

---@class sandbar.Pool
---@field ready integer how many wait
local Pool = {}

--- One that waited, with its whole lifetime before it, or a new one.
---@param options? { scope?: sandbar.Scope, timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox as from create_scoped
---@return sandbar.Error? err
function Pool:get(options) end

--- Destroys what waits. Those that were taken are their takers'.
---@param options? { timeout?: sandbar.Timeout }
---@return true? closed
---@return sandbar.Error? err
function Pool:close(options) end

---@class sandbar.Cleanup
local Cleanup = {}

--- The provider's calls; what create, create_scoped and explain are given gets the labels stack, stage and binding.
---@return sandbar.Provider? provider
---@return sandbar.Error? err Closed
function Cleanup:get() end

--- What has the labels, whoever made it.
---@param options? { state?: string|string[], page_size?: integer, timeout?: sandbar.Timeout }
---@return fun(): sandbar.Info?
function Cleanup:each(options) end

--- Destroys all that has the labels.
---@param options? { timeout?: sandbar.Timeout }
---@return integer? destroyed
---@return sandbar.Error? err Aggregate: some could not be; the others are gone
function Cleanup:destroy(options) end

---@return true
function Cleanup:close() end

return policy
