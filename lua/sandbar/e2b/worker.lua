-- What does file operations inside of a hosted sandbox: a program in Perl, which every Debian image has, run anew for
-- each. The vendor's daemon does them too, but always with root's rights, and it does not know them all. This one runs
-- as the user that is meant and has the errors of the system calls.
--
-- It is given the operation's name and fields, "name=value" with %XX for what is not plain. It answers "+" and what the
-- operation has to say, or "-" and errno, kind, step, message, path, each with a zero byte behind it.

local changing = require "sandbar.e2b.worker.changing"
local helper = require "sandbar.e2b.helper"
local machine = require "sandbar.e2b.worker.machine"
local reading = require "sandbar.e2b.worker.reading"

local worker = {}

local BASE = "use strict;\n" .. machine .. [==[
my ($op, $framed, %f, @drop) = (shift @ARGV);
for (@ARGV) {
  my ($k, $v) = split /=/, $_, 2;
  $v =~ s/%(..)/chr hex $1/ge;
  push @{$f{$k}}, $v;
}
umask 0;
sub arg { $f{$_[0]} ? $f{$_[0]}[0] : undef }
sub say_and_end { print $framed ? pack "N/a*", join "", "0 ", @_ : @_ and close STDOUT or exit 3; exit 0 }
sub done { say_and_end "+", @_ }
sub drop { unlink @drop; @drop = () }
sub refuse { my ($kind, $message, $path) = @_; drop;
  say_and_end "-", join "\0", 0, $kind, "", $message, $path // "", "" }
sub fail { my ($step, $path, $errno, $words) = @_;
  $! = $errno if $errno;
  my ($number, $text) = ($! + 0, $words || "$!"); drop;
  say_and_end "-", join "\0", $number, "", $step, $text, $path // "", "" }
sub random {
  sysopen my $r, "/dev/urandom", O_RDONLY or fail "random", "/dev/urandom";
  sysread($r, my $b, 10) == 10 or fail "random", "/dev/urandom", 5;
  unpack "H*", $b }

# ---- paths: absolute, without "." and ".." ----
my $home = (getpwuid $<)[7] // "/";
sub path { my $in = shift;
  refuse "InvalidArgument", "only one's own home can be named by ~" if $in =~ m{^~[^/]};
  $in = $in =~ m{^~(.*)}s ? "$home$1" : "$home/$in" if $in !~ m{^/};
  my @p;
  for (split m{/+}, $in) { if ($_ eq "..") { pop @p } elsif ($_ ne "" && $_ ne ".") { push @p, $_ } }
  "/" . join "/", @p }
sub below { my ($dir, $name) = @_; ($dir eq "/" ? "" : $dir) . "/$name" }
sub parents { my $at = ""; my @p = split m{/}, $_[0]; shift @p; pop @p;
  for (@p) { $at .= "/$_"; mkdir $at, 0755 or $! == 17 or fail "mkdir", $at } }

# ---- what is there: mode, uid, gid, size, mtime in ns, device, inode ----
sub st { my ($path, $nofollow) = @_;
  if ($nr{statx}) {
    my $b = "\0" x 256;
    if (syscall($nr{statx}, -100, "$path", $nofollow ? 256 : 0, 0x7ff, $b) == 0) {
      my ($uid, $gid, $mode, $ino, $size, $s, $ns, $major, $minor) = unpack "x20 L L S x2 Q Q x64 q L x12 L L", $b;
      return ($mode, $uid, $gid, $size, sprintf("%d%09d", $s, $ns), "$major:$minor", $ino);
    }
    return () if $! != 38;
  }
  my @s = $nofollow ? lstat $path : stat $path;
  @s ? (@s[2, 4, 5, 7], "$s[9]000000000", $s[0], $s[1]) : () }
sub same { my ($a, $b) = @_; $a->[5] eq $b->[5] && $a->[6] == $b->[6] }
my %type = (0100000, "file", 0040000, "directory", 0120000, "link", 0010000, "fifo", 0140000, "socket",
  0060000, "block", 0020000, "char");
my (%user, %group);
sub entry { my ($name, $path, $mode, $uid, $gid, $size, $mtime) = @_;
  join "\0", $name, $path, $type{S_IFMT($mode)}, $size, $mode & 07777, $uid, $gid,
    $user{$uid} //= (getpwuid $uid)[0] // $uid, $group{$gid} //= (getgrgid $gid)[0] // $gid, $mtime,
    S_ISLNK($mode) ? readlink($path) // "" : "", "" }
sub special { my ($path, $mode) = @_;
  fail "open", $path, S_ISDIR($mode) ? 21 : 6 if !S_ISREG($mode) }
# A regular file, also when somebody puts something else there meanwhile.
sub regular { my ($path, $flags, $mode) = @_;
  sysopen my $h, $path, $flags | O_NONBLOCK | O_NOCTTY, $mode // 0 or fail "open", $path;
  special $path, (stat $h)[2];
  $h }
# A directory, and a path to what is in it that nobody can put a link into.
sub directory { my $p = shift;
  sysopen my $d, $p, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK or return;
  ($d, "/proc/self/fd/" . fileno $d) }
# A path for what changes the file there: for root one that is this file's whatever becomes of the name, since others
# could put a link of theirs in its place, and such a one is not followed.
my $safe;
sub safe { my $p = shift;
  return $p if $>;
  sysopen $safe, $p, O_PATH | O_NOFOLLOW or fail "open", $p;
  my ($mode, $uid) = (stat $safe)[2, 4];
  return "/proc/self/fd/" . fileno $safe if !S_ISLNK($mode);
  fail "open", $p, 40 if $uid;
  $p }
sub put { my ($h, $data, $path) = @_; my $at = 0;
  while ($at < length $data) { $at += syswrite($h, $data, length($data) - $at, $at) || fail "write", $path } }
sub names { opendir my $d, $_[0] or return;
  [sort grep { $_ ne "." && $_ ne ".." } readdir $d] }
sub owner { my ($u, $g) = split /:/, $_[0], 2;
  my @p = $u =~ /^\d+$/ ? getpwuid $u : getpwnam $u;
  my ($uid, $gid) = @p ? @p[2, 3] : $u =~ /^\d+$/ ? ($u, $u) : ();
  $gid = $g =~ /^\d+$/ ? $g : (getgrnam $g)[2] if defined $g;
  refuse "InvalidArgument", "the sandbox has no such owner" if !defined $uid || !defined $gid;
  ($uid, $gid) }
my ($path, $path2) = map { defined arg($_) ? path(arg($_)) : undef } "path", "path2";
my %do;
]==]

local END = "\n($do{$op} || sub { exit 4 })->();"

local TEXTS = {}
for name in ("stat readlink read gate cat directory list getxattr"):gmatch("%a+") do
  TEXTS[name] = BASE .. reading.files .. END
end
for name in ("mkdir chmod chown symlink tempdir setxattr remove copy move"):gmatch("%a+") do
  TEXTS[name] = BASE .. changing.tree .. END
end
for name in ("write begin commit abort hold"):gmatch("%a+") do
  TEXTS[name] = BASE .. changing.tree .. changing.writing .. END
end
TEXTS.glob = BASE .. reading.glob .. END

local function plain(text)
  return (tostring(text):gsub("[^%w%-._~/ ]", function(c)
    return ("%%%02X"):format(c:byte())
  end))
end

--- The process that does `name` with these fields (values: texts, numbers or lists of them), of a StartRequest. It is
--- found by the token.
function worker.process(name, fields, token)
  local args = { "-c", 'exec perl -e "$0" -- "$@" #' .. token, TEXTS[name], name }
  local names = {}
  for key in pairs(fields) do
    names[#names + 1] = key
  end
  table.sort(names)
  for _, key in ipairs(names) do
    local value = fields[key]
    for _, one in ipairs(type(value) == "table" and value or { value }) do
      args[#args + 1] = key .. "=" .. plain(one)
    end
  end
  return { cmd = "/bin/sh", args = args, cwd = "/", envs = helper.PERL }
end

return worker
