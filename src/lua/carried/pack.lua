-- Build-time: compiles the modules with the Lua that runs this, into one file that core.so carries.
--
-- usage: LUA pack.lua OUTPUT SAMPLE FILE...     FILEs below lua/, which is where LUA_PATH begins
--
-- What it writes (numbers have 4 bytes, little-endian; "item": bytes behind their length): the sample and what it
-- compiles to, two items; the number of modules; for each module its name and path, two items, and where its
-- text and compiled form are, two items as well. src/lua/carried.c reads it.
--
-- The sample is compiled once more where core.so is loaded: the same bytes mean that the Lua there speaks this
-- one's compiled form, down to the numbers of its instructions.

local compile = loadstring or load -- luacheck: ignore 113

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local function number(n)
  local digits = {}
  for i = 1, 4 do
    digits[i] = string.char(n % 256)
    n = (n - n % 256) / 256
  end
  return table.concat(digits)
end

local function item(bytes)
  return number(#bytes) .. bytes
end

local without_names = dofile(arg[0]:match("^.*/") .. "names.lua")

-- With lines, for errors.
local function compiled(text, name)
  local code = string.dump(assert(compile(text, name)))
  return name ~= "=sample" and without_names(code) or code
end

local sample = read(arg[2])
local head = item(sample) .. item(compiled(sample, "=sample")) .. number(#arg - 2)
local names, bodies, size = {}, {}, #head
for i = 3, #arg do
  local path = assert(arg[i]:match("^lua/(.*)$"))
  local text = read(arg[i])
  names[#names + 1] = item((path:gsub("%.lua$", ""):gsub("/", "."))) .. item(path)
  bodies[#bodies + 1] = item(text) .. item(compiled(text, "@" .. path))
  size = size + #names[#names] + 4
end
local out = assert(io.open(arg[1], "wb"))
assert(out:write(head))
for i, name in ipairs(names) do
  assert(out:write(name, number(size)))
  size = size + #bodies[i]
end
assert(out:write(table.concat(bodies)))
assert(out:close())
