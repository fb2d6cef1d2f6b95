-- What sandboxes without limits have: the machine's processors and memory.

local machine = {}

local function read(path)
  local file = io.open(path, "r")
  local text = file and file:read("*a") or ""
  if file then
    file:close()
  end
  return text
end

local known

--- { cpus, memory (bytes) }.
function machine.get()
  if not known then
    local cpus = 0
    for _ in read("/proc/cpuinfo"):gmatch("processor%s*:") do
      cpus = cpus + 1
    end
    local kib = tonumber(read("/proc/meminfo"):match("MemTotal:%s*(%d+)")) or 0
    known = { cpus = math.max(cpus, 1), memory = kib * 1024 }
  end
  return known
end

--- Of a sandbox's info: its processors, its memory and its disk in bytes (0: as much as the machine has).
function machine.of(info)
  local limits = info.limits or {}
  local whole = machine.get()
  return math.max(math.ceil(limits.cpus or whole.cpus), 1), limits.memory or whole.memory, limits.disk or 0
end

return machine
