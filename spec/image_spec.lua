-- Templates from archives and images: what is in them, and what a hostile one cannot do.
-- check: long
-- check: limit 300

local helper = require "spec.helper"

local core = require "sandbar.core"
local http = require "sandbar.http"
local sandbar = require "sandbar"

describe("a template from an archive", function()
  helper.guard()

  local sandboxes = helper.open()

  local function hex(bytes)
    return (http.sha256(bytes):gsub(".", function(c) return ("%02x"):format(c:byte()) end))
  end

  local function build(opts)
    opts.name, opts.network = opts.name or "t", opts.network or "deny"
    return sandboxes.templates:build(opts)
  end

  local function refused(kind, _, err)
    assert.equal(kind, err and err.kind, tostring(err))
    return err
  end

  local function run(line, opts)
    local box = sandbar.assert(sandboxes:create_scoped { template = "t" })
    local r = sandbar.assert(box:exec(line, opts))
    box:close()
    return r.stdout .. r.stderr
  end

  local function forget()
    sandbar.assert(sandboxes.templates:delete "t")
    assert.same({}, sandbar.assert(sandboxes:list()))
  end

  -- A small system in a directory of its own.
  local function system(dir)
    helper.shell(([[
      mkdir -p %s && cd %s && mkdir -p bin etc home/user opt/d drop && chmod 755 . && chmod 1777 drop && ln -s opt lnk
      echo 'root:x:0:0::/:/bin/sh' > etc/passwd; echo 'user:x:1000:1000::/home/user:/bin/sh' >> etc/passwd
      printf 'root:x:0:\nuser:x:1000:\n' > etc/group; echo one > opt/d/one; echo two > opt/d/two
      for p in sh cat ls stat; do
        cp "$(command -v $p)" bin/
        ldd "$(command -v $p)" | grep -o '/[^ ]*' | while read -r l; do mkdir -p ".$(dirname "$l")"; cp -n "$l" ".$l"; done
      done
      ln opt/d/one opt/d/hard; chmod 4750 opt/d/two; mkfifo opt/d/fifo
      touch -d @1000000000 opt/d/one; echo umlaut > "opt/d/h\303\244t"]]):format(helper.quote(dir), helper.quote(dir)))
    return dir
  end

  -- A tar of numbered entries, made by hand for what tar itself refuses to write: { name, type, text, link }.
  local function tar(entries)
    local out = {}
    for _, e in ipairs(entries) do
      local data = e.data or ""
      local head = e.name .. ("\0"):rep(100 - #e.name) .. (e.mode or "0000644") .. "\0" .. (e.uid or "0000000") .. "\0"
        .. (e.gid or "0000000") .. "\0"
        .. ("%011o\0"):format(e.size or #data) .. ("%011o\0"):format(1000000000) .. "        " .. (e.type or "0")
        .. (e.link or "") .. ("\0"):rep(100 - #(e.link or "")) .. "ustar\00000" .. ("\0"):rep(64)
        .. (e.device or ("\0"):rep(16)) .. ("\0"):rep(167)
      local sum = 0
      for i = 1, #head do
        sum = sum + head:byte(i)
      end
      out[#out + 1] = head:sub(1, 148) .. ("%06o\0 "):format(sum) .. head:sub(157)
      out[#out + 1] = data .. ("\0"):rep(-#data % 512)
    end
    return table.concat(out) .. ("\0"):rep(1024)
  end

  -- An image layout of some layers (bytes of archives) and a configuration.
  local function layout(dir, layers, config, break_blob)
    helper.sh("mkdir -p %s/blobs/sha256", dir)
    local function blob(bytes)
      local name = hex(bytes)
      helper.write_file(dir .. "/blobs/sha256/" .. name, bytes == break_blob and bytes .. "x" or bytes)
      return ('{"mediaType":"application/x","digest":"sha256:%s","size":%d}'):format(name, #bytes)
    end
    local list = {}
    for i, bytes in ipairs(layers) do
      list[i] = blob(bytes)
    end
    local manifest = ('{"schemaVersion":2,"config":%s,"layers":[%s]}'):format(blob(config), table.concat(list, ","))
    helper.write_file(dir .. "/index.json", ('{"manifests":[%s]}'):format(blob(manifest):gsub("}$",
      ',"annotations":{"org.opencontainers.image.ref.name":"latest"}}')))
    helper.write_file(dir .. "/oci-layout", '{"imageLayoutVersion":"1.0.0"}')
    return dir
  end

  local CONFIG = [[{"architecture":"any","config":{"User":"user","Env":["PATH=/bin","SAID=a \"b\" \u00e4"],
    "WorkingDir":"/opt/d","Cmd":["never","alone"]}}]]

  it("of any usual compression has what was packed: names, modes, times, owners, links", function()
    local dir = helper.dir()
    system(dir .. "/fs")
    for _, how in ipairs { "", "z", "J", "j", "--zstd" } do
      local flag = #how == 1 and "-c" .. how .. "f" or how .. " -cf"
      helper.sh("cd %s && tar " .. flag .. " packed -C fs .", dir)
      sandbar.assert(build { from = dir .. "/packed", steps = { { workdir = "/opt/d" } } })
      assert.equal("one\n/lnk 2\n4750\n1000000000\nfifo\numlaut\n", run(
        "cat hard; echo $(cd /lnk && echo $PWD) $(stat -c %h one); stat -c %a two; stat -c %Y one; stat -c %F fifo; cat h*t"))
    end
    assert.is_true(sandbar.assert(build { from = dir .. "/packed", steps = { { workdir = "/opt/d" } } }).steps[1].cached)
    forget()
  end)

  it("is an image where it holds one: a layout, a tar of it, and what docker save writes", function()
    local dir = helper.dir()
    system(dir .. "/fs")
    helper.sh("cd %s && tar -czf base.tgz -C fs .", dir)
    local base = helper.read_file(dir .. "/base.tgz")
    local second = tar {
      { name = "opt/d/.wh.two" }, { name = "home/.wh..wh..opq" }, { name = "opt/d/three", data = "three\n" },
      { name = "bin/.wh.cat" }, { name = "opt/.wh.none" },
    }
    layout(dir .. "/oci", { base, second }, CONFIG)
    helper.sh("cd %s && tar -cf oci.tar -C oci . && mkdir saved && cp base.tgz saved/1.tar && mkdir saved/2", dir)
    helper.write_file(dir .. "/saved/2/layer.tar", second)
    helper.write_file(dir .. "/saved/c.json", CONFIG)
    helper.write_file(dir .. "/saved/manifest.json",
      '[{"Config":"c.json","RepoTags":["a:1"],"Layers":["1.tar","2/layer.tar"]}]')
    helper.sh("cd %s && tar -cf saved.tar -C saved .", dir)
    for _, from in ipairs { dir .. "/oci", dir .. "/oci.tar", dir .. "/saved.tar", { path = dir .. "/saved.tar", image = "a:1" },
      { path = dir .. "/oci.tar", image = "latest" } } do
      sandbar.assert(build { from = from })
      assert.equal("/opt/d a \"b\" \195\164\nfifo hard one three\netc lib\n", (run(
        "echo $PWD \"$SAID\"; echo $(ls -d fifo hard one two three 2>/dev/null); echo $(cd / && ls -d etc home/* lib bin/cat 2>/dev/null)")))
      assert.equal("user", sandbar.assert(sandboxes.templates:list())[1].user)
    end
    refused("NotFound", build { from = { path = dir .. "/saved.tar", image = "a:2" } })
    refused("NotFound", build { from = { path = dir .. "/oci", image = "other" } })
    layout(dir .. "/entry", { base }, '{"config":{"Entrypoint":["/bin/sh","-c"],"Cmd":["echo started > /opt/s; read x"]}}')
    sandbar.assert(build { from = dir .. "/entry", steps = { { ready = "/bin/ls /opt/s" } } })
    -- Of an empty one nothing could be started, nor any sandbox be made.
    layout(dir .. "/none", { base }, '{"config":{"Entrypoint":[""],"Cmd":["/bin/sh"]}}')
    sandbar.assert(build { from = dir .. "/none" })
    assert.is_nil(sandbar.assert(sandboxes.templates:list())[1].start)
    assert.equal("runs\n", run "echo runs")
    layout(dir .. "/empty", { base }, '{"config":{"Entrypoint":["","x"]}}')
    refused("InvalidArgument", build { from = dir .. "/empty" })
    forget()
  end)

  it("has its working directory, also where that is in no layer", function()
    local dir = helper.dir()
    helper.sh("cd %s && tar -cf packed -C fs .", (system(dir .. "/fs"):gsub("/fs$", "")))
    local layer = assert(helper.read_file(dir .. "/packed"))
    for i, case in ipairs { { "/srv/my app/*", "/srv/my app/*" }, { "srv", "/srv" }, { "/", "/" }, { "", "/" },
      { "/opt/d", "/opt/d" }, { "/lnk/d", "/opt/d" } } do
      layout(dir .. "/image" .. i, { layer }, ([[{"config":{"User":"user","WorkingDir":"%s"}}]]):format(case[1]))
      sandbar.assert(build { from = dir .. "/image" .. i })
      assert.equal(case[2] .. "\n", run "cd -P . && pwd", case[1])
    end
    forget()
  end)

  it("leads nowhere else, and brings no devices", function()
    local dir = helper.dir()
    system(dir .. "/fs")
    helper.sh("cd %s && tar -cf base.tar -C fs .", dir)
    local function from(entries, extra)
      local path = ("%s/%d.tar"):format(dir, #entries + math.random(1e6))
      helper.write_file(path, tar(entries))
      helper.sh("cd %s && cp base.tar all.tar && tar -Af all.tar %s", dir, path)
      return build { from = extra or dir .. "/all.tar" }
    end
    for _, name in ipairs { "../out", "a/../../out", "/../out", ".." } do
      refused("InvalidArgument", from { { name = name, data = "x" } })
    end
    for _, link in ipairs { "../../etc/shadow", "opt/none", "opt", "out" } do
      refused("InvalidArgument", from { { name = "out", type = "2", link = "/etc/shadow" },
        { name = "hard", type = "1", link = link == "out" and "out/." or link } })
    end
    sandbar.assert(from {
      { name = "/absolute", data = "of the archive\n" },
      { name = "away", type = "2", link = "/etc" }, { name = "away/through", data = "through\n" },
      { name = "up", type = "2", link = "../../../../../../opt" }, { name = "up/through", data = "up\n" },
      { name = "opt/device", type = "3", device = "0000001\0" .. "0000005\0" },
      { name = "opt/block", type = "4", device = "0000010\0" .. "0000000\0" },
    })
    assert.equal("of the archive\nthrough\nup\nno\n", run(
      "cat /absolute /etc/through /opt/through; ls /opt/device /opt/block 2>/dev/null || echo no"))
    forget()
  end)

  it("makes nobody wait for its pipes, and writes no directory for everybody", function()
    local dir = helper.dir()
    system(dir .. "/fs")
    helper.sh("cd %s && mkfifo fs/etc/resolv.conf && tar -cf pipe.tar -C fs .", dir)
    sandbar.assert(build { from = dir .. "/pipe.tar", timeout = 60 })
    local layer = tar { { name = "a/b/c", data = "c" } }
    layout(dir .. "/oci", { layer }, CONFIG)
    helper.sh("cd %s && rm oci/blobs/sha256/%s && mkfifo oci/blobs/sha256/%s && tar -cf oci.tar -C oci .", dir,
      hex(layer), hex(layer))
    refused("InvalidArgument", build { from = dir .. "/oci.tar", timeout = 60 })
    helper.write_file(dir .. "/manifest.json", '[{"Config":"c.json","Layers":["1.tar"]}]')
    helper.write_file(dir .. "/c.json", CONFIG)
    helper.sh("cd %s && mkfifo 1.tar && tar -cf saved.tar manifest.json c.json 1.tar", dir)
    refused("InvalidArgument", build { from = dir .. "/saved.tar", timeout = 60 })
    refused("InvalidArgument", build { from = dir .. "/1.tar" })
    helper.write_file(dir .. "/deep", layer)
    helper.sh("cd %s && tar -cf all.tar -C fs . && tar -Af all.tar deep", dir)
    sandbar.assert(build { from = dir .. "/all.tar" })
    assert.equal("755\n755\n644\n", run("cd / && stat -c %a a a/b a/b/c"))
    refused("LimitExceeded", build { from = { path = dir .. "/deep", max_entries = 2 } })
    sandbar.assert(build { from = { path = dir .. "/deep", max_entries = 3 } })
    forget()
  end)

  it("says so where libarchive is not installed, and believes no unpacker that was taken over", function()
    local dir = helper.dir()
    system(dir .. "/fs")
    helper.sh("cd %s && tar -cf fs.tar -C fs .", dir)
    sandbar.assert(build { from = dir .. "/fs.tar" })
    local box = sandbar.assert(sandboxes:create_scoped { template = "t" }) -- which has a C library, no more
    sandbar.assert(box.files:write("/drop/unpack", core.unpacker(), { mode = "755" }))
    local r = sandbar.assert(box:exec { "/drop/unpack", "/etc/passwd", "/drop" })
    box:close()
    assert.equal(10, r.exit_code, r.stderr)
    local missing = r.stderr
    assert.is_truthy(missing:find("libarchive is not installed", 1, true), missing)
    local real = core.unpacker
    local function with(program, from)
      core.unpacker = function() return "#!/bin/sh\n" .. program end
      local _, err = build { from = from }
      core.unpacker = real
      return err
    end
    helper.write_file(dir .. "/other", tar { { name = "a" } })
    local err = refused("Unsupported", nil, with("echo " .. helper.quote(missing) .. " >&2; exit 10", dir .. "/other"))
    assert.is_truthy(err.message:find("libarchive is not installed", 1, true), err.message)
    refused("Platform", nil, with("echo nonsense", dir .. "/other"))
    refused("Platform", nil, with("echo 1 99999999999999999999999 0; kill -9 $$", dir .. "/other"))
    err = refused("InvalidArgument", nil, with("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 13", dir .. "/other"))
    assert.is_true(#err.message < 5000)
    forget()
  end)

  it("is bounded in what is unpacked and not written, too", function()
    local dir = helper.dir()
    local layers = {}
    for i, name in ipairs { "a/.wh.b", "b" } do
      helper.write_file(dir .. "/head", tar { { name = name, size = 2e8 } }:sub(1, 512))
      helper.sh("cd %s && { cat head; head -c 200000000 /dev/zero; head -c 1024 /dev/zero; } | gzip -1 > %d.gz", dir, i)
      layers[i] = helper.read_file(("%s/%d.gz"):format(dir, i))
    end
    for _, list in ipairs { { layers[1] }, { layers[2] }, { tar { { name = "a" } }, layers[1] } } do
      local from = { path = layout(helper.dir(), list, CONFIG), max_bytes = 4000000 }
      local err = refused("LimitExceeded", build { from = from })
      assert.is_truthy(err.message:find(" bytes", 1, true), err.message)
    end
    local many = {} -- of many small ones each takes more than its bytes
    for i = 1, 500 do
      many[i] = { name = "f" .. i, data = "x" }
    end
    helper.write_file(dir .. "/many", tar(many))
    sandbar.assert(build { from = { path = dir .. "/many", max_bytes = 500 } })
    refused("LimitExceeded", build { from = { path = dir .. "/many", max_bytes = 499 } })
    forget()
  end)

  it("makes no program root's that was somebody else's", function()
    local dir = helper.dir()
    system(dir .. "/fs")
    helper.sh("cd %s && tar -cf base.tar -C fs .", dir)
    local entries, names = {}, { "ours", "theirs", "group", "folder" }
    for i, owner in ipairs { { "0000000", "0000000" }, { "7777777", "0000000" }, { "0000000", "7777777" },
      { "7777777", "7777777" } } do
      entries[i] = { name = names[i], mode = "0006755", type = names[i] == "folder" and "5" or "0", uid = owner[1],
        gid = owner[2] }
    end
    helper.write_file(dir .. "/set", tar(entries))
    helper.sh("cd %s && tar -Af base.tar set", dir)
    sandbar.assert(build { from = dir .. "/base.tar" })
    assert.equal("6755\n2755\n4755\n6755\n", run("cd / && stat -c %a ours theirs group folder"))
    forget()
  end)

  it("that does not fit together is nobody's fault but its own", function()
    local dir = helper.dir()
    for i, entries in ipairs {
      { { name = "a", data = "x" }, { name = "a/b", data = "x" } },
      { { name = ".", data = "x" } },
      { { name = "a", type = "2", link = "a" }, { name = "a/b", data = "x" } },
      { { name = "a", type = "1", link = "b" } },
    } do
      helper.write_file(dir .. i, tar(entries))
      refused("InvalidArgument", build { from = dir .. i })
    end
    assert.same({}, sandbar.assert(sandboxes.templates:list()))
  end)

  it("for which there is no room says that", function()
    local dir, small = helper.dir(), helper.dir()
    local out, status = helper.shell("mount -t tmpfs -o size=8m,mode=700 none " .. small)
    if status ~= 0 then
      helper.skip("a tmpfs cannot be mounted here: " .. out)
    end
    helper.sh("cd %s && head -c 20000000 /dev/zero > zeros && tar -czf big.tgz zeros", dir)
    local own = sandbar.assert(sandbar.open { root = small, linger = 0 })
    refused("NoSpace", own.templates:build { name = "t", from = dir .. "/big.tgz" })
    assert.same({}, sandbar.assert(own:list()))
    own:close()
    assert.is_truthy(helper.eventually(function()
      return select(2, helper.shell("umount " .. small)) == 0
    end, 10))
  end)

  it("of many images is told of in few words, and a name may hold the character that deletes", function()
    local dir = helper.dir()
    local layer = tar { { name = "a", data = "a" } }
    layout(dir .. "/one", { layer }, '{"config":{"Env":["A=\127"]}}')
    sandbar.assert(build { from = dir .. "/one" })
    local index = helper.read_file(dir .. "/one/index.json"):match("%[(.*)%]")
    helper.write_file(dir .. "/one/index.json", '{"manifests":[' .. (index .. ","):rep(5000) .. index .. "]}")
    local err = refused("Ambiguous", build { from = dir .. "/one" })
    assert.is_true(#err.message < 2000)
    forget()
  end)

  it("that is damaged, too large, or no archive is refused", function()
    local dir = helper.dir()
    helper.write_file(dir .. "/text", ("no archive at all\n"):rep(100))
    helper.write_file(dir .. "/empty", "")
    refused("InvalidArgument", build { from = dir .. "/text" })
    refused("InvalidArgument", build { from = dir .. "/empty" })
    helper.sh("cd %s && head -c 3000000 /dev/zero > zeros && tar -czf bomb.tgz zeros && head -c 1000 bomb.tgz > cut.tgz", dir)
    local err = refused("LimitExceeded", build { from = { path = dir .. "/bomb.tgz", max_bytes = 1000000 } })
    assert.is_truthy(err.message:find("1000000 bytes", 1, true), err.message)
    refused("InvalidArgument", build { from = dir .. "/cut.tgz" })
    helper.write_file(dir .. "/many", tar { { name = "a" }, { name = "b" }, { name = "c" } })
    refused("LimitExceeded", build { from = { path = dir .. "/many", max_entries = 2 } })
    for _, bound in ipairs { { max_entries = -1 }, { max_bytes = -1 }, { max_bytes = 0 / 0 }, { max_bytes = math.huge } } do
      bound.path = dir .. "/many"
      refused("InvalidArgument", build { from = bound })
    end
    local layer = tar { { name = "a", data = "a" } }
    refused("InvalidArgument", build { from = layout(dir .. "/broken", { layer }, CONFIG, layer) })
    refused("InvalidArgument", build { from = layout(dir .. "/config", { layer }, CONFIG, CONFIG) })
    for i, index in ipairs { "", "[", "[]", '{"manifests":1}', '{"manifests":[1]}', '{"manifests":[{"digest":"sha256:../../x"}]}',
      ("["):rep(5000) } do
      local at = layout(dir .. "/json" .. i, { layer }, CONFIG)
      helper.write_file(at .. "/index.json", index)
      refused("InvalidArgument", build { from = at })
    end
    assert.same({}, sandbar.assert(sandboxes:list()))
    assert.same({}, sandbar.assert(sandboxes.templates:list()))
  end)

  it("that lacks a part, or has a piece of a file behind its end, was refused as if it were this machine's fault", function()
    local dir, layer = helper.dir(), tar { { name = "a", data = "a" } }
    for i, how in ipairs {
      "rm index.json", "rm blobs/sha256/" .. hex(CONFIG), "rm -r blobs; >blobs", "rm index.json; ln -s index.json index.json",
    } do
      helper.sh("cd %s && %s", layout(dir .. "/" .. i, { layer }, CONFIG), how)
      local err = refused("InvalidArgument", build { from = dir .. "/" .. i })
      assert.is_truthy(err.message:find("^from: "), err.message)
    end
    helper.write_file(dir .. "/behind", tar {
      { name = "x", type = "x", data = "33 GNU.sparse.map=0,1,99999999,1\n" }, { name = "f", data = ("d"):rep(100) },
    })
    refused("InvalidArgument", build { from = dir .. "/behind" })
    assert.same({}, sandbar.assert(sandboxes.templates:list()))
  end)
end)
