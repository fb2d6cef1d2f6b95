-- Busted output handler of spec/run: prints what failed and what was skipped (with the reason), nothing
-- for what passed, and files the totals where $SPEC_TOTALS says, so that all suites can be summed.
-- While a test runs its name is in $SPEC_CURRENT: after a crash or a time-out that is the culprit.

local pretty = require "pl.pretty"

local function text(message)
  if message == nil then
    return "nil error"
  end
  local mt = getmetatable(message)
  if type(message) == "string" or type(mt) == "table" and mt.__tostring then
    return tostring(message)
  end
  return pretty.write(message)
end

local MAX_LINES = 30

local function indent(s)
  local lines = {}
  for line in (s:gsub("\n+$", "") .. "\n"):gmatch("([^\n]*)\n") do
    if #lines == MAX_LINES then
      lines[#lines + 1] = "..."
      break
    end
    lines[#lines + 1] = line
  end
  return table.concat(lines, "\n        ")
end

local function file_out(name, content)
  local path = os.getenv(name)
  local f = path and io.open(path, "w")
  if f then
    f:write(content)
    f:close()
  end
end

return function(_)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()

  local function place(item)
    local trace = item.element.trace or item.trace or {}
    return ("%s:%s"):format(trace.short_src or "?", trace.currentline or "?")
  end

  local function report(item)
    io.write("  FAIL  ", item.name, "\n        ", place(item), "\n        ", indent(text(item.message)), "\n")
    if item.trace and item.trace.traceback and item.isError then
      io.write("        ", indent(item.trace.traceback:gsub("^\n", "")), "\n")
    end
  end

  handler.start = function(element)
    file_out("SPEC_CURRENT", handler.getFullName(element))
    return nil, true
  end

  handler.finish = function()
    for _, item in ipairs(handler.pendings) do
      -- pending("reason") as a block has the reason for its name, inside a test it is the message.
      local reason = item.message and ": " .. indent(text(item.message):gsub("^%S+:%d+: ", "")) or ""
      io.write("  skip  ", item.name, reason, "\n")
    end
    for _, item in ipairs(handler.failures) do
      report(item)
    end
    for _, item in ipairs(handler.errors) do
      report(item)
    end
    io.flush()
    file_out("SPEC_CURRENT", "")
    file_out("SPEC_TOTALS", ("%d %d %d\n"):format(
      handler.successesCount, #handler.failures + #handler.errors, handler.pendingsCount))
    return nil, true
  end

  busted.subscribe({ "test", "start" }, handler.start)
  busted.subscribe({ "suite", "end" }, handler.finish)
  return handler
end
