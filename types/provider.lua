---@meta sandbar.provider

--- What a sandbox is made from: plain data, never changed.
---@class sandbar.Spec
---@field id? string 1 to 128 bytes of A-Z a-z 0-9 . _ -, the first one alphanumeric (default: a random UUID)
---@field template? string|{ rootfs: string } "base" (default), a template that was built, or a directory with a root
---  file system on a local disk. As root it is used in place. An ordinary user's is copied once, without devices, sockets
---  and what he cannot read, and again when the directory's device, inode or time of change is another
---@field lifetime? sandbar.Duration (default 3600)
---@field on_expiry? "pause_disk"|"destroy"|"pause" what the end of its lifetime is (default "pause_disk"; "destroy" for
---  create_scoped; "pause" keeps its memory: what cannot be brought to a stand within 3 s then is paused to disk)
---@field auto_resume? boolean the next call into it wakes it (default false; needs on_expiry = "pause", said explicitly)
---@field labels? table<string, string>
---@field env? table<string, sandbar.Value> of every command in it
---@field user? string of commands (default "user"); looked up when one starts, as is cwd
---@field cwd? string of commands; relative or ~: from the user's home (default: the home)
---@field network? sandbar.Network (default "deny")
---@field limits? sandbar.Limits
---@field public_ports? boolean (default false; local: there is no public address)
---@field allow_setuid? boolean (default false)
---@field expect? table<string|integer, string|boolean> capabilities that must hold, as a list of names that may not be false or as
---  name = value; else it is refused before anything is allocated, with each that does not in `err.reasons`
---@field snapshot? string the name of one: its files, its template, and its user, cwd, env and limits where nothing is said
---@field prepare? (fun(box: sandbar.Sandbox): any, any)|(string|string[])[] run in it with network, before the policy
---  holds and create returns: a function (false, or nil and an error, is a failure; it owns the sandbox until then) or
---  commands, the first that fails ends them. On failure or cancellation, or when the program ends, it is destroyed
---@field providers? table<string, table> what one provider needs different

--- Of a sandbox as a whole. The local engine: memory and cpus only for root, where there are control groups; disk only
--- for root, where there are loop devices. What cannot be enforced is Unsupported.
---@class sandbar.Limits
---@field memory? integer bytes, at least 4 MiB; without swap
---@field cpus? number processors, 0.01 to 8192: 0.5 is half of one's time
---@field processes? integer (default 1024)
---@field disk? integer bytes, 16 MiB at least; set aside when the sandbox is made
---@field files? integer open files of a process, at least 16 (default: what the machine allows)
---@field max_output? integer bytes of a stream that exec keeps (default 64 MiB)
---@field max_commands? integer that exec and start may start, ever; a pipeline is one
---@field max_concurrent_execs? integer commands at the same time, those of exec and start alike, detached ones too (default 64)
---@field max_env? integer bytes (default 256 KiB)
---@field wall_time? sandbar.Duration|false how long it may run in all: pauses do not count, nothing adds to it

---@class sandbar.Info
---@field id string
---@field provider_id string the provider's own name for it; the local engine has no other than id
---@field state "running"|"paused"|"gone"|"failed"
---@field kept? "memory"|"disk"|"unknown" what a pause kept
---@field labels table<string, string>
---@field template string
---@field created_at? number seconds since 1970
---@field started_at? number seconds since 1970
---@field ends_at? number seconds since 1970, while running
---@field lifetime? number seconds
---@field on_expiry "pause_disk"|"destroy"|"pause"
---@field owned boolean destroyed with its owner
---@field user? string
---@field cwd? string
---@field boot_id string of its present or last run
---@field network sandbar.Network
---@field ports integer[] the exposed ones
---@field denied sandbar.Denied[] what was refused lately, the latest first; 32 at most
---@field cause? { reason: string, message: string? } why it ended: "lifetime", "wall_time", "memory", "pid1", ...
---@field limits? sandbar.Limits those that it has; info() only

--- What may be reached: nothing, everything (TCP and UDP; never the host itself nor link-local addresses), or what
--- rules allow.
---@alias sandbar.Network "deny"|"allow"|sandbar.NetworkRules

--- An entry is a host name (HTTP on port 80 and TLS on port 443, to wherever the name leads, and its lookup), "*.name" for
--- all below it, an address, or a CIDR (TCP and UDP, every port). What is denied is denied whatever allows it. 256
--- entries of each at most.
---@class sandbar.NetworkRules
---@field allow string[] an empty one blocks everything
---@field deny? string[] addresses and CIDRs
---@field inject? sandbar.Injection[] of them the first that fits a request; 32 at most
---@field upstream_proxy? sandbar.Value "http://[user:password@]host[:port]": every connection is asked of it by CONNECT, to
---  the address that the policy was checked for. UDP is refused. `info` shows it without who logs in

--- Headers that requests to a host get on their way (HTTP on port 80 and, with the capability inject_https, HTTPS on 443),
--- in place of those of the same names that the program sent. It allows nothing. `info` shows the names only.
---@class sandbar.Injection
---@field host string a host name, or "*.name" for all below it
---@field path_prefix? string "/v1" stands for itself and all below it
---@field when_headers? table<string, string> each must be there once, with just this value
---@field set_headers table<string, sandbar.Value>

---@class sandbar.Denied
---@field protocol "tcp"|"udp"|"dns"
---@field host string the name that was asked for, else the address
---@field port integer
---@field reason string
---@field count integer how often
---@field at number seconds since 1970, of the last time

---@class sandbar.Filter
---@field labels? table<string, string> all must match
---@field state? string|string[]
---@field page_size? integer 1 to 1000 (default 100)
---@field timeout? sandbar.Timeout of list as a whole, of each step of each (default: none)

--- What explain says of one clause of a spec.
---@class sandbar.Clause
---@field clause string "network", "limits.memory", ...
---@field verdict "enforced"|"refused"
---@field kind? sandbar.ErrorKind of a refusal
---@field message? string

---@class sandbar.Measured
---@field value any
---@field evidence string what was tried and what came back
---@field at number seconds since 1970

--- What a provider can do. `tree_kill` is what a kill reaches: everything that a command started; the same, but for what
--- hides on purpose from being known as its descendant; or its process group.
---@class sandbar.Capabilities
---@field tree_kill "exact"|"descendants"|"group"|false
---@field signals "all"|string[]|false
---@field workspace_coherent boolean files and commands see the same
---@field filesystem_isolated boolean
---@field process_isolated boolean
---@field network_isolated boolean
---@field egress_restricted boolean
---@field privilege_isolated boolean
---@field pause_memory boolean
---@field pause_disk boolean
---@field memory_survives_reboot boolean
---@field survives_service_stop boolean
---@field snapshot boolean
---@field fork boolean
---@field watch boolean
---@field open_files boolean
---@field append boolean
---@field atomic_write boolean
---@field xattrs boolean
---@field signed_urls boolean
---@field pty boolean
---@field output_tail boolean
---@field spool boolean
---@field raw_ports boolean
---@field websocket boolean
---@field public_url boolean
---@field setuid boolean
---@field name_rules boolean
---@field deny_over_allow boolean
---@field inject_http boolean
---@field inject_https boolean
---@field udp boolean
---@field limit_memory boolean
---@field limit_cpu boolean
---@field limit_processes boolean
---@field limit_disk boolean
---@field oom_reported boolean
---@field release_after_exit boolean
---@field measured? table<string, sandbar.Measured> by name, with `measure`. What is less than claimed counts for `expect` then

--- Those of a provider; they are taken with Sandbox:snapshot.
---@class sandbar.Snapshots
local Snapshots = {}

--- In the order of their names.
---@param options? { timeout?: sandbar.Timeout }
---@return { name: string, template: string?, created_at: number }[]? snapshots
---@return sandbar.Error? err
function Snapshots:list(options) end

---@param name string
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err NotFound; Busy: a sandbox that was made from it is there
function Snapshots:delete(name, options) end

--- A snapshot is taken, not built: Unsupported.
---@return nil
---@return sandbar.Error err
function Snapshots:build() end

--- One of run, copy, env, workdir, user, start, ready, and what belongs to it. Steps run as root until a `user`.
---@class sandbar.Step
---@field run? string|string[] a shell line, or an argument vector
---@field copy? string a file or directory of the host's, to `to`: relative to workdir
---@field to? string
---@field owner? string of copy: "user" or "user:group" (by the template's own chown)
---@field mode? string|integer of copy: of the files
---@field env? table<string, string> from here on, and of sandboxes
---@field workdir? string from here on, and of sandboxes; made if it is missing
---@field user? string from here on, and of sandboxes
---@field start? string|string[]|false started in each new sandbox; false: what `from` had starts no more
---@field ready? string|string[]|{ port: integer }|false create returns when this command succeeds, or somebody listens
---@field timeout? sandbar.Duration of ready (default 60)

--- What a build tells: "step" (one begins; 0 is `from`), "output" (data it writes), "done"; "built" or
--- "failed".
---@class sandbar.BuildEvent
---@field event "step"|"output"|"done"|"built"|"failed"
---@field name string the template's
---@field steps integer how many there are
---@field step? integer
---@field kind? string
---@field text? string of "step"
---@field data? string of "output"
---@field cached? boolean of "done": it was not run
---@field seconds? number of "done" and "built"
---@field digest? string of "built"
---@field error? sandbar.Error of "failed"

---@class sandbar.BuildSource
---@field path string
---@field image? string its name, where there are several
---@field max_bytes? integer that may be unpacked (default 32 GiB)
---@field max_entries? integer (default 2,000,000)

---@class sandbar.Build
---@field name string
---@field from? string|sandbar.BuildSource "base" (default), the name of a template, or an absolute path: of a directory
---  with a root file system, which is copied (without devices, sockets and what this user cannot read), of a tar of one
---  (gzip, bzip2, xz, zstd), of an OCI image layout or a tar of it, or of what `docker save` writes
---@field steps? sandbar.Step[]
---@field network? sandbar.Network of the steps (default "allow")
---@field limits? sandbar.Limits of the steps
---@field cache? boolean false: no step is taken as done
---@field on_progress? fun(event: sandbar.BuildEvent)
---@field timeout? sandbar.Timeout of the whole (default an hour)

--- Those of a provider.
---@class sandbar.Templates
local Templates = {}

--- Returns once it is on the disk. One of that name is replaced; sandboxes that were made from it keep it. On failure
--- there is what there was.
---@param build sandbar.Build
---@return { name: string, digest: string, steps: { kind: string, text: string, cached: boolean }[] }? built
---@return sandbar.Error? err CommandFailed (step, result), NotFound, InvalidArgument, Timeout, ...
function Templates:build(build) end

--- In the order of their names.
---@param options? { timeout?: sandbar.Timeout }
---@return { name: string, digest: string, created_at: number, user: string?, cwd: string?, start: string|string[]? }[]? templates
---@return sandbar.Error? err
function Templates:list(options) end

---@param name string
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err NotFound; Busy: a sandbox that was made from it is there
function Templates:delete(name, options) end

---@class sandbar.Provider
---@field templates sandbar.Templates
---@field snapshots sandbar.Snapshots
local Provider = {}

--- A sandbox that outlives the handle, the provider and the process.
---@param spec? sandbar.Spec
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox
---@return sandbar.Error? err AlreadyExists, InvalidArgument, Unsupported, NotFound (template), NoSpace, StartFailed (of
---  the template's start command: output, result), CommandFailed (of prepare), ...
function Provider:create(spec, options) end

--- A sandbox that is destroyed when the scope (or, without one, its handle) closes, on every path.
---@param spec? sandbar.Spec
---@param scope? sandbar.Scope
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox
---@return sandbar.Error? err
function Provider:create_scoped(spec, scope, options) end

--- A handle to an existing sandbox. Never wakes it and never changes its lifetime unless told to: `lifetime` makes it
--- longer, never shorter. A paused one has no lifetime that runs: NotRunning, unless resume wakes it.
---@param id string
---@param options? { expect_labels?: table<string, string>, resume?: boolean, lifetime?: sandbar.Duration, timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox
---@return sandbar.Error? err NotFound, Ambiguous, WrongOwner (its labels are not those expected), NotRunning
function Provider:connect(id, options) end

--- An iterator over every sandbox, page by page. In a `for` it raises on failure; `:next()` returns nil, err.
---@param options? sandbar.Filter timeout: of each step
---@return fun(): sandbar.Info?
function Provider:each(options) end

---@param options? sandbar.Filter|{ limit?: integer }
---@return sandbar.Info[]? sandboxes
---@return sandbar.Error? err
function Provider:list(options) end

--- Without connecting.
---@param id string
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Info? info
---@return sandbar.Error? err NotFound
function Provider:info(id, options) end

--- Without connecting. Destroying a gone sandbox succeeds.
---@param id string
---@param options? { timeout?: sandbar.Timeout }
---@return true? destroyed
---@return sandbar.Error? err
function Provider:destroy(id, options) end

--- What this provider claims. With `measure`, a sandbox of this provider, also what of it was tried out in there, by name:
--- the value, what was tried and what came back, and when. That takes some 20 commands and leaves nothing behind; what could
--- not be told is absent, and so is what cannot be tried without cost for others (pauses, snapshots, limits).
---@param options? { measure?: sandbar.Sandbox, timeout?: sandbar.Timeout }
---@return sandbar.Capabilities? capabilities
---@return sandbar.Error? err
function Provider:capabilities(options) end

--- What would be enforced and what refused, clause by clause, by the spec itself and by what this machine can do.
--- Allocates nothing.
---@param spec? sandbar.Spec
---@return { ok: boolean, clauses: sandbar.Clause[] }? explained
---@return sandbar.Error? err Closed; why the machine could not be asked
function Provider:explain(spec) end

--- Idempotent. Sandboxes are not touched, and their handles go on; other calls of the provider are Closed.
---@return true
function Provider:close() end
