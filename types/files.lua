---@meta sandbar.files

--- A file, directory or link as list and stat give it. A link is not followed here.
---@class sandbar.Entry
---@field name string
---@field path string
---@field type "file"|"directory"|"link"|"fifo"|"socket"|"block"|"char"
---@field size integer bytes
---@field mode string "644"
---@field owner string
---@field group string
---@field mtime number seconds since 1970
---@field target? string of a link
---@field xattrs? table<string, string> only from stat{ xattrs = true } (all) and from write (those it has set)

---@class sandbar.FileOptions
---@field user? string acts with that user's rights (default: the sandbox's user)
---@field timeout? sandbar.Timeout (default: none)

---@class sandbar.WriteOptions: sandbar.FileOptions
---@field mode? string|integer "644"; integers are raw bits. Applied also to what is there; without it that keeps its own
---@field flag? "w"|"wx"|"a" "wx": AlreadyExists if it is there; "a" appends
---@field atomic? boolean a temporary file beside it, renamed (default true; false truncates in place)
---@field owner? string "name" or "name:group": gives the file away
---@field xattrs? table<string, string> names begin with "user."; others are for root

--- What upload and download did.
---@class sandbar.TransferReport
---@field files integer
---@field directories integer
---@field links integer
---@field bytes integer
---@field skipped string[] paths of what was not copied: fifos, sockets, devices; of a download also links that lead out

--- Files inside the sandbox. Paths that are relative or begin with ~ start at the user's home. Links planted inside are
--- resolved inside.
---@class sandbar.Files
local Files = {}

--- The whole file. One of more than `max` bytes is LimitExceeded, and nothing of it has been read.
---@param path string
---@param options? sandbar.FileOptions|{ max?: integer } (default 256 MiB)
---@return string? data
---@return sandbar.Error? err NotFound, LimitExceeded, ...
function Files:read(path, options) end

--- An iterator over a file, formats as for io.lines. In a `for` a failure raises, also that of the opening; `:next()`
--- returns nil, err.
---@param path string
---@return fun(): string?
function Files:lines(path, ...) end

--- Creates missing parents.
---@param path string
---@param data string|(fun(): string?)|any
---@param options? sandbar.WriteOptions
---@return sandbar.Entry? entry
---@return sandbar.Error? err
function Files:write(path, data, options) end

--- Every file is tried, each whole or not at all. If some fail: nil and an Aggregate, whose `result` has { path, entry } or
--- { path, error } for each in their order; what was written stays. `timeout` is of the whole call.
---@param files { path: string, data: string|(fun(): string?)|any, mode?: string }[]|table<string, string> options of write in each
---@param options? sandbar.WriteOptions for all
---@return sandbar.Entry[]? entries
---@return sandbar.Error? err
function Files:write_many(files, options) end

--- Modes are those of io.open.
---@param path string
---@param mode? string (default "r")
---@param options? sandbar.FileOptions
---@return sandbar.File? file
---@return sandbar.Error? err
function Files:open(path, mode, options) end

--- In stable order. depth 1 (default) is flat, false everything. A listing is held in memory: one of more than 64 MiB
--- (about half a million entries) is LimitExceeded; list the directories one by one then.
---@param path string
---@param options? sandbar.FileOptions|{ depth?: integer|false }
---@return sandbar.Entry[]? entries
---@return sandbar.Error? err
function Files:list(path, options) end

---@param path string
---@param options? sandbar.FileOptions|{ nofollow?: boolean, xattrs?: boolean } nofollow: of a link itself; xattrs: with them
---@return sandbar.Entry? entry
---@return sandbar.Error? err
function Files:stat(path, options) end

--- Only NotFound is false; other failures are failures.
---@param path string
---@param options? sandbar.FileOptions
---@return boolean? exists
---@return sandbar.Error? err
function Files:exists(path, options) end

--- With its parents. False when it was there.
---@param path string
---@param options? sandbar.FileOptions|{ mode?: string|integer }
---@return boolean? created
---@return sandbar.Error? err
function Files:mkdir(path, options) end

---@param from string
---@param to string
---@param options? sandbar.FileOptions
---@return true? ok
---@return sandbar.Error? err
function Files:move(from, to, options) end

--- A file or a whole tree.
---@param from string
---@param to string
---@param options? sandbar.FileOptions
---@return true? ok
---@return sandbar.Error? err
function Files:copy(from, to, options) end

---@param path string
---@param options? sandbar.FileOptions|{ recursive?: boolean }
---@return true? ok
---@return sandbar.Error? err
function Files:remove(path, options) end

---@param path string
---@param mode string|integer
---@param options? sandbar.FileOptions
---@return true? ok
---@return sandbar.Error? err
function Files:chmod(path, mode, options) end

---@param target string
---@param path string
---@param options? sandbar.FileOptions
---@return true? ok
---@return sandbar.Error? err
function Files:symlink(target, path, options) end

---@param path string
---@param options? sandbar.FileOptions
---@return string? target
---@return sandbar.Error? err
function Files:readlink(path, options) end

--- A fresh private directory.
---@param options? sandbar.FileOptions
---@return string? path
---@return sandbar.Error? err
function Files:temp_dir(options) end

--- A file or directory from the host into the sandbox, in constant memory.
---@param host_path string
---@param path string
---@param options? sandbar.WriteOptions|{ on_progress?: fun(bytes: integer, path: string) }
---@return sandbar.TransferReport? report
---@return sandbar.Error? err
function Files:upload(host_path, path, options) end

--- A file or directory from the sandbox to the host. Never writes outside the target, never follows links out. Takes the
--- place of a file or a link; where a device, pipe or socket is: AlreadyExists.
---@param path string
---@param host_path string
---@param options? sandbar.FileOptions|{ match?: string|(fun(path: string): boolean), on_progress?: fun(bytes: integer, path: string) }
---@return sandbar.TransferReport? report
---@return sandbar.Error? err
function Files:download(path, host_path, options) end

--- What changes in a directory; with `recursive` also below it. It is active when this returns, and lasts until it is
--- closed, its directory goes, or the sandbox (or its handle) does. `for event in assert(box.files:watch(path)) do` and
--- `:next()` give the events. A sandbox has 16 inotify instances, one for each watch, and 16384 directories for all of them.
---@param path string a directory
---@param options? sandbar.FileOptions|{ recursive?: boolean }
---@return sandbar.Watch? watch
---@return sandbar.Error? err NotFound, Platform (ENOTDIR), PermissionDenied, LimitExceeded, ...
function Files:watch(path, options) end

--- The paths that match, absolute and sorted; none is an empty array. `*` and `?` (one character) match within a name,
--- `[a-z]` and `[!a-z]` one character, `{a,b}` alternatives, `**` as a whole name any directories, also none; `\` takes
--- the meaning from what follows. A dot at the start of a name is matched by a dot only. `**` enters no links; what has a
--- name in the pattern may be one. A slash at the end: directories only. What may not be read has no matches.
---@param pattern string relative: to the user's home
---@param options? sandbar.FileOptions
---@return string[]? paths
---@return sandbar.Error? err InvalidArgument; LimitExceeded above 1024 alternatives or 64 MiB of paths
function Files:glob(pattern, options) end

---@class sandbar.LinkOptions
---@field expires? sandbar.Timeout how long it holds (default: an hour); false: as long as the sandbox is there
---@field user? string whose home a relative path starts at, and who owns what is written

--- A signed link by which others may write the file, and nothing else: POST, as `application/octet-stream`. Hosted
--- sandboxes only; the local engine has no server that could answer it: Unsupported.
---@param path string
---@param options? sandbar.LinkOptions
---@return string? url
---@return sandbar.Error? err
function Files:upload_url(path, options) end

--- The same to read it: GET.
---@param path string
---@param options? sandbar.LinkOptions
---@return string? url
---@return sandbar.Error? err
function Files:download_url(path, options) end

--- One change. create: the name is there, new, moved there, or in the place of what had it; what is in a directory that
--- came follows as creations of its own, each once. remove and rename: the name is gone, and all below it; what was
--- renamed is created under its new name. write: of a file, several in a row as one. chmod: mode, owner, times or
--- attributes. overflow: changes came faster than they were read and some are lost: look for yourself, what comes after it
--- is complete again.
---@class sandbar.WatchEvent
---@field type "create"|"write"|"remove"|"rename"|"chmod"|"overflow"
---@field path string below the watched directory; "." is that itself

--- A watch; call it or its next for the next event.
---@class sandbar.Watch
---@field path string of its directory, without links
---@field recursive boolean
---@field reason? sandbar.Error why it has ended; nil while it lasts, and after close
---@overload fun(): sandbar.WatchEvent?
local Watch = {}

--- nil at the end. That is after close, and after a last event with the path "." when the directory has been removed or
--- moved; any other end (of the sandbox, of a limit) comes as nil, err, once.
---@param options? { timeout?: sandbar.Timeout }
---@return sandbar.WatchEvent? event
---@return sandbar.Error? err
function Watch:next(options) end

--- Idempotent, also within the loop. No event comes after it.
---@return true
function Watch:close() end

--- An open file; follows Lua's io files.
---@class sandbar.File
local File = {}

--- Formats as of io's read; the last argument may be { timeout = ... }. A read that fails has consumed nothing.
---@return string?|number ...
function File:read(...) end

--- Strings and numbers; the last argument may be { timeout = ... }.
---@return sandbar.File? file
---@return sandbar.Error? err
function File:write(...) end

--- As read: formats, and { timeout = ... } for each step.
---@return fun(): string?
function File:lines(...) end

---@param whence? "set"|"cur"|"end"
---@param offset? integer
---@param options? { timeout?: sandbar.Timeout }
---@return integer? position
---@return sandbar.Error? err
function File:seek(whence, offset, options) end

---@return sandbar.File? file
---@return sandbar.Error? err
function File:flush() end

--- Writes are not buffered here: it only checks the mode.
---@param mode "no"|"full"|"line"
---@return true
function File:setvbuf(mode) end

--- Idempotent.
---@return true? ok
---@return sandbar.Error? err
function File:close() end
