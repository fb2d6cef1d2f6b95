-- check: only 5.4
-- check: no asan
-- check: no user
-- The annotations in types/ name exactly what the library exports.
local lfs = require "lfs"

local tree = os.getenv("SPEC_TREE") or "."

-- All annotated classes: { [name] = { fields = { [name] = true }, functions = { [name] = { params } } } }.
local function annotations()
  local classes, faults = {}, {}
  for file in lfs.dir(tree .. "/types") do
    if file:match("%.lua$") then
      local path = "types/" .. file
      local chunk, err = loadfile(tree .. "/" .. path)
      if not chunk then
        faults[#faults + 1] = err
      end
      local current, locals, doc, number = nil, {}, {}, 0
      for line in io.lines(tree .. "/" .. path) do
        number = number + 1
        local class = line:match("^%-%-%-@class sandbar%.(%w+)") or (line:match("^%-%-%-@class sandbar$") and "")
        local field = line:match("^%-%-%-@field ([%w_]+)")
        local param = line:match("^%-%-%-@param ([%w_]+)")
        local variable = line:match("^local (%w+) = {}$")
        local owner, name, list = line:match("^function (%w+)[.:]([%w_]+)%((.*)%) end$")
        if class then
          current = { fields = {}, functions = {} }
          classes[class] = current
        elseif field then
          current.fields[field] = true
        elseif param then
          doc[param] = true
        elseif variable then
          locals[variable] = current
        elseif owner then
          local known = locals[owner]
          if not known then
            faults[#faults + 1] = ("%s:%d: %s is no class"):format(path, number, owner)
          else
            known.functions[name] = true
          end
          for argument in list:gmatch("[%w_]+") do
            if not doc[argument] then
              faults[#faults + 1] = ("%s:%d: %s has no @param"):format(path, number, argument)
            end
            doc[argument] = nil
          end
          for argument in pairs(doc) do
            faults[#faults + 1] = ("%s:%d: @param %s is no argument"):format(path, number, argument)
          end
        end
        if not line:match("^%-%-%-") then
          doc = {}
        end
      end
    end
  end
  return classes, faults
end

-- The classes the library really makes: core.class is told the name, the methods and the getters of each.
local function exports()
  local core = require "sandbar.core"
  local real, found = core.class, {}
  core.class = function(name, methods, options) -- luacheck: ignore 122
    found[name] = { methods = methods, getters = options and options.getters or {} }
    return real(name, methods, options)
  end
  for name in pairs(package.loaded) do
    if name:match("^sandbar") and name ~= "sandbar.core" then
      package.loaded[name] = nil
    end
  end
  local sandbar = require "sandbar"
  sandbar.open { root = "/nonexistent" } -- loads what open loads first
  for _, area in ipairs { "", "local/", "policy/", "server/", "e2b/" } do
    for file in lfs.dir(tree .. "/lua/sandbar/" .. area) do
      local module = file:match("^(.*)%.lua$")
      if module and module ~= "init" and module ~= "openresty" then
        require("sandbar." .. area:gsub("/", ".") .. module)
      end
    end
  end
  core.class = real -- luacheck: ignore 122
  return sandbar, found
end

local function sorted(set)
  local list = {}
  for name in pairs(set) do
    if type(name) == "string" and not name:match("^_") then
      list[#list + 1] = name
    end
  end
  table.sort(list)
  return list
end

describe("types", function()
  local classes, faults = annotations()
  local sandbar, real = exports()

  it("annotate every argument of every function, and no other", function()
    assert.same({}, faults)
  end)

  it("name exactly what sandbar exports", function()
    local known = {}
    for name in pairs(classes[""].functions) do
      known[name] = true
    end
    for name in pairs(classes[""].fields) do
      known[name] = true
    end
    assert.same(sorted(sandbar), sorted(known))
  end)

  it("name exactly the methods of every class", function()
    local differences = {}
    for name, class in pairs(real) do
      local annotated = classes[name] and classes[name].functions or {}
      for _, method in ipairs(sorted(class.methods)) do
        if not annotated[method] then
          differences[#differences + 1] = ("%s:%s is not annotated"):format(name, method)
        end
      end
      for _, method in ipairs(sorted(annotated)) do
        if not class.methods[method] then
          differences[#differences + 1] = ("%s:%s is annotated but is not there"):format(name, method)
        end
      end
    end
    table.sort(differences)
    assert.same({}, differences)
  end)

  it("name every computed field", function()
    local missing = {}
    for name, class in pairs(real) do
      for field in pairs(class.getters) do
        if classes[name] and not classes[name].fields[field] and not field:match("^_") then
          missing[#missing + 1] = name .. "." .. field
        end
      end
    end
    assert.same({}, missing)
  end)
end)
