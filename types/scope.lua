---@meta sandbar.scope

--- A failure is a returned nil and error, a defect was raised, interrupted is a cancellation.
---@class sandbar.Reason
---@field type "failure"|"defect"|"interrupted"
---@field error any
---@field traceback? string
---@field task? integer of a task that nobody waited for: its number

--- What a scope, a finalizer or a task ended with. When ok, [1] to [n] are what was returned.
---@class sandbar.Exit
---@field ok boolean
---@field n? integer how many values, when ok
---@field reasons? sandbar.Reason[] when not ok

--- Owns what is acquired in it and releases it on every path out, newest first, exactly once.
---@class sandbar.Scope
local Scope = {}

--- A finalizer, called with the exit when the scope closes; at once where it has closed already.
---@param fn fun(exit: sandbar.Exit)
---@return any token for forget
function Scope:defer(fn) end

--- Withdraws a finalizer.
---@param token any
---@return boolean withdrawn
function Scope:forget(token) end

--- Runs `acquire`; once it has given a value, `release(value, exit)` is registered in the same step.
---@generic T
---@param acquire fun(): T
---@param release fun(value: T, exit: sandbar.Exit)
---@return T? value
---@return any err
function Scope:acquire(acquire, release) end

--- A child scope, closed with this one at its place in the order.
---@param options? { parallel?: boolean, close_timeout?: sandbar.Duration } parallel: its finalizers run at the same time
---@return sandbar.Scope
function Scope:fork(options) end

--- A task that lives no longer than the scope: closing cancels it and waits. A failure nobody waited for fails the scope.
--- Of a closed scope the task is cancelled before it begins.
---@param fn function
---@return sandbar.Task
function Scope:spawn(fn, ...) end

--- Moves the release of a handle here, from wherever it was.
---@generic T
---@param handle T
---@return T? handle
---@return sandbar.Error? err
function Scope:adopt(handle) end

--- Idempotent; a second caller waits for the first; Busy from inside one of its own finalizers.
---@param exit? sandbar.Exit
---@return true? ok
---@return sandbar.Error? err
function Scope:close(exit) end

--- How many finalizers are registered.
---@return integer
function Scope:pending() end

---@return "open"|"closing"|"closed"
function Scope:state() end

---@class sandbar.Task
---@field state "running"|"succeeded"|"failed"|"cancelled"
local Task = {}

--- The function's results, with a failure as nil, err; what the function raised is raised here.
---@param options? { timeout?: sandbar.Timeout }
---@return any ...
function Task:wait(options) end

--- Asks it to end: every later wait of it returns Cancelled, except in finalizers and shields.
---@param reason? any
function Task:cancel(reason) end
