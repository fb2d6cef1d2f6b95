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

-- What fn(a fresh directory inside) gives.
local function with_dir(box, fn)
  local dir, err = box.files:temp_dir()
  if not dir then
    return nil, tostring(err)
  end
  local value, evidence = fn(dir)
  box.files:remove(dir, { recursive = true })
  return value, evidence
end

-- A command, its child in a session of its own, and an orphan there that is nobody's descendant any more. All of
-- them have their number as an argument; what looks for them has none.
local KIN = "setsid sleep 987651 >/dev/null & (setsid sleep 987652 >/dev/null &); echo; exec sleep 987650 >/dev/null"
local SURVIVORS = [[for f in /proc/[0-9]*/cmdline; do
  word=$(tr '\0' '\n' <"$f" 2>/dev/null | grep -x '98765[012]') || continue
  echo $word
  kill -9 $(echo "$f" | cut -d/ -f3)
done; true]]

-- Each probe gives a value and its evidence, or nil and why it could not tell.
local PROBES = {
  workspace_coherent = function(box)
    return with_dir(box, function(dir)
      local text = core.uuid()
      local ok, err = box.files:write(dir .. "/probe", text)
      local r
      if ok then
        r, err = run(box, { "cat", dir .. "/probe" })
      end
      if not r then
        return nil, tostring(err)
      end
      return r.stdout == text, "a file written by the API, read by a command, gave "
        .. (r.stdout == text and "the same" or "something else")
    end)
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
    local p, err = box:start(KIN, { stderr = "ignore" })
    if not p then
      return nil, tostring(err)
    end
    local line
    line, err = p.stdout:read("l", { timeout = 10 })
    if line then
      line, err = p:kill { signal = "KILL", grace = 0, timeout = 10 }
    end
    p:close { timeout = 10 }
    local left
    if line then
      left, err = run(box, SURVIVORS)
    end
    if not left or not left.ok then
      return nil, tostring(err or "the processes could not be looked at")
    end
    local found = {}
    for word in left.stdout:gmatch("%d+") do
      found[word] = true
    end
    local value = not next(found) and "exact" or not found["987651"] and not found["987650"] and "descendants"
      or not found["987650"] and "group" or false
    return value, ("alive after the kill: the command %s, a child in a session of its own %s, an orphan in one %s"
      ):format(found["987650"] and "yes" or "no", found["987651"] and "yes" or "no", found["987652"] and "yes" or "no")
  end,
  append = function(box)
    return with_dir(box, function(dir)
      local ok, err = box.files:write(dir .. "/a", "1")
      if ok then
        ok, err = box.files:write(dir .. "/a", "2", { flag = "a" })
      end
      local data
      if ok then
        data, err = box.files:read(dir .. "/a")
      end
      if not data then
        return nil, tostring(err)
      end
      return data == "12", "two writes, one appending, gave " .. data
    end)
  end,
  xattrs = function(box)
    return with_dir(box, function(dir)
      local ok, err = box.files:write(dir .. "/x", "", { xattrs = { ["user.probe"] = "1" } })
      if not ok and err.kind ~= "Unsupported" then
        return nil, tostring(err)
      end
      local entry = ok and box.files:stat(dir .. "/x", { xattrs = true })
      local value = entry and entry.xattrs and entry.xattrs["user.probe"]
      return value == "1", "an attribute that was set reads as " .. tostring(value)
    end)
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
