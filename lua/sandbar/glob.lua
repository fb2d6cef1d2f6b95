-- files:glob. Braces are expanded here; the rest of a pattern is matched inside the sandbox, in one walk.

local check = require "sandbar.check"
local errors = require "sandbar.errors"
local filecall = require "sandbar.filecall"

local MAX_PATTERN = 4096 -- bytes, as of a path
local MAX_ALTERNATIVES = 1024

local OP, methods = filecall.OP, filecall.methods

-- The alternatives of the brace at `at`, and where it ends; nil when it has no end or no comma: then it stands for
-- itself.
local function alternatives(pattern, at)
  local list, depth, from = {}, 0, at + 1
  local i = at
  while i <= #pattern do
    local c = pattern:sub(i, i)
    if c == "\\" then
      i = i + 1
    elseif c == "{" then
      depth = depth + 1
    elseif c == "," and depth == 1 then
      list[#list + 1] = pattern:sub(from, i - 1)
      from = i + 1
    elseif c == "}" then
      depth = depth - 1
      if depth == 0 then
        if #list == 0 then
          return nil
        end
        list[#list + 1] = pattern:sub(from, i - 1)
        return list, i
      end
    end
    i = i + 1
  end
end

-- All patterns that one with braces stands for, or nil: too many.
local function expand(pattern)
  local i = 1
  while i <= #pattern do
    local c = pattern:sub(i, i)
    local list, last
    if c == "{" then
      list, last = alternatives(pattern, i)
    end
    if list then
      local head, tails = pattern:sub(1, i - 1), expand(pattern:sub(last + 1))
      local out = {}
      for _, alternative in ipairs(list) do
        local inner = tails and expand(alternative)
        if not inner or #out + #inner * #tails > MAX_ALTERNATIVES then
          return nil
        end
        for _, middle in ipairs(inner) do
          for _, tail in ipairs(tails) do
            out[#out + 1] = head .. middle .. tail
          end
        end
      end
      return out
    end
    i = i + (c == "\\" and 2 or 1)
  end
  return { pattern }
end

function methods:glob(pattern, opts)
  opts = check.options("glob", 2, opts, filecall.COMMON)
  local ok, err = filecall.check_path("glob", 1, pattern)
  if not ok then
    return nil, err
  end
  if #pattern > MAX_PATTERN then
    return filecall.invalid("glob", nil, ("the pattern is longer than %d bytes"):format(MAX_PATTERN))
  end
  local state, fields, timeout = filecall.begin(self, "glob", opts)
  if not state then
    return nil, fields
  end
  local patterns = expand(pattern)
  if not patterns then
    return nil, errors.new {
      kind = "LimitExceeded", op = "files:glob", limit = MAX_ALTERNATIVES,
      message = ("the braces of the pattern stand for more than %d patterns"):format(MAX_ALTERNATIVES),
    }
  end
  fields.pattern = {}
  for _, one in ipairs(patterns) do
    if one ~= "" then
      fields.pattern[#fields.pattern + 1] = one
    end
  end
  local r
  r, err = filecall.request(state, "glob", timeout, OP.GLOB, fields)
  if not r then
    return nil, err
  end
  local seen, paths = {}, {}
  for _, part in ipairs(r.parts or {}) do
    for _, path in ipairs(part.match or {}) do
      if not seen[path] then
        seen[path] = true
        paths[#paths + 1] = path
      end
    end
  end
  table.sort(paths)
  return paths
end
