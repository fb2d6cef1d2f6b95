-- For specs of network policies: sandboxes with the program `reach`, and what it gets to see.

local helper = require "spec.helper"

local core = require "sandbar.core"
local sandbar = require "sandbar"
local wait = require "sandbar.wait"

local assert_ok = sandbar.assert

local reaching = {}

-- A request as reach wants it: path, host, more fields.
reaching.HTTP = "GET %s HTTP/1.1\\r\\nHost: %s\\r\\n%s\\r\\n"

local program

function reaching.prepare(box)
  program = program or helper.read_file((os.getenv("SPEC_BUILD") or "build") .. "/spec/reach")
  assert_ok(box.files:write("/tmp/reach", program, { mode = "755" }))
end

function reaching.with_box(network, fn, root)
  local sandboxes = helper.open { root = root }
  local scope = sandbar.new_scope()
  local ok, err = pcall(function()
    local box = assert_ok(sandboxes:create_scoped({ network = network }, scope))
    reaching.prepare(box)
    fn(box, sandboxes)
  end)
  assert_ok(scope:close())
  if not ok then
    error(err, 0)
  end
end

-- What talking to somebody gives ("ok", "reset", ...), what came, and how long it took.
function reaching.reach(box, kind, address, port, text, how, user)
  local began = helper.now()
  local r = assert_ok(box:exec({ "/tmp/reach", kind, address, tostring(port), text or "x", how or "shut" },
    { timeout = 20, user = user }))
  local word, came = r.stdout:match("^([^\n]*)\n(.*)$")
  return (word or ""):match("^ok") or word, came, helper.now() - began
end

function reaching.get(box, address, host, more, path, how)
  local word, came = reaching.reach(box, "tcp", address, 80, reaching.HTTP:format(path or "/", host, more or ""),
    how or "")
  return word, came and came:match("\r\n\r\n(.-)\n$")
end

-- A ClientHello as reach wants it, with these extensions, and its length.
function reaching.hello(extensions)
  local function number(n, size)
    local out = ""
    for _ = 1, size do
      out = string.char(n % 256) .. out
      n = math.floor(n / 256)
    end
    return out
  end
  local body = "\3\3" .. ("r"):rep(32) .. "\0" .. "\0\2\19\1" .. "\1\0" .. number(#extensions, 2) .. extensions
  local message = "\1" .. number(#body, 3) .. body
  local record = "\22\3\1" .. number(#message, 2) .. message
  return (record:gsub(".", function(c)
    return ("\\x%02x"):format(c:byte())
  end)), #record
end

-- The extension that names a server.
function reaching.sni(name)
  local n = #name
  return "\0\0" .. string.char(0, n + 5, 0, n + 3, 0, 0, n) .. name
end

-- The process that is the world of this suite's netlab: a child of the ancestor of ours that began as netlab.
function reaching.world()
  local all = helper.proc.all()
  local up = all[helper.proc.self()]
  while up and up.name ~= "netlab" do
    up = all[up.parent]
  end
  for pid, stat in pairs(all) do
    if up and stat.parent == up.pid and stat.name == "netlab" then
      return pid
    end
  end
end

function reaching.denied(box, host, protocol)
  return helper.eventually(function()
    for _, one in ipairs(assert_ok(box:info()).denied) do
      if one.host == host and one.protocol == (protocol or one.protocol) then
        return one
      end
    end
  end)
end

function reaching.supervisor_of(root)
  local engine = core.engine { root = root or helper.root(), linger = 0 }
  return assert_ok(wait.op(engine:request("hello", { version = 1, linger_ms = 0 }), 10, "hello")).fields.pid
end

return reaching
