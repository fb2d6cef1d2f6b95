---@meta sandbar.progress

---@class sandbar.progress
local progress = {}

--- For `on_progress` of a build: shows it in a file of Lua's, on a terminal as a line for each step with the last line the
--- step has written, else as plain lines. Control characters of the build's are left out.
---@param file? file* (default stderr)
---@return fun(event: sandbar.BuildEvent) show
function progress.show(file) end

return progress
