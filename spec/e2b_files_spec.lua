-- check: only 5.4
-- check: no asan
-- Files of hosted sandboxes, end to end: the E2B provider against `sandbar serve`, a process of its own. The whole suites
-- of the local provider are run there by e2b_suites_spec; row ids are those of docs/requirements.md.

local busted = require "busted"
local helper = require "spec.helper"
local serve = require "spec.support.serve"

local http = require "sandbar.http"
local sandbar = require "sandbar"

local kind = helper.kind

describe("files of a hosted sandbox", function()
  local server, boxes, box, files

  busted.setup(function()
    server = serve.start()
    boxes = sandbar.assert(sandbar.open {
      provider = "e2b", api_key = server.key, api_url = server.url, sandbox_url = server.url,
    })
    box = sandbar.assert(boxes:create { lifetime = 300 })
    files = box.files
  end)

  busted.teardown(function()
    box:close()
    boxes, box, files = nil, nil, nil
    collectgarbage()
    collectgarbage()
    server.stop()
  end)

  helper.guard { each = false, growth = 24 }

  -- What the sandbox itself says.
  local function said(line)
    return sandbar.assert(box:exec(line, { check = true })).stdout
  end

  it("B-39 B-40 B19: writes and reads bytes, short and long, and makes missing parents", function()
    for _, data in ipairs { "", "text\0\255", ("0123456789abcdef"):rep(200000) } do
      local entry = sandbar.assert(files:write("a/b/c", data))
      assert.equal("/home/user/a/b/c", entry.path)
      assert.equal(#data, entry.size)
      assert.equal("644", entry.mode)
      assert.equal("user", entry.owner)
      assert.is_true(files:read("~/a/b/c") == data)
    end
    assert.equal("user user 755\n", said "stat -c '%U %G %a' a/b")
    assert.equal("c\n", said "ls -A a/b")
    assert.truthy(sandbar.assert(files:read "/proc/version"):find("^Linux"))
    kind("NotFound", files:read "nothing")
    assert.equal("EISDIR", kind("Platform", files:read "a").code)
    assert.equal(3199999, kind("LimitExceeded", files:read("a/b/c", { max = 3199999 })).limit)
  end)

  it("writes and reads in pieces: functions, files, lines, whole or not at all", function()
    local n = 0
    sandbar.assert(files:write("pieces", function()
      n = n + 1
      return n <= 300 and ("%05d "):format(n):rep(1000) .. "\n" or nil
    end))
    local lines, first = 0, nil
    for line in files:lines "pieces" do
      lines, first = lines + 1, first or line
    end
    assert.equal(300, lines)
    assert.equal("00001 ", first:sub(1, 6))
    kind("Platform", files:write("pieces", function()
      return nil, "no more"
    end))
    assert.equal(1800300, files:stat("pieces").size)
    local status = files:lines "/proc/self/status" -- tells no size
    assert.truthy(status:next():find "^Name:")
    status:close()
    assert.equal("", said "find . -name '.sb-*'")
  end)

  it("A-48 A-49: appends, is exclusive, keeps mode, owner and links, in place where that is asked for", function()
    sandbar.assert(files:write("e", "1", { flag = "wx", mode = "600" }))
    kind("AlreadyExists", files:write("e", "2", { flag = "wx" }))
    sandbar.assert(files:write("e", "2", { flag = "a" }))
    sandbar.assert(files:symlink("e", "link"))
    assert.equal("12", files:read "link")
    local before = said "stat -c %i e"
    sandbar.assert(files:write("link", "3"))
    assert.are_not.equal(before, said "stat -c %i e")
    assert.equal("600", files:stat("e").mode)
    assert.equal("link", files:stat("link", { nofollow = true }).type)
    before = said "stat -c %i e"
    sandbar.assert(files:write("e", "4", { atomic = false, mode = "640" }))
    assert.equal(before, said "stat -c %i e")
    assert.equal("640 4", files:stat("e").mode .. " " .. files:read "e")
    sandbar.assert(files:write("/tmp/given", "x", { user = "root", owner = "user", mode = "2750" }))
    assert.equal("user 2750\n", said "stat -c '%U %a' /tmp/given")
  end)

  it("B24: acts with the rights of the user that is meant, through links too", function()
    sandbar.assert(files:write("/tmp/private", "s", { user = "root", mode = "600" }))
    said "ln -s /tmp/private secret"
    assert.equal("EACCES", kind("PermissionDenied", files:read "/tmp/private").code)
    kind("PermissionDenied", files:read "secret")
    kind("PermissionDenied", files:write("secret", "x"))
    kind("PermissionDenied", files:write("/etc/planted", "x"))
    kind("PermissionDenied", files:list("/root"))
    assert.equal("s", files:read("/tmp/private", { user = "root" }))
    kind("InvalidArgument", files:read("x", { user = "nobody-such" }))
    kind("InvalidArgument", files:read "~root/x")
    sandbar.assert(files:remove("/tmp/private", { user = "root" }))
  end)

  it("followed a link of the user's when root changed modes and attributes", function()
    sandbar.assert(files:write("/tmp/roots", "x", { user = "root", mode = "600" }))
    said "ln -s /tmp/roots planted; touch mine; ln -s mine planted2"
    for _, path in ipairs { "planted", "planted2" } do
      assert.equal("ELOOP", kind("Platform", files:chmod("/home/user/" .. path, "666", { user = "root" })).code)
    end
    assert.equal("600", files:stat("/tmp/roots", { user = "root" }).mode)
    sandbar.assert(files:chmod("planted2", "640")) -- with no more rights than whoever made it
    assert.equal("640", files:stat("mine").mode)
    sandbar.assert(files:chmod("/home/user/mine", "600", { user = "root" }))
    assert.equal("600", files:stat("mine").mode)
    said "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")' && mkfifo pipe"
    for _, path in ipairs { "sock", "pipe" } do
      sandbar.assert(files:chmod("/home/user/" .. path, "640", { user = "root" }))
      assert.equal("640", files:stat(path).mode)
    end
    sandbar.assert(files:remove("/tmp/roots", { user = "root" }))
    said "rm planted planted2 mine sock pipe"
  end)

  it("B-41 B18 B23: lists, moves, copies, removes and finds names that are bytes", function()
    local names = { "a b", "a+b", "a%20b", "100%", "a#b", "a?b=c&d", "-rf", "a;id", "$(id)", "a'b\"c", "a\\b", "\233\n" }
    for _, name in ipairs(names) do
      sandbar.assert(files:write("odd/" .. name, name))
      assert.equal(name, files:read("odd/" .. name))
    end
    local found = {}
    for _, entry in ipairs(sandbar.assert(files:list "odd")) do
      found[entry.name] = entry.path
    end
    for _, name in ipairs(names) do
      assert.equal("/home/user/odd/" .. name, found[name])
    end
    assert.equal(#names, #sandbar.assert(files:glob "odd/*"))
    assert.same({ "/home/user/odd/a b", "/home/user/odd/a+b", "/home/user/odd/a\\b" }, files:glob "odd/{a[ +],a\\\\}b")
    sandbar.assert(files:copy("odd", "even"))
    sandbar.assert(files:move("odd/-rf", "odd/--help"))
    assert.is_false(files:exists "odd/-rf")
    kind("Platform", files:remove "odd")
    sandbar.assert(files:remove("odd", { recursive = true }))
    assert.equal(#names, #sandbar.assert(files:list "even"))
    assert.is_true(files:mkdir "made")
    assert.is_false(files:mkdir "made")
    sandbar.assert(files:chmod("made", "700"))
    assert.equal("700", files:stat("made").mode)
    assert.equal("EINVAL", kind("Platform", files:readlink "made").code)
    assert.truthy(sandbar.assert(files:temp_dir()):find "^/tmp/sandbar%-")
  end)

  it("took the end of a line in a name for the end of the path", function()
    for _, dir in ipairs { "lines/one\ntwo", "lines/three\n" } do
      assert.equal("f\n", sandbar.assert(files:write(dir .. "/f\n", "here")).name)
      assert.equal("here", files:read(dir .. "/f\n"))
      sandbar.assert(files:move(dir .. "/f\n", dir .. "/g"))
      assert.equal("here", files:read(dir .. "/g"))
      sandbar.assert(files:remove(dir, { recursive = true }))
      assert.is_false(files:exists(dir))
    end
    sandbar.assert(files:remove("lines", { recursive = true }))
  end)

  it("the vendor's metadata are extended attributes", function()
    sandbar.assert(files:write("tagged", "x", { xattrs = { ["user.e2b.purpose"] = "test" } }))
    assert.equal("test", files:stat("tagged", { xattrs = true }).xattrs["user.e2b.purpose"])
  end)

  it("A-45: an open file stays what it was, is read and written anywhere", function()
    local f = sandbar.assert(files:open("held", "w+"))
    sandbar.assert(f:write("one\ntwo\n", 3))
    sandbar.assert(f:seek("set", 4))
    assert.equal("two", f:read())
    kind("Unsupported", require("sandbar.file").lend(f)) -- C code would take it for one of its own
    sandbar.assert(files:move("held", "moved"))
    assert.equal(9, f:seek "end")
    sandbar.assert(f:write(("x"):rep(500000)))
    f:close()
    assert.equal(500009, files:stat("moved").size)
    kind("NotFound", files:open "held")
    kind("AlreadyExists", files:open("moved", "wx"))
    assert.is_truthy(helper.eventually(function()
      return box:exec("pgrep -c perl").stdout == "0\n"
    end))
  end)

  it("B19: what a closed file was written to is open for nobody any more", function()
    local f = sandbar.assert(files:open("program", "w"))
    sandbar.assert(f:write "#!/bin/sh\nexit 7\n")
    sandbar.assert(files:chmod("program", "755"))
    said "pkill -STOP perl"
    local closed = false
    sandbar.run(function()
      local closing = sandbar.spawn(function()
        f:close()
        closed = true
      end)
      assert.equal(126, box:exec("./program").exit_code)
      assert.is_false(closed)
      said "pkill -CONT perl"
      closing:wait()
      assert.equal(7, box:exec("./program").exit_code)
    end)
  end)

  it("carries trees both ways", function()
    local dir = helper.dir()
    helper.sh("mkdir -p %s/up/sub && head -c 3000000 /dev/urandom > %s/up/sub/big && ln -s sub/big %s/up/link", dir, dir,
      dir)
    local report = sandbar.assert(files:upload(dir .. "/up", "tree"))
    assert.equal(3000000, report.bytes)
    local seen = 0
    report = sandbar.assert(files:download("tree", dir .. "/down", { on_progress = function(n)
      seen = n
    end }))
    assert.equal(1, report.files)
    assert.equal(3000000, seen)
    helper.sh("cmp %s/up/sub/big %s/down/sub/big && test -L %s/down/link", dir, dir, dir)
  end)

  it("B-42 B27: a watch is active when it returns, tells kinds and names, and ends when it is told to", function()
    sandbar.assert(files:mkdir "seen/deep")
    local w = sandbar.assert(files:watch("seen", { recursive = true }))
    said "cd seen && echo x > deep/f && mv deep/f g && chmod 600 g && rm g"
    local told = {}
    while told[#told] ~= "remove g" do
      local event = sandbar.assert(w:next { timeout = 20 })
      told[#told + 1] = event.type .. " " .. event.path
    end
    assert.equal("create deep/f, write deep/f, rename deep/f, create g, chmod g, remove g", table.concat(told, ", "))
    sandbar.assert(files:write("seen/h", "x"))
    assert.equal("h", sandbar.assert(w:next { timeout = 20 }).path)
    w:close()
    assert.is_nil((w:next()))
    assert.equal("ENOENT", kind("NotFound", files:watch "nowhere").code)
  end)

  it("signed links let others read or write one file, for a while", function()
    sandbar.assert(files:write("for all", "content"))
    local client = sandbar.assert(http.client { url = server.url })
    local function ask(url, method, body)
      return sandbar.assert(http.request(client, { method = method, path = url:sub(#server.url + 1), body = body,
        headers = body and { ["Content-Type"] = "application/octet-stream" } or nil }, 20, "ask"))
    end
    local url = sandbar.assert(files:download_url "for all")
    assert.equal("content", ask(url).body)
    assert.equal(401, ask(url, "POST", "x").status)
    assert.equal(401, ask((url:gsub("for%%20all", "pieces"))).status)
    url = sandbar.assert(files:download_url("for all", { expires = 1 })):gsub("(expiration=)%d+", "%19999999999")
    assert.equal(401, ask(url).status)
    url = sandbar.assert(files:upload_url("/tmp/put", { expires = false, user = "root" }))
    assert.is_nil(url:find("expiration", 1, true))
    assert.equal(200, ask(url, "POST", "given").status)
    assert.equal("given root\n", said "cat /tmp/put; stat -c ' %U' /tmp/put")
    client:close()
  end)
end)
