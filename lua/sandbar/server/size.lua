-- How much processor and memory the sandboxes of a template have: as its build was asked, where this machine can hold
-- them to it, else as much as the machine has.

local machine = require "sandbar.server.machine"
local reply = require "sandbar.server.reply"

local MIB = 1048576
local MOST_CPUS, LEAST_MEMORY, MOST_MEMORY = 32, 128, 1048576 -- MiB

local size = {}

--- What a build asks for: { cpus, memory (bytes) }, a field nil where it asks for nothing. Nil and a refusal.
function size.asked(given)
  local cpus, memory = given.cpuCount, given.memoryMB
  if cpus and (cpus < 1 or cpus > MOST_CPUS or cpus > 1 and cpus % 2 ~= 0) then
    return nil, reply.refusal(400, ("validation error: cpuCount is 1 or an even number up to %d"):format(MOST_CPUS))
  elseif memory and (memory < LEAST_MEMORY or memory > MOST_MEMORY or memory % 2 ~= 0) then
    return nil, reply.refusal(400, ("validation error: memoryMB is an even number from %d on"):format(LEAST_MEMORY))
  end
  return { cpus = cpus, memory = memory and memory * MIB }
end

--- What of it holds here, as limits of the contract. Nil and an error.
function size.held(provider, asked)
  local can, err = provider:capabilities()
  if not can then
    return nil, err
  end
  return { cpus = can.limit_cpu and asked.cpus or nil, memory = can.limit_memory and asked.memory or nil }
end

--- What sandboxes with such limits (nil: none) have: processors, MiB of memory.
function size.told(limits)
  local cpus, memory = machine.of { limits = limits }
  return cpus, math.floor(memory / MIB)
end

return size
