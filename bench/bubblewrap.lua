-- A peer: bubblewrap with a temporary overlay that we mount, running `true`. A function that returns
-- seconds, or nil and why it is not there.
return function(bench)
  local lib, dir = bench.lib, bench.root .. "/bwrap"
  os.execute(("mkdir -p %s/upper %s/work %s/root %s/lower; cp -a --parents /usr/bin/true %s/lower 2>/dev/null"):format(dir, dir, dir, dir, dir))
  os.execute(("for d in proc dev usr tmp; do mkdir -p %s/lower/$d; done; for l in bin lib lib64; do ln -sfn usr/$l %s/lower/$l; done"):format(dir, dir))
  if not bench.has("bwrap") then
    return nil, "bwrap is not installed"
  elseif io.popen("id -u"):read("n") ~= 0 then
    return nil, "its overlay is mounted by us, which needs root"
  end
  return function()
    local start = lib.now()
    lib.mount_overlay(dir .. "/root", ("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work"):format(dir, dir, dir))
    local _, status = lib.spawn { "bwrap", "--unshare-all", "--bind", dir .. "/root", "/", "--ro-bind", "/usr",
      "/usr", "--proc", "/proc", "--dev", "/dev", "true" }
    lib.umount(dir .. "/root")
    assert(status == 0, "bwrap failed")
    return lib.now() - start
  end
end
