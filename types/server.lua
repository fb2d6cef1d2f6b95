---@meta sandbar.server.http

---@class sandbar.ServerOptions
---@field address? string an IP address, or "localhost"; this or `path`
---@field port? integer (default 0: any free one)
---@field path? string of a unix socket that only this user may connect to; it goes with the listener
---@field tls_cert? string a PEM file: the certificate and those that lead to it
---@field tls_key? string a PEM file: its key, without a pass phrase
---@field max_connections? integer (default 1024); more wait, idle ones go first
---@field header_limit? integer bytes of a head (default and most 65536)
---@field header_timeout? sandbar.Duration for a whole head (default 10)
---@field idle_timeout? sandbar.Duration between two requests of a connection (default 60)
---@field body_timeout? sandbar.Duration without a byte of a body that is read (default 30)
---@field write_timeout? sandbar.Duration without the client taking a byte of a whole answer (default 30)
---@field stream_timeout? sandbar.Duration the same of one that is written piece by piece (default 600)
---@field tunnel_timeout? sandbar.Duration of an upgraded connection, without a byte either way (default 620)

--- What `require("sandbar.server.http").listen(options)` gives.
---@class sandbar.ServerListener
local ServerListener = {}

--- Where it listens.
---@return { address?: string, port?: integer, path?: string } where
function ServerListener:address() end

--- The next request of any client. Those of one connection come one after another.
---@param timeout? sandbar.Timeout
---@return sandbar.ServerRequest? request
---@return sandbar.Error? err Closed after close()
function ServerListener:accept(timeout) end

--- No more connections and requests: what nobody has accepted is answered 503. What is being answered goes on.
---@return true ok
function ServerListener:close() end

--- Waits until no connection is left.
---@param timeout? sandbar.Timeout
---@return true? ok
---@return sandbar.Error? err
function ServerListener:drain(timeout) end

--- Closes it and cuts every connection at once.
---@return true ok
function ServerListener:cut() end

--- A request. One that nobody answers is answered 500 when it is collected.
---@class sandbar.ServerRequest
---@field method string
---@field target string path and query as they came
---@field version string "1.1" or "1.0"
---@field host? string
---@field headers sandbar.Headers
---@field length? integer of the body; absent when it comes in chunks
---@field peer string "127.0.0.1:4711", "[::1]:4711" or "unix"
---@field secure boolean whether it came by TLS
local ServerRequest = {}

--- A piece of the body, nil at its end.
---@param n? integer|"a" at most so many bytes (default 65536); "a": all of it, at most 64 MiB
---@param timeout? sandbar.Timeout
---@return string? data
---@return sandbar.Error? err Closed: the client went away inside of it; Protocol: it is none; Timeout
function ServerRequest:read(n, timeout) end

--- The body as the source of a request that passes it on.
---@param n integer at most so many bytes in a piece
---@param timeout sandbar.Timeout for each piece
---@return any source what `port:fetch` takes as its body
function ServerRequest:pieces(n, timeout) end

--- The whole body, "" when there is none.
---@param max? integer (default 64 MiB)
---@param timeout? sandbar.Timeout
---@return string? data
---@return sandbar.Error? err LimitExceeded: it is longer
function ServerRequest:read_all(max, timeout) end

--- The whole answer.
---@param status integer 200 to 599
---@param headers? table<string, sandbar.Value|sandbar.Value[]>|{ [1]: string, [2]: sandbar.Value }[] Connection only "close"
---@param body? sandbar.Value (default "")
---@return true? ok it is on its way
---@return sandbar.Error? err InvalidArgument: nothing was sent; Closed: the client has gone away, or it was answered
function ServerRequest:respond(status, headers, body) end

--- Begins an answer whose body is written piece by piece: in chunks, or as long as its Content-Length says.
---@param status integer
---@param headers? table<string, sandbar.Value|sandbar.Value[]>|{ [1]: string, [2]: sandbar.Value }[]
---@param first? sandbar.Value a piece that goes with the head
---@return true? ok
---@return sandbar.Error? err
function ServerRequest:begin(status, headers, first) end

--- A piece of the body. Waits while 256 KiB wait for the client.
---@param data sandbar.Value
---@param timeout? sandbar.Timeout
---@return true? ok
---@return sandbar.Error? err Timeout: it is still on its way, or (after stream_timeout) the connection was cut
function ServerRequest:write(data, timeout) end

--- The end of a body that was written piece by piece.
---@param last? sandbar.Value its last piece
---@return true? ok
---@return sandbar.Error? err
function ServerRequest:finish(last) end

--- What comes out of a source becomes body of the answer, which has begun, without a look of Lua's at it. finish() follows.
---@param source sandbar.Output|sandbar.Connection a plain pipe that nobody reads
---@param framing? "raw"|"connect+json"|"connect+proto" (default "raw"); the others: data events of E2B's protocol
---@param kind? "stdout"|"stderr"|"pty" of those events (default "stdout")
---@return integer? bytes once the source has ended
---@return sandbar.Error? err Closed: the client has gone away; Busy: somebody reads the source, or pumps it
function ServerRequest:pump_out(source, framing, kind) end

--- pump_out that goes on beside its caller. Until it has been waited for, nobody else reads the source.
---@param source sandbar.Output|sandbar.Connection
---@param framing? "raw"|"connect+json"|"connect+proto"
---@param kind? "stdout"|"stderr"|"pty"
---@return sandbar.Pump? pump
---@return sandbar.Error? err
function ServerRequest:start_pump_out(source, framing, kind) end

--- What an open file has, from where it is on, becomes body of the answer, which has begun. finish() follows.
---@param file sandbar.File
---@param count? integer at most so many bytes
---@return integer? bytes how many it had
---@return sandbar.Error? err
function ServerRequest:send_file(file, count) end

--- The body goes into a target, which is not closed by that. An open file is written where it is.
---@param target sandbar.Input|sandbar.Connection|sandbar.File
---@param timeout? sandbar.Timeout
---@return integer? bytes
---@return sandbar.Error? err as read; Closed also: the target takes no more
function ServerRequest:pump_in(target, timeout) end

--- The body, up to where a delimiter begins (which is read next) or to its end, goes into an open file.
---@param file sandbar.File
---@param delimiter string 1 to 256 bytes
---@param early string what of the body was read already, without the delimiter
---@return integer? bytes
---@return sandbar.Error? err as pump_in
function ServerRequest:take_part(file, delimiter, early) end

--- From here on the connection is no HTTP: client and connection are each other's until both have closed. What of the
--- body was not read goes on as it came. Ending the wait cuts both.
---@param connection sandbar.Connection
---@param head? string sent first, as it is: the head of an answer
---@return true? ok
---@return sandbar.Error? err
function ServerRequest:upgrade(connection, head) end

--- Cuts the connection, so that the client sees that something is missing. Nothing when it has been answered.
---@return true ok
function ServerRequest:abort() end

--- Waits until the client has gone away, or has closed its side with nothing left to read (true), or the request has
--- been answered (false).
---@param timeout? sandbar.Timeout
---@return boolean? gone
---@return sandbar.Error? err
function ServerRequest:gone(timeout) end

--- Runs fn(...) as a task that does not outlive the client: when that has gone, or after `timeout`, its waits answer
--- Cancelled, and its end is waited for.
---@param timeout? sandbar.Timeout
---@param fn function
---@param ... any
---@return boolean? ended
---@return any result what fn returned; or the error, Cancelled (the client has gone) or Timeout
---@return any ...
function ServerRequest:attend(timeout, fn, ...) end

--- A pump that goes on beside who has started it.
---@class sandbar.Pump
local Pump = {}

--- Until it has ended. Ending the wait ends the pump.
---@param timeout? sandbar.Timeout
---@return integer? bytes
---@return sandbar.Error? err Cancelled after stop()
function Pump:wait(timeout) end

--- Ends it. What it has taken from its source is on its way.
function Pump:stop() end

---@class sandbar.ServeOptions
---@field listen? string address and port (default "127.0.0.1:3000"); one that is no loopback needs api_key_file
---@field root? string where the state is kept, as of sandbar.open
---@field api_key_file? string keys that may ask, a line each; without it the server makes one of its own
---@field tls_cert? string a PEM file: HTTPS, with tls_key
---@field tls_key? string a PEM file
---@field domain? string host names of sandboxes (default "localhost" with the port)

--- A server of the E2B protocol: docs/server.md.
---@class sandbar.Serving
---@field url string
---@field api_key? string the one that it made
local Serving = {}

--- Until it has ended.
---@param options? { timeout?: sandbar.Timeout }
---@return true? ok
---@return sandbar.Error? err
function Serving:wait(options) end

--- Accepts nothing more and cuts what is open. Its sandboxes go on. Idempotent.
---@return true
function Serving:close() end
