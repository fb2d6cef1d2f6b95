-- check: only 5.4
-- check: no asan
-- check: long
-- check: limit 240
-- Scenario: an application is written, its packages installed, its server started, looked at and edited while it runs;
-- then another process takes over.
local helper = require "spec.helper"
local scenario = require "spec.support.scenario"
local websocket = require "spec.support.websocket"

-- The development server: 3 s until it listens on localhost alone, only for Host localhost:3000, serves its directory and
-- tells websockets what changed.
local SERVER = [=[
import http.server, os, socketserver, sys, time
def log(*words): print(*words, flush=True)
def look():
    found = {}
    for base, dirs, files in os.walk("project"):
        dirs[:] = [d for d in dirs if d != "packages"]
        for name in files:
            try: found[os.path.relpath(os.path.join(base, name), "project")] = os.stat(os.path.join(base, name))[6:9:2]
            except OSError: pass
    return found
exec(open("frames.py").read())
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Host") != "localhost:3000":
            self.send_error(403, "unknown host"); return
        if self.headers.get("Upgrade", "").lower() == "websocket":
            key = base64.b64encode(hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode()
                + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            self.wfile.write(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                + b"Sec-WebSocket-Accept: " + key + b"\r\n\r\n")
            self.close_connection = True
            ws, before = Ws(self.connection, self.rfile), look()
            ws.frame(1, b"ready")
            while True:
                time.sleep(0.1)
                now = look()
                for name in now:
                    if now[name] != before.get(name): ws.frame(1, ("changed " + name).encode())
                before = now
        super().do_GET()
    def log_message(self, form, *args): log("request", form % args)
    def __init__(self, *args): super().__init__(*args, directory="project")
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    def handle_error(self, *args): pass
log("starting")
time.sleep(3)
server = Server(("127.0.0.1", 3000), Handler)
open("listening", "w").write(str(time.clock_gettime(time.CLOCK_MONOTONIC)))
log("listening")
server.serve_forever()
]=]
-- Its frames are those of the specs' own server.
local FRAMES = websocket.SERVER:match("^(.-)sent = 0\n")

local PROGRAM = [==[
local server, frames = helper.read_file(arguments[1]), helper.read_file(arguments[2])
local home = os.getenv("HOME")
-- 1
local box = call(sandboxes:create { id = "app", lifetime = 900 })
call(box.files:mkdir("project"))
local watch = call(box.files:watch("project", { recursive = true }))
local image, names = ("\137PNG\0\255"):rep(34000):sub(1, 200000), {}
local batch = {}
local function add(name, data)
  batch[#batch + 1] = { path = "project/" .. name, data = data }
  names[name] = true
end
for i = 1, 54 do add(("d%d/f%d.txt"):format(i % 14, i), "file " .. i) end
add("index.html", "<h1>one</h1>")
add("image.png", image)
add("empty", "")
add("with space.txt", "s")
add("d1/[id].x", "i")
add("gr\195\188n.txt", "g")
for i = 0, 13 do names["d" .. i] = true end
same(60, #batch, "files")
call(box.files:write_many(batch))
call(box.files:mkdir("project/nothing"))
names.nothing = true
local seen = {}
local function created(expected, seconds)
  local left = 0
  for _ in pairs(expected) do left = left + 1 end
  local deadline = helper.now() + seconds
  while left > 0 do
    local event, err = watch:next()
    if not event then error(tostring(err) .. ": " .. left .. " names were not told") end
    holds(helper.now() < deadline, left .. " names were not told in time")
    local name = event.path:match("project/(.*)$") or event.path
    if (event.type == "create" or event.type == "rename") and expected[name] then
      holds(not seen[name], name .. " was told twice")
      seen[name], left = true, left - 1
    end
  end
end
created(names, 20)
watch:close()
-- 2: the packages are an archive of 2000 files
helper.sh("mkdir -p %s/p && cd %s/p && for i in $(seq 2000); do echo $i > package$i.js; done && tar -cf ../p.tar .", home, home)
call(box.files:upload(home .. "/p.tar", "packages.tar"))
helper.sh("rm -r %s/p %s/p.tar", home, home)
local times = {}
local r = call(box:exec("mkdir project/packages && for part in 0 1 2 3 4; do echo part $part; "
  .. "tar -C project/packages -xf packages.tar --wildcards \"./package*[$((part * 2))$((part * 2 + 1))].js\"; sleep 0.3; done; "
  .. "ls project/packages | wc -l", {
  timeout = 120, on_output = function() times[#times + 1] = helper.now() end,
}))
same("2000", r.stdout:match("(%d+)\n$"), r.stderr)
holds(times[#times] - times[1] > 1, "the install's output came at once")
-- 3
call(box.files:write("server.py", server))
call(box.files:write("frames.py", frames))
local p = call(box:start({ "python3", "server.py" }, { tag = "dev", detached = true, stdout = "tail", stderr = "tail" }))
local port, began, up, refused_at = box:port(3000), helper.now(), nil, nil
while not up do
  local at = helper.now()
  local answer, err = port:fetch { path = "/" }
  if answer then
    up = helper.now() - began
    same(200, answer.status)
    same("<h1>one</h1>", answer.body)
  else
    same("Unavailable", err.kind)
    same("ECONNREFUSED", err.code)
    holds(tostring(err):find("3000", 1, true), "the port's number in " .. tostring(err))
    refused_at = at
    sandbar.sleep(0.2)
  end
end
holds(up > 2.5 and up < 8, "up after " .. up)
-- Who asks once it listens is answered, however lately it did not: the clock inside is that of the machine.
local listening = tonumber((call(box.files:read("listening"))))
holds(refused_at < listening, ("refused %.3f s after it listened"):format(refused_at - listening))
-- 4
same(image, call(port:fetch { path = "/image.png" }).body, "the image")
local missing = call(port:fetch { path = "/missing" })
same(404, missing.status)
holds(missing.body:find("File not found", 1, true), "the server's own 404")
local ws = call(port:websocket("/live"))
same("ready", (call(ws:receive { timeout = 5 })))
same(403, call(port:fetch { path = "/", headers = { Host = "app.example" } }).status)
same(403, select(2, port:websocket("/live", { headers = { Host = "app.example" } })).status)
-- 5
local function changed(name)
  local wanted, from = "changed " .. name, helper.now()
  repeat
    local text, err = ws:receive { timeout = 1 }
    if not text then error(name .. ": " .. tostring(err)) end
  until text == wanted
  holds(helper.now() - from < 1, "late: " .. name)
end
call(box.files:write("project/index.html", "<h1>two</h1>", { atomic = false }))
changed("index.html")
call(box.files:write("project/d2/new.tmp", "replaced"))
call(box.files:move("project/d2/new.tmp", "project/d1/f1.txt"))
changed("d1/f1.txt")
same("<h1>two</h1>", call(port:fetch { path = "/" }).body)
-- 6
sandbar.sleep(70)
holds(p:running(), "it still runs")
local listed = 0
for _, process in ipairs(call(box:processes())) do
  if process.tag == "dev" and process.running then listed = listed + 1 end
end
same(1, listed, "it is listed")
ws:close()
p:close()
box:close()
-- 7: somebody else
local second = helper.write_file(home .. "/second.lua", [[
local sandbar = require "sandbar"
local assert = sandbar.assert
local box = assert(assert(sandbar.open { root = arg[1], linger = 0 }):connect("app"))
local p = assert(box:attach { tag = "dev" })
assert(box:port(3000):fetch { path = "/second" })
local found
repeat
  local line = assert(p.stdout:read("l", { timeout = 5 }))
  found = line:find("/second", 1, true)
until found
print(assert(p:kill { grace = 5 }).signal)
local answer, err = box:port(3000):fetch {}
print(answer, err.kind)
for _, one in ipairs(assert(box:processes())) do assert(not one.running, "something runs") end
local again = assert(box:start({ "python3", "server.py" }, { tag = "dev", detached = true, stdout = "tail", stderr = "tail" }))
print(assert(box:port(3000):fetch { wait = 10 }).status)
again:close()
]])
local out = helper.sh("%s %s %s", helper.interpreter(), second, helper.quote(root))
same("SIGTERM\nnil\tUnavailable\n200\n", out, "the second process")
-- 8
call(sandboxes:destroy("app"))
os.remove(second)
image, batch = nil, nil
finish()
]==]

describe("scenario S02", function()
  helper.guard()

  it("an application is built and looked at while it is edited", function()
    helper.need_program("python3")
    local files = {}
    for i, text in ipairs { SERVER, FRAMES } do
      files[i] = helper.write_file(helper.scratch() .. "/s02." .. i, text)
    end
    scenario.run(PROGRAM, { args = files, timeout = 200 })
    for _, path in ipairs(files) do
      os.remove(path)
    end
  end)
end)
