-- check: only 5.4
-- check: no asan
-- check: long
-- Scenario: the contexts of a code interpreter. Two interpreters that keep their variables between snippets, each a
-- process with its input open; snippets and answers are framed.
local helper = require "spec.helper"
local scenario = require "spec.support.scenario"

local PROGRAM = [==[
-- Frames: "NUMBER KIND LENGTH\n", then so many bytes. In: "code"; out: "out", "err", "value", "error".
local INTERPRETER = [[
import ast, sys, io, signal, traceback
out, source = sys.stdout.buffer, sys.stdin.buffer
number = 0
def frame(kind, data):
    data = data.encode() if isinstance(data, str) else data
    out.write(b"%d %s %d\n" % (number, kind.encode(), len(data)) + data); out.flush()
class Stream(io.TextIOBase):
    def __init__(self, kind): self.kind = kind
    def write(self, text):
        if text: frame(self.kind, text)
        return len(text)
sys.stdout, sys.stderr = Stream("out"), Stream("err")
variables = {"__name__": "__main__"}
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    line = source.readline()
    if not line: break
    n, kind, size = line.split()
    number, text = int(n), source.read(int(size)).decode()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tree = ast.parse(text)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "snippet", "exec"), variables)
        value = eval(compile(ast.Expression(last.value), "snippet", "eval"), variables) if last else None
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        frame("value", repr(value))
    except BaseException as e:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        frame("error", "%s\0%s\0%s" % (type(e).__name__, e, traceback.format_exc()))
]]

local box = call(sandboxes:create { lifetime = 600 })
call(box.files:write("interpreter.py", INTERPRETER))

local Context = {}
Context.__index = Context
local function context(name)
  call(box.files:mkdir("work/" .. name))
  return setmetatable({ name = name, number = 0,
    process = call(box:start({ "python3", "/home/user/interpreter.py" }, { stdin = "pipe", cwd = "work/" .. name })),
  }, Context)
end
local function gone(self)
  local r = self.process:wait { timeout = 5 }
  return nil, { kind = "ContextEnded", signal = r and r.signal }
end
function Context:put(code)
  self.number = self.number + 1
  local ok = self.process.stdin:write(("%d code %d\n"):format(self.number, #code) .. code, { timeout = 10 })
  return ok and self.number
end
-- One frame: number, kind, data; nil and an error.
function Context:frame(timeout)
  local line, err = self.process.stdout:read("l", { timeout = timeout })
  if not line then
    if err and err.kind == "Timeout" then return nil, err end
    return gone(self)
  end
  local number, kind, size = line:match("^(%d+) (%a+) (%d+)$")
  local data = ""
  if tonumber(size) > 0 then
    data = call(self.process.stdout:read(tonumber(size), { timeout = 20 }))
  end
  return tonumber(number), kind, data
end
-- The answer to the snippet `number`: { value, error = { type, text, trace }, out }. Over `limit` it is interrupted.
function Context:answer(number, limit, on_out)
  local out, interrupted = {}, false
  local deadline = helper.now() + (limit or 20)
  while true do
    local got, kind, data = self:frame(math.max(deadline - helper.now(), 0))
    if got == nil then
      if kind.kind ~= "Timeout" or interrupted then return nil, kind end
      interrupted = true
      call(self.process:signal("INT"))
      deadline = helper.now() + 5
    elseif kind == "out" then
      out[#out + 1] = data
      if on_out then on_out(data) end
    elseif kind == "value" or kind == "error" then
      same(number, got, "the snippet's number")
      local r = { out = table.concat(out), value = kind == "value" and data or nil, interrupted = interrupted }
      if kind == "error" then
        local t, text, trace = data:match("^(%Z*)%z(%Z*)%z(.*)$")
        r.error = { type = t, text = text, trace = trace }
      end
      return r
    end
  end
end
function Context:run(code, limit, on_out)
  local number = self:put(code)
  if not number then return gone(self) end
  return self:answer(number, limit, on_out)
end

-- 1, 2
local a, b = context("a"), context("b")
same("None", call(a:run("x = 41")).value)
call(b:run("x = 'b'"))
same("42", call(a:run("x + 1")).value)
same("'b'", call(b:run("x")).value)
-- 3: one by one
local times = {}
call(a:run("import time\nfor i in range(10):\n  print(i)\n  time.sleep(0.3)", 20, function(text)
  if text ~= "\n" then times[#times + 1] = helper.now() end
end))
same(10, #times, "lines")
for i = 2, 10 do holds(times[i] - times[i - 1] > 0.1, "lines came together") end
holds(times[10] - times[1] > 2.4 and times[10] - times[1] < 6, "ten lines took " .. times[10] - times[1])
-- 4
local r = call(a:run("1/0"))
same("ZeroDivisionError", r.error.type)
same("division by zero", r.error.text)
holds(r.error.trace:find("snippet", 1, true), "the trace")
same("41", call(a:run("x")).value, "A lives")
-- 5, 6
local began = helper.now()
r = call(a:run("while True: pass", 2))
local took = helper.now() - began
same("KeyboardInterrupt", r.error.type)
holds(r.interrupted and took >= 2 and took < 3, "interrupted after " .. took)
same("41", call(a:run("x")).value, "x after the interrupt")
-- 7, 8
local number = a:put("import time; time.sleep(60)")
sandbar.sleep(0.2)
call(box:exec({ "kill", "-9", tostring(a.process.pid) }, { check = true }))
began = helper.now()
local answer, err = a:answer(number, 20)
same(nil, answer)
same("ContextEnded", err.kind)
same("SIGKILL", err.signal)
holds(helper.now() - began < 1, "the end was told late")
same("'b'", call(b:run("x")).value, "B is unaffected")
answer, err = a:run("x")
same("ContextEnded", err.kind, "asked again")
a.process:close()
a = context("a")
same("NameError", call(a:run("x")).error.type, "after the restart")
-- 9
local numbers = {}
for i = 1, 20 do numbers[i] = call(b:put(("%d * %d"):format(i, i))) end
for i = 1, 20 do same(tostring(i * i), call(b:answer(numbers[i])).value, "in order") end
-- 10
r = call(a:run("print('y' * 3000000)\n'after'", 30))
same(3000001, #r.out, "3 MB")
same("'after'", r.value)
-- 11
for _, one in ipairs { a, b } do call(one:run(("open('same', 'w').write('%s')"):format(one.name))) end
same("a", call(box.files:read("work/a/same")))
same("b", call(box.files:read("work/b/same")))
-- Input's end is the context's.
for _, one in ipairs { a, b } do
  call(one.process.stdin:close())
  same(0, call(one.process:wait { timeout = 5 }).exit_code)
  one.process:close()
end
call(box:destroy())
box:close()
finish()
]==]

describe("scenario S04", function()
  helper.guard()

  it("the contexts of a code interpreter", function()
    helper.need_program("python3")
    scenario.run(PROGRAM, { timeout = 90 })
  end)
end)
