-- The main job in one program: a sandbox for one piece of work, and nothing of it afterwards.
--
--   make demo        or, installed:  sandbar run examples/quickstart.lua
--
-- Plain text on a pipe, colours and progress on a terminal. Ends with status 0 only if every step did what
-- it says, the last one being to look from outside for anything that is left.

local sandbar = require "sandbar"
local assert = sandbar.assert -- raises the error object, on every Lua

-- --- a small report ---------------------------------------------------------------------------------

local function shell(line)
  local pipe = io.popen(line, "r")
  local out = pipe:read("*a")
  pipe:close()
  return (out:gsub("%s+$", ""))
end

local terminal = os.execute("test -t 1")
terminal = terminal == true or terminal == 0

local function paint(code, text)
  return terminal and ("\27[%sm%s\27[0m"):format(code, text) or text
end

local function seconds()
  return tonumber(shell("date +%s.%N"))
end

local function line(mark, text, took)
  io.write(terminal and "\r\27[K" or "", mark, " ", text, (" "):rep(math.max(1, 64 - #text)),
    took and ("%8.1f ms"):format(took * 1000) or "", "\n")
  io.flush()
end

local function done(text, took)
  line(paint("32", "✓"), text, took)
end

-- The clock is a program of its own: what starting it takes is subtracted from each time.
local clock_cost = math.huge
for _ = 1, 5 do
  clock_cost = math.min(clock_cost, -seconds() + seconds())
end

-- Runs one step and reports it with its time.
local function step(text, fn)
  if terminal then
    io.write(paint("2", "· " .. text .. " ..."))
    io.flush()
  end
  local start = seconds()
  local note = fn()
  local took = math.max(0, seconds() - start - clock_cost)
  done(note and text .. ": " .. note or text, took)
end

-- One line of what a program inside says, as it arrives.
local function said(text)
  io.write(terminal and "\r\27[K" or "", "    ", paint("2", "| " .. text), "\n")
  io.flush()
end

local function by_line(sink)
  local rest = ""
  return function(data)
    rest = (rest .. data):gsub("([^\n]*)\n", function(text)
      sink(text)
      return ""
    end)
  end
end

-- --- the project ------------------------------------------------------------------------------------

local program = [[
def count(text):
    """How often each word occurs."""
    words = {}
    for word in text.split():
        words[word] = words.get(word, 0) + 1
    return words
]]

local repaired = [[
def count(text):
    """How often each word occurs, whatever its case."""
    words = {}
    for word in text.lower().split():
        words[word] = words.get(word, 0) + 1
    return words
]]

local tests = [[
import unittest
from words import count

class Words(unittest.TestCase):
    def test_counts(self):
        self.assertEqual(count("a b a"), {"a": 2, "b": 1})

    def test_empty(self):
        self.assertEqual(count(""), {})

    def test_upper_case_is_the_same_word(self):
        self.assertEqual(count("The the"), {"the": 2})

if __name__ == "__main__":
    unittest.main(verbosity=2)
]]

local megabytes = 10
local chunk = ("sandbar pours ten megabytes through a pipe, line by line.....\n"):rep(1058):sub(1, 65536)
local chunks = megabytes * 1024 * 1024 / #chunk

-- The same bytes through this machine's own sha256sum, to compare with.
local function checksum_outside(directory)
  local file = directory .. "/sum"
  local pipe = io.popen("sha256sum > '" .. file .. "'", "w")
  for _ = 1, chunks do
    pipe:write(chunk)
  end
  pipe:close()
  return shell("cat '" .. file .. "'; rm '" .. file .. "'"):match("^%x+")
end

-- --- looking from outside ---------------------------------------------------------------------------

-- Processes of this machine: { [pid] = { parent =, args = } }.
local function processes()
  local all = {}
  for entry in shell("ps -e -o pid= -o ppid= -o args="):gmatch("[^\n]+") do
    local pid, parent, args = entry:match("^%s*(%d+)%s+(%d+)%s+(.*)$")
    all[pid] = { parent = parent, args = args }
  end
  return all
end

-- The supervisor of the sandbox `id`, which is among the arguments of a program in it, and everything below it:
-- { [pid] = command line }. Other sandboxes of this machine are not our business.
local function engine_processes(id)
  local all, found, top = processes(), {}, nil
  for pid, process in pairs(all) do
    local marked = process.args:find(id, 1, true)
    while marked and all[pid] do
      top = all[pid].args:find("^sandbar%-supervisor") and pid or top
      pid = all[pid].parent
    end
  end
  if not top then
    error("no supervisor is above what runs in the sandbox")
  end
  found[top] = all[top].args
  repeat
    local more = false
    for pid, process in pairs(all) do
      if not found[pid] and found[process.parent] then
        found[pid], more = process.args, true
      end
    end
  until not more
  return found
end

local function left_over(root, id, known)
  local found = {}
  local now = processes()
  for pid, args in pairs(known) do
    if now[pid] then
      found[#found + 1] = "process " .. pid .. " " .. args
    end
  end
  local function look(what, command)
    for item in shell("{ " .. command .. "; } 2>/dev/null"):gmatch("[^\n]+") do
      found[#found + 1] = what .. " " .. item
    end
  end
  look("mount", ("cat /proc/[0-9]*/mountinfo | grep -F -e '%s' -e '%s' | sort -u"):format(root, id))
  look("socket", ("grep -F '%s' /proc/net/unix"):format(root))
  look("directory", ("ls -d '%s'/v1/s/* '%s'/v1/trash/*"):format(root, root))
  return found
end

-- --- the job ----------------------------------------------------------------------------------------

-- A state directory of its own, so that what is seen is this program's. `linger = 0`: the supervisor, which
-- otherwise stays for a minute after its last sandbox to make the next one fast, leaves at once.
local root = shell("mktemp -d /tmp/sandbar-quickstart.XXXXXX")
local during, id = {}, nil
local started = seconds()

local function job(scope, sandboxes)
  local box
  step("create a sandbox, the first one, which starts the supervisor", function()
    box = assert(sandboxes:create_scoped({ template = "base", lifetime = 120 }, scope))
    id = box.id
  end)
  local project = "/home/user/" .. id

  step("create another one and destroy it", function()
    local other = assert(sandboxes:create_scoped({ lifetime = 60 }, scope))
    assert(other:destroy())
  end)

  step("write a small project into it", function()
    assert(box.files:write(project .. "/words.py", program))
    assert(box.files:write(project .. "/test_words.py", tests))
    local names = {}
    for _, entry in ipairs(assert(box.files:list(project))) do
      names[#names + 1] = entry.name
    end
    return table.concat(names, ", ")
  end)

  local function run_tests()
    return assert(box:exec({ "python3", "test_words.py" }, {
      cwd = project, timeout = 60, on_output = by_line(said),
    }))
  end

  step("run its tests", function()
    local r = run_tests()
    if r.exit_code ~= 1 then
      error("the tests should have found the mistake, exit code " .. tostring(r.exit_code))
    end
    return "they fail, exit code 1"
  end)

  step("repair the program and run them again", function()
    assert(box.files:write(project .. "/words.py", repaired))
    local r = run_tests()
    if not r.ok then
      error("the repaired program fails its tests")
    end
    return "they pass"
  end)

  step("serve the project and fetch a page", function()
    assert(box:start({ "python3", "-m", "http.server", "3000", "--directory", project }, {
      stdout = "ignore", stderr = "ignore",
    }))
    local page = assert(box:port(3000):fetch { path = "/words.py", wait = 20 })
    if page.status ~= 200 or page.body ~= repaired then
      error("the page is not what was written, status " .. tostring(page.status))
    end
    return ("status %d, %d bytes"):format(page.status, #page.body)
  end)

  local expected = checksum_outside(root)
  step(("pour %d MiB through a command's stdin"):format(megabytes), function()
    local sent = 0
    local r = assert(box:exec({ "sha256sum" }, {
      timeout = 60,
      stdin = function()
        if sent == chunks then
          return nil
        end
        sent = sent + 1
        if terminal and sent % 8 == 0 then
          io.write(("\r\27[K· %3d %%"):format(sent * 100 / chunks))
          io.flush()
        end
        return chunk
      end,
    }))
    if r.stdout:match("^%x+") ~= expected then
      error("wrong checksum: " .. r.stdout)
    end
    return "checksum right"
  end)

  during = engine_processes(id)
end

print(paint("1", "sandbar quickstart") .. ": " .. (type(jit) == "table" and jit.version or _VERSION) ..
  ", local provider, user " .. shell("id -un"))

local sandboxes = assert(sandbar.open { provider = "local", root = root, linger = 0 })
local leaving
local ran, ended, why = pcall(sandbar.scope, function(scope)
  job(scope, sandboxes)
  leaving = seconds()
  return true
end)
local failure = not ran and ended or why
if not failure then
  done("leave the scope: server killed, sandbox destroyed", math.max(0, seconds() - leaving - clock_cost))
end
sandboxes:close()

local count = 0
for _ in pairs(during) do
  count = count + 1
end
local found
local deadline = seconds() + 10
repeat -- the supervisor has no reason to stay and is on its way out
  found = left_over(root, id or root, during)
until #found == 0 or seconds() > deadline
-- An ordinary user's template holds files of the user's subordinate ids.
os.execute(("rm -rf '%s' 2>/dev/null || unshare --user --map-root-user --map-auto rm -rf '%s'"):format(root, root))
if #found > 0 then
  print(paint("31", "✗") .. " left over:\n    " .. table.concat(found, "\n    "))
end
if failure then
  print(paint("31", "✗") .. " " .. tostring(failure))
end
if failure or #found > 0 then
  os.exit(1, true)
end
done(("look from outside: %d processes then, none now;"):format(count))
line(" ", "no mount, no socket, no directory of the sandbox")
print(("done in %.1f s"):format(seconds() - started))
os.exit(0, true)
