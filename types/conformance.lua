---@meta sandbar.conformance

---@class sandbar.ConformanceOptions
---@field name string
---@field open fun(): sandbar.Provider called once, before the first test
---@field spec? sandbar.Spec of every sandbox, besides what a test needs
---@field lacks? table<string, string> why a test is skipped, by its name
---@field patience? sandbar.Duration of a call that makes, pauses or copies a sandbox (default 60)
---@field reaches? string address with a web server on port 80 that an allowed network reaches (default "1.1.1.1")

--- The contract as busted suites, for any provider. In a spec file:
---   require("sandbar.conformance").run { name = "mine", open = function() return my_provider end }
---@class sandbar.conformance
local conformance = {}

--- Defines the tests. What the provider does not claim among its capabilities is skipped, and said so.
---@param options sandbar.ConformanceOptions
function conformance.run(options) end

return conformance
