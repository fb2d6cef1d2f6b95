---@meta sandbar.openresty

---@class sandbar.openresty
local openresty = {}

--- Forwards the current request to a port of a sandbox, with streaming both ways and upgrades, and answers it.
--- The application sees `Host: localhost:<port>` unless told otherwise.
---@param port sandbar.Port
---@param options? table
---@return true? answered
---@return sandbar.Error? err nothing has been answered yet
function openresty.proxy(port, options) end

return openresty
