-- What the engine answers, in the contract's words: milliseconds become seconds, "key\0value" becomes
-- a table, wait statuses become exit codes and signal names.

local lazy = require "sandbar.lazy"

local inject = lazy "sandbar.local.inject"

local SIGNALS = {
  HUP = 1, INT = 2, QUIT = 3, ILL = 4, TRAP = 5, ABRT = 6, BUS = 7, FPE = 8, KILL = 9, USR1 = 10,
  SEGV = 11, USR2 = 12, PIPE = 13, ALRM = 14, TERM = 15, STKFLT = 16, CHLD = 17, CONT = 18,
  STOP = 19, TSTP = 20, TTIN = 21, TTOU = 22, URG = 23, XCPU = 24, XFSZ = 25, VTALRM = 26,
  PROF = 27, WINCH = 28, IO = 29, PWR = 30, SYS = 31,
}
local ALIASES = { IOT = 6, POLL = 29, CLD = 17 }
local FIRST_REAL_TIME, LAST_SIGNAL = 34, 64 -- 32 and 33 are the C library's own
local STREAM_STDERR = 4 -- of the engine's bits

local NAMES = {}
for name, number in pairs(SIGNALS) do
  NAMES[number] = "SIG" .. name
end

local record = {}

-- "SIGKILL" for 9; real-time signals, which have no fixed name, are "SIGRTMIN+n".
function record.signal_name(number)
  if number >= FIRST_REAL_TIME then
    return ("SIGRTMIN+%d"):format(number - FIRST_REAL_TIME)
  end
  return NAMES[number] or ("SIG%d"):format(number)
end

-- A signal given by name ("TERM", "SIGTERM", "RTMIN+1", any case) or number; nil for none of these.
function record.signal_number(signal)
  if type(signal) == "number" then
    if signal >= 1 and signal <= LAST_SIGNAL and signal % 1 == 0 then
      return signal
    end
    return nil
  end
  local name = signal:upper():gsub("^SIG", "")
  local real_time = tonumber(name:match("^RTMIN%+(%d+)$"))
  if real_time and real_time <= LAST_SIGNAL - FIRST_REAL_TIME then
    return FIRST_REAL_TIME + real_time
  end
  return SIGNALS[name] or ALIASES[name]
end

-- Labels travel as "name=value"; in the name, = and % are written as %3D and %25.
function record.label(name, value)
  return name:gsub("[%%=]", { ["%"] = "%25", ["="] = "%3D" }) .. "=" .. value
end

function record.labels(list)
  local out = {}
  for _, item in ipairs(list or {}) do
    local name, value = item:match("^([^=]*)=(.*)$")
    if name then
      out[name:gsub("%%(%x%x)", { ["25"] = "%", ["3D"] = "=" })] = value
    end
  end
  return out
end

-- A list of "name\0value" as a table.
function record.pairs(list)
  local out = {}
  for _, item in ipairs(list or {}) do
    local key, value = item:match("^(%Z*)%z(.*)$")
    if key then
      out[key] = value
    end
  end
  return out
end

-- A table of strings as a sorted list of "name\0value".
function record.list(map)
  local keys, out = {}, {}
  for key in pairs(map) do
    keys[#keys + 1] = key
  end
  table.sort(keys)
  for i, key in ipairs(keys) do
    out[i] = key .. "\0" .. map[key]
  end
  return out
end

local function seconds(ms)
  if ms and ms > 0 then
    return ms / 1000
  end
  return nil
end

-- Repeated fields arrive as arrays, single ones as they are.
local function first(value)
  if type(value) == "table" then
    return value[1]
  end
  return value
end

local function cause_of(fields)
  local reason = fields.cause
  if not reason or reason == "" then
    return nil
  end
  return { reason = reason, message = fields.message }
end

-- The policy as a spec has it.
local function network_of(fields)
  if not fields.network and fields.provider_id then -- it was not told
    return nil
  end
  if fields.network ~= "rules" then
    return fields.network or "deny"
  end
  local rules, proxy = inject.of(fields.net_inject or {})
  return { allow = fields.net_allow or {}, deny = fields.net_deny or {}, inject = rules, upstream_proxy = proxy }
end

-- Connections that were refused, the latest first.
local function denied_of(fields)
  local out = {}
  for _, item in ipairs(fields.denied or {}) do
    local protocol, host, port, why, count, at = item:match("^(%l+)|([^|]*)|(%d+)|([^|]*)|(%d+)|(%d+)$")
    if protocol then
      out[#out + 1] = { protocol = protocol, host = host, port = tonumber(port), reason = why,
        count = tonumber(count), at = tonumber(at) / 1000 }
    end
  end
  table.sort(out, function(a, b)
    return a.at > b.at
  end)
  return out
end

-- The limits it has, where they are told (info() does); those that only callers keep to when they are not the usual.
local function limits_of(fields)
  if not fields.limit_processes then
    return nil
  end
  return {
    disk = fields.limit_disk,
    memory = fields.limit_memory,
    cpus = fields.limit_cpu and fields.limit_cpu / 1000,
    processes = fields.limit_processes,
    files = fields.limit_files,
    max_output = fields.limit_output,
    max_commands = fields.limit_started,
    max_concurrent_execs = fields.limit_commands,
    max_env = fields.limit_env,
    wall_time = seconds(fields.limit_wall_ms),
  }
end

-- A sandbox's record as info() and list() give it.
function record.sandbox(fields)
  local ports = {}
  for _, port in ipairs(fields.exposed or {}) do
    ports[#ports + 1] = tonumber(port)
  end
  table.sort(ports)
  local kept = fields.kept
  local state = first(fields.state) or "failed"
  return {
    id = fields.id,
    provider_id = fields.provider_id or fields.id,
    state = state,
    kept = kept ~= "" and kept or nil,
    labels = record.labels(fields.label),
    template = fields.template,
    snapshot = fields.snapshot,
    created_at = seconds(fields.created_ms),
    started_at = seconds(fields.started_ms),
    ends_at = state == "running" and seconds(fields.ends_ms) or nil,
    lifetime = seconds(fields.lifetime_ms),
    on_expiry = fields.on_expiry,
    owned = (fields.owned or 0) ~= 0,
    user = fields.user,
    cwd = fields.cwd,
    boot_id = fields.boot,
    network = network_of(fields),
    ports = ports,
    denied = denied_of(fields),
    cause = cause_of(fields),
    limits = limits_of(fields),
  }
end

-- A process as processes() lists it. `pid` names it; `serial` is the engine's and private.
function record.process(fields)
  return {
    pid = fields.pid,
    tag = fields.tag ~= "" and fields.tag or nil,
    args = fields.arg or {},
    cwd = fields.cwd,
    user = fields.user,
    detached = (fields.detached or 0) ~= 0,
    running = (fields.running or 0) ~= 0,
    start_ns = fields.start_ns,
    fingerprint = fields.fingerprint, -- where the vector itself is not known
    pty = fields.cols and { cols = fields.cols, rows = fields.rows } or nil,
  }
end

-- What an attach brought of the output so far: { stdout, stderr }.
function record.tails(parts)
  local out = { "", "" }
  for _, part in ipairs(parts or {}) do
    local fd = part.stream == STREAM_STDERR and 2 or 1
    out[fd] = out[fd] .. (part.data or "")
  end
  return out
end

-- Exit code and signal of a wait status: 128 + n and the name when signal n ended it.
function record.status(status)
  local number = status % 128
  if number == 0 then
    return math.floor(status / 256) % 256, nil
  end
  return 128 + number, record.signal_name(number)
end

-- exec's result, from what the engine said of a started and ended process. Text is left out when the
-- caller has taken it from the streams.
function record.result(fields, stdout, stderr, duration)
  local exit_code, signal
  if fields.status then
    exit_code, signal = record.status(fields.status)
  end
  local dropped, dropped_err = fields.dropped or 0, fields.dropped_err or 0
  local reason = fields.reason
  if not reason or reason == "" then
    reason = signal and "signal" or "exit"
  end
  return {
    ok = reason == "exit" and exit_code == 0,
    stdout = stdout,
    stderr = stderr,
    exit_code = exit_code,
    signal = signal,
    reason = reason,
    pid = fields.pid,
    truncated = dropped > 0 or dropped_err > 0,
    dropped = dropped + dropped_err,
    duration = duration,
  }
end

-- An entry of the file API.
function record.entry(fields)
  local size = fields.size
  return {
    name = fields.name,
    path = fields.path,
    type = fields.ftype,
    size = size,
    mode = fields.mode and ("%03o"):format(fields.mode % 4096) or nil,
    owner = fields.owner,
    group = fields.owner_group,
    uid = fields.uid,
    gid = fields.gid,
    mtime = fields.mtime_ns and fields.mtime_ns / 1e9 or nil,
    target = fields.target ~= "" and fields.target or nil,
    xattrs = fields.xattr and record.pairs(fields.xattr) or nil,
  }
end

return record
