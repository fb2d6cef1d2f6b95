-- What `sandbar serve ...` does.

local words = require "sandbar.program"

local program = {}

local OPTIONS = {
  ["--listen"] = "listen", ["--root"] = "root", ["--api-key-file"] = "api_key_file",
  ["--domain"] = "domain", ["--tls-cert"] = "tls_cert", ["--tls-key"] = "tls_key",
}

--- A function that serves until it is interrupted or told to end, or nil and why that is not how it is used.
function program.parse(...)
  local args, opts, i = { ... }, {}, 1
  while args[i] do
    local word, value = words.option(args[i], OPTIONS)
    i = value and i or i + 1
    value = value or args[i]
    if not OPTIONS[word] then
      return nil, words.unknown("serve", word)
    elseif not value then
      return nil, ("serve: %s without a value"):format(word)
    end
    opts[OPTIONS[word]], i = value, i + 1
  end
  return function()
    local ending = require "sandbar.server.ending"
    local serve = require "sandbar.server.serve"
    local server, err = serve.start(opts)
    if not server then
      return nil, err
    end
    io.stdout:write(server.screen)
    io.stdout:flush()
    local watch = ending.watch(server)
    -- Not by sandbar.run: it would wait for every task, also for those that wait for a server in a sandbox.
    local ok, why = serve.run(server)
    watch:cancel()
    return ok, why
  end
end

return program
