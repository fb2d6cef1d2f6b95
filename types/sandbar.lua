---@meta sandbar

--- Times are seconds (integer or float) or texts like "90s", "10 minutes", "1h"; sizes are bytes.
---@alias sandbar.Duration number|string

--- Deadline of the call it is given to, from its start, covering everything below. `false`: none. 0: do not wait.
---@alias sandbar.Timeout number|string|false

--- A string, or a value that cannot be read back from Lua.
---@alias sandbar.Value string|sandbar.Secret

---@class sandbar
---@field version string of the library
---@field errors table<string, sandbar.ErrorKind> the kinds, by name and as an array; a misspelt name raises
local sandbar = {}

---@class sandbar.OpenOptions
---@field provider? "local"|"e2b"|table which provider; an object that implements the contract is taken as it is (default "local")
---@field defaults? sandbar.Spec what every create of this provider starts from
---@field capabilities? table<string, any> attested by the host; what is not named is false
---@field journal? string e2b: the absolute path of a directory, in which what a killed program leaves is noted for the next
---@field api_key? sandbar.Value e2b: needed; no environment variable is read for it
---@field access_token? sandbar.Value e2b: the user's, with `team`: only for keys
---@field team? string e2b
---@field api_url? string e2b: of the control plane (default https://api.DOMAIN)
---@field domain? string e2b: of sandboxes (default "e2b.app")
---@field sandbox_url? string e2b: one address that all sandboxes are reached at
---@field request_timeout? sandbar.Timeout e2b: of each call, inside its own timeout (default 60)
---@field headers? table<string, sandbar.Value> e2b: of every call to the control plane
---@field proxy? sandbar.Value e2b: the URL of one, or "environment" for what the usual variables say (default: none)
---@field ca_file? string e2b: the only certificates that are trusted, in PEM
---@field retries? integer e2b: of a call that is safe to repeat (default 3)
---@field transport? table e2b: with request(self, request, timeout, op), instead of the network
---@field random? fun(n: integer): string e2b: n bytes, where ids and tokens come from that nobody has chosen
---@field root? string local: the state directory (default by user: /var/lib/sandbar as root, else below XDG_STATE_HOME)
---@field linger? sandbar.Duration local: how long an idle supervisor stays (default 60; 0: it leaves at once)

--- A provider. Pure configuration: no I/O, never waits, survives fork.
---@param options? sandbar.OpenOptions
---@return sandbar.Provider? provider
---@return sandbar.Error? err
function sandbar.open(options) end

--- Runs `fn(scope)`, closes the scope with its exit, returns what `fn` returned; raises what it raised.
--- `nil` with a non-nil second result counts as a failure. A finalizer that fails makes the whole `nil, Aggregate`.
---@generic T
---@param options? table|fun(scope: sandbar.Scope): T
---@param fn? fun(scope: sandbar.Scope): T
---@return T
function sandbar.scope(options, fn) end

--- An open scope, for `<close>` or `:close(exit)`. The caller owns it.
---@param options? table
---@return sandbar.Scope
function sandbar.new_scope(options) end

--- Returns its arguments, or raises the second one (the error object itself) if the first is nil or false. Uncaught, the
--- stock lua5.1 does not show it: "(error object is not a string)"; `sandbar run` does.
---@generic T
---@param value T?
---@param err? any
---@return T
function sandbar.assert(value, err, ...) end

--- pcall through which waits work on every Lua, also in coroutines of plain 5.1.
---@param fn function
---@return boolean ok
---@return any ...
function sandbar.pcall(fn, ...) end

--- coroutine.wrap for functions that wait: a wait inside suspends the whole task.
---@param fn function
---@return function
function sandbar.wrap(fn) end

--- coroutine.resume for coroutines that wait.
---@param co thread
---@return boolean ok
---@return any ...
function sandbar.resume(co, ...) end

--- A value with no way back to the string from Lua, wiped when collected. Where errors, audit and tostring
--- would show it, they show [redacted]; below 4 bytes it is too short to be looked for.
---@param value string
---@return sandbar.Secret
function sandbar.secret(value) end

--- Runs `fn` and everything it spawns as coroutines until all have ended.
---@param fn function
---@return any ... what fn returned
function sandbar.run(fn, ...) end

--- A task beside the caller. Prefer scope:spawn, which bounds its life. A failure nobody waits for is told on stderr.
---@param fn function
---@return sandbar.Task
function sandbar.spawn(fn, ...) end

--- Runs all at once; an array of their first results, or the first failure with the others cancelled. What one of them
--- raises is raised here.
---@param fns (fun(): any)[]
---@return any[]? results
---@return sandbar.Error? err
function sandbar.all(fns) end

--- Suspends the calling task, or blocks a plain script.
---@param seconds sandbar.Duration
---@return true? slept
---@return sandbar.Error? err Cancelled
function sandbar.sleep(seconds) end

--- Runs `fn` so that a cancellation of the task is seen only after it, within `close_timeout`.
---@param fn function
---@return any ...
function sandbar.shield(fn, ...) end

--- One turn of a game loop: lets tasks run for at most that long, never blocks.
---@param max_seconds? sandbar.Duration (default 0)
---@return integer? pending how many tasks have not ended
---@return sandbar.Error? err Unsupported where the host runs the tasks by itself, CannotWait inside a task
function sandbar.step(max_seconds) end

--- The pollable descriptor of this Lua state: readable when step has something to do.
---@return integer fd owned by the library
function sandbar.fd() end

---@class sandbar.Config
---@field host? "blocking"|"step"|"openresty" which host adapter; chosen by itself when absent; "openresty" only inside nginx
---@field drain? sandbar.Duration how long the end of the process may take for outstanding releases (default 5)
---@field close_timeout? sandbar.Duration bound of finalizers and shields (default 30)

--- Serves the E2B protocol beside the program's own tasks, until it is closed: docs/server.md.
---@param options? sandbar.ServeOptions
---@return sandbar.Serving? serving
---@return sandbar.Error? err
function sandbar.serve(options) end

--- How many operations of this Lua state are under way.
---@return integer
function sandbar.pending() end

--- Changes settings, all or none.
---@param settings? sandbar.Config
---@return true? ok
---@return sandbar.Error? err
function sandbar.config(settings) end

--- Where acquisitions, releases, refusals and secret uses are told as redacted events. A function hears at the next
--- wait of a handle that was collected ("collected": its release has begun); a descriptor is written to by the runtime
--- when such a release has ended ("detached"), also after the Lua state has.
---@param sink { fn?: fun(event: table)|false, fd?: integer|false } false ends it
---@return true? ok
---@return sandbar.Error? err
function sandbar.audit(sink) end

--- A secret: tostring, #, .. and == give nothing away.
---@class sandbar.Secret
local Secret = {}

--- Another secret with `text` in front: secret:prefixed("Bearer ").
---@param text string
---@return sandbar.Secret
function Secret:prefixed(text) end

return sandbar
