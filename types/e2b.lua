---@meta sandbar.e2b

---@class sandbar.LogOptions
---@field start? number seconds since 1970
---@field limit? integer
---@field direction? "forward"|"backward"
---@field level? "debug"|"info"|"warn"|"error" that and what weighs more
---@field search? string
---@field timeout? sandbar.Timeout

---@class sandbar.HostedTemplate
---@field name string
---@field id string
---@field names string[]
---@field created_at? number
---@field cpus? number
---@field memory? number
---@field state? string
---@field public boolean

--- The E2B provider: sandboxes of a hosted vendor. What is said of sandbar.Provider holds, and what is different:
--- ids and labels are kept as the vendor's metadata, `provider_id` is its own id; `kept` is "unknown" but right after a
--- pause of one's own; limits of memory, processors, disk and processes are the template's.
---@class sandbar.E2BProvider
---@field keys sandbar.E2BKeys
---@field snapshots sandbar.Snapshots
---@field templates sandbar.E2BTemplates
local E2BProvider = {}

--- A sandbox that outlives the handle, the provider and the process. With an id of one's own it is looked for before and
--- after: of two made at once the later deletes itself. Two hosts that do not see each other's yet may both have one.
---@param spec? sandbar.Spec
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox
---@return sandbar.Error? err AlreadyExists, NotFound (template), Unsupported (clause), RateLimited, OutcomeUnknown, ...
function E2BProvider:create(spec, options) end

--- A sandbox that is destroyed when the scope (or, without one, its handle) closes, on every path out of the program but
--- a kill: after that with open { journal } by the next program, else with its lifetime.
---@param spec? sandbar.Spec
---@param scope? sandbar.Scope
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox
---@return sandbar.Error? err
function E2BProvider:create_scoped(spec, scope, options) end

--- A handle to an existing sandbox, read only: it wakes nothing, and nothing lives longer, unless told to.
---@param id string its id, or the vendor's
---@param options? { expect_labels?: table<string, string>, resume?: boolean, lifetime?: sandbar.Duration, timeout?: sandbar.Timeout }
---@return sandbar.Sandbox? sandbox
---@return sandbar.Error? err NotFound, Ambiguous (`ids`), WrongOwner, NotRunning
function E2BProvider:connect(id, options) end

--- An iterator over every sandbox of the library's, page by page. In a `for` it raises on failure; `:next()` returns
--- nil, err.
---@param options? sandbar.Filter timeout: of each step
---@return fun(): sandbar.Info?
function E2BProvider:each(options) end

---@param options? sandbar.Filter|{ limit?: integer }
---@return sandbar.Info[]? sandboxes
---@return sandbar.Error? err
function E2BProvider:list(options) end

--- Without connecting.
---@param id string
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Info? info
---@return sandbar.Error? err NotFound, Ambiguous
function E2BProvider:info(id, options) end

--- Without connecting. Destroying a gone sandbox succeeds.
---@param id string
---@param options? { timeout?: sandbar.Timeout }
---@return true? destroyed
---@return sandbar.Error? err Ambiguous
function E2BProvider:destroy(id, options) end

--- What the vendor has logged of a sandbox.
---@param id string
---@param options? sandbar.LogOptions
---@return { at: number, level: string, message: string, fields: table<string, string> }[]? lines
---@return sandbar.Error? err
function E2BProvider:logs(id, options) end

--- Destroys what programs that were killed have left in the journal (sandboxes, API keys, snapshots of forks; how many);
--- the first create does it by itself.
---@param options? { timeout?: sandbar.Timeout }
---@return integer? count
---@return sandbar.Error? err
function E2BProvider:recover(options) end

--- What the host attests (open { capabilities }); else what the protocol does, without any isolation of networks.
---@param options? { measure?: sandbar.Sandbox, timeout?: sandbar.Timeout }
---@return sandbar.Capabilities? capabilities
---@return sandbar.Error? err
function E2BProvider:capabilities(options) end

--- What would be enforced and what refused, clause by clause. Asks nobody.
---@param spec? sandbar.Spec
---@return { ok: boolean, clauses: sandbar.Clause[] }? explained
---@return sandbar.Error? err Closed
function E2BProvider:explain(spec) end

--- Idempotent. Sandboxes are not touched, and their handles go on; other calls of the provider are Closed.
---@return true
function E2BProvider:close() end

--- Keys of the account, which only the user's token may make (open { access_token, team }).
---@class sandbar.E2BKeys
local E2BKeys = {}

--- A key that stays until it is deleted. Its value is told this once.
---@param options { name: string, timeout?: sandbar.Timeout }
---@return { id: string, name: string, key: sandbar.Secret, mask: string?, created_at: number? }? key
---@return sandbar.Error? err
function E2BKeys:create(options) end

--- One that is revoked when the scope (or, without one, the handle) closes.
---@param options { name: string, timeout?: sandbar.Timeout }
---@param scope? sandbar.Scope
---@return sandbar.APIKey? key
---@return sandbar.Error? err
function E2BKeys:create_scoped(options, scope) end

---@param options? { timeout?: sandbar.Timeout }
---@return { id: string, name: string, mask: string?, created_at: number? }[]? keys
---@return sandbar.Error? err
function E2BKeys:list(options) end

--- Revokes it; one that is gone is revoked.
---@param id string
---@param options? { timeout?: sandbar.Timeout }
---@return true? deleted
---@return sandbar.Error? err
function E2BKeys:delete(id, options) end

---@class sandbar.APIKey
---@field id string
---@field name string
---@field key sandbar.Secret
---@field mask? string
---@field created_at? number
local APIKey = {}

--- Revokes it and waits for that.
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function APIKey:close(options) end

---@class sandbar.E2BBuild
---@field name string [namespace/]name[:tag]
---@field from? string|{ image: string, username?: string, password?: sandbar.Value } a template (default "base") or an image
---@field steps? sandbar.Step[] Unsupported: a timeout of ready, start and ready = false, values that the vendor's shell
---  would change
---@field tags? string[]
---@field limits? { cpus?: integer, memory?: integer } what its sandboxes have: 1 or an even number; bytes, in steps of 2 MiB
---@field cache? boolean (default true)
---@field on_progress? fun(event: { name: string, steps: integer, line: string, level: string?, step: integer?, at: number? })
---@field network? "allow"
---@field timeout? sandbar.Timeout (default 3600)

---@class sandbar.E2BTemplates
local E2BTemplates = {}

---@param build sandbar.E2BBuild
---@return { name: string, id: string, build: string, steps: { kind: string, text: string }[] }? built
---@return sandbar.Error? err CommandFailed (step, output), AlreadyExists, ...
function E2BTemplates:build(build) end

---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.HostedTemplate[]? templates
---@return sandbar.Error? err
function E2BTemplates:list(options) end

---@param name string
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err NotFound; Busy: sandboxes stand on it
function E2BTemplates:delete(name, options) end

---@param name string
---@param options? { timeout?: sandbar.Timeout }
---@return { tag: string, build: string, created_at: number? }[]? tags
---@return sandbar.Error? err
function E2BTemplates:tags(name, options) end

--- More tags for the build that `name` means.
---@param name string with a tag or without
---@param tags string[]
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function E2BTemplates:tag(name, tags, options) end

---@param name string
---@param tags string[]
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function E2BTemplates:untag(name, tags, options) end
