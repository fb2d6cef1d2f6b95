-- The metadata of images: an OCI image layout, or what `docker save` writes. Everything in it may be hostile: sizes are
-- bounded, names of blobs are digests, and what a digest names has to have it.

local digest = require "sandbar.digest"
local errors = require "sandbar.errors"
local json = require "sandbar.json"

local OP = "templates:build"
local MAX_JSON = 4194304
local MAX_LAYERS = 1000
local MAX_NESTED = 3
local MAX_TOLD = 1000 -- of names, in an error

local image = {}

local MACHINES = {
  x86_64 = "amd64", aarch64 = "arm64", armv7l = "arm", i686 = "386", riscv64 = "riscv64", ppc64le = "ppc64le",
  s390x = "s390x",
}

local function fail(message, kind)
  return nil, errors.new { kind = kind or "InvalidArgument", op = OP, clause = "from", message = "from: " .. message }
end

local function read_json(io, path, expected)
  local text, err = io.read(path, MAX_JSON)
  if not text then
    return nil, err
  end
  if expected and digest.hex(text) ~= expected then
    return fail(path .. " is damaged: its bytes have another digest")
  end
  local value, why = json.decode(text)
  if type(value) ~= "table" then
    return fail(("%s is no JSON as it should be: %s"):format(path, why or type(value)))
  end
  return value
end

local function texts(list)
  local out = {}
  for i, text in ipairs(type(list) == "table" and list or {}) do
    if type(text) ~= "string" or text:find("%z") then
      return nil
    end
    out[i] = text
  end
  return out
end

local function text(value)
  return type(value) == "string" and value ~= "" and not value:find("%z") and value or nil
end

-- What sandboxes of it begin with.
local function defaults_of(config)
  local c = type(config.config) == "table" and config.config or {}
  local env, entrypoint, cmd = texts(c.Env), texts(c.Entrypoint), texts(c.Cmd)
  if not env or not entrypoint or not cmd then
    return fail("the image's configuration is not of texts")
  end
  local out = { env = {}, user = text(c.User) or "root", cwd = "/" .. (text(c.WorkingDir) or ""):gsub("^/+", "") }
  for _, entry in ipairs(env) do
    if entry:match("^[^=]+=") then
      out.env[#out.env + 1] = entry
    end
  end
  if #entrypoint == 1 and entrypoint[1] == "" then
    entrypoint = {} -- so it is written that there is none, where an image below has one
  elseif entrypoint[1] == "" then
    return fail("the image's entrypoint names no program: its first text is empty")
  end
  if #entrypoint > 0 then
    out.start = entrypoint
    for _, arg in ipairs(cmd) do
      out.start[#out.start + 1] = arg
    end
  end
  return out
end

-- ---- OCI ----

local function blob(dir, descriptor)
  local hex = type(descriptor) == "table" and type(descriptor.digest) == "string"
    and descriptor.digest:match("^sha256:(%x+)$")
  if not hex or #hex ~= 64 or hex:find("%u") then
    return fail("a blob has no SHA-256 digest")
  end
  return dir .. "/blobs/sha256/" .. hex, hex
end

-- Of several manifests the one for this machine, or of the wanted name.
local function choose(list, io, want)
  local chosen, names = {}, {}
  for _, m in ipairs(list) do
    local platform = type(m.platform) == "table" and m.platform or {}
    local notes = type(m.annotations) == "table" and m.annotations or {}
    local name = text(notes["org.opencontainers.image.ref.name"]) or text(notes["io.containerd.image.name"])
    local fits = platform.architecture == nil
      or (platform.os == "linux" and platform.architecture == MACHINES[io.machine])
    names[#names + 1] = name
    if fits and (not want.image or want.image == name
        or want.image == text(notes["io.containerd.image.name"])) then
      chosen[#chosen + 1] = m
    end
  end
  if #chosen == 1 then
    return chosen[1]
  elseif #chosen == 0 then
    return fail(want.image and ("there is no image %q in it"):format(want.image)
      or "there is no image for this machine in it", "NotFound")
  end
  return fail(("there are several images in it, name one of them: %s"):format(
    table.concat(names, ", "):sub(1, MAX_TOLD)), "Ambiguous")
end

local function manifest_of(io, dir, index, want)
  for _ = 1, MAX_NESTED do
    if type(index.manifests) ~= "table" then
      return index
    end
    for _, m in ipairs(index.manifests) do
      if type(m) ~= "table" then
        return fail("a manifest is no object")
      end
    end
    local chosen, err = choose(index.manifests, io, want)
    if not chosen then
      return nil, err
    end
    local path, hex = blob(dir, chosen)
    if not path then
      return nil, hex
    end
    index, err = read_json(io, path, hex)
    if not index then
      return nil, err
    end
    want = {}
  end
  return fail("indices are nested too deep")
end

local function from_layout(io, dir, want)
  local index, err = read_json(io, dir .. "/index.json")
  local manifest
  if index then
    if type(index.manifests) ~= "table" then
      return fail("index.json has no manifests")
    end
    manifest, err = manifest_of(io, dir, index, want)
  end
  if not manifest then
    return nil, err
  end
  local path, hex = blob(dir, manifest.config)
  if not path then
    return nil, hex
  end
  local config
  config, err = read_json(io, path, hex)
  if not config then
    return nil, err
  end
  local layers = {}
  for i, layer in ipairs(type(manifest.layers) == "table" and manifest.layers or {}) do
    path, hex = blob(dir, layer)
    if not path then
      return nil, hex
    end
    layers[i] = { path = path, digest = hex }
  end
  return { layers = layers, config = config }
end

-- ---- docker save ----

local function inside(dir, name)
  if type(name) ~= "string" or name == "" or name:find("%z") or ("/" .. name .. "/"):find("/../", 1, true) then
    return fail("manifest.json names a file that is not in it")
  end
  return dir .. "/" .. name
end

-- Newer ones name files by their digests.
local function digest_in(name)
  return name:match("^blobs/sha256/(%x+)$")
end

local function tagged(entry, name)
  for _, tag in ipairs(type(entry.RepoTags) == "table" and entry.RepoTags or {}) do
    if tag == name then
      return true
    end
  end
end

local function from_saved(io, dir, want)
  local list = read_json(io, dir .. "/manifest.json")
  if not list or type(list[1]) ~= "table" or type(list[1].Layers) ~= "table" then
    return false -- a system that has a file of that name
  end
  local chosen
  for _, entry in ipairs(list) do
    if type(entry) == "table" and (not want.image or tagged(entry, want.image)) then
      if chosen then
        return fail("there are several images in it, name one of them", "Ambiguous")
      end
      chosen = entry
    end
  end
  if not chosen then
    return fail(("there is no image %q in it"):format(tostring(want.image)), "NotFound")
  end
  local path, err = inside(dir, chosen.Config)
  local config
  if path then
    config, err = read_json(io, path, digest_in(chosen.Config))
  end
  if not config then
    return nil, err
  end
  local layers = {}
  for i, name in ipairs(type(chosen.Layers) == "table" and chosen.Layers or {}) do
    path, err = inside(dir, name)
    if not path then
      return nil, err
    end
    layers[i] = { path = path, digest = digest_in(name) }
  end
  return { layers = layers, config = config }
end

-- The image in a directory: { layers = { { path, digest? } }, defaults }; false: there is none; or nil and an error.
-- `io`: read(path, max), machine.
function image.find(io, dir, layout, want)
  local found, err
  if layout then
    found, err = from_layout(io, dir, want)
  else
    found, err = from_saved(io, dir, want)
  end
  if not found then
    return found, err
  end
  if #found.layers > MAX_LAYERS then
    return fail("the image has too many layers", "LimitExceeded")
  end
  found.defaults, err = defaults_of(found.config)
  if not found.defaults then
    return nil, err
  end
  return found
end

-- ---- kept beside a step ----

function image.pack(defaults)
  local parts = {}
  local function add(letter, list)
    for _, value in ipairs(list) do
      parts[#parts + 1] = letter .. value .. "\0"
    end
  end
  add("e", defaults.env or {})
  add("u", { defaults.user })
  add("c", { defaults.cwd })
  add("s", defaults.start or {})
  return table.concat(parts)
end

function image.unpack(note)
  local out = { env = {}, start = {} }
  for letter, value in note:gmatch("(%l)(%Z*)%z") do
    if letter == "e" then
      local name, rest = value:match("^([^=]+)=(.*)$")
      out.env[name] = rest
    elseif letter == "s" then
      out.start[#out.start + 1] = value
    else
      out[letter == "u" and "user" or "cwd"] = value
    end
  end
  return out
end

return image
