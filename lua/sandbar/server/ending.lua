-- The end of `sandbar serve` that SIGTERM asks for: no more requests, what is being answered gets its time, then what
-- is still open is cut. A second SIGTERM does not wait.

local builds = require "sandbar.server.control.builds"
local native = require "sandbar.server"
local task = require "sandbar.task"
local teams = require "sandbar.server.control.teams"
local uploads = require "sandbar.server.control.uploads"
local wait = require "sandbar.wait"

local GRACE = 5 -- seconds for answers that are under way

local ending = {}

--- Closes the server's listener at the first SIGTERM of the process. A task: cancel() ends the watching.
function ending.watch(server)
  return task.spawn(function()
    if wait.op(native.ending(), false, "serve") then
      server.listener:close()
    end
  end)
end

--- Its listener is closed: answers end, at the latest after GRACE; then nothing of it is left. Sandboxes go on.
function ending.finish(server)
  server.listener:drain(GRACE)
  server.spread:shut()
  server.boxes:shut()
  server.listener:cut()
  server.volumes:shut()
  builds.stop(server)
  teams.stop(server)
  uploads.stop(server)
  server.store:close()
end

return ending
