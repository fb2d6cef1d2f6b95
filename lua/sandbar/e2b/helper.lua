-- Helper commands in a hosted sandbox: what the daemon cannot do by itself, as StartRequests. Nothing of a program's is
-- part of their texts; they are not listed among the processes.

local message = require "sandbar.e2b.message"

local helper = {}

--- Of every helper.
helper.TAG = "sandbar:helper"

--- The environment of every helper in Perl: nothing of the sandbox's changes what it does.
helper.PERL = { PERL5OPT = "", PERL5LIB = "", PERLLIB = "", PERL_UNICODE = "", LC_ALL = "C" }

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

-- What sends signals: $1 its number, $2 the process (perhaps with zeros before it), $3 how long the group may take, in
-- tenths of a second. A number alone names nobody: $4 is the run of the sandbox that it is of, $5 when the process
-- began, "-" when it is known to have ended, so that whoever has the number is another one, and only of its group
-- something may be left. Either is empty where it is not to be looked at. Ends with 1 where there is none, 3 in another
-- run.
local CHECK = [[p=${2#"${2%%[!0]*}"}
if [ "$4$5" ]; then
]] .. helper.IDENTITY .. [[[ -z "$4" ] || [ "$4" = "$boot" ] || exit 3
[ -z "$5" ] || ! ticks "$p" 2>/dev/null || [ "$5" = "$t" ] || exit 1
fi
]]
local SEND = CHECK .. [[kill "-$1" "$p" 2>/dev/null]]
local SEND_GROUP = CHECK .. [[kill "-$1" "-$p" 2>/dev/null || kill "-$1" "$p" 2>/dev/null]]
local END_GROUP = CHECK .. [[kill "-$1" "-$p" 2>/dev/null || kill "-$1" "$p" 2>/dev/null || exit 1
n=$3
while [ "$n" -gt 0 ] && kill -0 "-$p" 2>/dev/null; do sleep 0.1; n=$((n-1)); done
kill -9 "-$p" 2>/dev/null
exit 0]]

local function request(text, ...)
  return { process = { cmd = "/bin/sh", args = { "-c", text, "sh", ... } }, stdin = false, tag = helper.TAG }
end
helper.request = request

--- Of a helper that found another run of the sandbox than the process was of, the exit code.
helper.ANOTHER_RUN = 3

local function sending(text, number, who, tenths)
  return request(text, ("%d"):format(number), who.pid, ("%d"):format(tenths or 0), who.run or "", who.ticks or "")
end

--- Sends a signal to a process, or to all of its group. It fails when there is none. `who`: pid (a text), run and ticks
--- as above.
function helper.signal(number, who, group)
  return sending(group and SEND_GROUP or SEND, number, who)
end

--- Ends a group: with the signal, and after the grace (ms) without mercy.
function helper.kill(number, who, grace_ms)
  return sending(END_GROUP, number, who, math.ceil(grace_ms / 100))
end

--- Says "boot ticks" of a process.
function helper.identify(pid)
  return request(IDENTIFY, ("%d"):format(pid))
end

local PLACE = "0987654321" -- stands for the number of a process

--- The body of a call that ends a group without mercy, in its envelope, and where the number of the process stands in
--- it, in ten digits.
function helper.killer(run, ticks)
  local kill = helper.kill(9, { pid = PLACE, run = run, ticks = ticks }, 0)
  local body = message.envelope(0, message.encode("process.StartRequest", kill, "proto"))
  return body, body:find(PLACE, 1, true) - 1
end

return helper
