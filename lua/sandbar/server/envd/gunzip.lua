-- Bodies that come compressed: unpacked by gzip inside the sandbox, as the sandbox's own work and memory.

local errors = require "sandbar.errors"
local stream = require "sandbar.stream"
local task = require "sandbar.task"

local gunzip = {}

--- The tag of the server's own commands: they are nobody's processes.
gunzip.TAG = "sandbar.serve"

--- A function that gives the pieces of what read() gives, unpacked, and one that ends it. Nil and an error.
function gunzip.reader(box, read)
  local process, err = box:start({ "gzip", "-dc" }, { user = "root", cwd = "/", stdin = "pipe", tag = gunzip.TAG })
  if not process then
    return nil, err
  end
  local broken
  task.spawn(function()
    while true do
      local piece, why = read()
      if not piece then
        broken = why
        break
      elseif not process.stdin:write(piece) then
        break
      end
    end
    process.stdin:close()
  end)
  local function pieces()
    local piece, why = stream.some(process.stdout)
    if piece or why then
      return piece, why
    end
    local result
    result, why = process:wait()
    if broken or not result then
      return nil, broken or why
    elseif not result.ok then
      return nil, errors.new { kind = "InvalidArgument", message = "the body is no gzip" }
    end
    return nil
  end
  return pieces, function()
    process:close()
  end
end

return gunzip
