-- What the local engine claims on this machine, from what its supervisor found out.

local capabilities = require "sandbar.capabilities"

local claims = {}

-- True on every machine the engine runs on.
local ALWAYS = {
  workspace_coherent = true,
  filesystem_isolated = true,
  process_isolated = true,
  network_isolated = true,
  egress_restricted = true,
  privilege_isolated = true,
  signals = "all",
  pause_memory = true,
  pause_disk = true,
  snapshot = true,
  fork = true,
  watch = true,
  open_files = true,
  append = true,
  atomic_write = true,
  xattrs = true,
  output_tail = true,
  pty = true,
  spool = true,
  raw_ports = true,
  websocket = true,
  setuid = true,
  release_after_exit = true,
}

-- `hello` is the supervisor's greeting: `cap` is a list of names, or "name=value".
function claims.of(hello)
  local out = {}
  for name, value in pairs(ALWAYS) do
    out[name] = value
  end
  out.tree_kill = hello.mode_name == "root" and "exact" or "descendants"
  for _, text in ipairs(hello.cap or {}) do
    local name, value = text:match("^([%w_]+)=(.*)$")
    if not name then
      out[text] = true
    elseif value == "true" or value == "1" then
      out[name] = true
    elseif value == "false" or value == "0" then
      out[name] = false
    else
      out[name] = value
    end
  end
  return capabilities.complete(out)
end

return claims
