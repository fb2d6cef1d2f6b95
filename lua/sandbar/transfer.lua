-- files:upload and download: files and whole trees between the host and the sandbox, in constant memory.
-- Each file shows up whole or not at all. Links are carried as links; download makes none that leads out.

local check = require "sandbar.check"
local core = require "sandbar.core"
local errors = require "sandbar.errors"
local filecall = require "sandbar.filecall"
local hosttree = require "sandbar.hosttree"
local link = require "sandbar.link"
local nested = require "sandbar.nested"
local openfile = require "sandbar.openfile"
local wait = require "sandbar.wait"

local CHUNK = 1048576

local OP, methods = filecall.OP, filecall.methods
local request = filecall.request

local function timed_out(run)
  if run.deadline and core.now() >= run.deadline then
    return wait.timed_out(run.op, "timeout", run.timeout)
  end
end

-- All bytes of one open file into another; on_progress(bytes so far, path) after each chunk.
local function copy_bytes(run, from, to, path)
  if not run.on_progress and not run.deadline and not from.remote and not to.remote then
    local r, err = wait.op(core.pump(from, to, CHUNK), false, run.op)
    if not r then
      return nil, err
    end
    run.report.bytes = run.report.bytes + r.number
    return true
  end
  local offset = 0
  while true do
    local late = timed_out(run)
    if late then
      return nil, late
    end
    local data, err = openfile.read(from, offset, CHUNK, link.left(run.deadline), run.op)
    if err then
      return nil, err
    end
    if data == nil or data == "" then
      return true
    end
    local written
    written, err = openfile.write(to, offset, data, link.left(run.deadline), run.op)
    if not written then
      return nil, err
    end
    offset = offset + #data
    run.report.bytes = run.report.bytes + #data
    if run.on_progress then
      run.on_progress(run.report.bytes, path)
    end
  end
end

-- One file: its bytes, then finish() makes it show up; undo() takes back what there is if that fails or raises.
-- Closes both.
local function carry(run, from, to, path, finish, undo)
  local called, ok, err = nested.pcall(function()
    local copied, why = copy_bytes(run, from, to, path)
    if not copied then
      return nil, why
    end
    return finish()
  end)
  if not called or not ok then
    undo()
  end
  from:close()
  to:close()
  if not called then
    error(ok, 0)
  elseif not ok then
    return nil, err
  end
  run.report.files = run.report.files + 1
  return true
end

local function begin_run(self, op, opts, path)
  local state, fields, timeout = filecall.begin(self, op, opts, path)
  if not state then
    return nil, fields
  end
  return {
    op = "files:" .. op,
    state = state,
    user = opts.user,
    timeout = timeout,
    deadline = link.deadline(timeout),
    on_progress = opts.on_progress,
    report = { files = 0, directories = 0, links = 0, bytes = 0, skipped = {} },
  }
end

local function check_host_path(op, index, path)
  check.arg(op, index, path, "string", 2)
  if path == "" or path:find("%z") then
    return filecall.invalid(op, nil, "the host's path is empty or contains a zero byte")
  end
  return path
end

-- ---- upload ----

local function upload_file(run, opts, base, name, path, mode)
  local from, err = hosttree.at(run.op, "read", base, name)
  if not from then
    return nil, err
  end
  local r
  r, err = run.state._link:call("begin", run.op, link.left(run.deadline),
    { path = path, user = run.user, parents = 1, mode = mode, owner = opts.owner })
  if not r then
    from:close()
    return nil, err
  end
  local to = r.object
  local token = { token = r.fields.token, path = r.fields.path, user = run.user }
  return carry(run, from, to, path, function()
    return run.state._link:call("commit", run.op, link.left(run.deadline), to, {
      token = token.token, path = token.path, user = run.user, mode = mode,
    })
  end, function()
    request(run.state, "upload", filecall.UNDO_LIMIT, OP.ABORT, token)
  end)
end

local function upload_link(run, target, path)
  local fields = { target = target, path = path, user = run.user }
  local r, err = request(run.state, "upload", link.left(run.deadline), OP.SYMLINK, fields)
  if not r and err.kind == "AlreadyExists" then
    r, err = request(run.state, "upload", link.left(run.deadline), OP.REMOVE,
      { path = path, user = run.user })
    if r then
      fields.file_op = nil
      r, err = request(run.state, "upload", link.left(run.deadline), OP.SYMLINK, fields)
    end
  end
  run.report.links = run.report.links + 1
  return r and true, err
end

local UPLOAD = filecall.schema {
  on_progress = "callable",
  owner = "string",
  mode = "string|integer",
}

function methods:upload(host_path, path, opts)
  opts = check.options("upload", 3, opts, UPLOAD)
  local ok, err = check_host_path("upload", 1, host_path)
  if ok then
    ok, err = filecall.check_path("upload", 2, path)
  end
  local bits, run
  if ok then
    bits, err = filecall.mode_bits("upload", path, opts.mode)
    ok = not err
  end
  if ok then
    run, err = begin_run(self, "upload", opts, path)
  end
  if not run then
    return nil, err
  end
  local entries
  entries, err = hosttree.list(host_path, run.op, link.left(run.deadline))
  if not entries then
    return nil, link.told(err, run.timeout)
  end
  local dir, name = hosttree.split(host_path)
  local top = entries[1]
  if path:sub(-1) == "/" and top.type == "file" then
    path = path .. name
  end
  for _, entry in ipairs(entries) do
    local to = entry.path == "" and path or path:gsub("/+$", "") .. "/" .. entry.path
    local late = timed_out(run)
    if late then
      return nil, late
    end
    if entry.type == "directory" then
      ok, err = request(run.state, "upload", link.left(run.deadline), OP.MKDIR,
        { path = to, mode = entry.mode % 512, parents = 1, user = run.user })
      run.report.directories = run.report.directories + 1
    elseif entry.type == "file" then
      local base, rest = host_path, entry.path
      if rest == "" then
        base, rest = dir, name
      end
      ok, err = upload_file(run, opts, base, rest, to, bits or entry.mode % 512)
    elseif entry.type == "link" then
      ok, err = upload_link(run, entry.target, to)
    else
      run.report.skipped[#run.report.skipped + 1] = to
    end
    if not ok then
      return nil, errors.from(link.told(err, run.timeout), run.op, { path = to })
    end
  end
  return run.report
end

-- ---- download ----

local function download_file(run, path, base, name, mode)
  local r, err = run.state._link:call("open", run.op, link.left(run.deadline),
    { path = path, oflags = 0, user = run.user })
  if not r then
    return nil, err
  end
  local from = r.object
  local part = name:gsub("[^/]*$", "") .. ".sandbar-" .. core.uuid()
  local to
  to, err = hosttree.at(run.op, "create", base, part, nil, 384)
  if not to then
    from:close()
    return nil, err
  end
  return carry(run, from, to, path, function()
    local ok, why = hosttree.at(run.op, "chmod", base, part, nil, mode)
    if not ok then
      return nil, why
    end
    ok, why = hosttree.at(run.op, "rename", base, part, name)
    if not ok and why.errno then
      why = errors.from_errno(why.errno, run.op, base .. "/" .. name) -- not of the temporary one
    end
    return ok, why
  end, function()
    hosttree.at(run.op, "remove", base, part)
  end)
end

local function bits_of(entry)
  return (entry.mode or 420) % 512
end

-- The tree's entries, each with its path relative to the start; a name that leads out is the sandbox's
-- fault and ends it all.
local function list_tree(run, path)
  local r, err = request(run.state, "download", link.left(run.deadline), OP.LIST,
    { path = path, depth = 0, user = run.user })
  if not r then
    return nil, err
  end
  local stat
  stat, err = request(run.state, "download", link.left(run.deadline), OP.STAT, { path = path, user = run.user })
  if not stat then
    return nil, err
  end
  local start = (stat.fields.path or ""):gsub("/+$", "") .. "/"
  local out = {}
  for i, part in ipairs(r.parts or {}) do
    local full = part.path or ""
    if full:sub(1, #start) ~= start or #full == #start or (full .. (part.target or "")):find("%z") then
      return nil, errors.new {
        kind = "Protocol", op = run.op, path = full,
        message = "the sandbox named a file outside of the tree, or by what is no name",
      }
    end
    out[i] = { path = full:sub(#start + 1), full = full, type = part.ftype, mode = part.mode, target = part.target }
  end
  return out
end

local function download_tree(run, path, host_path, match)
  local entries, err = list_tree(run, path)
  if not entries then
    return nil, err
  end
  local links, directories = {}, {}
  for _, entry in ipairs(entries) do
    local ok = true
    local late = timed_out(run)
    if late then
      return nil, late
    end
    if entry.type == "directory" then
      ok, err = hosttree.at(run.op, "mkdir", host_path, entry.path, nil, 448)
      directories[#directories + 1] = entry
      run.report.directories = run.report.directories + 1
    elseif not match(entry.path) then
      ok = true
    elseif entry.type == "file" then
      ok, err = download_file(run, entry.full, host_path, entry.path, bits_of(entry))
    elseif entry.type == "link" and hosttree.stays_inside(entry.path, entry.target) then
      links[#links + 1] = entry
    else
      run.report.skipped[#run.report.skipped + 1] = entry.full
    end
    if not ok then
      return nil, err
    end
  end
  -- Links last: nothing is ever written through one of them.
  for _, entry in ipairs(links) do
    local ok
    ok, err = hosttree.at(run.op, "symlink", host_path, entry.path, entry.target)
    if not ok and err.kind ~= "AlreadyExists" then
      return nil, err
    end
    run.report.links = run.report.links + 1
  end
  for i = #directories, 1, -1 do
    local ok
    ok, err = hosttree.at(run.op, "chmod", host_path, directories[i].path, nil, bits_of(directories[i]))
    if not ok then
      return nil, err
    end
  end
  return true
end

local DOWNLOAD = filecall.schema { on_progress = "callable", match = "string|function" }

function methods:download(path, host_path, opts)
  opts = check.options("download", 3, opts, DOWNLOAD)
  local ok, err = check_host_path("download", 2, host_path)
  if ok then
    ok, err = filecall.check_path("download", 1, path)
  end
  local run
  if ok then
    run, err = begin_run(self, "download", opts, path)
  end
  if not run then
    return nil, err
  end
  local r
  r, err = request(run.state, "download", link.left(run.deadline), OP.STAT, { path = path, user = opts.user })
  if not r then
    return nil, errors.from(link.told(err, run.timeout), run.op)
  end
  local dir, name = hosttree.split(host_path)
  if r.fields.ftype == "directory" then
    ok, err = hosttree.at(run.op, "mkdir", dir, name, nil, 493)
    if ok then
      run.report.directories = 1
      ok, err = download_tree(run, path, host_path, hosttree.matcher(opts.match))
    end
  elseif r.fields.ftype == "file" then
    if host_path:sub(-1) == "/" then
      dir, name = host_path, select(2, hosttree.split(path))
    end
    ok, err = download_file(run, path, dir, name, bits_of(r.fields))
  else
    return filecall.invalid("download", path, "neither a file nor a directory")
  end
  if not ok then
    return nil, errors.from(link.told(err, run.timeout), run.op)
  end
  return run.report
end
