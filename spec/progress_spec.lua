-- The `sandbar` program's verbs for templates, and how the progress of a build is shown, on a terminal and elsewhere.
-- check: only 5.4
-- check: no asan
local helper = require "spec.helper"

local progress = require "sandbar.progress"
local sandbar = require "sandbar"

local q = helper.quote

local function said_by(events)
  local dir = helper.dir("progress")
  local file = assert(io.open(dir .. "/said", "w"))
  local show = progress.show(file)
  for _, event in ipairs(events) do
    event.name, event.steps = "site", 2
    show(event)
  end
  file:close()
  return helper.read_file(dir .. "/said")
end

describe("the progress of a build", function()
  helper.guard()

  it("is plain lines where there is no terminal, however the output comes", function()
    assert.equal("[1/2] run make\n[1/2] one\n[1/2] two\n[1/2] no end\n[1/2] done in 1.5 s\n"
      .. "[2/2] copy a b\n[2/2] cached\nsite is built, 2.0 s\n", said_by {
      { event = "step", step = 1, kind = "run", text = "make" },
      { event = "output", step = 1, data = "on" },
      { event = "output", step = 1, data = "e\ntwo\nno" },
      { event = "output", step = 1, data = " end" },
      { event = "done", step = 1, kind = "run", seconds = 1.5 },
      { event = "step", step = 2, kind = "copy", text = "a b" },
      { event = "done", step = 2, kind = "copy", cached = true, seconds = 0 },
      { event = "built", digest = "d", seconds = 2 },
    })
  end)

  it("tells of a failure behind what had been written, and of one before any step not at all", function()
    assert.equal("[1/2] run make\n[1/2] why\n[1/2] failed\n", said_by {
      { event = "step", step = 1, kind = "run", text = "make" }, { event = "output", step = 1, data = "why" },
      { event = "failed" },
    })
    assert.equal("", said_by { { event = "failed" } })
  end)

  it("lets a build's output command no terminal", function()
    assert.equal("[1/2] run a b\n[1/2] red ]0;title ??[2J ünï 日本 ??? é\n", said_by {
      { event = "step", step = 1, kind = "run", text = "a\nb" },
      { event = "output", step = 1,
        data = "\27[31mred\27[0m\27]0;title\7\194\155[2J ünï 日本 \128\255\195 é\n" },
    })
  end)

  it("needs a file of Lua's", function()
    assert.error_matches(function() progress.show("x") end, "bad argument #1 to 'show'")
  end)
end)

describe("sandbar template", function()
  helper.guard()

  local tree = os.getenv("SPEC_TREE") or "."
  local program = ("lua5.4 %s/src/main/sandbar.lua template"):format(q(tree))

  -- A directory as somebody would have it, with this for its last step.
  local function project(last)
    local dir = helper.dir("project")
    helper.write_file(dir .. "/hello.txt", "hello\n")
    helper.write_file(dir .. "/template.lua", ([[
      return { name = "greeter", network = "deny", steps = {
        { run = "echo first; echo second; %s" }, { copy = "hello.txt", to = "/srv/" }, { run = %q },
      } }
    ]]):format(("true "):rep(30), last))
    return dir
  end

  local sandboxes = helper.open()

  -- The program lets its supervisor linger: what follows tells it not to.
  local function shell(line)
    local out, status = helper.shell(line)
    sandbar.assert(sandboxes:list())
    return out, status
  end

  local function run(line)
    return shell(("%s %s"):format(program, line))
  end

  it("builds what a directory says, lists and deletes it", function()
    local dir, root = project "cat /srv/hello.txt", "--root " .. q(helper.root())
    local out, status = run(("build %s %s 2>%s/err"):format(root, q(dir), q(dir)))
    assert.equal(0, status, helper.read_file(dir .. "/err"))
    local digest = out:match("^greeter\t(%x+)\n$")
    assert.is_truthy(digest, out)
    assert.matches("[3/3] hello\n", helper.read_file(dir .. "/err"), 1, true)

    out = run(("build %s %s/template.lua 2>&1"):format(root, q(dir)))
    assert.matches("[1/3] cached\n", out, 1, true)
    assert.is_nil(run(("build %s --no-cache %s 2>&1"):format(root, q(dir))):find("cached", 1, true))

    out, status = run("list " .. root)
    assert.equal(0, status)
    assert.is_truthy(out:match("^greeter +%x+  %d+%-%d%d%-%d%d %d%d:%d%d:%d%d\n$"), out)

    out, status = run("delete " .. root .. " greeter none 2>&1")
    assert.equal("sandbar: delete: there is no template none (NotFound)\n", out)
    assert.equal(1, status)
    assert.equal("", (run("list " .. root)))
  end)

  it("shows a line a step on a terminal, with what it writes, no wider than that", function()
    helper.need_program("script")
    local dir, root = project "echo why; exit 3", "--root " .. q(helper.root())
    local out, status = shell(("SHELL=/bin/sh script -qec %s /dev/null </dev/null"):format(
      q(("stty cols 50; %s build --no-cache %s %s"):format(program, root, q(dir)))))
    assert.equal(1, status)
    local lines, shown = {}, {}
    for line in out:gmatch("([^\n]*)\n") do
      local parts = {}
      for part in line:gmatch("[^\r]+") do
        parts[#parts + 1] = part:gsub("^\27%[K", "")
        if not part:find("^sandbar:") then
          assert.is_true(#parts[#parts] < 50, part)
        end
        shown[parts[#parts]] = true
      end
      lines[#lines + 1] = parts[#parts]
    end
    assert.is_truthy(lines[1]:match("^%[1/3%] run echo first; echo second; true t[rue ]*  %d+%.%d s$"), lines[1])
    local head = "[1/3] run echo first; ech: "
    assert.is_true(shown[head .. "first"] or shown[head .. "second"], out) -- two at once are drawn as the last one
    assert.is_truthy(lines[2]:match("^%[2/3%] copy .*  %d+%.%d s$"), lines[2])
    assert.is_true(shown["[3/3] run echo why; exit 3 ..."])
    assert.equal("[3/3] run echo why; exit 3  failed", lines[3])
    assert.equal("sandbar: templates:build: step 3 (run echo why; exit 3) exited with 3: why (CommandFailed)", lines[4])
    assert.equal(4, #lines)
  end)

  it("says that it was used otherwise, and what is wrong with a file", function()
    for _, line in ipairs { "", "frob", "build", "build a b", "list a", "delete", "build --cache a", "--no-cache list" } do
      local out, status = run(line .. " 2>&1")
      assert.matches("^sandbar: template.*; sandbar %-%-help says how it is used\n$", out)
      assert.equal(2, status, line)
    end
    local dir = helper.dir("wrong")
    local out, status = run("build " .. q(dir) .. " 2>&1")
    assert.matches("^sandbar: cannot open " .. dir .. "/template%.lua", out)
    assert.equal(1, status)
    local WRONG = {
      { "1", "it returns no table of what a template is made of" },
      { '{ name = "x", steps = "a" }', "option 'steps': table expected, got string" },
      { '{ name = "x", steps = { { run = "true" }, { workdi = "/srv" } } }',
        "option 'steps': element 2: unknown step 'workdi'; the nearest known one is 'workdir'" },
      { '{ name = "x", steps = { { port = 3000, timeout = 10 } } }', "option 'steps': element 1: none of run, copy, env, " ..
        "workdir, user, start, ready; it has 'port', 'timeout'" },
    }
    for _, case in ipairs(WRONG) do
      local file = helper.write_file(dir .. "/template.lua", "return " .. case[1])
      out, status = run(("build --root %s %s 2>&1"):format(q(helper.root()), q(dir)))
      assert.equal(("sandbar: %s: %s\n"):format(file, case[2]), out)
      assert.equal(1, status)
    end
  end)
end)
