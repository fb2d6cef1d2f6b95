-- check: only 5.4
-- check: no asan
-- check: long
-- check: limit 300
-- Scenario: a repository goes in, is cloned, branched, patched and tested; the commit comes home.
local helper = require "spec.helper"
local scenario = require "spec.support.scenario"

local PROGRAM = [==[
local home = os.getenv("HOME")
local NAME, MAIL = "O'Neil \"Q\" Example", "oneil@example.invalid"
-- 300 commits that each write a text of 700 lines anew, 1500 files; for git fast-import.
local HISTORY = [[
import sys
out = sys.stdout.buffer
def data(b): out.write(b"data %d\n" % len(b) + b + b"\n")
def file(mode, name, content):
    out.write(b'M %s inline "%s"\n' % (mode, name.encode()))
    data(content)
for n in range(300):
    out.write(b"commit refs/heads/main\ncommitter A <a@example.invalid> %d +0000\n" % (1700000000 + n * 60))
    data(b"commit %d" % n)
    if n == 0:
        for i in range(1493): file(b"100644", "src/d%02d/f%d.txt" % (i % 40, i), b"file %d\n" % i)
        file(b"100644", "crlf.txt", b"one\r\ntwo\r\n")
        file(b"100755", "run.sh", b"#!/bin/sh\necho run\n")
        file(b"120000", "link", b"run.sh")
        file(b"100644", "big.bin", bytes(range(256)) * (30 * 4096))
        file(b"100644", "with space.txt", b"a\n")
        file(b"100644", "gr\u00fc\u00df.txt", b"b\n")
        file(b"100755", "check.sh", b"for i in 1 2 3 4 5; do sleep 15; echo line $i; done\ngrep -q right answer.txt\n")
    if n == 1: file(b"100644", "answer.txt", b"wrong\n")
    file(b"100644", "log.txt", b"".join(b"%d of %d\n" % (i * (n + 1), n) for i in range(700)))
]]
local bare, clone = home .. "/bare.git", home .. "/clone"
helper.write_file(home .. "/history.py", HISTORY)
helper.sh("git init -q --bare -b main %s && python3 %s | git -C %s fast-import --quiet", bare, home .. "/history.py", bare)
helper.sh("git clone -q %s %s", bare, clone)
helper.sh("cd %s && echo right > answer.txt && printf 'one\\r\\nthree\\r\\n' > crlf.txt && echo c > 'with space.txt' && "
  .. "echo d > gr\195\188\195\159.txt && git diff --binary > ../fix.patch && git checkout -q .", clone)
helper.sh("tar -C %s -cf %s/bare.tar bare.git", home, home)

-- 1
local box = call(sandboxes:create { lifetime = 900 })
call(box.files:upload(home .. "/bare.tar", "bare.tar"))
local WORK = "/home/user/work"
local function run(cmd, opts)
  opts = opts or {}
  opts.cwd = opts.cwd or WORK
  local r = call(box:exec(cmd, opts))
  same(opts.check == nil and 0 or r.exit_code, r.exit_code, (type(cmd) == "table" and cmd[2] or cmd) .. ": " .. r.stderr)
  return r
end
run("tar -xf bare.tar && git clone -q bare.git work && cd work && git checkout -q -b fix", { cwd = "/home/user" })
-- 2
local AUTHOR = { GIT_AUTHOR_NAME = NAME, GIT_AUTHOR_EMAIL = MAIL, GIT_COMMITTER_NAME = NAME, GIT_COMMITTER_EMAIL = MAIL }
-- 3 and 6: five lines spread over 75 s
local function test(expected)
  local times, began = {}, helper.now()
  local r = call(box:exec({ "sh", "check.sh" }, { cwd = WORK, on_output = function(data)
    for _ in data:gmatch("line %d\n") do times[#times + 1] = helper.now() - began end
  end }))
  same(expected, r.exit_code, "the test")
  same(5, #times, "lines")
  for i = 1, 5 do holds(math.abs(times[i] - i * 15) < 3, ("line %d came after %.1f s"):format(i, times[i])) end
end
-- The other steps that need no result of the test go on meanwhile.
local first = sandbar.spawn(function() test(1) return true end)
-- 4
local prompt = ("0123456789"):rep(30000)
same("300000\n", run({ "wc", "-c" }, { stdin = prompt }).stdout, "the prompt")
call(first:wait())
-- 5
run({ "git", "apply", "-" }, { stdin = helper.read_file(home .. "/fix.patch") })
test(0)
-- 7
run({ "git", "commit", "-qam", "fix it" }, { env = AUTHOR })
run("git format-patch -q -1 --stdout > /home/user/out.patch")
call(box.files:download("out.patch", home .. "/out.patch"))
same(NAME .. "|" .. MAIL .. "\n", run({ "git", "log", "-1", "--format=%an|%ae" }).stdout, "the author")
-- 8
helper.sh("cd %s && git -c user.name=x -c user.email=x@example.invalid am -q --keep-cr < ../out.patch", clone)
same(helper.sh("git -C %s rev-parse 'HEAD^{tree}'", clone), run({ "git", "rev-parse", "HEAD^{tree}" }).stdout, "the tree")
same(NAME .. "|" .. MAIL .. "\n", helper.sh("git -C %s log -1 --format='%%an|%%ae'", clone), "the author at home")
same("one\r\nthree\r\n", call(box.files:read("work/crlf.txt")), "CRLF")
same("run.sh", call(box.files:readlink("work/link")))
same("755", call(box.files:stat("work/run.sh")).mode)
same(31457280, call(box.files:stat("work/big.bin")).size)
-- 9
same("", run({ "git", "status", "--porcelain" }).stdout, "status")
local before, seen, stopped = rss(), 0, nil
local r = call(box:exec({ "git", "--no-pager", "log", "-p", "--", "log.txt" }, { cwd = WORK, on_output = function(data)
  seen = seen + #data
  stopped = stopped or seen >= 1000000 and helper.now() or nil
  return not stopped
end }))
holds(stopped and helper.now() - stopped < 2, "the end of a reader who stops")
holds(r.signal ~= nil and seen < 4000000, "it was stopped early")
holds(rss() - before < 20000, "memory grew by " .. rss() - before .. " kB")
holds(tonumber(run("git --no-pager log -p -- log.txt | wc -l").stdout) > 400000, "lines")
same("alive\n", run("echo alive").stdout)
call(box:destroy())
box:close()
helper.sh("rm -rf %s/bare.git %s/clone %s/*.tar %s/*.patch %s/history.py", home, home, home, home, home)
prompt = nil
finish()
]==]

describe("scenario S05", function()
  helper.guard()

  it("clone, branch, patch, test, and the commit comes home", function()
    helper.need_program("git")
    helper.need_program("python3")
    scenario.run(PROGRAM, { timeout = 280 })
  end)
end)
