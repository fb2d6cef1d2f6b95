---@meta sandbar.process

--- A started or attached command.
---@class sandbar.Process
---@field pid integer in the sandbox
---@field tag? string
--- `dropped`: bytes of both streams that nobody read and the tail did not keep, as last heard (at attach, at
--- the exit); what an earlier reader took counts as read. Of a spool: those that it keeps no more.
---@field dropped integer
---@field stdin sandbar.Input
---@field stdout sandbar.Output
---@field stderr? sandbar.Output absent when merged into stdout, and on a terminal
local Process = {}

--- An iterator of fd, data, offset over both streams as output arrives. Offsets in a spool are absolute, others count what
--- this handle's output() has given. Where only one of both is a spool and the other is read elsewhere, that one is left out.
--- In a `for` a failure raises; `:next()` returns nil, err.
---@param options? { timeout?: sandbar.Timeout }
---@return fun(): (1|2)?, string?, integer?
function Process:output(options) end

--- Returns on delivery. Of a process that has ended nothing is left to signal: count is 0.
---@param signal string|integer "TERM", "SIGTERM", 15, "SIGRTMIN+1"
---@param options? { group?: boolean, timeout?: sandbar.Timeout } group: its whole process group
---@return { signal: string, count: integer }? delivered
---@return sandbar.Error? err
function Process:signal(signal, options) end

--- Ends the whole tree: the signal, after the grace SIGKILL. Returns after the exit was observed.
---@param options? { signal?: string|integer, grace?: sandbar.Duration, timeout?: sandbar.Timeout } (default TERM, 5)
---@return sandbar.Result? result
---@return sandbar.Error? err
function Process:kill(options) end

--- The exit: exec's record without text. `output` also waits for the end of both streams and keeps them for reads (spools
--- stay where they are).
---@param options? { timeout?: sandbar.Timeout, output?: boolean }
---@return sandbar.Result? result
---@return sandbar.Error? err Timeout (nothing was consumed); of a hosted one that was started with a string as its input:
--- why that may not all have come to it, with the exit as `result`
function Process:wait(options) end

---@return boolean
function Process:running() end

--- Its terminal has this size from now on; the programs on it get SIGWINCH.
---@param size sandbar.TerminalSize
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err NotFound: it has ended, and its terminal is gone; InvalidArgument: it has none
function Process:resize(size, options) end

--- It goes on after its scope, and its output goes to the bounded tail from now on, for whoever attaches. What had come
--- before can still be read here, up to an end.
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function Process:detach(options) end

--- A text that finds this very process again, also from another program; NotFound after a reboot. An ended process is
--- found for 60 s (256 of a sandbox at most), with its exit, and its tail or spools.
---@param options? { timeout?: sandbar.Timeout }
---@return string? reference
---@return sandbar.Error? err
function Process:reference(options) end

--- Idempotent. Kills the tree unless it is detached or was attached. When that takes longer than timeout, it goes on
--- by itself.
---@param options? { timeout?: sandbar.Timeout } (default: close_timeout, 30 s)
---@return true? ok
---@return sandbar.Error? err Timeout
function Process:close(options) end

--- Where a process reads from.
---@class sandbar.Input
local Input = {}

--- Writes all of it, waiting for the process to take it. To a terminal it is typed: "\3" interrupts the job in the
--- foreground, "\4" at the start of a line ends the input, "\26" suspends; while input comes by lines, the system keeps
--- 4095 bytes of a line.
---@param data string
---@param options? { timeout?: sandbar.Timeout }
---@return integer? written bytes accepted: all, unless the time was over (then with Timeout as second result)
---@return sandbar.Error? err Closed: it reads no more. Of a hosted one also RateLimited, Unavailable, NotRunning (what was
--- not accepted was not taken, and may be written again) and OutcomeUnknown (nobody knows what of it came, and no more
--- is taken); `accepted`: how many bytes of it were
function Input:write(data, options) end

--- The process sees the end of its input. On a terminal that is as if the end had been typed; a program that has put
--- it into raw mode is not told. Idempotent.
---@return true
function Input:close() end

--- What a process writes. One reader at a time; of a spool each handle is a reader.
---@class sandbar.Output
local Output = {}

--- Nil at the end (no second result). A read that times out has consumed nothing.
---@param what? integer|"l"|"L"|"a" exactly that many bytes (fewer only at the end), a line without or with its end, or all (default "l")
---@param options? { timeout?: sandbar.Timeout, max?: integer } max: bytes of a line or of all (default 1 MiB for lines)
---@return string? data
---@return sandbar.Error? err Timeout, LimitExceeded, Busy
function Output:read(what, options) end

--- An iterator over lines. In a `for` a failure raises; `:next()` returns nil, err.
---@param what? "l"|"L" without or with their ends (default "l")
---@param options? { timeout?: sandbar.Timeout, max?: integer }
---@return fun(): string?
function Output:lines(what, options) end

--- Reads no more; the process sees a closed pipe. Idempotent.
---@return true
function Output:close() end
