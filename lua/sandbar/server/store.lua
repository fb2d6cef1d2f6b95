-- What the server keeps on disk, in `serve` below the provider's root: the seed of its tokens, keys, what it knows of
-- templates. A file is replaced as a whole, so that a crash leaves the one or the other.

local core = require "sandbar.core"
local encode = require "sandbar.server.encode"
local errors = require "sandbar.errors"
local hosttree = require "sandbar.hosttree"
local json = require "sandbar.json"
local nested = require "sandbar.nested"
local signature = require "sandbar.server.signature"
local wait = require "sandbar.wait"

local OP = "serve"
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

--- Opens the store below `root`, an existing directory or one that is made. Nil and an error.
function store.open(root)
  local dir = root .. "/serve"
  local ok, err = make(dir)
  if not ok then
    return nil, errors.from(err, OP)
  end
  local self = setmetatable({ dir = dir, turns = {} }, Store)
  self.seed, err = self:read("seed")
  if err then
    return nil, err
  elseif not self.seed then
    self.seed = signature.hex(core.random(32))
    ok, err = self:write("seed", self.seed)
    if not ok then
      return nil, err
    end
  end
  return self
end

return store
