-- check: one Lua
-- check: no asan
-- check: no user
-- The table of the escape suite (docs/internals/escape.md) says what the specs do.
local helper = require "spec.helper"

local PAGE = "docs/internals/escape.md"
local KINDS = { "files", "processes", "calls", "network", "budgets" }

--- { probe = { plain = true, … } } of where each is shown to work, as the programs' own tables have it.
local function rooms_of_probes()
  local all = {}
  for _, kind in ipairs(KINDS) do
    local text = assert(helper.read_file(("spec/escape/%s.c"):format(kind)))
    local list = assert(text:match("const struct probe [%w_]+_probes%[%] = {(.-){NULL"), kind)
    for name, where in list:gmatch("{\"([%w_]+)\", ([%w |]+),") do
      all[name] = {}
      for word in where:lower():gmatch("%a+") do
        all[name][word] = true
      end
    end
  end
  return all
end

-- { n, what, by, root, user, without } of each line of the page's tables.
local function rows()
  local all = {}
  for line in assert(helper.read_file(PAGE)):gmatch("[^\n]+") do
    if line:find("^| %d") then
      local row = {}
      for cell in line:gmatch("([^|]+)|") do
        row[#row + 1] = cell:match("^%s*(.-)%s*$")
      end
      assert.equal(6, #row, line)
      all[#all + 1] = row
    end
  end
  return all
end

local specs = {}
local function spec_text(file)
  specs[file] = specs[file] or assert(helper.read_file(("spec/%s.lua"):format(file)), file)
  return specs[file]
end

local function marked(file, mark)
  return spec_text(file):sub(1, 400):find("-- check: " .. mark .. "\n", 1, true) ~= nil
end

-- The specs that a row names: a file and the name of one of its specs.
local function named(row)
  local all = {}
  for file, name in row[3]:gmatch("`([%w_]+_spec)` \"(.-)\"%f[;%z]") do
    all[#all + 1] = { file = file, name = name }
  end
  return all
end

describe("the table of the escape suite", function()
  local probes = rooms_of_probes()

  it("has each of the 64 once", function()
    for i, row in ipairs(rows()) do
      assert.equal(tostring(i), row[1])
    end
    assert.equal(64, #rows())
  end)

  it("names probes that there are, each with the places where it is shown to work", function()
    local seen = {}
    for _, row in ipairs(rows()) do
      local where = {}
      for name in row[3]:gmatch("`([%w_]+)`") do
        if not name:find("_spec$") then
          assert.is_truthy(probes[name], row[1] .. ": " .. name)
          seen[name] = true
          for room in pairs(probes[name]) do
            where[room] = true
          end
        end
      end
      if next(where) then
        for room in row[6]:gmatch("%a+") do
          assert.is_true(where[room] or false, row[1] .. ": " .. room)
          where[room] = nil
        end
        assert.is_nil(next(where), row[1] .. " is shown to work elsewhere, too: " .. tostring(next(where)))
      else
        assert.is_truthy(row[6]:find("^no: %w"), row[1] .. ": " .. row[6])
      end
    end
    for name in pairs(probes) do
      assert.is_true(seen[name] or false, name .. " is in no line")
    end
  end)

  it("names specs that there are, and says who runs them", function()
    for _, row in ipairs(rows()) do
      local short = row[3]:find("`[%w_]+`%f[;%z]") ~= nil
      local by_user, quoted = short, 0 -- probes run as everybody
      for _, one in ipairs(named(row)) do
        local at = spec_text(one.file):find("it(\"" .. one.name .. "\"", 1, true)
        assert.is_truthy(at, ("%s: %s has no %q"):format(row[1], one.file, one.name))
        local body = spec_text(one.file):sub(at):match("^.-\n[^\n]*%f[%w]it%(") or spec_text(one.file):sub(at)
        short = short or not marked(one.file, "long")
        by_user = by_user or not (marked(one.file, "no user") or body:find("\n%s+helper.need_root%(%)"))
        quoted = quoted + 1
      end
      assert.is_true(quoted > 0 or by_user, row[1] .. " names nothing")
      assert.equal(select(2, row[3]:gsub("_spec`", "")), quoted, row[1])
      assert.equal(short and "yes" or "long", row[4], row[1])
      assert.is_truthy(row[5]:find(by_user and "^yes" or "^no: %w"), row[1] .. ": " .. row[5])
    end
  end)
end)
