-- Archives and images of the host, unpacked in a sandbox that exists only for that: an archive can be made to fool the
-- program that reads it. The sandbox has no network, and is thrown away but for the directory that was unpacked.

local core = require "sandbar.core"
local digest = require "sandbar.digest"
local errors = require "sandbar.errors"
local image = require "sandbar.local.image"

local OP = "templates:build"
local PLACE = "/.unpack"
local RESULT = "image" -- in the root: what becomes the template
local MAX_BYTES = 32 * 1024 ^ 3
local MAX_ENTRIES = 2000000
local MAX_NOTE = 49152
local MAX_TOLD = 4096 -- of what a program has written, in an error

local unpack = {}

-- What the program's exit status means (src/unpack).
local MEANING = {
  [10] = "Unsupported", [11] = "InvalidArgument", [12] = "LimitExceeded", [13] = "InvalidArgument",
  [14] = "InvalidArgument", [15] = "Platform", [16] = "NoSpace",
}

local function fail(kind, message)
  return nil, errors.new { kind = kind, op = OP, clause = "from", message = "from: " .. message }
end

local Run = {}
Run.__index = Run

function Run:exec(cmd)
  local r, err = self.box:exec(cmd, { user = self.user, cwd = "/", timeout = self.build:left() })
  if r and not r.ok and not r.exit_code then
    return fail("Platform", "a program of the unpacking was killed")
  end
  return r, err
end

local function said(r)
  return (r.stderr:sub(1, MAX_TOLD):gsub("%s+$", ""))
end

-- Nothing but its success is of interest.
function Run:must(cmd)
  local r, err = self:exec(cmd)
  if r and not r.ok then
    return fail("Platform", cmd[1] .. ": " .. said(r))
  end
  return r and true, err
end

-- Unpacks the archive at a path in the sandbox into a directory there.
function Run:archive(path, target, layer)
  local cmd = { PLACE .. "/unpack", "-b", ("%.0f"):format(self.bytes), "-n", ("%.0f"):format(self.entries), path,
    target }
  if layer then
    table.insert(cmd, 2, "-w")
  end
  local r, err = self:exec(cmd)
  if not r then
    return nil, err
  elseif not r.ok then
    return fail(MEANING[r.exit_code] or "Platform", said(r))
  end
  local entries, bytes, dropped = r.stdout:match("^(%d+) (%d+) (%d+)")
  if not dropped then
    return fail("Platform", "the unpacker did not say what it has done")
  end
  self.entries, self.bytes = self.entries - tonumber(entries), self.bytes - tonumber(bytes)
  if dropped ~= "0" then
    self.build:tell { event = "output", step = 0, data = dropped .. " devices and sockets were left out\n" }
  end
  return true
end

function Run:exists(path)
  local r, err = self:exec { "test", "-f", path }
  if not r then
    return nil, err
  end
  return r.ok
end

-- Blobs are what their names say, or nothing of them is read.
function Run:verify(layer)
  if not layer.digest then
    return true
  end
  local there, err = self:exists(layer.path) -- and is no pipe, which would be read forever
  if there == nil then
    return nil, err
  elseif not there then
    return fail("InvalidArgument", ("layer %s is not there"):format(layer.digest))
  end
  local r
  r, err = self:exec { "sha256sum", layer.path }
  if not r then
    return nil, err
  elseif r.stdout:match("^\\?(%x+)") ~= layer.digest then
    return fail("InvalidArgument", ("layer %s is damaged: its bytes have another digest"):format(layer.digest))
  end
  return true
end

function Run:layers(found)
  for i, layer in ipairs(found.layers) do
    self.build:tell { event = "output", step = 0, data = ("layer %d of %d\n"):format(i, #found.layers) }
    local ok, err = self:verify(layer)
    if ok then
      ok, err = self:archive(layer.path, "/" .. RESULT, true)
    end
    if not ok then
      return nil, err
    end
  end
  return true
end

-- An image in `dir` of the sandbox, if there is one: true, and its defaults; false: it is none.
function Run:image(dir)
  local layout, err = self:exists(dir .. "/oci-layout")
  local saved = false
  if layout == false then
    saved, err = self:exists(dir .. "/manifest.json")
  end
  if err then
    return nil, err
  elseif not layout and not saved then
    return false
  end
  local r
  r, err = self:exec { "uname", "-m" }
  if not r then
    return nil, err
  end
  local found, why = image.find({
    read = function(path, max)
      local stat, bad = self.box.files:stat(path, { user = self.user, timeout = self.build:left() })
      if not stat and bad.code then -- there is no way to it in what was unpacked
        return fail("InvalidArgument", bad.message)
      elseif not stat then
        return nil, bad
      elseif stat.type ~= "file" or stat.size > max then
        return fail("InvalidArgument", path .. " is no file of a usual size")
      end
      return self.box.files:read(path, { max = max, user = self.user, timeout = self.build:left() })
    end,
    machine = r.stdout:match("%S+"),
  }, dir, layout, self.want)
  if found == nil then
    return nil, why
  elseif not found then
    return false
  end
  return true, found
end

-- The system on the disk at /image, and the defaults of the image it was.
function Run:all(path, is_directory)
  local files, opts = self.box.files, { user = self.user, timeout = self.build:left() }
  local ok, err = files:write(PLACE .. "/unpack", core.unpacker(),
    { mode = "755", user = self.user, timeout = opts.timeout })
  if ok then
    ok, err = files:upload(path, PLACE .. "/in", opts)
  end
  if ok then
    ok, err = files:mkdir("/" .. RESULT, opts)
  end
  if ok ~= nil and not err and not is_directory then
    ok, err = self:archive(PLACE .. "/in", "/" .. RESULT, false)
  end
  if ok == nil then
    return nil, err
  end
  local is_image, found = self:image(is_directory and PLACE .. "/in" or "/" .. RESULT)
  if is_image == nil then
    return nil, found
  elseif not is_image then
    return is_directory and fail("InvalidArgument", "no image") or {}
  end
  if not is_directory then
    ok, err = self:must { "mv", "/" .. RESULT, PLACE .. "/out" }
    if ok then
      ok, err = files:mkdir("/" .. RESULT, opts)
    end
    if ok == nil then
      return nil, err
    end
    for _, layer in ipairs(found.layers) do
      layer.path = PLACE .. "/out" .. layer.path:sub(#RESULT + 2)
    end
  end
  ok, err = self:layers(found)
  if not ok then
    return nil, err
  end
  return found.defaults
end

-- Where nothing says otherwise, names are asked for where a sandbox has its resolver.
local RESOLVER = [[cd /image && [ -d etc ] && [ ! -L etc ] && [ ! -L etc/resolv.conf ] && [ ! -s etc/resolv.conf ] &&
  { [ -f etc/resolv.conf ] || [ ! -e etc/resolv.conf ]; } && echo 'nameserver 192.0.0.1' >etc/resolv.conf; true]]

-- The working directory, which need not be in any layer. Not through links: they lead somewhere else in here.
local WORKING = [[cd /image && IFS=/ && set -f && for part in $1; do
  case $part in "" | .) continue ;; ..) exit 0 ;; esac
  [ ! -L "./$part" ] || exit 0
  [ -e "./$part" ] || mkdir -m 755 "./$part" || exit 1
  cd "./$part" 2>/dev/null || exit 0
done]]

-- Makes the step `name` of an archive, or of an image's directory. True, or nil and an error.
function unpack.make(build, name, path, is_directory, want)
  return build:inside(nil, "deny", function(box)
    local run = setmetatable({
      build = build, box = box, user = not build.single and "root" or nil, want = want or {},
      bytes = want and want.max_bytes or MAX_BYTES, entries = want and want.max_entries or MAX_ENTRIES,
    }, Run)
    local defaults, err = run:all(path, is_directory)
    if not defaults then
      return nil, err
    end
    local ok
    ok, err = run:must { "sh", "-c", RESOLVER }
    if ok and defaults.cwd then
      ok, err = run:must { "sh", "-c", WORKING, "sh", defaults.cwd }
    end
    if not ok then
      return nil, err
    end
    local note = image.pack(defaults)
    if #note > MAX_NOTE then
      return fail("LimitExceeded", "the image's configuration is too large")
    end
    return build:seal(box, name, RESULT, note)
  end)
end

-- The key of what is unpacked: contents and choices.
function unpack.key(tree, want)
  want = want or {}
  return digest.of { "archive", tree, want.image or "", want.max_bytes or "", want.max_entries or "" }
end

return unpack
