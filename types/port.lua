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
---@field websocket_url? string the same for websockets
---@field headers table<string, sandbar.Value> what a request from elsewhere needs
local Port = {}

--- One HTTP exchange. The application's own 404 is a response. No redirect is followed.
---@param request? sandbar.Request
---@return sandbar.Response? response
---@return sandbar.Error? err
function Port:fetch(request) end

--- A websocket at a path. The same rule for `Host` as fetch has. An answer that opens none is Protocol, with its `status`.
---@param path? string (default "/")
---@param options? sandbar.WebSocketOptions
---@return sandbar.WebSocket? websocket
---@return sandbar.Error? err
function Port:websocket(path, options) end

--- Raw bytes both ways; of a hosted port Unsupported.
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.Connection? connection
---@return sandbar.Error? err
function Port:connect(options) end

--- Until somebody listens; of a hosted port until the program answers `OPTIONS /`, with any status.
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err Timeout (`cause`: what was the last answer)
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

---@class sandbar.WebSocketOptions
---@field headers? table<string, sandbar.Value|sandbar.Value[]>|{ [1]: string, [2]: sandbar.Value }[] as of fetch; those
---  of the handshake itself are refused
---@field protocols? string[] sub-protocols to offer
---@field max_message? integer bytes; a longer one is LimitExceeded and ends it (default 64 MiB)
---@field wait? sandbar.Duration how long to wait for somebody to listen (default 0)
---@field timeout? sandbar.Timeout of the opening (default: none)

--- Messages both ways. Pings are answered, fragments put together. What arrives while nobody receives is kept up to
--- 256 KiB and a message; then the sender has to wait.
---@class sandbar.WebSocket
---@field headers sandbar.Headers of the answer
---@field protocol? string the sub-protocol that was chosen
---@field close_code? integer once receive has told the end: what the other side gave (1005: none)
---@field close_reason? string
local WebSocket = {}

--- True once the system has taken it all. One that timed out may still be sent, as a whole.
---@param data string
---@param options? { binary?: boolean, timeout?: sandbar.Timeout }
---@return true? sent
---@return sandbar.Error? err InvalidArgument: text that is not UTF-8; Closed
function WebSocket:send(data, options) end

--- The next message. nil alone: the other side has closed. One receiver at a time.
---@param options? { timeout?: sandbar.Timeout }
---@return string? data
---@return "text"|"binary"|sandbar.Error? kind_or_err OutcomeUnknown: it ended without a close
function WebSocket:receive(options) end

--- An iterator over messages, until the other side closes.
---@param options? { timeout?: sandbar.Timeout } of each
---@return fun(): string?, string?
function WebSocket:messages(options) end

--- Tells the other side and waits for its answer, no longer than `timeout` (5 s; 0: not at all). Idempotent.
---@param options? { code?: integer, reason?: string, timeout?: sandbar.Timeout } code: 1000 (default), 1001, 3000 to 4999
---@return true? closed
---@return sandbar.Error? err
function WebSocket:close(options) end
