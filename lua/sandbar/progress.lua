-- Shows how the build of a template goes on, for its `on_progress`. On a terminal a line a step, behind which the last
-- line stands that the step has written while it runs; elsewhere a line for each thing told.
--
--   local progress = require "sandbar.progress"
--   sandboxes.templates:build { name = "site", steps = steps, on_progress = progress.show() }

local check = require "sandbar.check"
local core = require "sandbar.core"

local REDRAW = 0.05 -- seconds between two lines of output that are drawn
local MOST = 4096   -- bytes of a line without an end that are kept

local progress = {}

-- How many bytes a character of UTF-8 has that begins with this one; 0 for none.
local function length(byte)
  return byte < 0x80 and 1 or byte < 0xC2 and 0 or byte < 0xE0 and 2 or byte < 0xF0 and 3 or byte < 0xF5 and 4 or 0
end

-- `text` as one line of at most `columns`: what a build writes commands no terminal, so there are no control
-- characters in it, and nothing that is not UTF-8. What is not ASCII may be two columns wide.
local function line_of(text, columns)
  text = text:gsub("\27%[[%d;?]*%a", ""):gsub("%c+", " ")
  local out, width, at = {}, 0, 1
  while at <= #text do
    local n = length(text:byte(at))
    local char = text:sub(at, at + n - 1)
    if n == 0 or n > 1 and (not char:find("^.[\128-\191]+$") or #char < n) or char:find("^\194[\128-\159]") then
      char, n = "?", 1
    end
    width = width + (n > 1 and 2 or 1)
    if columns and width > columns then
      break
    end
    out[#out + 1] = char
    at = at + n
  end
  return table.concat(out)
end

local function seconds(event)
  return event.cached and "cached" or ("%.1f s"):format(event.seconds)
end

local function head(event)
  return ("[%d/%d] %s %s"):format(event.step, event.steps, event.kind, event.text)
end

-- ---- on a terminal ----

local Terminal = {}
Terminal.__index = Terminal

-- The line of the step that runs, with `behind` at its end, which is not cut.
function Terminal:draw(behind, ending)
  local columns = core.terminal(self.file) or 80
  local room = columns - 1 - #behind
  self.file:write("\r\27[K", line_of(self.head, math.max(room, 10)), behind, ending or "")
  self.file:flush()
end

function Terminal:step(event)
  self.head, self.rest, self.drawn = head(event), "", nil
  self:draw(" ...")
end

function Terminal:output(event)
  local text = self.rest .. event.data
  local last = text:match("([^\r\n]*[^%s][^\r\n]*)[\r\n]+[^\r\n]*$") -- the last whole line with something in it
  self.rest = text:match("[^\r\n]*$"):sub(-MOST)
  local now = core.now()
  if not last or self.drawn and now - self.drawn < REDRAW then
    return
  end
  self.drawn = now
  local columns = core.terminal(self.file) or 80
  local shown = line_of(self.head, math.floor(columns / 2)) .. ": "
  self.file:write("\r\27[K", shown, line_of(last, columns - 1 - #shown))
  self.file:flush()
end

function Terminal:done(event)
  self:draw("  " .. seconds(event), "\n")
  self.head = nil
end

function Terminal:failed()
  if self.head then
    self:draw("  failed", "\n")
  end
end

function Terminal:built(event)
  self.file:write(line_of(("%s is built, %s"):format(event.name, seconds(event))), "\n")
  self.file:flush()
end

-- ---- elsewhere ----

local Plain = {}
Plain.__index = Plain

function Plain:put(text)
  self.file:write(line_of(text), "\n")
  self.file:flush()
end

function Plain:step(event)
  self.at, self.rest = ("[%d/%d]"):format(event.step, event.steps), ""
  self:put(head(event))
end

function Plain:output(event)
  local text = self.rest .. event.data
  for line in text:gmatch("([^\n]*)\n") do
    self:put(("%s %s"):format(self.at, line))
  end
  self.rest = text:match("[^\n]*$")
  if #self.rest > MOST then
    self:finish()
  end
end

function Plain:finish()
  if self.rest and self.rest ~= "" then
    self:put(("%s %s"):format(self.at, self.rest))
    self.rest = ""
  end
end

function Plain:done(event)
  self:finish()
  self:put(("%s %s"):format(self.at, event.cached and "cached" or "done in " .. seconds(event)))
end

function Plain:failed()
  self:finish()
  if self.at then
    self:put(self.at .. " failed")
  end
end

Plain.built = Terminal.built

--- What takes the events of a build and shows them in `file`, a file of Lua's (default: stderr).
function progress.show(file)
  file = check.arg("show", 1, file, "userdata?") or io.stderr
  local shown = setmetatable({ file = file, rest = "" }, core.terminal(file) and Terminal or Plain)
  return function(event)
    local what = shown[event.event]
    if what then
      what(shown, event)
    end
  end
end

return progress
