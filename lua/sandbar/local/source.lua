-- What a build begins with: `from`, as the state that steps go on from.
--
-- That state is: key (a hash), step (the last one that has files, nil for the base template), chain (all of them), env,
-- user, cwd, start, ready.

local digest = require "sandbar.digest"
local errors = require "sandbar.errors"
local lazy = require "sandbar.lazy"
local steps = require "sandbar.steps"
local values = require "sandbar.values"

local image, unpack = lazy "sandbar.local.image", lazy "sandbar.local.unpack"

local OP = "templates:build"

local source = {}

local function invalid(message)
  return nil, errors.new { kind = "InvalidArgument", op = OP, clause = "from", message = "from: " .. message }
end

local function state(key)
  return { key = key, chain = {}, env = {} }
end

local function named(build, name)
  local ok, err = values.check_id(name, "from")
  if not ok then
    return nil, err
  end
  local found
  found, err = build.driver:templates(name, nil, build:left())
  if not found then
    return nil, err
  end
  local t = found[1]
  if not t then
    return nil, errors.new {
      kind = "NotFound", op = OP, clause = "from", message = ("from: there is no template named %q"):format(name),
    }
  end
  local at = state(t.digest)
  at.step, at.user, at.cwd, at.start, at.ready = t.snapshot, t.user, t.cwd, t.start, t.ready
  for i, key in ipairs(t.step_key or {}) do
    at.chain[i] = key
  end
  for _, entry in ipairs(t.env or {}) do
    local name_of, value = entry:match("^([^=]+)=(.*)$")
    at.env[name_of] = value
  end
  return at
end

-- A directory of the host's, copied once.
local function directory(build, path, tree)
  local key = digest.of { "directory", tree }
  local how, err = build:ensure("=" .. key, function(name)
    return build:put(name, { rootfs = path })
  end)
  if not how then
    return nil, err
  end
  local at = state(key)
  at.step = "=" .. key
  at.chain[1] = at.step
  return at, how
end

-- An archive, or the directory of an image.
local function archive(build, path, tree, is_directory, want)
  local key = unpack.key(tree, want)
  local how, err = build:ensure("=" .. key, function(name)
    return unpack.make(build, name, path, is_directory, want)
  end)
  if not how then
    return nil, err
  end
  local listed, _, note = build.driver:templates("", { "=" .. key }, build:left())
  if not listed then
    return nil, _
  end
  local at, defaults = state(key), image.unpack(note or "")
  at.step = "=" .. key
  at.chain[1] = at.step
  at.env, at.cwd = defaults.env, defaults.cwd
  at.user = not (build.single and defaults.user == "root") and defaults.user or nil
  at.start = #defaults.start > 0 and steps.command(defaults.start) or nil
  return at, how
end

local function place(build, path, want)
  if path:sub(1, 1) ~= "/" or path:find("%z") then
    return invalid("an absolute path is needed")
  end
  local tree, entries = digest.tree(path, build.deadline, OP)
  if not tree then
    return nil, entries
  end
  if entries[1].type ~= "directory" and entries[1].type ~= "file" then
    return invalid(("%s is neither a file nor a directory (links are not followed)"):format(path))
  elseif entries[1].type == "file" then
    return archive(build, path, tree, false, want)
  end
  for _, entry in ipairs(entries) do
    if entry.path == "oci-layout" and entry.type == "file" then
      return archive(build, path, tree, true, want)
    end
  end
  return directory(build, path, tree)
end

-- `from`: "base", the name of a template, a path, or { path, image, max_bytes, max_entries }.
function source.begin(build, from)
  local want
  if type(from) == "table" then
    from, want = from.path, from
  elseif from == "base" then
    return state(digest.of { "base" })
  end
  build:tell { event = "step", step = 0, kind = "from", text = from }
  if not want and not from:find("/", 1, true) then
    return named(build, from)
  end
  local at, how = place(build, from, want)
  if not at then
    return nil, how
  end
  build:tell { event = "done", step = 0, kind = "from", cached = how == "cached" }
  return at
end

return source
