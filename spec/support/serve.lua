-- A `sandbar serve` of its own, as a separate process on the spec's state root.

local helper = require "spec.helper"

local serve = {}

local KEYS = { "e2b_" .. ("a1"):rep(20), "e2b_" .. ("b2"):rep(20) }

--- Starts one: { url, key, other_key (of another team), stop() }. `args`: more of its command line.
function serve.start(args)
  local keys = helper.write_file(helper.scratch() .. "/keys", table.concat(KEYS, "\n") .. "\n")
  local line = { "serve", "--root", helper.root(), "--listen", "127.0.0.1:0", "--api-key-file", keys }
  for _, arg in ipairs(args or {}) do
    line[#line + 1] = arg
  end
  local child = helper.start_lua(nil, { file = "src/main/sandbar.lua", args = line, timeout = 150 })
  local url
  while not url do
    local text = child:line()
    if not text then
      error("sandbar serve did not start: " .. child:wait().stderr, 0)
    end
    url = text:match("E2B_API_URL=(%S+)")
  end
  local server = { url = url, key = KEYS[1], other_key = KEYS[2], pid = child.pid }
  -- Ends it as if by accident: its sandboxes stay.
  function server.kill()
    child:signal("KILL")
    return child:wait()
  end
  -- Ends it: the record of its end. What it had made is destroyed.
  function server.stop()
    child:signal("TERM")
    local record = child:wait()
    os.remove(keys)
    local sandboxes = helper.open()
    for _, info in ipairs(assert(sandboxes:list())) do
      assert(sandboxes:destroy(info.id))
    end
    sandboxes:close()
    return record
  end
  return server
end

return serve
