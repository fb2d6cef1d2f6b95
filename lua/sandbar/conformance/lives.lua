-- Lives of sandboxes: made, found, told apart, kept, lost; and specs that are refused before anything is made.

return function(t)
  local it, assert, fails = t.it, t.assert, t.fails
  local sandbar = t.sandbar
  local ok = sandbar.assert

  local function fresh()
    return "conformance-" .. tostring({}):match("0x(%x+)") .. "-" .. os.time()
  end

  local function create(fields, fn)
    local box = ok(t.provider:create(t.spec(fields), { timeout = t.patience }))
    local results = { pcall(fn, box) }
    t.provider:destroy(box.id)
    box:close()
    if not results[1] then
      error(results[2], 0)
    end
  end

  it("A-13 A-16: one is found by its id, with its labels, and outlives its handle", function()
    local id, part = fresh(), fresh()
    create({ id = id, labels = { part = part, ["a b"] = "c=d&e" } }, function(box)
      assert.equal(id, box.id)
      assert.equal("running", box.state)
      assert.is_false(box.owned)
      box:close()
      local info = ok(t.provider:info(id))
      assert.equal("running", info.state)
      assert.equal(part, info.labels.part)
      assert.equal("c=d&e", info.labels["a b"])
      local again = ok(t.provider:connect(id, { expect_labels = { part = part } }))
      assert.equal("yes\n", ok(again:exec "echo yes").stdout)
      again:close()
      fails("WrongOwner", t.provider:connect(id, { expect_labels = { part = "other" } }))
      fails("WrongOwner", t.provider:connect(id, { expect_labels = { none = part }, resume = true }))
      assert.equal(1, #ok(t.provider:list { labels = { part = part } }))
      assert.equal(0, #ok(t.provider:list { labels = { part = part:sub(1, -2) } }))
    end)
  end)

  it("A-14: an id that nothing has is NotFound, and destroying it succeeds (A-30)", function()
    local id = fresh()
    fails("NotFound", t.provider:info(id))
    fails("NotFound", t.provider:connect(id))
    ok(t.provider:destroy(id))
  end)

  it("A-15: an id that is in use is refused", function()
    local id = fresh()
    create({ id = id }, function()
      fails("AlreadyExists", t.provider:create(t.spec { id = id }))
      assert.equal("running", ok(t.provider:info(id)).state)
    end)
  end)

  it("A-25: an id of the library's making is a UUID", function()
    assert.truthy(t.box.id:match("^%x%x%x%x%x%x%x%x%-%x%x%x%x%-4%x%x%x%-[89ab]%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"))
  end)

  it("A-17: a scoped one ends with its scope, however that ends", function()
    local id
    t.with_box({}, function(box)
      id = box.id
      assert.is_true(box.owned)
    end)
    fails("NotFound", t.provider:info(id))
    local done = pcall(t.with_box, {}, function(box)
      id = box.id
      error("on purpose")
    end)
    assert.is_false(done)
    fails("NotFound", t.provider:info(id))
  end)

  it("a destroyed one is NotFound to whoever holds a handle", function()
    t.with_box({}, function(box)
      ok(t.provider:destroy(box.id))
      fails("NotFound", box:exec "true")
      fails("NotFound", box:info())
    end)
  end)

  it("a life is set anew, and its end is told", function()
    t.with_box({}, function(box)
      ok(box:set_lifetime(1200))
      assert.is_near(ok(box:info()).started_at + 1200, box:info().ends_at, 60)
      fails("InvalidArgument", box:set_lifetime(-1))
    end)
  end)

  it("A-29 A-36: a pause that keeps memory keeps processes; calls do not wake it", function()
    t.needs "pause_memory"
    t.with_box({}, function(box)
      local p = ok(box:start { "sleep", "1000" })
      assert.equal("memory", ok(box:pause { keep = "memory", timeout = t.patience }))
      ok(box:pause())
      fails("NotRunning", box:exec "true")
      assert.equal("paused", ok(t.provider:info(box.id)).state)
      ok(box:resume { timeout = t.patience })
      ok(box:exec({ "kill", "-0", tostring(p.pid) }, { check = true }))
      p:close()
    end)
  end)

  it("A-27 A-28: a pause to disk keeps files and ends processes", function()
    t.needs "pause_disk"
    t.with_box({}, function(box)
      ok(box.files:write("kept", "here"))
      ok(box:start { "sleep", "1001" }):detach()
      assert.equal("disk", ok(box:pause { keep = "disk", timeout = t.patience }))
      fails("NotRunning", box.files:read "kept")
      ok(box:resume { timeout = t.patience })
      assert.equal("here", ok(box.files:read "kept"))
      assert.equal(0, #ok(box:processes()))
    end)
  end)

  it("A-41: a sandbox is made from a snapshot of another one", function()
    t.needs "snapshot"
    t.with_box({}, function(box)
      ok(box.files:write("inside", "before"))
      local taken = ok(box:snapshot(fresh(), { timeout = t.patience }))
      local results = { pcall(function()
        ok(box.files:write("inside", "after"))
        t.with_box({ snapshot = taken }, function(other)
          assert.equal("before", ok(other.files:read "inside"))
        end)
      end) }
      local deleted, err = t.provider.snapshots:delete(taken)
      if not results[1] then
        error(results[2], 0)
      end
      ok(deleted, err)
    end)
  end)

  it("copies go on by themselves", function()
    t.needs "fork"
    t.with_box({}, function(box)
      ok(box.files:write("inside", "one"))
      local copies = ok(box:fork(1, { timeout = t.patience }))
      assert.equal("one", ok(copies[1].files:read "inside"))
      ok(copies[1].files:write("inside", "two"))
      assert.equal("one", ok(box.files:read "inside"))
      ok(copies[1]:destroy())
      copies[1]:close()
    end)
  end)

  it("B-44: what is wrong with a spec is said by name, before anything is made", function()
    for _, wrong in ipairs {
      { id = "" }, { id = ("x"):rep(129) }, { id = "no spaces" }, { lifetime = 0 },
      { network = { allow = { "not a place/99" } } }, { labels = { ["a\0b"] = "c" } },
    } do
      fails("InvalidArgument", t.provider:create(t.spec(wrong)))
    end
    assert.has_error(function()
      t.provider:create(t.spec { unknown_key = true })
    end)
  end)

  it("what is claimed is a yes or no, and can be measured", function()
    local claims = ok(t.provider:capabilities())
    for name, claim in pairs(claims) do
      assert.is_truthy(type(claim) == "boolean" or name == "tree_kill" or name == "signals", name)
    end
    for name, claim in pairs(claims) do
      if claim == false then
        fails("Unsupported", t.provider:create(t.spec { expect = { [name] = true } }))
        break
      end
    end
    local measured = ok(t.provider:capabilities { measure = t.box, timeout = t.patience })
    assert.is_table(measured)
  end)
end
