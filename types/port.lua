---@meta sandbar.port

---@class sandbar.Request
---@field method? string (default "GET")
---@field path? string (default "/"); absolute URLs are refused
---@field headers? table<string, sandbar.Value|sandbar.Value[]>|{ [1]: string, [2]: sandbar.Value }[] by name, or pairs in order
---@field body? sandbar.Value|(fun(): string?)|any the body, a source of its pieces (nil: the end) or a file
---@field max_body? integer bytes of a body that is not streamed; a longer one is LimitExceeded (default 64 MiB)
---@field wait? sandbar.Duration how long to wait for somebody to listen (default 0)
---@field stream? boolean the body comes as something to read
---@field timeout? sandbar.Timeout (default: none)

--- An array of { name, value } that is also indexed by name, whatever the case: headers["content-type"].
--- `headers:all(name)` gives every value, `headers:each()` iterates in order with repeats.
---@class sandbar.Headers

---@class sandbar.Response
---@field status integer
---@field reason? string the text behind the status
---@field headers sandbar.Headers
---@field body string|table with `stream`, something to read

--- A port of a sandbox. Closed: Unavailable (code ECONNREFUSED); paused: NotRunning; destroyed: NotFound.
---@class sandbar.Port
---@field number integer
---@field url? string absent where there is none
---@field headers table<string, sandbar.Value> what a request from elsewhere needs
local Port = {}

--- One HTTP exchange. The application's own 404 is a response. No redirect is followed.
---@param request? sandbar.Request
---@return sandbar.Response? response
---@return sandbar.Error? err
function Port:fetch(request) end

--- Not in this version: Unsupported.
---@param path string
---@param options? table
---@return any websocket
---@return sandbar.Error? err
function Port:websocket(path, options) end

--- Raw bytes both ways.
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Connection? connection
---@return sandbar.Error? err
function Port:connect(options) end

--- Until somebody listens.
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err Timeout
function Port:wait(options) end

--- Recorded with the sandbox; survives pauses and is seen by other programs.
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function Port:expose(options) end

---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function Port:unexpose(options) end

--- Where a proxy on this machine sends requests for it.
---@param options? { timeout?: sandbar.Timeout }
---@return { address: string, host: string, headers: table }? upstream
---@return sandbar.Error? err
function Port:upstream(options) end

--- A reference dropped; nothing on the sandbox's side changes. Idempotent.
---@return true
function Port:close() end

--- Raw bytes to and from a port.
---@class sandbar.Connection
local Connection = {}

--- As of a process's output.
---@param what? integer|"l"|"L"|"a"
---@param options? { timeout?: sandbar.Timeout, max?: integer }
---@return string? data
---@return sandbar.Error? err
function Connection:read(what, options) end

---@param what? "l"|"L"
---@param options? { timeout?: sandbar.Timeout, max?: integer }
---@return fun(): string?
function Connection:lines(what, options) end

---@param data string
---@param options? { timeout?: sandbar.Timeout }
---@return integer? written
---@return sandbar.Error? err
function Connection:write(data, options) end

--- The other side sees the end; what it still sends can be read.
---@return true
function Connection:close_write() end

--- Idempotent.
---@return true
function Connection:close() end
