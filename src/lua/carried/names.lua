-- Takes the names of locals and upvalues out of a function that Lua 5.4 has dumped: they are most of what it has
-- strings of, and interning strings is most of what loading costs. Lines stay, and names of fields and globals.
-- Gives nil for what is not in the form that it knows.

-- Signature, version 5.4, format 0, the bytes that a transfer would damage, sizes of instruction, integer, float.
local HEADER = "^\27Lua\84\0\25\147\r\n\26\n\4\8\8................."
local FLOAT, INTEGER, SHORT, LONG = 0x13, 0x03, 0x04, 0x14
local FLAT = { [0x00] = true, [0x01] = true, [0x11] = true } -- nil, false, true

return function(dump)
  local _, at = dump:find(HEADER)
  if not at then
    return nil
  end
  local from, out = 1, {}

  local function byte()
    at = at + 1
    return (assert(dump:byte(at), "it ends too soon"))
  end

  local function number()
    local n = 0
    repeat
      local b = byte()
      n = n * 128 + b % 128
    until b >= 128
    return n
  end

  local function skip(n)
    at = at + n
  end

  local function text()
    skip(math.max(number() - 1, 0))
  end

  -- The list that comes here becomes an empty one.
  local function drop(entry)
    out[#out + 1] = dump:sub(from, at) .. "\128"
    for _ = 1, number() do
      entry()
    end
    from = at + 1
  end

  local function constant()
    local kind = byte()
    if kind == FLOAT or kind == INTEGER then
      skip(8)
    elseif kind == SHORT or kind == LONG then
      text()
    else
      assert(FLAT[kind], "a constant of an unknown type")
    end
  end

  local function fn()
    text() -- source
    number() -- its lines
    number()
    skip(3) -- parameters, vararg, stack
    skip(4 * number()) -- code
    for _ = 1, number() do
      constant()
    end
    skip(3 * number()) -- upvalues
    for _ = 1, number() do
      fn()
    end
    skip(number()) -- lines
    for _ = 1, number() do
      number()
      number()
    end
    drop(function() -- locals
      text()
      number()
      number()
    end)
    drop(text) -- upvalues' names
  end

  if not pcall(fn) or at ~= #dump then
    return nil
  end
  return table.concat(out)
end
