-- Argument checks in Lua's own wording, raised at the caller's level.
--
-- A type is a text of alternatives: "string|list", "number?" (? allows nil). Known words: Lua's type names;
-- integer; size (a number of bytes); duration (number or string); timeout (duration or false); callable;
-- readable (has a method read, as files have); list and map (both tables); secret (a string or a secret);
-- any. `level` counts from the function that calls us: 1 is that function's caller (the default), 2 the caller of
-- that one.

local compat = require "sandbar.compat"
local core = require "sandbar.core"
local duration = require "sandbar.duration"
local errors = require "sandbar.errors"

local check = {}

local is = {
  any = function() return true end,
  integer = compat.is_integer,
  size = function(v) return type(v) == "number" end,
  duration = function(v) return type(v) == "number" or type(v) == "string" end,
  timeout = function(v) return type(v) == "number" or type(v) == "string" or v == false end,
  callable = compat.is_callable,
  list = function(v) return type(v) == "table" end,
  map = function(v) return type(v) == "table" end,
  secret = function(v) return type(v) == "string" or select(2, core.is_secret(v)) end, -- also if collected
  readable = function(v)
    local kind = type(v)
    if kind ~= "userdata" and kind ~= "table" then
      return false
    end
    local ok, method = pcall(function() return v.read end)
    return ok and type(method) == "function"
  end,
  ["false"] = function(v) return v == false end,
  ["true"] = function(v) return v == true end,
}

-- How a message calls a type that is not a Lua one.
local SPOKEN = {
  size = "number of bytes", duration = "number or string", timeout = "number, string or false",
  callable = "function", list = "table", map = "table", readable = "file", secret = "string or secret", any = "value",
}

-- The type of Lua's that most values of one of the others are of: asked for first.
local MOSTLY = {
  size = "number", duration = "number", timeout = "number", callable = "function", list = "table",
  map = "table", secret = "string",
}

local parsed = {}

local function parse(types)
  local p = parsed[types]
  if not p then
    p = { optional = types:sub(-1) == "?", tests = {} }
    local spoken = {}
    for word in types:gsub("%?$", ""):gmatch("[^|]+") do
      p.plain = p.plain or MOSTLY[word] or not is[word] and word or nil
      p.tests[#p.tests + 1] = is[word] or function(v)
        return type(v) == word
      end
      spoken[#spoken + 1] = SPOKEN[word] or word
    end
    p.spoken = table.concat(spoken, " or ")
    parsed[types] = p
  end
  return p
end

local function matches(p, v)
  if type(v) == p.plain then
    return true
  end
  local tests = p.tests
  for i = 1, #tests do
    if tests[i](v) then
      return true
    end
  end
  return false
end

local function type_name(v)
  if v == nil then
    return "nil"
  end
  local living, secret = core.is_secret(v)
  if secret then
    return living and "secret, which goes only into env, headers and bodies of requests"
      or "a secret that was collected"
  end
  return type(v)
end

--- What a message says was given instead of what was expected.
check.type_name = type_name

--- Can it be read like a file of Lua's?
check.readable = is.readable

--- Closed, about a secret that a finalizer still had when it was collected already; nil for any other value.
function check.collected(v, what)
  local living, secret = core.is_secret(v)
  if secret and not living then
    return errors.new { kind = "Closed", message = what .. ": the secret was collected" }
  end
  return nil
end

--- Raises "bad argument #index to 'fname' (why)".
function check.fail(fname, index, why, level)
  error(("bad argument #%d to '%s' (%s)"):format(index, fname, why), (level or 1) + 2)
end

--- Raises unless `v` is of one of `types`; returns it.
function check.arg(fname, index, v, types, level)
  local p = parse(types)
  if (v == nil and p.optional) or matches(p, v) then
    return v
  end
  check.fail(fname, index, ("%s expected, got %s"):format(p.spoken, type_name(v)), (level or 1) + 1)
end

-- Edits (insert, delete, replace, swap of neighbours) that turn a into b.
local function distance(a, b)
  local before, last = {}, {}
  for j = 0, #b do
    last[j] = j
  end
  for i = 1, #a do
    local row = { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      local cost = math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        cost = math.min(cost, before[j - 2] + 1)
      end
      row[j] = cost
    end
    before, last = last, row
  end
  return last[#b]
end

--- The key of `known` (a table of keys) that is spelt most like `name`, or nil if none is near: a third of its letters
--- may be others, one always.
function check.nearest(name, known)
  local best, best_distance
  local most = math.max(1, math.floor(#name / 3))
  for key in pairs(known) do
    if type(key) == "string" and math.abs(#key - #name) <= most then
      local d = distance(name, key)
      if d <= most and (not best or d < best_distance or (d == best_distance and key < best)) then
        best, best_distance = key, d
      end
    end
  end
  return best
end

--- What a message says behind a key that is not in `known`: which one may be meant.
function check.hint(key, known)
  local near = type(key) == "string" and check.nearest(key, known)
  return near and ("; the nearest known one is '%s'"):format(near) or ""
end

local advice = setmetatable({}, { __mode = "k" }) -- schema -> { key that is tried in vain = what is meant }

--- Keys that look like no key of `schema` and yet are tried: what is said of each.
function check.advise(schema, words)
  advice[schema] = words
end

-- Why `key` is not allowed in a table with the keys of `schema`.
local function unknown(key, schema)
  if type(key) ~= "string" then
    return ("unknown option [%s]"):format(tostring(key))
  end
  local word = advice[schema] and advice[schema][key]
  return ("unknown option '%s'%s"):format(key, word and "; " .. word or check.hint(key, schema))
end

-- A schema's types parsed by key, and the list of required keys. Schemas are constants: each once.
local compiled = setmetatable({}, { __mode = "k" })

local function compile(schema)
  local made = { known = {}, required = {} }
  for key, types in pairs(schema) do
    if types:sub(1, 1) == "!" then
      made.required[#made.required + 1] = key
    end
    made.known[key] = parse((types:gsub("^!", "")))
  end
  table.sort(made.required)
  compiled[schema] = made
  return made
end

--- Raises unless `opts` is nil or a table with the keys and types of `schema` ({ key = types }; options are
--- optional, unless `types` begins with "!"). Returns it, an empty table for nil. `said` goes before what is wrong.
function check.options(fname, index, opts, schema, level, said)
  level, said = (level or 1) + 1, said or ""
  if opts ~= nil and type(opts) ~= "table" then
    check.fail(fname, index, said .. "table expected, got " .. type_name(opts), level)
  end
  local made = compiled[schema] or compile(schema)
  local known, required = made.known, made.required
  if opts == nil then
    opts = {}
    if #required == 0 then
      return opts
    end
  end
  for key, value in pairs(opts) do
    local p = known[key]
    if p == nil then
      check.fail(fname, index, said .. unknown(key, schema), level)
    end
    if type(value) ~= p.plain and not matches(p, value) then
      check.fail(fname, index, ("%soption '%s': %s expected, got %s"):format(said, key, p.spoken, type_name(value)),
        level)
    end
  end
  for i = 1, #required do
    if opts[required[i]] == nil then
      check.fail(fname, index, ("%soption '%s' is missing"):format(said, required[i]), level)
    end
  end
  return opts
end

--- Raises unless the option `option` is absent or has strings as keys and values of `types`.
function check.map(fname, index, option, map, types, level, said)
  level = (level or 1) + 1
  local p = parse(types)
  for key, value in pairs(map or {}) do
    if type(key) ~= "string" then
      check.fail(fname, index, ("%soption '%s': strings expected as keys, got %s"):format(said or "", option,
        type_name(key)), level)
    elseif not matches(p, value) then
      check.fail(fname, index, ("%soption '%s': '%s': %s expected, got %s"):format(said or "", option, key, p.spoken,
        type_name(value)), level)
    end
  end
end

--- Is something missing between the elements of a list? What comes after it would be lost without a word, and #
--- may or may not count it.
function check.holed(list)
  local n, last = 0, 0
  for key in pairs(list) do
    if type(key) == "number" then
      n = n + 1
      last = math.max(last, key)
    end
  end
  return n ~= last
end

--- Raises unless `list` is an array (no holes, no other keys) of `types`; returns it.
function check.list(fname, index, list, types, level)
  level = (level or 1) + 1
  if type(list) ~= "table" then
    check.fail(fname, index, "table expected, got " .. type_name(list), level)
  end
  local n = #list
  for key in pairs(list) do
    if not compat.is_integer(key) or key < 1 or key > n then
      check.fail(fname, index, ("list expected, got a table with key '%s'"):format(tostring(key)), level)
    end
  end
  local p = parse(types)
  for i = 1, n do
    if not matches(p, list[i]) then
      check.fail(fname, index, ("element %d: %s expected, got %s"):format(i, p.spoken, type_name(list[i])), level)
    end
  end
  return list
end

--- The schema of calls that take nothing but a timeout.
check.TIMEOUT = { timeout = "timeout" }

--- The `timeout` among the options of the call `op`: seconds, or false for none; nil and an error for a value
--- with no meaning.
function check.timeout(opts, op)
  if opts.timeout == nil then
    return false
  end
  local timeout, err = duration.timeout(opts.timeout)
  if err then
    return nil, errors.from(err, op)
  end
  return timeout
end

--- True, or nil and Closed, when the call `op` is asked of a closed provider. `state`: the provider's.
function check.open(state, op)
  if state._closed then
    return nil, errors.new { kind = "Closed", op = op, message = "the provider is closed" }
  end
  return true
end

--- What a call of a provider or of one of its collections begins with: `state` and the timeout among `opts`; or nil and
--- why it can do nothing.
function check.provider(state, op, opts)
  local timeout
  local ok, err = check.open(state, op)
  if ok then
    timeout, err = check.timeout(opts, op)
  end
  if err then
    return nil, err
  end
  return state, timeout
end

return check
