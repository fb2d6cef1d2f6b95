-- Capabilities: what a provider claims, what was measured in a real sandbox, and whether a program's
-- expectations hold. Names are the contract's; what is not claimed is false.

local core = require "sandbar.core"
local errors = require "sandbar.errors"

local capabilities = {}

capabilities.names = {
  "workspace_coherent", "filesystem_isolated", "process_isolated", "network_isolated",
  "egress_restricted", "privilege_isolated", "tree_kill", "signals", "pause_memory", "pause_disk",
  "memory_survives_reboot", "survives_service_stop", "snapshot", "fork", "watch", "open_files",
  "append", "atomic_write", "xattrs", "signed_urls", "pty", "output_tail", "spool", "raw_ports",
  "websocket", "public_url", "setuid", "name_rules", "deny_over_allow", "inject_http",
  "inject_https", "udp", "limit_memory", "limit_cpu", "limit_processes", "limit_disk",
  "oom_reported", "release_after_exit",
}

local known = {}
for _, name in ipairs(capabilities.names) do
  known[name] = true
end

-- Every name, false where `claims` says nothing.
function capabilities.complete(claims)
  local out = {}
  for _, name in ipairs(capabilities.names) do
    out[name] = claims[name] or false
  end
  return out
end

-- `expect` is a list of names that must not be false, or a table name = value. True, or Unsupported.
function capabilities.check(expect, claims)
  local function refuse(name, want)
    return nil, errors.new {
      kind = known[name] and "Unsupported" or "InvalidArgument",
      clause = "expect." .. tostring(name),
      message = known[name]
        and ("expect: %s is %s here, %s is wanted"):format(name, tostring(claims[name]), tostring(want))
        or ("expect: there is no capability %q"):format(tostring(name)),
    }
  end
  for key, value in pairs(expect) do
    if type(key) == "number" then
      if not known[value] or not claims[value] then
        return refuse(value, "it")
      end
    elseif not known[key] or claims[key] ~= value then
      return refuse(key, value)
    end
  end
  return true
end

-- ---- measuring ----

local function run(box, cmd, opts)
  opts = opts or {}
  opts.timeout = opts.timeout or 10
  return box:exec(cmd, opts)
end

-- Each probe gives a value and its evidence, or nil and why it could not tell.
local PROBES = {
  workspace_coherent = function(box)
    local dir, err = box.files:temp_dir()
    if not dir then
      return nil, tostring(err)
    end
    local text = core.uuid()
    box.files:write(dir .. "/probe", text)
    local r = run(box, { "cat", dir .. "/probe" })
    box.files:remove(dir, { recursive = true })
    return r ~= nil and r.stdout == text, "a file written by the API was read by a command"
  end,
  process_isolated = function(box)
    local r = run(box, "ls /proc | grep -c '^[0-9]'; cat /proc/1/comm")
    if not r or not r.ok then
      return nil, "ls /proc failed"
    end
    local count, name = r.stdout:match("^(%d+)\n([^\n]*)")
    return tonumber(count) ~= nil and tonumber(count) < 64,
      ("%s processes are visible, pid 1 is %s"):format(tostring(count), tostring(name))
  end,
  network_isolated = function(box)
    local r = run(box, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | tr '\\n' ' '")
    if not r or not r.ok then
      return nil, "/proc/net/dev could not be read"
    end
    return r.stdout == "lo ", "network interfaces inside: " .. r.stdout
  end,
  privilege_isolated = function(box)
    local r = run(box, "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr '\\t\\n' '  '")
    if not r or not r.ok then
      return nil, "/proc/self/status could not be read"
    end
    return r.stdout:match("CapEff: *0+ ") ~= nil, "a command has " .. r.stdout
  end,
  tree_kill = function(box)
    local p = box:start("setsid sleep 987654 & sleep 987654", { stdout = "ignore", stderr = "ignore" })
    if not p then
      return nil, "sleep could not be started"
    end
    p:kill { signal = "KILL", grace = 0 }
    p:close()
    local r = run(box, "grep -zlx 987654 /proc/[0-9]*/cmdline 2>/dev/null | wc -l")
    local gone = r ~= nil and tonumber(r.stdout) == 0
    return gone and "exact" or false, "children that left the session were " .. (gone and "gone" or "alive")
  end,
  append = function(box)
    local dir = box.files:temp_dir()
    if not dir then
      return nil, "no directory for it"
    end
    box.files:write(dir .. "/a", "1")
    box.files:write(dir .. "/a", "2", { flag = "a" })
    local data = box.files:read(dir .. "/a")
    box.files:remove(dir, { recursive = true })
    return data == "12", "two writes, one appending, gave " .. tostring(data)
  end,
}

-- { name = { value, evidence, at } } of what could be measured in this sandbox.
function capabilities.measure(box)
  local out = {}
  for name, probe in pairs(PROBES) do
    local value, evidence = probe(box)
    if value ~= nil then
      out[name] = { value = value, evidence = evidence, at = core.wall() }
    end
  end
  return out
end

return capabilities
