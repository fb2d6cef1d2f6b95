-- check: only 5.4
-- check: no user
-- Machines that do not allow what the engine needs (B45): each says what is missing, which setting is behind it, and
-- leaves nothing; or it does with less and the capabilities say so.
local helper = require "spec.helper"

local LACKING = (os.getenv("SPEC_BUILD") or "build") .. "/spec/lacking"
local USER = 23456 -- nobody's, without subordinate ids

local SCRIPT = [[
local sandbar = require "sandbar"
local sandboxes = sandbar.assert(sandbar.open { root = arg[1], linger = 0 })
local box, err = sandboxes:create_scoped { network = arg[2] }
if not box then
  print("refused", err.kind, tostring(err))
  return
end
local have = sandbar.assert(sandboxes:capabilities())
print("made", have.tree_kill, have.setuid, sandbar.assert(box:exec "id -u; echo inside").stdout:match("^(.-)\n$"))
if not have.limit_memory then
  print("no limits", select(2, sandboxes:create { limits = { memory = 64 * 1048576 } }).kind)
end
if arg[2] then -- who denies is a relay
  box:exec { "/bin/bash", "-c", "exec 3<>/dev/tcp/169.254.169.254/80" }
  local denied
  for _ = 1, 500 do
    denied = sandbar.assert(box:info()).denied[1]
    if denied then
      break
    end
    sandbar.sleep(0.02)
  end
  print(have.name_rules, denied.host)
end
sandbar.assert(box:destroy())
]]

describe("a machine", function()
  helper.guard()

  -- What the script says there; nothing of it is left then.
  local function on(what, uid, owner, network)
    helper.need_root() -- to take things away
    local root = helper.dir("lacking")
    helper.sh("chmod a+x %s", helper.scratch())
    local script = helper.write_file(helper.scratch() .. "/lacking.lua", SCRIPT)
    helper.sh("chmod 700 %s && chown %d:%d %s", root, owner or uid, owner or uid, root)
    local out = helper.sh("cd / && HOME=%s LACKING_DISK=%s %s %s %d %s %s %s %s", root, root, LACKING, what, uid,
      helper.interpreter(), script, root, network or "")
    assert.is_truthy(helper.eventually(function() return next(helper.proc.of_dir(root)) == nil end, 10), "processes")
    assert.same({}, helper.proc.mounts(root))
    assert.equal("", (helper.sh("cd %s && for d in v1/s v1/p; do [ ! -d $d ] || ls -A $d; done", root)))
    assert.is_truthy(helper.remove(root))
    return (out:gsub("%s+$", ""))
  end

  local REFUSED = {
    { "where user namespaces are limited to none", "namespaces", USER, nil, "Unsupported", "user.max_user_namespaces" },
    { "where user namespaces are limited to none, for root", "namespaces", 0, nil, "LimitExceeded",
      "user.max_user_namespaces" },
    { "where a user with subordinate ids may make no user namespace", "named-namespaces", USER, nil, "Unsupported",
      "user.max_user_namespaces" },
    { "whose filter forbids a user with subordinate ids namespaces", "named-filter", USER, nil, "Unsupported",
      "a container's filter forbids it" },
    { "whose filter forbids namespaces", "filter", USER, nil, "Unsupported", "a container's filter forbids it" },
    { "whose filter forbids namespaces, for root", "filter", 0, nil, "Unsupported", "CAP_SYS_ADMIN" },
    { "whose kernel has no mount calls of descriptors", "old", USER, nil, "Unsupported", "an older kernel" },
    { "where /proc is partly covered", "proc", USER, nil, "Unsupported", "/proc is partly covered" },
    { "where /proc is partly covered, for root", "proc", 0, nil, "Unsupported", "/proc is partly covered" },
    { "whose root is a container's, of few ids", "container", 0, 500000000, "Unsupported", "be an ordinary user" },
    { "whose root is a container's, of one id", "single", 0, nil, "Unsupported", "be an ordinary user" },
    { "whose root may not mount", "rights", 0, nil, "Unsupported", "CAP_SYS_ADMIN" },
    { "whose user has as many descriptors in flight as he may", "flight", USER, nil, "LimitExceeded",
      "as many descriptors are in flight" },
    { "whose state directory can only be read", "disk", USER, nil, "PermissionDenied", "Read-only file system" },
    { "whose state directory can only be read, for root", "disk", 0, nil, "PermissionDenied", "Read-only file system" },
  }

  for _, case in ipairs(REFUSED) do
    local name, what, uid, owner, kind, text = (table.unpack or unpack)(case, 1, 6)
    it(name .. " says so and keeps nothing", function()
      local out = on(what, uid, owner)
      assert.equal("refused\t" .. kind, out:match("^refused\t%a+"), out)
      assert.is_truthy(out:find(text, 1, true), out)
    end)
  end

  local UNLIMITED = "\nno limits\tUnsupported"
  local MADE = {
    { "without programs that map ids gives one id", "mappers", USER, "made\tdescendants\tfalse\t1000\ninside" .. UNLIMITED },
    { "whose user has a name of 64 characters gives him his subordinate ids", "name", USER,
      "made\tdescendants\ttrue\t1000\ninside" .. UNLIMITED },
    { "without control groups kills what it can find, and says so", "cgroups", 0,
      "made\tdescendants\ttrue\t1000\ninside" .. UNLIMITED },
    { "whose control groups can only be read is as one without", "groups", 0,
      "made\tdescendants\ttrue\t1000\ninside" .. UNLIMITED },
    { "without /dev/net/tun lacks nothing: no network needs it", "tun", USER,
      "made\tdescendants\tfalse\t1000\ninside" .. UNLIMITED .. "\ntrue\t169.254.169.254", "allow" },
  }

  for _, case in ipairs(MADE) do
    it(case[1], function()
      assert.equal(case[4], on(case[2], case[3], nil, case[5]))
    end)
  end
end)
