-- An open file of a sandbox as the handles use it: the engine's, whose operations are waited for here, or one in a
-- hosted sandbox (`remote`), which waits by itself.

local wait = require "sandbar.wait"

local openfile = {}

--- Up to `n` bytes from `pos`; nil at the end, or nil and an error. `must_park`: the others get a turn.
function openfile.read(native, pos, n, timeout, op, must_park)
  if native.remote then
    return native:read(pos, n, timeout, op)
  end
  return wait.bytes(native:read(pos, n), timeout, op, must_park)
end

--- How many bytes were written, or nil and an error.
function openfile.write(native, pos, data, timeout, op)
  if native.remote then
    return native:write(pos, data, timeout, op)
  end
  local r, err = wait.op(native:write(pos, data), timeout, op)
  return r and r.number, err
end

--- How long it is, or nil and an error.
function openfile.size(native, timeout, op)
  if native.remote then
    return native:size(timeout, op)
  end
  local r, err = wait.op(native:size(), timeout, op)
  return r and r.number, err
end

return openfile
