-- Helper commands in a hosted sandbox: what the daemon cannot do by itself, as StartRequests. Nothing of a program's is
-- part of their texts; they are not listed among the processes.

local message = require "sandbar.e2b.message"

local helper = {}

--- Of every helper.
helper.TAG = "sandbar:helper"

-- What sends signals: $1 its number, $2 the process (perhaps with zeros before it), $3 how long the group may take, in
-- tenths of a second.
local SEND = [[kill "-$1" "$2" 2>/dev/null]]
local SEND_GROUP = [[kill "-$1" "-$2" 2>/dev/null || kill "-$1" "$2" 2>/dev/null]]
local END_GROUP = [[p=${2#"${2%%[!0]*}"}
kill "-$1" "-$p" 2>/dev/null || kill "-$1" "$p" 2>/dev/null || exit 1
n=$3
while [ "$n" -gt 0 ] && kill -0 "-$p" 2>/dev/null; do sleep 0.1; n=$((n-1)); done
kill -9 "-$p" 2>/dev/null
exit 0]]

-- A process: when it started (ticks after boot), and which run of the sandbox this is: the kernel's, and since that may
-- have more than one sandbox, when its first process started. A process's name may hold anything.
helper.IDENTITY = [[set -f
ticks() { l= s= ; while IFS= read -r l; do s="$s $l"; done <"/proc/$1/stat" || return 1; set -- ${s##*) }; t=${20}; }
read -r boot </proc/sys/kernel/random/boot_id
ticks 1 || exit 1
boot=$boot.$t
]]
local IDENTIFY = helper.IDENTITY .. [[ticks "$1" 2>/dev/null || exit 1
echo "$boot $t"]]

local function request(text, ...)
  return { process = { cmd = "/bin/sh", args = { "-c", text, "sh", ... } }, stdin = false, tag = helper.TAG }
end
helper.request = request

--- Sends a signal to a process, or to all of its group. It fails when there is none.
function helper.signal(number, pid, group)
  return request(group and SEND_GROUP or SEND, ("%d"):format(number), ("%d"):format(pid))
end

--- Ends a group: with the signal, and after the grace (ms) without mercy.
function helper.kill(number, pid, grace_ms)
  return request(END_GROUP, ("%d"):format(number), ("%d"):format(pid), ("%d"):format(math.ceil(grace_ms / 100)))
end

--- Says "boot ticks" of a process.
function helper.identify(pid)
  return request(IDENTIFY, ("%d"):format(pid))
end

local PLACE = "0987654321" -- stands for the number of a process

--- The body of a call that ends a group without mercy, in its envelope, and where the number of the process stands in
--- it, in ten digits.
function helper.killer()
  local kill = request(END_GROUP, "9", PLACE, "0")
  local body = message.envelope(0, message.encode("process.StartRequest", kill, "proto"))
  return body, body:find(PLACE, 1, true) - 1
end

return helper
