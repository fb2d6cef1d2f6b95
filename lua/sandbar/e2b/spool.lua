-- Kept output ("spool") in a hosted sandbox. A command's output goes through a pipe to a keeper, a process of its own
-- session, which writes it into files of a private directory: pieces of 4 to 12 MiB, each named by the stream's number
-- and the offset that it begins at, the oldest removed when more than 64 MiB come after them. A minute after the end,
-- and when nobody reads, all of it goes. Any number of readers are helper commands that write the bytes from an offset
-- on, old and new ones; what a reader says first is where it begins.
--
-- In the directory: id (who the command is), keeper (its number), 1.live while stdout is open, 1.end or, when something
-- could not be written, 1.full after that, 1.‹offset›; r.‹token›.‹pid› of each reader, a token of its own: its number
-- may have been that of one that was killed.

local core = require "sandbar.core"
local errors = require "sandbar.errors"
local helper = require "sandbar.e2b.helper"
local machine = require "sandbar.e2b.worker.machine"
local own = require "sandbar.own"
local reference = require "sandbar.reference"

local spool = {}

local PLACE = "/tmp/.sandbar-" -- and the command's token
local MODES = { "1", "2", "1 2" }

local KEEPER = [[d=$1; shift 1
drain() {
  n=$1 s=0 last=0 k= how=end
  while :; do
    dd bs=65536 count=128 >>"$d/$n.$s" 2>/dev/null || { how=full; cat >/dev/null; break; }
    z=$(wc -c <"$d/$n.$s")
    [ "$z" -eq "$last" ] && break
    last=$z
    [ "$z" -lt 4194304 ] && continue
    k="$k $s"; s=$((s+z)); last=0
    : >"$d/$n.$s"
    set -- $k $s
    while [ $# -gt 1 ] && [ "$2" -le $((s-67108864)) ]; do rm -f "$d/$n.$1"; shift; done
    k=; while [ $# -gt 1 ]; do k="$k $1"; shift; done
  done
  mv "$d/$n.live" "$d/$n.$how"
}
for i; do drain "$i" <"$d/$i.in" & done
wait
sleep 60
while :; do
  b=; for r in "$d"/r.*; do [ -e "$r" ] && kill -0 "${r##*.}" 2>/dev/null && b=1; done
  [ "$b" ] || break
  sleep 5
done
rm -rf "$d"]]

-- Before the command, in its process: $1 its token, $2 what else tells it apart. The number of this process stays the
-- command's. Opening a pipe waits for its reader.
local BEGIN = [[_sbd=]] .. PLACE .. [[$1 _sba=$2; shift 2;
_sbf() { echo "sandbar: kept output: $1" >&2; exit 126; }
for _sbn in setsid mkfifo dd wc perl; do command -v $_sbn >/dev/null || _sbf "there is no $_sbn"; done
mkdir -m 700 "$_sbd" || _sbf "no directory"
for _sbn in %s; do
  mkfifo -m 600 "$_sbd/$_sbn.in" && : >"$_sbd/$_sbn.live" && : >"$_sbd/$_sbn.0" || _sbf "no file"
done
setsid /bin/sh -c ']] .. KEEPER .. [[' sh "$_sbd" %s </dev/null >/dev/null 2>&1 &
echo $! >"$_sbd/keeper"
(]] .. helper.IDENTITY .. [[ticks $$; echo "$$ $boot $t $_sba") >"$_sbd/id.new" &&
  mv "$_sbd/id.new" "$_sbd/id" || _sbf "no file"
%s
unset -f _sbf
]]
local OPEN = { [[exec >"$_sbd/1.in"; rm "$_sbd/1.in"]], [[exec 2>"$_sbd/2.in"; rm "$_sbd/2.in"]],
  [[exec >"$_sbd/1.in" 2>"$_sbd/2.in"; rm "$_sbd/1.in" "$_sbd/2.in"]] }

-- What looks into such a directory runs as root and trusts nothing in it, since it is the user's: it goes in where that
-- is a directory and no link, and opens files only. (A reader has become the user before.)
local LOOK = "use strict;\n" .. machine .. [==[
sub enter { my ($dir, $become) = @_;
  my @s = lstat $dir;
  return if !@s || !S_ISDIR($s[2]);
  if ($become && !$> && $s[4]) { $) = "$s[5] $s[5]"; $( = $s[5]; ($<, $>) = @s[4, 4]; exit 70 if $> != $s[4] }
  chdir $dir or return;
  my @in = stat ".";
  $in[0] == $s[0] && $in[1] == $s[1] }
sub file {
  sysopen my $h, $_[0], O_RDONLY | O_NONBLOCK | O_NOFOLLOW or return;
  -f $h ? $h : undef }
sub line { my $h = file $_[0] or return; sysread $h, my $text, 4096; (split /\n/, $text // "")[0] // "" }
]==]

-- Its arguments: the command's token, the number of the stream, the offset, "#" and a token of its own. Ends with 0 at
-- the end of the stream, 75 where it would have to leave something out, 44 when there is none (any more), 28 when
-- something could not be kept, 70 when the keeper was killed, or what is there is not the keeper's.
local READER = LOOK .. [==[
my ($token, $n, $at, $own) = @ARGV;
my ($in, $mark, $name);
END { my $code = $?; unlink $name if $mark; $? = $code }
for (1 .. 100) {
  $in ||= enter "]==] .. PLACE .. [==[$token", 1;
  last if $in && -e "id";
  select undef, undef, undef, 0.05;
}
exit 44 if !$in || !-e "id";
$name = "r." . substr($own, 1) . ".$$";
sysopen $mark, $name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600 or exit 44;
my ($keeper) = (line("keeper") // "") =~ /^([1-9]\d*)$/ or exit 70;
# The bytes of a piece from $at on, up to so many; how many there were.
sub pass { my ($h, $from, $most) = @_; my $sent = 0;
  sysseek $h, $from, 0 or exit 70;
  while ($sent < $most && sysread $h, my $b, $most - $sent < 65536 ? $most - $sent : 65536) {
    for (my $done = 0; $done < length $b;) { $done += syswrite(STDOUT, $b, length($b) - $done, $done) || exit 3 }
    $sent += length $b;
  }
  $sent }
my ($told, $pause);
for (;;) {
  my $over = !-e "$n.live";
  my $alive = kill 0, $keeper;
  opendir my $dir, "." or exit 44;
  my @begins = sort { $a <=> $b } map { /^$n\.(\d+)$/ ? $1 : () } readdir $dir;
  exit 44 if !@begins;
  my ($s) = grep { $_ <= $at } reverse @begins;
  my ($next) = grep { $_ > $at } @begins;
  if (!defined $s) {
    exit 75 if $told;
    $at = $begins[0];
    next;
  }
  $told ||= syswrite STDOUT, "$at\n" or exit 3;
  my $piece = file "$n.$s";
  if (!$piece) { lstat "$n.$s" ? exit 70 : next }
  if (defined $next) {
    pass($piece, $at - $s, $next - $at) == $next - $at or exit 70;
    $at = $next;
    next;
  }
  my $more = $s + (-s $piece) - $at;
  if ($more > 0) {
    $at += pass $piece, $at - $s, $more;
    $pause = 0.02;
    next;
  }
  exit(-e "$n.full" ? 28 : 0) if $over;
  exit 70 if !$alive;
  select undef, undef, undef, $pause ||= 0.02;
  $pause *= 2 if $pause < 0.2;
}
]==]

-- Of an ended command, the argument its number: the run of the sandbox, then what its ids say.
local FIND = LOOK .. [==[
my ($boot, $stat) = map { line $_ } "/proc/sys/kernel/random/boot_id", "/proc/1/stat";
print "$boot.", (split / /, $stat =~ s/.*\)//sr)[20], "\n";
for (glob "]==] .. PLACE .. [==[*") {
  my ($token) = /-([0-9a-f-]+)$/ or next;
  next if !enter $_;
  my ($rest) = (line("id") // "") =~ /^\Q$ARGV[0]\E (\S+ \d+ [123]\.[0-9a-f]+\.[0-9a-f]*)$/ or next;
  print "$token $rest\n";
}
]==]

-- A program in Perl as a helper.
local function program(text, ...)
  local request = helper.request([[exec perl -e "$@"]], text, "--", ...)
  request.process.envs = helper.PERL
  return request
end

local function hex(bytes)
  return (bytes:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end))
end

--- What the shell of a command whose outputs are kept (bits) does first.
function spool.text(bits)
  return BEGIN:format(MODES[bits], MODES[bits], OPEN[bits])
end

--- What tells a command apart, as its id has it: what a reference says of its arguments and directory.
function spool.about(f, bits)
  local args = f.arg
  if f.stages then
    args = {}
    for _, stage in ipairs(f.stages) do
      for _, word in ipairs(stage) do
        args[#args + 1] = word
      end
    end
  end
  return ("%d."):format(bits) .. hex(reference.fingerprint(args)) .. "." .. hex(f.cwd or "")
end

--- The kept outputs (bits) of a command by the text of its shell.
function spool.bits(text)
  local streams = text:match "^_sbd=.-for _sbn in ([12 ]+); do%s+mkfifo"
  return streams == "1" and 1 or streams == "2" and 2 or streams and 3 or 0
end

-- ---- readers ----

-- A reader's bytes as the pipe of frames that kept.lua reads (see there).
local Pipe = {}
Pipe.__index = Pipe

local MOST = 65528 -- bytes of a frame
local ENDS = {
  [28] = { "NoSpace", "the sandbox's disk was full: not all of the output was kept" },
  [127] = { "Unsupported", "the sandbox has no perl, which what it keeps is read by" },
  [44] = { "NotFound", "what the process wrote is kept no more" },
  [70] = { "OutcomeUnknown", "what keeps the output was killed, or what it keeps was changed" },
}
local CUT = { OutcomeUnknown = true, Unavailable = true, Protocol = true }

local function frame(offset, data)
  local out, len = {}, #data
  for _ = 1, 6 do
    out[#out + 1] = offset % 256
    offset = math.floor(offset / 256)
  end
  return string.char(out[1], out[2], out[3], out[4], out[5], out[6], len % 256, math.floor(len / 256)) .. data
end

local function frames(self, data)
  if not self.at then -- it says first where it begins
    self.head = (self.head or "") .. data
    local offset, rest = self.head:match "^(%d+)\n(.*)$"
    if not offset then
      return ""
    end
    self.at, data = tonumber(offset), rest
  end
  local out = {}
  for i = 1, #data, MOST do
    local piece = data:sub(i, i + MOST - 1)
    out[#out + 1] = frame(self.at, piece)
    self.at = self.at + #piece
  end
  return table.concat(out)
end

--- What a read has brought, as frames; nil: this pipe has ended and shall be replaced; nil and an error.
function Pipe:frames(data, err)
  if data then
    return frames(self, data)
  elseif err then
    return nil, not CUT[err.kind] and err or nil
  end
  local fields = self.run:exited()
  if fields then -- the reader's
    self.release:cancel()
  end
  local code = fields and fields.status % 128 == 0 and math.floor(fields.status / 256)
  local why = ENDS[code]
  if why then
    return nil, errors.new { kind = why[1], op = "read", message = why[2] }
  end
  return code == 0 and frame(self.at or 0, "") or nil
end

function Pipe:try_read(mode, n)
  return self.body:try_read(mode, n)
end

function Pipe:read(mode, n)
  return self.body:read(mode, n)
end

--- The reader there goes as well.
function Pipe:close()
  if self.run:exited() then
    self.release:cancel()
  else
    self.release:fire()
  end
  self.body:close()
  self.run:close()
end

--- A pipe that brings the kept output `fd` of the command with `token`, from an offset on; nil and an error. `calls`:
--- see rpc.lua.
function spool.pipe(calls, token, fd, from, timeout)
  local mark = core.uuid()
  local op, err = calls:stream("process.Process/Start", "process.StartRequest",
    program(READER, token, ("%d"):format(fd), ("%.0f"):format(from), "#" .. mark),
    { user = "root", token = mark, tails = 2 })
  local r
  if op then
    r, err = calls:wait(op, timeout, "read")
  end
  if not r then
    return nil, err
  end
  return setmetatable({
    run = r.object, body = r.object:stdout(), release = r.release, guard = own.guard(r.release),
  }, Pipe)
end

--- The helper that finds what an ended command has left: which run of the sandbox this is, then lines of token, boot,
--- ticks and what spool.about says.
function spool.find(pid)
  return program(FIND, ("%d"):format(pid))
end

return spool
