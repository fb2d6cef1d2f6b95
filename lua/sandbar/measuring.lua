-- What a provider's capabilities are worth on this machine: each is tried in a sandbox of the caller's, and told with
-- what was tried and what came back. The sandbox is left as it was; nothing is paused, copied or used up.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local link = require "sandbar.link"

local STEP = 10 -- seconds that one thing may take

local measuring = {}

-- One step of the measurement of `m`: the options it gets, with no more time than is left of the whole.
local function limited(m, opts)
  opts = opts or {}
  opts.timeout = math.min(STEP, link.left(m.deadline) or STEP)
  return opts
end

local function run(m, cmd, opts)
  return m.box:exec(cmd, limited(m, opts))
end

-- The output of a shell line that succeeded, or nil and why not.
local function said(m, line, opts)
  local r, err = run(m, line, opts)
  if not r then
    return nil, tostring(err)
  elseif not r.ok then
    return nil, ("a command ended with status %d"):format(r.exit_code)
  end
  return r.stdout
end

-- What fn(a fresh directory inside) gives.
local function with_dir(m, fn)
  local dir, err = m.box.files:temp_dir(limited(m))
  if not dir then
    return nil, tostring(err)
  end
  local value, evidence = fn(dir)
  m.box.files:remove(dir, limited(m, { recursive = true }))
  return value, evidence
end

local function one_line(text)
  return (text:gsub("%s+$", ""):gsub("%s+", " "))
end

-- A command, its child in a session of its own, and an orphan there that is nobody's descendant any more. All of
-- them have their number as an argument; what looks for them has none.
local KIN = "setsid sleep 987651 >/dev/null & (setsid sleep 987652 >/dev/null &); echo; exec sleep 987650 >/dev/null"
local SURVIVORS = [[for f in /proc/[0-9]*/cmdline; do
  word=$(tr '\0' '\n' <"$f" 2>/dev/null | grep -x '98765[012]') || continue
  echo $word
  kill -9 $(echo "$f" | cut -d/ -f3)
done; true]]

-- What nobody inside may do, each with an honest program for it where there is one.
local FORBIDDEN = [[try() { name=$1; shift; "$@" >/dev/null 2>&1 && echo "$name"; }
try mount mount -t tmpfs none /tmp
try unshare unshare --user true
try mknod mknod /tmp/.sandbar-node b 254 0
try setting sh -c 'echo 1 >/proc/sys/kernel/randomize_va_space'
try hostname hostname taken
try memory sh -c 'head -c1 /proc/1/mem'
rm -f /tmp/.sandbar-node
true]]

-- By name: a value and its evidence, or nil and why it could not tell.
local PROBES = {}

function PROBES.workspace_coherent(m)
  return with_dir(m, function(dir)
    local text = core.uuid()
    local ok, err = m.box.files:write(dir .. "/probe", text, limited(m))
    if not ok then
      return nil, tostring(err)
    end
    local r
    r, err = run(m, { "cat", dir .. "/probe" })
    if not r then
      return nil, tostring(err)
    end
    return r.stdout == text, "a file written by the API, read by a command, gave "
      .. (r.stdout == text and "the same" or "something else")
  end)
end

function PROBES.filesystem_isolated(m)
  return with_dir(m, function(dir)
    local path = dir .. "/probe"
    local ok, err = m.box.files:write(path, core.uuid(), limited(m))
    if not ok then
      return nil, tostring(err)
    end
    local here = io.open(path, "rb")
    if here then
      here:close()
    end
    return here == nil, ("%s, made inside, %s on this machine"):format(path, here and "is there" or "is not there")
  end)
end

function PROBES.process_isolated(m)
  local text, err = said(m, "ls /proc | grep -c '^[0-9]'; cat /proc/1/comm")
  if not text then
    return nil, err
  end
  local count, name = text:match("^(%d+)\n([^\n]*)")
  return tonumber(count) ~= nil and tonumber(count) < 64,
    ("%s processes are visible, pid 1 is %s"):format(tostring(count), tostring(name))
end

function PROBES.network_isolated(m)
  local text, err = said(m, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | tr '\\n' ' '")
  return text and text == "lo ", text and "network interfaces inside: " .. text or err
end

function PROBES.egress_restricted(m)
  local text, err = said(m, "tail -n +2 /proc/net/route | cut -f1; [ ! -e /proc/net/ipv6_route ] || " ..
    "while read -r line; do echo ${line##* }; done </proc/net/ipv6_route")
  if not text then
    return nil, err
  end
  local other = (text:gsub("lo\n", ""))
  return other == "", other == "" and "no route leads to an interface other than lo"
    or "routes lead to " .. one_line(other)
end

-- What root inside may have, over its own sandbox: chown to setpcap, net_bind_service, sys_chroot, setfcap. The
-- digits of a set of capabilities, the lowest last.
local ROOT_INSIDE = "800405fb"

local function within(set, allowed)
  allowed = ("0"):rep(#set - #allowed) .. allowed
  for i = 1, #set do
    local has, may = tonumber(set:sub(i, i), 16), tonumber(allowed:sub(i, i), 16)
    for bit = 0, 3 do
      if math.floor(has / 2 ^ bit) % 2 > math.floor(may / 2 ^ bit) % 2 then
        return false
      end
    end
  end
  return true
end

function PROBES.privilege_isolated(m)
  local text, err = said(m, "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr '\\t\\n' '  '; "
    .. "echo user $(id -u)")
  local done, why = said(m, FORBIDDEN)
  if not text or not done then
    return nil, err or why
  end
  text = one_line(text)
  local worked, id = one_line(done), text:match("user (%d+)$")
  local set = text:match("CapEff: *(%x+)") or "f"
  return within(set, id == "0" and ROOT_INSIDE or "0") and text:match("Seccomp: *[12]") ~= nil and worked == "",
    ("a command has %s; mounting, namespaces, nodes, settings, the host name, pid 1's memory: %s"):format(text,
      worked == "" and "all refused" or worked .. " worked")
end

function PROBES.tree_kill(m)
  local p, err = m.box:start(KIN, limited(m, { stderr = "ignore" }))
  if not p then
    return nil, tostring(err)
  end
  local line
  line, err = p.stdout:read("l", limited(m))
  if line then
    line, err = p:kill(limited(m, { signal = "KILL", grace = 0 }))
  end
  p:close(limited(m))
  local left
  if line then
    left, err = run(m, SURVIVORS)
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
end

function PROBES.signals(m)
  local names, came = { "HUP", "USR1", "TERM", "KILL" }, {}
  for _, name in ipairs(names) do
    local p, err = m.box:start({ "sleep", "30" }, limited(m, { stdout = "ignore", stderr = "ignore" }))
    if not p then
      return nil, tostring(err)
    end
    local r
    r, err = p:signal(name, limited(m))
    if r then
      r, err = p:wait(limited(m))
    end
    if not r then
      p:kill(limited(m, { signal = "KILL", grace = 0 }))
    end
    p:close(limited(m))
    if not r then
      return nil, tostring(err)
    end
    came[#came + 1] = r.signal == "SIG" .. name and name or nil
  end
  return #came == #names and "all" or came,
    ("sent %s; ended by %s"):format(table.concat(names, ", "), table.concat(came, ", "))
end

function PROBES.append(m)
  return with_dir(m, function(dir)
    local ok, err = m.box.files:write(dir .. "/a", "1", limited(m))
    if ok then
      ok, err = m.box.files:write(dir .. "/a", "2", limited(m, { flag = "a" }))
    end
    local data
    if ok then
      data, err = m.box.files:read(dir .. "/a", limited(m))
    end
    return data and data == "12", data and "two writes, one appending, gave " .. data or tostring(err)
  end)
end

function PROBES.atomic_write(m)
  return with_dir(m, function(dir)
    local path, inodes = dir .. "/a", {}
    for i = 1, 2 do
      local ok, err = m.box.files:write(path, ("x"):rep(i), limited(m))
      local text = ok
      if ok then
        text, err = said(m, "ls -i " .. path)
      end
      if not text then
        return nil, tostring(err)
      end
      inodes[i] = text:match("%d+")
    end
    local names = said(m, "ls -A " .. dir)
    return inodes[1] ~= inodes[2] and names == "a\n",
      ("a file written twice was inode %s, then %s; beside it: %s"):format(tostring(inodes[1]), tostring(inodes[2]),
        names == "a\n" and "nothing" or one_line(tostring(names)))
  end)
end

function PROBES.open_files(m)
  return with_dir(m, function(dir)
    local f, err = m.box.files:open(dir .. "/f", "w+", limited(m))
    if not f then
      return nil, tostring(err)
    end
    local ok, back
    ok, err = f:write("12345", limited(m))
    if ok then
      ok, err = f:seek("set", 2, limited(m))
    end
    if ok then
      back, err = f:read(2, limited(m))
    end
    f:close()
    return back and back == "34", back and "five bytes written, two read at the third: " .. back or tostring(err)
  end)
end

function PROBES.xattrs(m)
  return with_dir(m, function(dir)
    local ok, err = m.box.files:write(dir .. "/x", "", limited(m, { xattrs = { ["user.probe"] = "1" } }))
    if not ok and err.kind ~= "Unsupported" then
      return nil, tostring(err)
    end
    local entry = ok and m.box.files:stat(dir .. "/x", limited(m, { xattrs = true }))
    local value = entry and entry.xattrs and entry.xattrs["user.probe"]
    return value == "1", "an attribute that was set reads as " .. tostring(value)
  end)
end

function PROBES.watch(m)
  return with_dir(m, function(dir)
    local watch, err = m.box.files:watch(dir, limited(m))
    if not watch then
      return nil, tostring(err)
    end
    local event
    local ok, why = m.box.files:write(dir .. "/new", "x", limited(m))
    if ok then
      event, why = watch:next(limited(m))
    end
    watch:close()
    return event and (event.path == "new" or event.path == dir .. "/new"),
      event and ("a new file was told as %s of %s"):format(event.type, event.path) or tostring(why)
  end)
end

function PROBES.pty(m)
  local r, err = run(m, "stty size; tty", { pty = { cols = 81, rows = 23 } })
  if not r and err.kind ~= "Unsupported" then
    return nil, tostring(err)
  end
  return r ~= nil and r.stdout:find("23 81", 1, true) ~= nil,
    r and "a terminal of 81 columns and 23 rows says: " .. one_line(r.stdout) or tostring(err)
end

function PROBES.output_tail(m)
  local p, err = m.box:start("echo kept; sleep 30", limited(m, { stdout = "tail", stderr = "ignore" }))
  if not p then
    return nil, tostring(err)
  end
  local line, other
  other, err = m.box:attach(p.pid, limited(m))
  if other then
    line, err = other.stdout:read("l", limited(m))
    other:close(limited(m))
  end
  p:kill(limited(m, { signal = "KILL", grace = 0 }))
  p:close(limited(m))
  return line and line == "kept", line and "whoever attaches reads what was written before: " .. line or tostring(err)
end

function PROBES.spool(m)
  local p, err = m.box:start("echo kept; echo more", limited(m, { stdout = "spool", stderr = "ignore" }))
  if not p then
    return err.kind == "Unsupported" and false or nil, tostring(err)
  end
  local text, other
  local ok, why = p:wait(limited(m))
  if ok then
    other, why = m.box:attach(p.pid, limited(m, { from = #"kept\n" }))
  end
  if other then
    text, why = other.stdout:read("a", limited(m))
    other:close(limited(m))
  end
  p:close(limited(m))
  return text and text == "more\n",
    text and "from the sixth byte on, after the end: " .. one_line(text) or tostring(why)
end

local ORDER = {}
for name in pairs(PROBES) do
  ORDER[#ORDER + 1] = name
end
table.sort(ORDER)

-- { name = { value, evidence, at } } of what could be measured in this sandbox, or nil and Timeout.
-- `deadline`: when `timeout`, which the caller gave, is over.
function measuring.all(box, deadline, timeout)
  local m = { box = box, deadline = deadline }
  local out = {}
  for _, name in ipairs(ORDER) do
    local value, evidence = PROBES[name](m)
    if m.deadline and link.left(m.deadline) == 0 then
      return nil, errors.new {
        kind = "Timeout", op = "capabilities", clock = "timeout", limit = timeout, id = box.id,
        message = ("not everything was measured within %g s"):format(timeout),
      }
    end
    if value ~= nil then
      out[name] = { value = value, evidence = evidence, at = core.wall() }
    end
  end
  return out
end

return measuring
