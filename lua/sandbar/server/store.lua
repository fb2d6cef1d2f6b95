-- What the server keeps on disk, in `serve` below the provider's root: the seed of its tokens, keys, what it knows of
-- templates. A file is replaced as a whole, so that a crash leaves the one or the other. One server at a time has it:
-- of two each would undo what the other has changed.

local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local hosttree = require "sandbar.hosttree"
local ids = require "sandbar.server.ids"
local json = require "sandbar.json"
local nested = require "sandbar.nested"
local signature = require "sandbar.server.signature"
local wait = require "sandbar.wait"

local OP = "serve"
local LOCK = "lock"
local PRIVATE_DIR, PRIVATE_FILE = 448, 384 -- 0700, 0600

local Store = {}
Store.__index = Store

local store = {}

-- Makes a directory and what is missing above it.
local function make(path)
  local dir, name = hosttree.split(path)
  local ok, err = hosttree.at(OP, "mkdir", dir, name, nil, PRIVATE_DIR)
  if not ok and err.kind == "NotFound" and dir ~= "/" then
    ok, err = make(dir)
    if ok then
      ok, err = hosttree.at(OP, "mkdir", dir, name, nil, PRIVATE_DIR)
    end
  end
  return ok, err
end

-- The file whose lock means that somebody has the store; it ends with its process at the latest. Nil and an error.
local function lock(dir, root)
  local file, err = hosttree.at(OP, "create", dir, LOCK, nil, PRIVATE_FILE)
  if not file and err.kind == "AlreadyExists" then
    file, err = hosttree.at(OP, "read", dir, LOCK)
  end
  if not file then
    return nil, err
  end
  local mine
  mine, err = file:lock()
  if mine then
    return file
  end
  file:close()
  return nil, err and errors.from(err, OP)
    or errors.new { kind = "Busy", op = OP, message = ("there is a server on %s already"):format(root) }
end

--- The text of a file of the store's, nil when there is none; nil and an error.
function Store:read(name)
  local file, why, errno = io.open(self.dir .. "/" .. name, "rb")
  if not file then
    return nil, errno ~= 2 and errors.new { kind = "Platform", op = OP, message = why } or nil
  end
  local text = file:read("*a")
  file:close()
  return text
end

local function replace(self, name, text)
  local part = ("%s.%s"):format(name, core.uuid())
  local file, err = hosttree.at(OP, "create", self.dir, part, nil, PRIVATE_FILE)
  if not file then
    return nil, err
  end
  local ok
  ok, err = wait.op(file:write(0, text), false, OP)
  if ok then
    ok, err = wait.op(file:sync(), false, OP)
  end
  file:close()
  if ok then
    ok, err = hosttree.at(OP, "rename", self.dir, part, name)
  end
  if not ok then
    hosttree.at(OP, "remove", self.dir, part)
    return nil, errors.from(err, OP)
  end
  return true
end

--- Replaces a file. True, or nil and an error. Of one file's writes one is under way at a time, or an older text could
--- come last; who waits for its turn is content with a later one's, which knows of both.
function Store:write(name, text)
  local turn = self.turns[name] or { asked = 0, kept = 0 }
  self.turns[name] = turn
  turn.asked, turn.text = turn.asked + 1, text
  local mine = turn.asked
  while turn.writing do
    local ok, err = wait.on(turn.writing, false, OP)
    if not ok then
      return nil, err
    elseif turn.kept >= mine then
      return true
    end
  end
  local upto, signal = turn.asked, wait.signal()
  turn.writing = signal
  local called, ok, err = nested.pcall(replace, self, name, turn.text)
  turn.writing = nil
  if called and ok then
    turn.kept = upto
  end
  wait.fire(signal)
  if not called then
    error(ok, 0)
  end
  return ok, err
end

--- A table out of a file; `default` when there is none; nil and an error when it makes no sense.
function Store:load(name, default)
  local text, err = self:read(name)
  if not text then
    if err then
      return nil, err
    end
    return default
  end
  local value, why = json.decode(text)
  if type(value) ~= "table" then
    return nil, errors.new { kind = "Protocol", op = OP,
      message = ("%s/%s: %s"):format(self.dir, name, why or "no table") }
  end
  return value
end

function Store:save(name, value)
  return self:write(name, encode.value(value))
end

-- What a server left that ended within a save: a whole text, may be of a key. True, or nil and an error.
local function is_half(name)
  return ids.is_uuid(name:match("^.+%.([%x-]+)$") or "")
end

--- Removes the files of the store's that a server before this one has left, by their names. True, or nil and an error.
function Store:clear(is_left)
  local list, err = hosttree.list(self.dir, OP)
  for _, one in ipairs(list or {}) do
    local ok = true
    if is_left(one.path) then
      ok, err = hosttree.at(OP, "remove", self.dir, one.path)
    end
    if not ok then
      return nil, err
    end
  end
  return list and true, err
end

--- Somebody else may open it.
function Store:close()
  self.lock:close()
end

-- The seed, made where there is none. Nil and an error.
local function seed_of(self)
  local seed, err = self:read("seed")
  if seed or err then
    return seed, err
  end
  local ok
  seed = signature.hex(core.random(32))
  ok, err = self:write("seed", seed)
  return ok and seed, err
end

--- Opens the store below `root`, an existing directory or one that is made. Busy where somebody else has it. Nil and an
--- error.
function store.open(root)
  local dir = root .. "/serve"
  local ok, err = make(dir)
  if not ok then
    return nil, errors.from(err, OP)
  end
  local held
  held, err = lock(dir, root)
  if not held then
    return nil, err
  end
  local self = setmetatable({ dir = dir, turns = {}, lock = held }, Store)
  ok, err = self:clear(is_half)
  if ok then
    self.seed, err = seed_of(self)
  end
  if not self.seed then
    self:close()
    return nil, err
  end
  return self
end

return store
