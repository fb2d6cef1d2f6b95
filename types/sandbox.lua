---@meta sandbar.sandbox

--- A string is a shell line (`/bin/sh -c`, no login), a list an argument vector without a shell, a list of lists a
--- pipeline (the last stage's exit counts).
---@alias sandbar.Command string|string[]|string[][]

---@class sandbar.CommandOptions
---@field cwd? string relative or ~: from the user's home (default: the sandbox's)
---@field env? table<string, sandbar.Value> merged over the sandbox's
---@field clean_env? boolean only `env` (default false)
---@field user? string "name", "1000" or "1000:1000" (default: the sandbox's)
---@field shell? string what runs a string (default "/bin/sh")
---@field login? boolean a login shell (default false)
---@field scope? sandbar.Scope what ends it (default: the sandbox handle's)
---@field tag? string
---@field time_limit? sandbar.Duration|false the process's own clock
---@field pty? sandbar.TerminalSize on a terminal of its own: stdout has all output, with the terminal's ends of lines ("\r\n");
---  stderr is "" or absent; TERM is xterm-256color unless the environment has one. Not for pipelines
---@field timeout? sandbar.Timeout of exec or start itself (default: none)

---@class sandbar.ExecOptions: sandbar.CommandOptions
---@field stdin? string|(fun(): string?, any)|any the input, a source of chunks (nil: the end; nil, err: failure) or a file
---@field stdout? "pipe"|"ignore" captured or dropped (default "pipe"); "tail" and "spool" are for start:
---  Unsupported
---@field stderr? "pipe"|"ignore"|"stdout" likewise; "stdout" merges
---@field check? boolean a non-zero exit is nil, CommandFailed (default false)
---@field max_output? integer bytes kept of a stream; more is dropped and counted (default 64 MiB)
---@field on_output? fun(data: string, fd: 1|2): false? called as it arrives; false kills; it may wait

---@class sandbar.StartOptions: sandbar.CommandOptions
---@field stdin? "pipe"|string|(fun(): string?)|any absent: at its end; with pty "pipe"
---@field stdout? "pipe"|"ignore"|"tail"|"spool" "tail": the last 64 KiB are kept, the process never waits for a reader;
---  p.stdout gives them when it has ended, attach also before, unless the starter's handle holds a pipe of it. "spool": the
---  last 64 MiB are kept, on the sandbox's disk, for any number of readers (default "pipe")
---@field stderr? "pipe"|"ignore"|"tail"|"spool"|"stdout" likewise; "stdout" merges
---@field detached? boolean goes on after the scope (default false)

--- 1 to 65535 each.
---@class sandbar.TerminalSize
---@field cols integer
---@field rows integer

---@class sandbar.Result
---@field ok boolean exited with 0
---@field stdout? string
---@field stderr? string
---@field exit_code? integer 128 + n when killed by signal n; absent where ExecTimedOut came before the end was told
---@field signal? string "SIGKILL"
---@field reason "exit"|"signal"|"memory"|"limit"|"timeout" "memory": the kernel killed it, or a part of it, at limits.memory
---@field pid? integer absent where ExecTimedOut came before the start was told
---@field truncated boolean
---@field dropped integer bytes of both streams that were not kept
---@field duration number seconds

--- What could not be found out is nil.
---@class sandbar.Metrics
---@field at number when it was taken, in seconds since 1970
---@field cpu? number seconds of processor time since it was started or resumed from disk
---@field cpu_percent? number since the sample before, of the series or the same handle: 100 is one processor
---@field memory? integer bytes: as limits.memory counts them (without files that are only cached); without that limit the sum
--- over its processes, in which shared pages are counted for each
---@field disk? integer bytes that its own files take, those of its template and snapshots apart; added up some time ago
--- where that takes long
---@field processes? integer processes and threads, as limits.processes counts them
---@field network { sent: integer, received: integer } bytes to and from the outside, lookups of names apart

--- What processes() says of one command.
---@class sandbar.ProcessInfo
---@field pid integer
---@field tag? string
---@field args string[] the argument vector; of a pipeline, those of all its stages in one list
---@field cwd? string as it was given, absent when it was not
---@field user string
---@field detached boolean
---@field running boolean
---@field start_ns integer when it was started, in nanoseconds of the machine's monotonic clock
---@field pty? sandbar.TerminalSize of its terminal, if it has one; 0 and 0 once that is gone

--- What a reference must match, else NotFound.
---@class sandbar.Expect
---@field sandbox? string
---@field labels? table<string, string>
---@field cwd? string

--- A handle to a sandbox. Its fields are last known values and never wait; info() refreshes them.
---@class sandbar.Sandbox
---@field id string
---@field provider_id string the provider's own name for it; the local engine has no other than id
---@field state "running"|"paused"|"gone"|"failed" as last heard: an end by lifetime or by others shows after the next call
---@field kept? "memory"|"disk"|"unknown"
---@field labels table<string, string>
---@field template string
---@field ends_at? number seconds since 1970
---@field owned boolean
---@field files sandbar.Files
local Sandbox = {}

--- Runs a command to its end. A non-zero exit is a value. A timeout kills the whole tree: nil, ExecTimedOut with
--- err.result. Ends when the command has ended and its output was read, plus a short grace for what it left behind.
---@param cmd sandbar.Command
---@param options? sandbar.ExecOptions
---@return sandbar.Result? result
---@return sandbar.Error? err StartFailed, ExecTimedOut, CommandFailed, NotRunning, LimitExceeded, ...
function Sandbox:exec(cmd, options) end

--- Starts a command. It is killed with its whole tree when its scope ends, unless detached.
---@param cmd sandbar.Command
---@param options? sandbar.StartOptions
---@return sandbar.Process? process
---@return sandbar.Error? err
function Sandbox:start(cmd, options) end

--- A handle to a running or lately ended process; the process goes on when the handle closes. `from`: the offset, in all
--- spools or in each, with which reading begins (default: with the oldest byte that is kept). Where that was dropped already,
--- reading begins with the oldest one that is kept; where it has not been written yet, that is waited for.
---@param target integer|string|{ tag: string } its pid, a reference, or its tag (of several, the one started last)
---@param options? { expect?: sandbar.Expect, from?: integer|{ stdout?: integer, stderr?: integer }, timeout?: sandbar.Timeout }
---@return sandbar.Process? process
---@return sandbar.Error? err NotFound; InvalidArgument: it has no spool to read from there
function Sandbox:attach(target, options) end

--- The commands of exec and start, the last one first: those that run and those that have ended lately.
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.ProcessInfo[]? processes
---@return sandbar.Error? err
function Sandbox:processes(options) end

--- A port of the sandbox. Allocates nothing.
---@param number integer 1 to 65535
---@return sandbar.Port? port
---@return sandbar.Error? err
function Sandbox:port(number) end

--- The exposed ports.
---@param options? { timeout?: sandbar.Timeout }
---@return integer[]? ports
---@return sandbar.Error? err
function Sandbox:ports(options) end

--- Asks anew, and refreshes the handle's fields.
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Info? info
---@return sandbar.Error? err
function Sandbox:info(options) end

--- What it uses now. With `start` or `end` (seconds since 1970) an array of what it used then, the oldest first: the local
--- engine takes a sample every 5 s from the first time that one is asked for, until nobody has for 10 minutes, and keeps
--- an hour's; its supervisor's end loses them.
---@param options? { start?: number, ["end"]?: number, timeout?: sandbar.Timeout }
---@return sandbar.Metrics|sandbar.Metrics[]|nil metrics
---@return sandbar.Error? err NotRunning (not of a series)
function Sandbox:metrics(options) end

--- From now.
---@param lifetime sandbar.Duration
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok the field ends_at has the new end
---@return sandbar.Error? err
function Sandbox:set_lifetime(lifetime, options) end

--- With "memory" its processes stand still until a resume, by whomever: file operations under way have 0.5 s to end
--- first. Connections into it stand as well. With "disk" they are ended, and what was written is synced. What is really
--- kept is returned: the kind that was asked for, or what a sandbox that is paused already has. Refused, it goes on.
---@param options? { keep?: "memory"|"disk", timeout?: sandbar.Timeout } (default "memory")
---@return "memory"|"disk"? kept
---@return sandbar.Error? err Busy: a snapshot is being taken, or its processes did not come to a stand within 3 s; NotRunning,
---  NoSpace
function Sandbox:pause(options) end

--- A running one stays as it is. The lifetime begins anew, with `lifetime` or what it was made with.
---@param options? { lifetime?: sandbar.Duration, timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function Sandbox:resume(options) end

--- What is on its disk, under a name. A paused one's files are taken over as they are; a running one stands still
--- while its own are copied, and calls into it wait. Synced when this returns.
---@param name? string as an id is (default: a random UUID)
---@param options? { timeout?: sandbar.Timeout }
---@return string? name
---@return sandbar.Error? err AlreadyExists, InvalidArgument, NoSpace; Busy: it is starting, being paused, or another one
---  is being taken; LimitExceeded: it stands on 64 snapshots
function Sandbox:snapshot(name, options) end

--- New sandboxes that begin with what is on its disk now, with its settings, labels and lifetime. Owned as this one is:
--- by the same scope, or by their handles.
---@param count? integer 1 to 1000 (default 1)
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Sandbox[]? copies all of them, or none
---@return sandbar.Error? err as of snapshot and create
function Sandbox:fork(count, options) end

--- Replaces the whole policy. Returns once the new one holds and connections that it does not allow have been cut.
---@param policy sandbar.Network
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function Sandbox:update_network(policy, options) end

--- Kills everything in it and removes it; returns when it is gone. Destroying a gone one succeeds.
---@param options? { timeout?: sandbar.Timeout }
---@return true? destroyed
---@return sandbar.Error? err
function Sandbox:destroy(options) end

--- Idempotent. Destroys an owned sandbox, leaves another one alone. When that takes longer than timeout, it goes on by
--- itself.
---@param options? { timeout?: sandbar.Timeout } (default: close_timeout, 30 s)
---@return true? ok
---@return sandbar.Error? err
function Sandbox:close(options) end
