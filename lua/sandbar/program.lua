-- The verbs of the `sandbar` program beside `run`: what a shell does with templates.

local compat = require "sandbar.compat"
local copied = require "sandbar.copied"
local progress = require "sandbar.progress"

local program = {}

-- Where what a file names begins: relative paths are beside it, whoever builds from wherever.
local function beside(dir, path)
  return path:sub(1, 1) == "/" and path or dir .. "/" .. path
end

-- The table of what templates:build takes, of a file that returns it or of the template.lua in a directory.
local function read(path)
  local file = io.open(path .. "/template.lua", "r")
  if file then
    file:close()
    path = path:gsub("/+$", "") .. "/template.lua"
  end
  local chunk, why = loadfile(path)
  if not chunk then
    return nil, why
  end
  local spec = chunk()
  if type(spec) ~= "table" then
    return nil, path .. ": it returns no table of what a template is made of"
  end
  local dir = path:match("^(.*)/") or "."
  dir = dir == "" and "/" or dir
  local given, steps = copied(spec), {}
  for i, step in ipairs(type(spec.steps) == "table" and spec.steps or {}) do
    steps[i] = step
    if type(step) == "table" and type(step.copy) == "string" then
      steps[i] = copied(step)
      steps[i].copy = beside(dir, step.copy)
    end
  end
  given.steps = steps
  return given
end

local verbs = {}

function verbs.build(templates, options, path)
  local given, err = read(path)
  if not given then
    return nil, err
  end
  given.on_progress = progress.show()
  if options["--no-cache"] then
    given.cache = false
  end
  local built
  built, err = templates:build(given)
  if not built then
    return nil, err
  end
  io.write(built.name, "\t", built.digest, "\n")
  return true
end

function verbs.list(templates)
  local list, err = templates:list()
  if not list then
    return nil, err
  end
  for _, one in ipairs(list) do
    local at = os.date("%Y-%m-%d %H:%M:%S", math.floor(one.created_at))
    io.write(("%-24s %s  %s\n"):format(one.name, one.digest:sub(1, 12), at))
  end
  return true
end

function verbs.delete(templates, _, ...)
  for _, name in ipairs { ... } do
    local ok, err = templates:delete(name)
    if not ok then
      return nil, err
    end
  end
  return true
end

-- How many operands a verb has: at least, at most.
local OPERANDS = { build = { 1, 1 }, list = { 0, 0 }, delete = { 1, math.huge } }

--- What `sandbar template ...` does, as a function, or nil where that is not how it is used.
function program.template(...)
  local options, operands, root = {}, {}, nil
  local args, i = { ... }, 1
  while args[i] do
    if args[i] == "--root" and args[i + 1] then
      i, root = i + 1, args[i + 1]
    elseif args[i] == "--no-cache" and operands[1] == "build" then
      options[args[i]] = true
    elseif args[i]:sub(1, 1) == "-" then
      return nil
    else
      operands[#operands + 1] = args[i]
    end
    i = i + 1
  end
  local verb = table.remove(operands, 1)
  local count = OPERANDS[verb]
  if not count or #operands < count[1] or #operands > count[2] then
    return nil
  end
  return function()
    local sandboxes, err = require("sandbar").open { root = root }
    if not sandboxes then
      return nil, err
    end
    return verbs[verb](sandboxes.templates, options, compat.unpack(operands))
  end
end

return program
