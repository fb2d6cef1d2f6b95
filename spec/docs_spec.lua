-- check: no asan
-- check: limit 300
-- Every Lua program in the README and the guide runs as it stands, one after the other against one state root,
-- and prints what its comments with an arrow say.
local helper = require "spec.helper"

local tree = os.getenv("SPEC_TREE") or "."

-- What a reader has by default, except for the place: a state root of our own, and nobody who lingers.
local PRELUDE = [[
local sandbar = require "sandbar"
local open = sandbar.open
sandbar.open = function(options)
  local all = { root = %q, linger = 0 }
  for key, value in pairs(options or {}) do all[key] = value end
  return open(all)
end
]]

-- The programs of a page: { line = of the first line, code = }.
local function programs(page)
  local found, current, number = {}, nil, 0
  for line in io.lines(tree .. "/" .. page) do
    number = number + 1
    if current and line == "```" then
      current.code = table.concat(current, "\n") .. "\n"
      found[#found + 1], current = current, nil
    elseif current then
      current[#current + 1] = line
    elseif line == "```lua" then
      current = { line = number + 1 }
    end
  end
  return found
end

local function one_blank(text)
  return (text:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", ""))
end

-- Each promise of the program is in its output, in the order of the promises.
local function check(program, output)
  local from = 1
  output = one_blank(output)
  for promise in program.code:gmatch("%-%->%s*([^\n]+)") do
    local first, last = output:find(one_blank(promise), from, true)
    assert(first, ("%q was promised, the rest of the output is %q"):format(promise, output:sub(from)))
    from = last + 1
  end
end

describe("the programs in", function()
  helper.guard { each = false } -- some build on what an earlier one kept

  for _, page in ipairs { "README.md", "docs/guide.md" } do
    local found = programs(page)

    it(page .. " are there", function()
      assert.is_true(#found > 0)
    end)

    for _, program in ipairs(found) do
      it(("%s, line %d"):format(page, program.line), function()
        local child = helper.run_lua(PRELUDE:format(helper.root()):gsub("\n", " ") .. "\n" .. program.code,
          { timeout = 60 })
        assert.equal("", child.stderr)
        assert.equal(0, child.code, child.stdout)
        check(program, child.stdout)
      end)
    end
  end
end)
