-- What the worker in a hosted sandbox (../worker.lua) changes: directories, links, modes, whole trees; and what begins
-- and ends a write, whose bytes another one carries.

return {
  tree = [==[
$do{mkdir} = sub {
  parents $path if arg "parents";
  done 1 if mkdir $path, arg("mode") // 0755;
  my $errno = $! + 0;
  if ($errno == 17) { my @s = st $path; done 0 if @s && S_ISDIR($s[0]) }
  fail "mkdir", $path, $errno };
$do{chmod} = sub { chmod arg("mode"), safe $path or fail "chmod", $path; done };
$do{chown} = sub { chown +(owner arg "owner"), safe $path or fail "chown", $path; done };
$do{symlink} = sub {
  parents $path if arg "parents";
  symlink arg("target"), $path or fail "symlink", $path; done };
$do{tempdir} = sub { my ($dir, $made) = $path // "/tmp";
  do { $made = below $dir, "sandbar-" . random }
    until mkdir $made, arg("mode") // 0700 or $! != 17 and fail "mkdir", $made;
  done $made };
$do{setxattr} = sub {
  $nr{set} or refuse "Unsupported", "extended attributes: not on this machine", $path;
  my $at = safe $path;
  for (@{$f{xattr}}) {
    my ($name, $value) = /^([^\0]*)\0(.*)$/s;
    syscall($nr{set}, "$at", "$name", "$value", length $value, 0) == 0 or fail "setxattr", $path }
  done };
# In the working directory; every step into another is checked: nobody puts a link in the way.
my $where;
sub remove { my ($name, $shown) = @_;
  unlink $name and return 1;
  my $errno = $! + 0;
  return 1 if $errno == 2;
  $where = $shown;
  my @s = st $name, 1;
  if (!@s || !S_ISDIR($s[0])) { $! = $errno; return 0 }
  rmdir $name and return 1;
  my @up = st ".";
  chdir $name or return 0;
  my @in = st ".";
  same \@s, \@in or fail "remove", $shown, 116;
  my $names = names "." or return 0;
  for (@$names) { remove($_, "$shown/$_") or return 0 }
  chdir "..";
  @in = st ".";
  same \@up, \@in or fail "remove", $shown, 116;
  $where = $shown;
  rmdir $name or $! == 2 }
sub remove_tree { my $p = shift;
  my ($dir, $name) = $p =~ m{^(.*)/([^/]+)\z}s;
  chdir($dir eq "" ? "/" : $dir) && remove $name, $where = $p }
$do{remove} = sub {
  my @s = st $path, 1 or fail "stat", $path;
  fail "remove", $path, 16 if $path eq "/";
  if (arg "recursive") { remove_tree $path or fail "remove", $where }
  else { (S_ISDIR($s[0]) ? rmdir $path : unlink $path) or fail "remove", $path }
  done };
sub copy_bytes { my ($from, $to) = @_; my $n;
  while (($n = sysread $from, my $b, 262144)) {
    for (my $at = 0; $at < $n;) { $at += syswrite($to, $b, $n - $at, $at) || return 0 } }
  defined $n }
# A file that is no directory, to a name that must not be there; with `keep` owner and times too.
sub copy_one { my ($p, $to, $keep, $mode, $uid, $gid, $size, $mtime) = @_;
  my $bits = $mode & ($keep ? 07777 : 0777);
  if (S_ISLNK($mode)) {
    my $t = readlink $p;
    return defined $t && symlink $t, $to }
  if (!S_ISREG($mode)) {
    $! = 1;
    return 0 if !$nr{mknod} || !S_ISFIFO($mode) && !S_ISSOCK($mode);
    return syscall($nr{mknod}, -100, "$to", S_IFMT($mode) | $bits, 0) == 0 }
  sysopen my $from, $p, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY or return 0;
  if (!S_ISREG((stat $from)[2])) { $! = 6; return 0 }
  sysopen my $into, $to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600 or return 0;
  copy_bytes $from, $into or return 0;
  chown $uid, $gid, $into if $keep;
  chmod $bits, $into or return 0;
  my $s = substr $mtime, 0, -9;
  utime $s, $s, $into if $keep;
  1 }
sub copy_tree { my ($p, $to, $keep, $shown, $top, @s) = @_;
  mkdir $to, 0700 or return 0;
  my ($from, $here) = directory $p or return 0;
  my ($into, $there) = directory $to or return 0;
  my @made = st "$there/.";
  $top ||= \@made;
  my $names = names "$here/." or return 0;
  for (@$names) {
    my ($a, $b, $called) = (below($here, $_), below($there, $_), below $shown, $_);
    my @in = st $a, 1 or $! == 2 ? next : return 0;
    same \@in, $top and fail "copy into itself", $called, 22;
    (S_ISDIR($in[0]) ? copy_tree($a, $b, $keep, $called, $top, @in) : copy_one $a, $b, $keep, @in)
      or fail "copy", $called;
  }
  chown $s[1], $s[2], $into if $keep;
  chmod $s[0] & ($keep ? 07777 : 0777), $into or return 0;
  my $t = substr $s[4], 0, -9;
  utime $t, $t, $into if $keep;
  1 }
# Each level holds two directories open.
sub copy_all { my ($p, $to, $keep, @s) = @_;
  my $limit = pack "Q2", 0, 0;
  if ($nr{limit} && syscall($nr{limit}, 0, 7, 0, $limit) == 0) {
    my $most = (unpack "Q2", $limit)[1];
    syscall $nr{limit}, 0, 7, pack("Q2", $most, $most), 0;
  }
  copy_tree $p, $to, $keep, $p, undef, @s }
$do{copy} = sub {
  my @s = st $path, 1 or fail "stat", $path;
  if (S_ISDIR($s[0])) {
    fail "copy into itself", $path2, 22 if index("$path2/", $path eq "/" ? "/" : "$path/") == 0;
    copy_all $path, $path2, 0, @s or fail "mkdir", $path2;
  } elsif (S_ISREG($s[0])) { # onto what may be there: that keeps its mode and owner, and a link is followed
    my $from = regular $path, O_RDONLY | O_NOFOLLOW;
    my @old = st $path2;
    special $path2, @old if @old;
    fail "copy", $path2, 22 if @old && same \@s, \@old;
    my $into = regular $path2, O_WRONLY | O_CREAT | (@old ? 0 : O_EXCL), $s[0] & 0777;
    @drop = ($path2) if !@old;
    truncate $into, 0 and copy_bytes $from, $into or fail "copy", $path2;
  } else { copy_one $path, $path2, 0, @s or fail "copy", $path2 }
  done };
$do{move} = sub {
  done if rename $path, $path2;
  fail "rename", $! == 2 ? $path : $path2 if $! != 18;
  my @s = st $path, 1 or fail "stat", $path;
  my ($dir) = $path2 =~ m{^(.*)/}s;
  my $temp = below $dir || "/", ".sb-" . random;
  my $ok = S_ISDIR($s[0]) ? copy_all $path, $temp, 1, @s : copy_one $path, $temp, 1, @s;
  if (!$ok || !rename $temp, $path2) { my $errno = $! + 0; remove_tree $temp; fail "rename", $path2, $errno }
  remove_tree $path or fail "remove", $where;
  done };
]==],
  writing = [==[
# The directory and the name that a write goes to, the links behind the path followed.
sub target { my $exclusive = shift;
  my ($dir, $name) = $path =~ m{^(.*)/([^/]+)\z}s or fail "open", $path, 21;
  $dir = "/" if $dir eq "";
  if (!st "$dir/") {
    fail "open", $path if $! != 2 || !arg "parents";
    parents $path;
  }
  chdir $dir or fail "open", $path;
  my ($links, $t) = 0;
  while (!$exclusive && defined($t = readlink $name)) {
    fail "open", $path, 40 if ++$links > 40;
    $t =~ s{(?<=.)/+\z}{}s;
    my ($d, $n) = $t =~ m{^(.*/)([^/]*)\z}s ? ($1, $2) : ("", $t);
    fail "open", $path, 21 if $n eq "" || $n eq "." || $n eq "..";
    $name = $n;
    $d eq "" or chdir $d or fail "open", $path;
  }
  (readlink("/proc/self/cwd") // fail("open", $path), $name) }
sub temp { my $p = below $_[0], arg "name";
  sysopen my $h, $p, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600 or return;
  @drop = ($p);
  ($p, $h) }
# A file that nobody else can read, for the bytes to come: beside the old one, whose place it will take, or in /tmp when
# they are to go into the old one itself. Its name is the caller's, who may never hear of it.
sub begin_write {
  my ($exclusive, $in_place) = (arg("exclusive"), arg("in_place"));
  my ($dir, $name) = target $exclusive;
  my $real = below $dir, $name;
  my @old = st $real, 1;
  fail "stat", $path if !@old && $! != 2;
  fail "open", $path, 17 if @old && $exclusive;
  if (@old) {
    special $path, @old;
    sysopen my $h, $real, O_WRONLY | O_NONBLOCK | O_NOFOLLOW or $! == 26 && !$in_place or fail "open", $path;
  }
  my @owner = defined arg("owner") ? owner arg "owner" : ();
  my ($p, $h);
  if (!$in_place) {
    ($p, $h) = temp $dir;
    fail "open", $path if !$p && !(@old && ($! == 13 || $! == 1));
    if ($p && (@owner || @old)) {
      if (!chown @owner ? @owner : @old[1, 2], $h) {
        fail "chown", $path if @owner;
        drop; undef $p;
      }
    }
  }
  $in_place = 1 if !$p;
  ($p, $h) = temp "/tmp" if !$p;
  ($p, $h) = temp $dir if !$p;
  fail "open", $path if !$p;
  ($in_place ? "i" : "n", $p, $real, $h) }
$do{begin} = sub { my @w = begin_write; done join "\0", @w[0 .. 2], $path, "" };
sub publish { my ($kind, $temp, $old_name) = @_;
  my $exclusive = arg "exclusive";
  @drop = ($temp);
  my $from = regular $temp, O_RDONLY | O_NOFOLLOW;
  my ($links, $size) = (stat $from)[3, 7];
  refuse "Protocol", "what was sent has not come whole: $size of " . arg("size") . " bytes", $path
    if $size != arg "size";
  fail "open", $temp, 31 if $links != 1; # it is somebody else's file, too
  my @old = st $old_name, 1;
  fail "stat", $path if !@old && $! != 2;
  fail "link", $path, 17 if @old && $exclusive;
  special $path, @old if @old;
  my $mode = arg("mode") // (@old ? $old[0] & 07777 : 0644);
  my @owner = defined arg("owner") ? owner arg "owner" : @old ? @old[1, 2] : ();
  if ($kind eq "n") {
    !@owner or chown @owner, $from or fail "chown", $path;
    chmod $mode, $from or fail "chmod", $path;
    if ($exclusive) { link $temp, $old_name or fail "link", $path; drop }
    else { rename $temp, $old_name or fail "rename", $path; @drop = () }
  } else {
    my $to = regular $old_name, O_WRONLY | O_NOFOLLOW | (@old ? 0 : O_CREAT) | ($exclusive ? O_EXCL : 0)
      | (arg("append") ? O_APPEND : O_TRUNC), $mode;
    copy_bytes $from, $to or fail "write", $path;
    if (!@old || defined arg("owner")) { !@owner or chown @owner, $to or fail "chown", $path }
    if (!@old || ($old[0] & 07777) != $mode) { chmod $mode, $to or fail "chmod", $path }
    drop;
  }
  my @s = st $old_name, 1 or fail "stat", $path;
  done entry $old_name =~ m{([^/]+)\z}, $path, @s }
$do{commit} = sub { publish arg("kind"), arg("temp"), arg("real") };
# All of it by itself, for as much as comes through its input.
$do{write} = sub {
  my ($kind, $temp, $real, $h) = begin_write;
  my $left = arg "size";
  while ($left > 0) {
    my $n = sysread(STDIN, my $b, $left) or last;
    put $h, $b, $path;
    $left -= $n;
  }
  close $h or fail "write", $path;
  publish $kind, $temp, $real };
$do{abort} = sub {
  my $temp = arg "temp";
  my @all = defined $temp ? $temp : map { below $_, arg "name" } "/tmp", (target)[0];
  for (@all) { unlink $_ or $! == 2 or fail "unlink", $_ }
  done };
# Holds a file open. Requests are lines: number, "r", place, count; number, "w", place, count and the bytes behind it;
# number, "s"; number, "c", which closes it. Each answer has its length before it and begins with the request's number.
# Ends with its input.
$do{hold} = sub {
  $framed = 1;
  my $flags = arg "oflags";
  if ($flags & O_CREAT && arg "parents") {
    my ($dir) = $path =~ m{^(.*)/}s;
    parents $path if !st "$dir/" and $! == 2;
  }
  my @s = st $path;
  special $path, @s if @s && !($flags & O_EXCL);
  my $h = regular $path, $flags, arg("mode") // 0644;
  my ($in, $failed) = "";
  my $id = 0;
  my $answer = sub { put \*STDOUT, pack("N/a*", join "", "$id ", @_), $path };
  my $no = sub { $answer->("-", join "\0", $! + 0, "", $_[0], "$!", $path, "") };
  my $more = sub { sysread(STDIN, $in, 65536, length $in) or exit 0 };
  $answer->("+");
  for (;;) {
    $more->() until $in =~ s/^(\d+) (\w) (\d+) (\d+)\n//;
    ($id, my ($what, $at, $n)) = ($1, $2, $3, $4);
    if ($what eq "s") {
      my @now = stat $h;
      @now ? $answer->("+", $now[7]) : $no->("stat");
      next;
    }
    if ($what eq "c") {
      close $h ? $answer->("+") : $no->("close");
      next;
    }
    my $ok = sysseek $h, $at, 0;
    if ($what eq "r") {
      my ($data, $got) = "";
      while ($ok && length $data < $n) {
        $got = sysread $h, $data, $n - length $data, length $data;
        last if !$got;
      }
      !$ok || !defined $got && $n > 0 ? $no->("read") : $answer->("+", $data);
    } else {
      $more->() while length $in < $n;
      my ($data, $done) = (substr($in, 0, $n, ""), 0);
      while ($ok && $done < $n) { $ok = syswrite $h, $data, $n - $done, $done; $done += $ok || 0 }
      $ok || $n == 0 ? $answer->("+", $done) : $no->("write");
    }
  } };
]==],
}
