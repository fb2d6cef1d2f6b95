-- The verbs of the `sandbar` program beside `run`: what a shell does with templates.

local compat = require "sandbar.compat"
local copied = require "sandbar.copied"
local progress = require "sandbar.progress"

local program = {}

-- Where what a file names begins: relative paths are beside it, whoever builds from wherever.
local function beside(dir, path)
  return path:sub(1, 1) == "/" and path or dir .. "/" .. path
end

local function opens(path)
  local file = io.open(path, "r")
  return file ~= nil and file:close() ~= nil
end

-- The table of what templates:build takes, of a file that returns it or of the template.lua in a directory, and the
-- path of the file.
local function read(path)
  local inside = path:gsub("/+$", "") .. "/template.lua"
  if opens(inside) or opens(path .. "/.") then
    path = inside
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
  local given = copied(spec)
  if type(spec.steps) == "table" then
    given.steps = copied(spec.steps)
    for i, step in ipairs(spec.steps) do
      if type(step) == "table" and type(step.copy) == "string" then
        given.steps[i] = copied(step)
        given.steps[i].copy = beside(dir, step.copy)
      end
    end
  end
  return given, path
end

local verbs = {}

function verbs.build(templates, options, path)
  local given, from = read(path)
  if not given then
    return nil, from
  end
  given.on_progress = progress.show()
  if options["--no-cache"] then
    given.cache = false
  end
  local ok, built, err = pcall(templates.build, templates, given)
  if not ok then -- the file's mistake, not a caller's
    local misuse = type(built) == "string" and built:match("bad argument #1 to 'build' %((.*)%)$")
    if not misuse then
      error(built, 0)
    end
    return nil, from .. ": " .. misuse
  elseif not built then
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

-- How many operands a verb has: at least, at most; and which.
local OPERANDS = {
  build = { 1, 1, "a FILE or DIR" }, list = { 0, 0, "nothing" }, delete = { 1, math.huge, "the NAMEs of templates" },
}

--- What is wrong with a word that says nothing to a command.
function program.unknown(command, word)
  return ("%s: %s %s"):format(command, word:sub(1, 1) == "-" and "unknown option" or "unexpected", word)
end

--- The option that a word is, and the value that stands in it behind "=" if it is one of those that take one (`takes`).
function program.option(word, takes)
  local name, value = word:match("^(%-%-[^=]+)=(.*)$")
  if name and takes[name] then
    return name, value
  end
  return word
end

local TAKES = { ["--root"] = true }

-- The words of a `sandbar template`: options, operands and the root; or nil and what is wrong.
local function words(args)
  local options, operands, i = {}, {}, 1
  while args[i] do
    local name, value = program.option(args[i], TAKES)
    if name == "--root" then
      i = value and i or i + 1
      options.root = value or args[i]
      if not options.root then
        return nil, "template: --root without a directory"
      end
    elseif args[i] == "--no-cache" and operands[1] == "build" then
      options[args[i]] = true
    elseif args[i]:sub(1, 1) == "-" then
      return nil, program.unknown("template", args[i])
    else
      operands[#operands + 1] = args[i]
    end
    i = i + 1
  end
  return options, operands
end

--- What `sandbar template ...` does, as a function, or nil and why that is not how it is used.
function program.template(...)
  local options, operands = words { ... }
  if not options then
    return nil, operands
  end
  local verb = table.remove(operands, 1)
  local count = OPERANDS[verb]
  if not count then
    return nil, verb and program.unknown("template", verb) or "template: build, list or delete?"
  elseif #operands < count[1] or #operands > count[2] then
    return nil, ("template %s: it takes %s"):format(verb, count[3])
  end
  return function()
    local sandboxes, err = require("sandbar").open { root = options.root }
    if not sandboxes then
      return nil, err
    end
    return verbs[verb](sandboxes.templates, options, compat.unpack(operands))
  end
end

return program
