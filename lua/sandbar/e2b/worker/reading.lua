-- What the worker in a hosted sandbox (../worker.lua) reads: entries, lists, bytes, extended attributes; and the paths
-- that match patterns, in one walk as the engine's own (src/guest/file_glob.c).

return {
  files = [==[
$do{stat} = sub {
  my @s = st $path, arg("nofollow") or fail "stat", $path;
  done entry $path =~ m{([^/]+)\z} ? $1 : "/", $path, @s };
$do{readlink} = sub {
  my $t = readlink $path;
  fail "readlink", $path, $! + 0, $! == 22 && "not a link" if !defined $t;
  done $t };
# What is short, or tells no size, comes at once; "b": the rest is to be had elsewhere.
$do{read} = sub {
  my @s = st $path or fail "open", $path;
  special $path, @s;
  my $h = regular $path, O_RDONLY;
  my ($size, $max, $data, $n) = ((stat $h)[7], arg("max"), "");
  refuse "LimitExceeded", "the file is longer than $max bytes", $path if $size > $max;
  done "b$path" if $size > arg("inline");
  while (($n = sysread $h, $data, 262144, length $data)) {
    refuse "LimitExceeded", "the file is longer than $max bytes", $path if length $data > $max }
  fail "read", $path if !defined $n;
  done "d$data" };
$do{gate} = sub {
  my @s = st $path or fail "open", $path;
  special $path, @s;
  my $h = regular $path, O_RDONLY;
  my $n = $s[3] == 0 ? sysread $h, my $b, 1 : 0;
  done +($n ? "u" : "b") . $path };
$do{cat} = sub {
  my ($h, $n, $b) = regular $path, O_RDONLY;
  while (($n = sysread $h, $b, 65536)) { put \*STDOUT, $b }
  exit(defined $n ? 0 : 3) };
$do{directory} = sub {
  names $path or fail "open", $path;
  done $path };
my $out = "";
sub list { my ($dir, $depth) = @_;
  my $names = names $dir or return;
  for (@$names) {
    my $p = below $dir, $_;
    my @s = st $p, 1;
    if (!@s) { next if $! == 2; fail "stat", $p }
    $out .= entry $_, $p, @s;
    list($p, $depth && $depth - 1) if S_ISDIR($s[0]) && $depth != 1;
  }
  1 }
$do{list} = sub {
  list $path, arg("depth") // 1 or fail "open", $path;
  done $out };
$do{getxattr} = sub {
  $nr{list} or refuse "Unsupported", "extended attributes: not on this machine", $path;
  my ($list, $all) = ("\0" x 65536, "");
  my $n = syscall $nr{list}, "$path", $list, length $list;
  $n >= 0 or $! == 95 or fail "listxattr", $path;
  for my $name ($n > 0 ? split /\0/, substr $list, 0, $n : ()) {
    my $value = "\0" x 65536;
    my $m = syscall $nr{get}, "$path", "$name", $value, length $value;
    $all .= pack "N/a* N/a*", $name, substr $value, 0, $m if $m >= 0;
  }
  done $all };
]==],
  glob = [==[
my (@parts, $only_directories);
sub chars { my $s = shift;
  $s =~ s{([\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})|([\x80-\xff])}{
    my ($c, $b) = ($1, $2);
    defined $c && utf8::decode($c) ? $c : join "", map { chr 0x110000 + ord } split //, $c // $b }ge;
  $s }
sub quoted { sprintf '\\x{%x}', ord $_[0] }
# What follows "[" as a class: its text and how many characters it takes; nothing when it has no end.
sub class { my @c = @_; my ($i, $text, $negated) = (0, "");
  if (@c && $c[0] =~ /[!^]/) { $negated = 1; $i++ }
  for (my $first = 1; $first || $i < @c && $c[$i] ne "]"; $first = 0) {
    return if $i >= @c;
    my $low = $c[$i++];
    $low = $c[$i++] if $low eq "\\" && $i < @c;
    my $high = $low;
    if ($i + 1 < @c && $c[$i] eq "-" && $c[$i + 1] ne "]") {
      $high = $c[++$i]; $i++;
      $high = $c[$i++] if $high eq "\\" && $i < @c;
    }
    $text .= quoted($low) . "-" . quoted $high if ord $low <= ord $high;
  }
  return if $i >= @c;
  ($text eq "" ? $negated ? "." : "(?!)" : $negated ? "[^$text]" : "[$text]", $i + 1) }
sub part { my $text = shift;
  return { any => 1 } if $text eq "**";
  if ($text !~ /^(?:[^\\*?\[]|\\.)*[*?\[]/s) { $text =~ s/\\(.)/$1/gs; return { literal => $text } }
  my @c = split //, chars $text;
  my $re = "";
  while (@c) {
    my $c = shift @c;
    if ($c eq "*") { $re .= ".*" } elsif ($c eq "?") { $re .= "." }
    elsif ($c eq "[" and my ($class, $n) = class @c) { $re .= $class; splice @c, 0, $n }
    else { $c = shift @c if $c eq "\\" && @c; $re .= quoted $c }
  }
  { re => qr/\A$re\z/s, hidden => scalar $text =~ /^\\?\./ } }
sub from { my $i = shift; $parts[$i]{any} && $i + 1 < @parts ? ($i, $i + 1) : ($i) }
my $found = "";
sub matched { my ($p, $mode) = @_;
  if ($only_directories) { my @s = st $p; return if !@s || !S_ISDIR($s[0]) }
  $found .= "$p\0" }
sub walk { my ($dir, %states) = @_;
  my ($wild, @names) = scalar grep { !exists $parts[$_]{literal} } keys %states;
  if ($wild) {
    my $n = names $dir eq "" ? "/" : $dir;
    if (!$n) { fail "read", $dir if !grep { $! == $_ } 2, 13, 20, 40, 36, 1, 116; return }
    @names = @$n;
  } else { my %seen; @names = grep { !$seen{$_}++ } map { $parts[$_]{literal} } sort keys %states }
  for my $name (@names) {
    my (%into, %links, $match);
    for my $i (keys %states) {
      my $part = $parts[$i];
      if ($part->{any}) {
        next if $name =~ /^\./;
        @into{from $i} = ();
        $match = 1 if $i == $#parts;
      } elsif (exists $part->{literal} ? $name eq $part->{literal}
          : ($part->{hidden} || $name !~ /^\./) && chars($name) =~ $part->{re}) {
        if ($i == $#parts) { $match = 1 } else { @links{from $i + 1} = () }
      }
    }
    next if !$match && !%into && !%links;
    my $p = "$dir/$name";
    next if length $p > 4095;
    my @s = !$wild || %into || %links ? st $p, 1 : (0);
    if (!@s) { fail "stat", $p if !grep { $! == $_ } 2, 13, 20, 40, 36, 1, 116; next }
    matched $p if $match;
    my %next = S_ISLNK($s[0]) ? %links : (%into, %links);
    walk($p, %next) if %next && (S_ISDIR($s[0]) || S_ISLNK($s[0]));
  } }
$do{glob} = sub {
  for my $given (@{$f{pattern} || []}) {
    my ($text, $base) = (path($given), "");
    ($base, my $h) = ("", $home); $h =~ s{/+$}{};
    if ($given !~ m{^/} && $h ne "" && ($text eq $h || index($text, "$h/") == 0)) {
      $base = $h; $text = substr $text, length $h }
    $only_directories = $given =~ m{/$};
    @parts = ();
    for (grep { $_ ne "" } split m{/}, $text) {
      my $part = part $_;
      if (!@parts && exists $part->{literal}) { $base .= "/$part->{literal}" }
      elsif (!($part->{any} && @parts && $parts[-1]{any})) { push @parts, $part }
    }
    refuse "InvalidArgument", "the pattern has more than 63 parts" if @parts > 63;
    if (@parts) { walk $base, map { $_ => undef } from 0 }
    elsif (st $base eq "" ? "/" : $base, 1) { matched $base eq "" ? "/" : $base }
  }
  done $found };
]==],
}
