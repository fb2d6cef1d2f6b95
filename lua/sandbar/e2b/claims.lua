-- What the provider claims by itself: what its protocol does, whoever runs the machines. What the machines isolate is
-- the host's to attest (open { capabilities }); what is not named is false.

local capabilities = require "sandbar.capabilities"

local claims = {}

local OURS = {
  workspace_coherent = true,
  filesystem_isolated = true,
  process_isolated = true,
  pause_memory = true,
  pause_disk = true,
  memory_survives_reboot = true,
  survives_service_stop = true,
  snapshot = true,
  fork = true,
  public_url = true,
  websocket = true,
  setuid = true,
  name_rules = true,
  signals = "all",
  tree_kill = "group",
  pty = true,
  spool = true,
  watch = true,
  open_files = true,
  append = true,
  atomic_write = true,
  xattrs = true,
  signed_urls = true,
}

--- A new table, complete.
function claims.all()
  return capabilities.complete(OURS)
end

return claims
