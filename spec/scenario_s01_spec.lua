-- check: only 5.4
-- Scenario: the tool loop of a coding agent. A fixed list of 40 tool calls (edit, run, read the error, fix, and
-- the accidents agents cause), in a program of its own, so that what it prints can be seen.
local helper = require "spec.helper"
local inside = require "spec.support.inside"
local lfs = require "lfs"

local PROGRAM = [==[
package.loaded.busted = { subscribe = function() end } -- the helper is used without it
local sandbar = require "sandbar"
local helper = require "spec.helper"
local root, answer = ...
local calls = 0
local function call(value, err)
  calls = calls + 1
  if value == nil then
    error(("call %d: %s"):format(calls, tostring(err)), 2)
  end
  return value
end
local function same(expected, got, what)
  if expected ~= got then
    error(("call %d, %s: expected %q, got %q"):format(calls, what or "result", tostring(expected), tostring(got)), 2)
  end
end
local function rss() return tonumber(helper.proc.status("self", "VmRSS"):match("%d+")) end

local SUM = "total=0\nwhile read -r n; do total=$((total + n)); done\necho $total\n"
local FIXED = "total=0\nwhile read -r n || [ -n \"$n\" ]; do total=$((total + n)); done\necho $total\n"
local CHECK = [[
passed=0 failed=0
try() {
  got=$(printf "$1" | sh sum.sh)
  if [ "$got" = "$2" ]; then passed=$((passed + 1)); else
    failed=$((failed + 1)); printf "case '%s': %s instead of %s\\n" "$1" "$got" "$2" >&2
  fi
}
try '1\n2\n3\n' 6
try '' 0
try '4\n5' 9
echo "$passed passed, $failed failed"
[ $failed = 0 ]
]]

-- Once before counting: what the library opens for good is not the scenario's.
local sandboxes = sandbar.assert(sandbar.open { root = root, linger = 0 })
sandbar.assert(sandbar.assert(sandboxes:create {}):destroy())
collectgarbage() collectgarbage()
local fds, memory, began = helper.anonymous_fds(), rss(), helper.now()

-- 1. create, write in one batch, list
local box = call(sandboxes:create { lifetime = 600, labels = { run = "agent loop #1" } })
same("agent loop #1", box.labels.run, "label")
call(box.files:write_many {
  { path = "work/sum.sh", data = SUM }, { path = "work/check.sh", data = CHECK }, { path = "work/.keep", data = "" },
})
local function listed()
  local names = {}
  for i, entry in ipairs(call(box.files:list("work", { depth = false }))) do
    names[i] = entry.name .. (entry.name == ".keep" and "=" .. entry.size or "")
  end
  table.sort(names)
  return table.concat(names, " ")
end
same(".keep=0 check.sh sum.sh", listed(), "list")
local function run(cmd, opts)
  opts = opts or {}
  opts.cwd = opts.cwd or "/home/user/work"
  return box:exec(cmd, opts)
end
-- 2. the first check
local r = call(run("sh check.sh"))
same(1, r.exit_code, "exit code")
same("2 passed, 1 failed\n", r.stdout, "stdout")
same(true, r.stderr:find("case '4\\n5'", 1, true) ~= nil, "the detail on stderr")
-- 3. read and correct, 4. check again
same(SUM, call(box.files:read("work/sum.sh")), "sum.sh")
call(box.files:write("work/sum.sh", FIXED))
local function green()
  local result = call(run("sh check.sh"))
  same(0, result.exit_code, "exit code")
  same("3 passed, 0 failed\n", result.stdout, "stdout")
  same("", result.stderr, "stderr")
  return true
end
green()
-- 5. accidents
local seconds
seconds, r = helper.timed(run, { "cat" }) -- waits for input
same(0, call(r).exit_code, "cat")
same("", r.stdout, "cat's output")
same(true, seconds < 2, "end of file at once")
local err
seconds = helper.timed(function() r, err = run("sleep 60", { timeout = 3 }) end)
call(err)
same("ExecTimedOut", err.kind, "kind")
same(true, seconds >= 3 and seconds < 4, "time-out after " .. seconds)
r = call(run("cat /proc/[0-9]*/comm | grep -c sleep"))
same("0\n", r.stdout, "sleep is left")
call(box.files:upload(answer, "answer"))
call(box.files:chmod("answer", "755"))
seconds, r = helper.timed(run, "../answer 127.0.0.1 3000 hello & echo started")
same(0, call(r).exit_code, "server")
same(true, seconds < 2, "the server's start took " .. seconds)
same("hello", call(box:port(3000):fetch { wait = 5 }).body, "server's answer")
r = call(run("pyhton3 --version"))
same(127, r.exit_code, "misspelt")
same(true, r.stderr:find("pyhton3", 1, true) ~= nil, "misspelt: text")
r = call(run("head -c 5000000 /dev/zero | tr '\\0' x; head -c 200000 /dev/zero | tr '\\0' y >&2; echo 'FATAL: 42' >&2",
  { max_output = 100000 }))
same(100000, #r.stdout, "kept")
same(true, r.truncated, "truncated")
same("FATAL: 42\n", r.stderr:sub(-10), "the last line")
local TEXT = "it's \"quoted\" $HOME `id` \\n \195\169\228\184\173\n"
r = call(run("cat > note.txt <<'END'\n" .. TEXT .. "END\n"))
same(0, r.exit_code, "heredoc")
same(TEXT, call(box.files:read("work/note.txt")), "heredoc's file")
call(box.files:remove("work/note.txt"))
r, err = run("touch ran", { cwd = "/nowhere" })
call(err)
same(nil, r, "cwd /nowhere")
same("NotFound", err.kind, "kind")
same(true, tostring(err):find("/nowhere", 1, true) ~= nil, "the directory's name in " .. tostring(err))
same(3, call(run("echo a; exit 3; echo b")).exit_code, "exit in the middle")
same("next\n", call(run("echo next")).stdout, "the next call")
same(".keep=0 check.sh sum.sh", listed(), "second list")
r = call(run("kill -TERM $$"))
same(143, r.exit_code, "TERM")
same("SIGTERM", r.signal, "TERM's name")
-- ordinary calls between
same(false, call(box.files:exists("work/none")), "exists")
same(true, call(box.files:mkdir("work/new")), "mkdir")
call(box.files:write("work/new/log", "one\n", { flag = "a" }))
call(box.files:move("work/new", "work/old"))
call(box.files:remove("work/old", { recursive = true }))
-- 6. ten at once
local fns = {}
for i = 1, 10 do fns[i] = green end
sandbar.assert(sandbar.all(fns))
-- 7. kill
call(box:destroy())
box:close()
seconds = helper.now() - began
same(40, calls, "number of calls")
same(true, seconds < 30, "time")
-- END, as far as it can be seen from in here
same("NotFound", select(2, sandboxes:info(box.id)).kind, "destroyed")
box, r, err = nil, nil, nil
collectgarbage() collectgarbage()
local more = helper.anonymous_fds() - fds
same(true, math.abs(more) <= 5, "descriptors: " .. more)
same(true, rss() - memory < 65536, "memory grew by " .. rss() - memory .. " kB")
for _, stat in pairs(helper.proc.all()) do
  same(false, stat.parent == helper.proc.self() and stat.state == "Z", "a defunct child")
end
print("done")
]==]

describe("scenario S01", function()
  helper.guard()

  it("a coding agent's tool loop", function()
    local home = helper.dir("home")
    local r = helper.run_lua(PROGRAM, { args = { helper.root(), inside.built("answer") }, timeout = 60,
      env = { HOME = home } })
    if not r.ok then -- what it had made shall not hide why it failed
      for info in helper.open():each() do
        helper.open():destroy(info.id)
      end
    end
    assert.equal("done\n", r.stdout, r.stderr)
    assert.equal("", r.stderr)
    assert.equal(0, r.code)
    for name in lfs.dir(home) do
      assert.is_truthy(name == "." or name == "..", "left over: " .. name)
    end
    lfs.rmdir(home)
    -- Outside: no process, no mount, no directory, no socket.
    assert.is_truthy(helper.eventually(function()
      return next(helper.proc.of_dir(helper.root())) == nil and not lfs.attributes(helper.root() .. "/v1/sock", "mode")
    end))
    assert.same({}, helper.proc.mounts(helper.root()))
    for name in lfs.dir(helper.root() .. "/v1/s") do
      assert.is_truthy(name == "." or name == "..", "left over: " .. name)
    end
  end)
end)
