// What the official SDK for JavaScript does with a server: each case is one thing its users rely on. Some run beside each
// other. Prints "ok NAME (MS ms)" or "not ok NAME: WHY" for each.
//
//   E2B_API_URL=... E2B_SANDBOX_URL=... E2B_VOLUME_API_URL=... E2B_API_KEY=... node sdk.mjs DIRECTORY_WITH_NODE_MODULES

import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const require = createRequire(process.argv[2] + '/')
const e2b = require('e2b')
const undici = require('undici')
const { Sandbox } = e2b
const url = process.env.E2B_API_URL
const LIMIT = 30000
const AT_ONCE = 10

const cases = {}

// A sandbox for one case, killed at its end.
async function withSandbox(fn, options) {
  const sbx = await Sandbox.create({ timeoutMs: 60000, ...options })
  try {
    return await fn(sbx)
  } finally {
    await sbx.kill()
  }
}

// Until fn() gives something true.
async function eventually(fn, what) {
  for (const until = Date.now() + 10000; Date.now() < until; ) {
    const got = await fn()
    if (got) return got
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error('never: ' + what)
}

const via = (sbx, port, headers) => ({ headers: { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': String(port), ...headers } })

cases['create, info, kill'] = async () => {
  const sbx = await Sandbox.create({ timeoutMs: 60000, metadata: { owner: 'ci' } })
  assert.match(sbx.sandboxId, /^i[a-z0-9]{20}$/)
  const info = await sbx.getInfo()
  assert.equal(info.templateId, 'base')
  assert.deepEqual(info.metadata, { owner: 'ci' })
  assert.equal(info.state, 'running')
  assert.equal(info.endAt - info.startedAt, 60000)
  assert.equal(await sbx.isRunning(), true)
  assert.equal(await sbx.kill(), true)
  assert.equal(await sbx.kill(), false)
  assert.equal(await sbx.isRunning(), false)
  await assert.rejects(() => sbx.getInfo(), e2b.SandboxNotFoundError)
}

cases['lists: metadata, pages, order, states'] = async () => {
  const mark = { 'a b': 'c&d=é', run: String(Math.random()) }
  const all = await Promise.all([1, 2, 3].map(() => Sandbox.create({ timeoutMs: 60000, metadata: mark })))
  await all[0].pause()
  const pages = Sandbox.list({ query: { metadata: mark }, limit: 2 })
  const seen = []
  while (pages.hasNext) seen.push(...(await pages.nextItems()))
  assert.deepEqual(seen.map((s) => s.sandboxId).sort(), all.map((s) => s.sandboxId).sort())
  assert.deepEqual(seen[0].metadata, mark)
  for (let i = 1; i < seen.length; i++) assert.ok(seen[i - 1].startedAt >= seen[i].startedAt)
  const paused = await Sandbox.list({ query: { metadata: mark, state: ['paused'] } }).nextItems()
  assert.deepEqual(paused.map((s) => s.sandboxId), [all[0].sandboxId])
  await Promise.all(all.map((s) => s.kill()))
  assert.deepEqual(await Sandbox.list({ query: { metadata: mark } }).nextItems(), [])
}

cases['commands: output, environment, user, directory'] = () =>
  withSandbox(
    async (sbx) => {
      const parts = []
      const r = await sbx.commands.run('echo out; echo err >&2; echo $A $B; pwd; id -un', {
        envs: { B: '2' },
        cwd: '/tmp',
        onStdout: (data) => parts.push(data),
      })
      assert.equal(r.stdout, 'out\n1 2\n/tmp\nuser\n')
      assert.equal(r.stderr, 'err\n')
      assert.equal(parts.join(''), r.stdout)
      const root = await sbx.commands.run('id -u; echo $HOME $E2B_SANDBOX $E2B_SANDBOX_ID', { user: 'root' })
      assert.equal(root.stdout, `0\n/root true ${sbx.sandboxId}\n`)
      const text = await sbx.commands.run('printf "\\303\\251\\377"')
      assert.equal(text.stdout, 'é\ufffd')
    },
    { envs: { A: '1' } }
  )

cases['commands: exits and errors'] = () =>
  withSandbox(async (sbx) => {
    const failed = await sbx.commands.run('echo no >&2; exit 3').catch((e) => e)
    assert.ok(failed instanceof e2b.CommandExitError)
    assert.deepEqual([failed.exitCode, failed.stderr], [3, 'no\n'])
    await assert.rejects(() => sbx.commands.run('true', { cwd: '/nope' }), e2b.InvalidArgumentError)
    await assert.rejects(() => sbx.commands.run('true', { user: 'nobody9' }), e2b.AuthenticationError)
    await assert.rejects(() => sbx.commands.connect(999999), e2b.NotFoundError)
  })

cases['commands: input and its end'] = () =>
  withSandbox(async (sbx) => {
    const cat = await sbx.commands.run('cat; echo end', { background: true, stdin: true })
    await sbx.commands.sendStdin(cat.pid, 'one\n')
    await sbx.commands.sendStdin(cat.pid, 'two\n')
    await sbx.commands.closeStdin(cat.pid)
    assert.equal((await cat.wait()).stdout, 'one\ntwo\nend\n')
    assert.equal((await sbx.commands.run('cat')).stdout, '')
  })

cases['commands: background, list, connect, kill'] = () =>
  withSandbox(async (sbx) => {
    const first = await sbx.commands.run('while sleep 0.05; do echo tick; done', { background: true, envs: { X: 'y' } })
    const listed = await sbx.commands.list()
    assert.equal(listed.length, 1)
    assert.equal(listed[0].pid, first.pid)
    assert.equal(listed[0].cmd, '/bin/bash')
    assert.deepEqual(listed[0].envs, { X: 'y' })
    await first.disconnect()
    let ticks = 0
    const second = await sbx.commands.connect(first.pid, { onStdout: () => ticks++ })
    await eventually(() => ticks > 1, 'output for the second one')
    assert.equal(await second.kill(), true)
    const end = await second.wait().catch((e) => e)
    assert.ok(end instanceof e2b.CommandExitError)
    assert.equal(end.exitCode, -1)
    assert.match(end.message, /signal: killed/)
    assert.equal(await sbx.commands.kill(first.pid), false)
    const late = await sbx.commands.connect(first.pid)
    await assert.rejects(() => late.wait(), e2b.CommandExitError)
  })

cases['commands: two listen, a child that stays does not hold a kill up'] = () =>
  withSandbox(async (sbx) => {
    const first = await sbx.commands.run('sleep 60 & echo ready; while read l; do echo "got $l"; done; wait', {
      background: true,
      stdin: true,
    })
    const second = await sbx.commands.connect(first.pid)
    await sbx.commands.sendStdin(first.pid, 'one\n')
    await eventually(() => first.stdout.includes('got one') && second.stdout.includes('got one'), 'output for both')
    assert.equal(await first.kill(), true)
    const ends = await Promise.all([first.wait().catch((e) => e), second.wait().catch((e) => e)])
    assert.deepEqual(ends.map((e) => e.exitCode), [-1, -1])
  })

cases['commands: the time limit kills'] = () =>
  withSandbox(async (sbx) => {
    await assert.rejects(() => sbx.commands.run('sleep 60', { timeoutMs: 200 }), e2b.TimeoutError)
    await eventually(async () => (await sbx.commands.list()).length === 0, 'the end of the process')
  })

cases['commands: much output, in order'] = () =>
  withSandbox(async (sbx) => {
    const r = await sbx.commands.run('seq 1 100000')
    assert.equal(r.stdout.length, 588895)
    assert.ok(r.stdout.endsWith('\n99999\n100000\n'))
  })

cases['terminals'] = () =>
  withSandbox(async (sbx) => {
    let text = ''
    const decoder = new TextDecoder()
    const term = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => (text += decoder.decode(d, { stream: true })) })
    const type = (s) => sbx.pty.sendInput(term.pid, new TextEncoder().encode(s))
    await type('stty size; echo $TERM $((6*7))\n')
    await eventually(() => /24 80\r\nxterm-256color 42/.test(text), 'the size')
    await sbx.pty.resize(term.pid, { cols: 100, rows: 30 })
    await type('stty size\n')
    await eventually(() => text.includes('30 100'), 'the new size')
    await type('exit 5\n')
    const end = await term.wait().catch((e) => e)
    assert.equal(end.exitCode, 5)
  })

cases['terminals: found again, and killed'] = () =>
  withSandbox(async (sbx) => {
    let text = ''
    const first = await sbx.pty.create({ cols: 80, rows: 24, cwd: '/tmp', envs: { MARK: 'm1' }, onData: () => {} })
    first.wait().catch(() => {})
    await first.disconnect()
    const again = await sbx.pty.connect(first.pid, { onData: (d) => (text += Buffer.from(d).toString()) })
    await sbx.pty.sendInput(first.pid, new TextEncoder().encode('echo $MARK-$PWD\n'))
    await eventually(() => text.includes('m1-/tmp'), 'the output of the shell')
    assert.equal(await sbx.pty.kill(first.pid), true)
    assert.equal((await again.wait().catch((e) => e)).exitCode, -1)
    assert.equal(await sbx.pty.kill(first.pid), false)
  })

cases['files: write, read, stat, list, move, remove'] = () =>
  withSandbox(async (sbx) => {
    const written = await sbx.files.write('a/ü b.txt', 'héllo')
    assert.deepEqual([written.path, written.name, written.type], ['/home/user/a/ü b.txt', 'ü b.txt', 'file'])
    assert.equal(await sbx.files.read('a/ü b.txt'), 'héllo')
    const info = await sbx.files.getInfo('a/ü b.txt')
    assert.deepEqual([info.type, info.size, info.mode, info.permissions, info.owner], ['file', 6, 0o644, '-rw-r--r--', 'user'])
    assert.ok(Math.abs(info.modifiedTime - Date.now()) < 60000)
    assert.equal(await sbx.files.makeDir('/srv/d/e', { user: 'root' }), true)
    assert.equal(await sbx.files.makeDir('/srv/d/e'), false)
    assert.equal((await sbx.files.getInfo('/srv/d')).owner, 'root')
    await sbx.files.write('/srv/d/mine', '1')
    assert.equal((await sbx.files.getInfo('/srv/d/mine')).owner, 'user')
    await sbx.commands.run('mkdir -p l/x && touch l/x/1 l/b && ln -s x l/link && ln -s nowhere l/dead')
    const deep = await sbx.files.list('l', { depth: 2 })
    assert.deepEqual(deep.map((e) => e.path.slice('/home/user/l/'.length)), ['b', 'link', 'x', 'x/1'])
    assert.equal(deep[1].type, 'dir')
    assert.equal(deep[1].symlinkTarget, '/home/user/l/x')
    await sbx.files.rename('l/b', 'new/c')
    assert.equal(await sbx.files.exists('l/b'), false)
    assert.equal(await sbx.files.exists('new/c'), true)
    await sbx.files.remove('l')
    await sbx.files.remove('l')
    await assert.rejects(() => sbx.files.read('nope'), e2b.FileNotFoundError)
    await assert.rejects(() => sbx.files.list('nope'), e2b.FileNotFoundError)
    await assert.rejects(() => sbx.files.list('new/c'), e2b.InvalidArgumentError)
    await assert.rejects(() => sbx.files.read('~'), e2b.InvalidArgumentError)
    await assert.rejects(() => sbx.files.read('~other/x'), e2b.InvalidArgumentError)
  })

cases['files: many at once, streams, bytes, metadata'] = () =>
  withSandbox(async (sbx) => {
    const bytes = new Uint8Array(300000).map((_, i) => (i * 7) % 256)
    const list = await sbx.files.write([
      { path: 'one', data: '1' },
      { path: '/tmp/q "x"/two', data: bytes.buffer },
    ])
    assert.deepEqual(list.map((e) => e.name), ['one', 'two'])
    await sbx.files.write('streamed', new Blob([bytes]).stream(), { useOctetStream: true })
    assert.deepEqual(new Uint8Array(await sbx.files.read('streamed', { format: 'bytes' })), bytes)
    await sbx.files.write('packed', bytes.buffer, { gzip: true })
    assert.deepEqual(new Uint8Array(await sbx.files.read('packed', { format: 'bytes' })), bytes)
    const pieces = []
    for await (const piece of await sbx.files.read('streamed', { format: 'stream' })) pieces.push(piece)
    assert.deepEqual(new Uint8Array(Buffer.concat(pieces)), bytes)
    await sbx.files.write('empty', '')
    assert.equal(await sbx.files.read('empty'), '')
    const marked = await sbx.files.write('marked', 'x', { metadata: { Purpose: 'a b' } })
    assert.deepEqual(marked.metadata, { purpose: 'a b' })
    assert.deepEqual((await sbx.files.getInfo('marked')).metadata, { purpose: 'a b' })
    await sbx.files.write('marked', 'y', { metadata: { other: 'c' } })
    assert.deepEqual((await sbx.files.getInfo('marked')).metadata, { other: 'c' })
    await sbx.files.write('marked', 'z')
    assert.equal((await sbx.files.getInfo('marked')).metadata, undefined)
  })

cases['files: watches'] = () =>
  withSandbox(async (sbx) => {
    await sbx.files.makeDir('w')
    const events = []
    const watch = await sbx.files.watchDir('w', (e) => events.push(e), { recursive: true, includeEntry: true })
    const has = (type, name) => events.find((e) => e.type === type && e.name === name)
    await sbx.commands.run('mkdir w/d')
    await eventually(() => has('create', 'd'), 'the new directory')
    await sbx.commands.run('echo x > w/d/f; mv w/d/f w/g; rm w/g')
    await eventually(() => has('remove', 'g'), 'the removal')
    assert.ok(has('create', 'd') && has('write', 'd/f') && has('rename', 'd/f') && has('create', 'g'))
    assert.equal(has('create', 'd').entry.path, '/home/user/w/d')
    await watch.stop()
    await assert.rejects(() => sbx.files.watchDir('nope', () => {}), e2b.FileNotFoundError)
  })

cases['signed links'] = () =>
  withSandbox(async (sbx) => {
    const form = new FormData()
    form.append('file', new Blob(['by link']), 'x')
    const up = await fetch(await sbx.uploadUrl('l/é+.txt', { useSignatureExpiration: 60 }), { method: 'POST', body: form })
    assert.equal(up.status, 200)
    const down = await sbx.downloadUrl('l/é+.txt')
    assert.equal(await (await fetch(down)).text(), 'by link')
    assert.equal((await fetch(down.replace('l%2F', 'm%2F'))).status, 401)
    const old = await fetch(await sbx.downloadUrl('l/é+.txt', { useSignatureExpiration: -10 }), via(sbx, 49983))
    assert.equal(old.status, 401)
    assert.deepEqual(await old.json(), { code: 401, message: 'signature is already expired' })
  })

cases['pause and resume keep processes'] = () =>
  withSandbox(async (sbx) => {
    await sbx.files.write('kept', 'yes')
    const slow = await sbx.commands.run('while sleep 0.05; do date >> ticks; done', { background: true })
    slow.wait().catch(() => {})
    assert.equal(await sbx.pause(), true)
    assert.equal(await sbx.pause(), false)
    assert.equal(await sbx.isRunning(), false)
    assert.equal((await sbx.getInfo()).state, 'paused')
    await assert.rejects(() => sbx.commands.run('true'), e2b.SandboxNotFoundError)
    await assert.rejects(() => sbx.files.read('kept'), e2b.TimeoutError)
    const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 30000 })
    assert.equal(await again.files.read('kept'), 'yes')
    assert.deepEqual((await sbx.commands.list()).map((p) => p.pid), [slow.pid])
    const before = (await sbx.files.read('ticks')).length
    await eventually(async () => (await sbx.files.read('ticks')).length > before, 'more ticks')
    assert.equal(await sbx.commands.kill(slow.pid), true)
  })

cases['a pause to disk is a reboot'] = () =>
  withSandbox(async (sbx) => {
    await sbx.files.write('kept', 'yes')
    const slow = await sbx.commands.run('sleep 60', { background: true })
    slow.wait().catch(() => {})
    assert.equal(await sbx.pause({ keepMemory: false }), true)
    await sbx.connect()
    assert.equal(await sbx.files.read('kept'), 'yes')
    assert.deepEqual(await sbx.commands.list(), [])
  })

cases['a resume may leave the memory of a pause aside'] = () =>
  withSandbox(async (sbx) => {
    await sbx.files.write('kept', 'yes')
    const slow = await sbx.commands.run('sleep 60', { background: true })
    slow.wait().catch(() => {})
    await sbx.pause()
    const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 60000, onResume: 'reboot' })
    assert.deepEqual(await again.commands.list(), [])
    assert.equal(await again.files.read('kept'), 'yes')
  })

cases['lifetimes: set, never shortened by connect, the end'] = () =>
  withSandbox(async (sbx) => {
    await sbx.setTimeout(120000)
    const end = (await sbx.getInfo()).endAt
    await Sandbox.connect(sbx.sandboxId, { timeoutMs: 10000 })
    assert.deepEqual((await sbx.getInfo()).endAt, end)
    const slow = sbx.commands.run('sleep 60').catch((e) => e)
    await eventually(async () => (await sbx.commands.list()).length === 1, 'the command')
    await sbx.setTimeout(1000)
    const error = await slow
    assert.ok(error instanceof e2b.TimeoutError, String(error))
    assert.match(error.message, /killed or reached its end of life/)
    assert.equal(await sbx.isRunning(), false)
  })

cases['the end of a lifetime may be a pause, and traffic may wake'] = () =>
  withSandbox(
    async (sbx) => {
      await sbx.setTimeout(1000)
      await eventually(async () => (await sbx.getInfo()).state === 'paused', 'the pause')
      assert.equal((await fetch(`${url}/health`, via(sbx, 49983))).status, 403)
      assert.equal((await sbx.commands.run('echo awake')).stdout, 'awake\n')
      assert.equal((await sbx.getInfo()).lifecycle.autoResume, true)
    },
    { lifecycle: { onTimeout: 'pause', autoResume: true } }
  )

cases['a kill ends what is open'] = () =>
  withSandbox(async (sbx) => {
    const slow = sbx.commands.run('sleep 60').catch((e) => e)
    await eventually(async () => (await sbx.commands.list()).length === 1, 'the command')
    await sbx.kill()
    assert.match((await slow).message, /killed or reached its end of life/)
  })

cases['snapshots and forks'] = () =>
  withSandbox(async (sbx) => {
    await sbx.files.write('kept', 'yes')
    const snapshot = await sbx.createSnapshot()
    const copy = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60000 })
    assert.equal(await copy.files.read('kept'), 'yes')
    await copy.kill()
    const listed = await Sandbox.listSnapshots({ sandboxId: sbx.sandboxId }).nextItems()
    assert.deepEqual(listed.map((s) => s.snapshotId), [snapshot.snapshotId])
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
    const forks = await sbx.fork({ count: 2 })
    assert.equal(forks.length, 2)
    for (const fork of forks) {
      assert.equal(await fork.files.read('kept'), 'yes')
      assert.equal((await fork.commands.run('echo $E2B_SANDBOX_ID')).stdout.trim(), fork.sandboxId)
      await fork.kill()
    }
  })

cases['snapshots by name, and forks that cannot be'] = () =>
  withSandbox(async (sbx) => {
    const name = 'snap-' + Math.random().toString(36).slice(2)
    const one = await sbx.createSnapshot({ name })
    assert.match(one.snapshotId, new RegExp(`/${name}:default$`))
    await sbx.files.write('later', '2')
    await sbx.createSnapshot({ name: name + ':v2' })
    const pages = Sandbox.listSnapshots({ name, limit: 1 })
    const seen = []
    while (pages.hasNext) seen.push(...(await pages.nextItems()))
    assert.deepEqual(seen.map((s) => s.snapshotId.split(':')[1]), ['v2', 'default'])
    const copies = await Promise.all([name, name + ':v2'].map((from) => Sandbox.create(from, { timeoutMs: 60000 })))
    assert.deepEqual(await Promise.all(copies.map((copy) => copy.files.exists('later'))), [false, true])
    await Promise.all(copies.map((copy) => copy.kill()))
    assert.equal(await Sandbox.deleteSnapshot(one.snapshotId), true)
    await assert.rejects(() => sbx.fork({ count: 0 }), e2b.SandboxError)
    await sbx.pause()
    await assert.rejects(() => sbx.createSnapshot(), e2b.SandboxError)
  })

const SERVER = `python3 -u -c '
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_POST(s):
        body = s.rfile.read(int(s.headers["content-length"]))
        s.send_response(201); s.send_header("x-host", s.headers["host"]); s.end_headers()
        s.wfile.write(s.path.encode() + b" " + body)
    do_GET = lambda s: s.send_error(404)
s = http.server.HTTPServer(("127.0.0.1", 3000), H); print("up", flush=True); s.serve_forever()'`

cases['ports'] = () =>
  withSandbox(
    async (sbx) => {
      assert.equal(sbx.getHost(3000).split('.')[0], `3000-${sbx.sandboxId}`)
      const private_ = via(sbx, 3000, { 'e2b-traffic-access-token': sbx.trafficAccessToken })
      assert.equal((await fetch(`${url}/x`, via(sbx, 3000))).status, 403)
      const closed = await fetch(`${url}/x`, private_)
      assert.equal(closed.status, 502)
      assert.deepEqual(await closed.json(), {
        sandboxId: sbx.sandboxId,
        message: 'The sandbox is running but port is not open',
        port: 3000,
        code: 502,
      })
      let up = ''
      await sbx.commands.run(SERVER, { background: true, onStdout: (d) => (up += d) })
      await eventually(() => up.includes('up'), 'the server inside')
      const answer = await fetch(`${url}/p/a%2Fb?c=d`, { method: 'POST', body: 'body', ...private_ })
      assert.equal(answer.status, 201)
      assert.equal(await answer.text(), '/p/a%2Fb?c=d body')
      assert.equal(answer.headers.get('x-host'), new URL(url).host)
      assert.equal((await fetch(`${url}/own`, private_)).status, 404)
    },
    { network: { allowPublicTraffic: false } }
  )

// Requests to whatever name, all of them to the server.
const named = new undici.Agent({
  connect: (options, done) => {
    const { hostname, port, protocol } = new URL(url)
    undici.buildConnector({})({ ...options, hostname, port, protocol, servername: options.hostname }, done)
  },
})

cases['ports by host name'] = () =>
  withSandbox(async (sbx) => {
    let up = ''
    await sbx.commands.run(SERVER, { background: true, onStdout: (d) => (up += d) })
    await eventually(() => up.includes('up'), 'the server inside')
    const at = `${new URL(url).protocol}//${sbx.getHost(3000)}/x`
    const answer = await undici.fetch(at, { method: 'POST', body: 'body', dispatcher: named })
    assert.deepEqual([answer.status, await answer.text()], [201, '/x body'])
    assert.equal(answer.headers.get('x-host'), sbx.getHost(3000))
    const nobody = at.replace(sbx.sandboxId, 'inothere')
    assert.equal((await undici.fetch(nobody, { dispatcher: named })).status, 502)
  })

const ECHO = `python3 -u -c '
import base64, hashlib, socket
s = socket.create_server(("127.0.0.1", 3001)); print("up", flush=True)
while True:
    c, _ = s.accept(); head = b""
    while b"\\r\\n\\r\\n" not in head: head += c.recv(4096)
    key = [l.split(b":")[1].strip() for l in head.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key")][0]
    if b"GET /no " in head:
        c.sendall(b"HTTP/1.1 403 Forbidden\\r\\nContent-Length: 2\\r\\n\\r\\nno"); c.close(); continue
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    c.sendall(b"HTTP/1.1 101 x\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    d = c.recv(4096); n = d[1] & 127; m = d[2:6]; t = bytes(b ^ m[i % 4] for i, b in enumerate(d[6:6 + n]))
    c.sendall(bytes([0x81, n]) + t)'`

cases['ports, and websockets over them'] = () =>
  withSandbox(async (sbx) => {
    let up = ''
    await sbx.commands.run(ECHO, { background: true, onStdout: (d) => (up += d) })
    await eventually(() => up.includes('up'), 'the server inside')
    const at = url.replace('http', 'ws')
    const refused = new undici.WebSocket(`${at}/no`, via(sbx, 3001))
    await new Promise((resolve) => refused.addEventListener('error', resolve))
    const socket = new undici.WebSocket(`${at}/echo`, via(sbx, 3001))
    await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }))
    const answer = new Promise((resolve) => (socket.onmessage = (e) => resolve(e.data)))
    socket.send('hello')
    assert.equal(await answer, 'hello')
    const closed = new Promise((resolve) => (socket.onclose = resolve))
    await sbx.kill()
    await closed
  })

cases['metrics'] = () =>
  withSandbox(async (sbx) => {
    const metrics = await sbx.getMetrics()
    assert.equal(metrics.length, 1)
    assert.ok(metrics[0].cpuCount >= 1 && metrics[0].memTotal > 0)
  })

cases['the network can be closed, and opened later'] = () =>
  withSandbox(
    async (sbx) => {
      assert.equal((await sbx.getInfo()).allowInternetAccess, false)
      await sbx.updateNetwork({ allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] })
      assert.deepEqual((await sbx.getInfo()).network.allowOut, ['example.com'])
    },
    { allowInternetAccess: false }
  )

cases['volumes'] = async () => {
  const { Volume } = e2b
  const name = 'spec-' + Math.random().toString(36).slice(2)
  const made = await Volume.create(name)
  const volume = await Volume.connect(made.volumeId)
  assert.ok((await Volume.list()).some((one) => one.name === name))
  await volume.makeDir('/a/b', { force: true, mode: 0o750 })
  const written = await volume.writeFile('/a/b/f', 'hello', { uid: 0, gid: 0, mode: 0o600 })
  assert.deepEqual([written.name, written.type, written.path, written.size, written.mode, written.uid], ['f', 'file', '/a/b/f', 5, 0o600, 0])
  assert.equal(await volume.readFile('/a/b/f'), 'hello')
  await assert.rejects(() => volume.writeFile('/a/b/f', 'x'), e2b.VolumeError)
  await volume.writeFile('/a/b/f', 'more', { force: true })
  const info = await volume.getInfo('/a/b/f')
  assert.ok(Math.abs(info.mtime - Date.now()) < 60000 && info.size === 4)
  assert.equal((await volume.updateMetadata('/a/b/f', { mode: 0o640 })).mode, 0o640)
  assert.deepEqual((await volume.list('/', { depth: 3 })).map((e) => e.path), ['/a', '/a/b', '/a/b/f'])
  assert.deepEqual((await volume.list('/a')).map((e) => e.mode), [0o750])
  assert.equal(await volume.exists('/a/c'), false)
  await assert.rejects(() => volume.readFile('/a/c'), e2b.VolumePathNotFoundError)
  await volume.remove('/a')
  assert.equal(await volume.exists('/a/b/f'), false)
  assert.equal(await Volume.destroy(made.volumeId), true)
  assert.equal(await Volume.destroy(made.volumeId), false)
}

cases['secrets'] = async () => {
  const { Secret } = e2b
  const name = 'spec-' + Math.random().toString(36).slice(2)
  const made = await Secret.create(name, 'hush', { metadata: { a: 'b' } })
  assert.equal(made.name, name)
  await assert.rejects(() => Secret.create(name, 'other'), e2b.SecretError)
  assert.equal((await Secret.update(name, 'hush 2')).secretId, made.secretId)
  assert.deepEqual((await Secret.getInfo(made.secretId)).metadata, { a: 'b' })
  assert.ok((await Secret.list().nextItems()).some((one) => one.name === name))
  const header = { transform: { headers: { Authorization: 'Bearer ' + Secret.fill(name) } } }
  await withSandbox(
    async (sbx) => {
      const rules = (await sbx.getInfo()).network.rules
      assert.deepEqual(rules, { 'api.example.com': [header] })
    },
    { network: { rules: { 'api.example.com': [header] } } }
  )
  assert.equal(await Secret.destroy(name), true)
  assert.equal(await Secret.destroy(name), false)
  assert.equal(await Secret.exists(name), false)
  await assert.rejects(() => Secret.getInfo(name), e2b.SecretNotFoundError)
}

cases['who has no key, or another, sees nothing'] = () =>
  withSandbox(async (sbx) => {
    await assert.rejects(() => Sandbox.create({ apiKey: 'e2b_0123456789abcdef' }), e2b.AuthenticationError)
    const other = { apiKey: process.env.E2B_OTHER_KEY }
    assert.deepEqual(await Sandbox.list(other).nextItems(), [])
    assert.equal(await Sandbox.kill(sbx.sandboxId, other), false)
    await assert.rejects(() => Sandbox.connect(sbx.sandboxId, other), e2b.SandboxNotFoundError)
    const bare = await fetch(`${url}/process.Process/List`, { method: 'POST', body: '{}', headers: {
      ...via(sbx, 49983).headers, 'content-type': 'application/json' } })
    assert.equal(bare.status, 401)
    assert.equal((await bare.json()).code, 401)
    assert.equal(await sbx.isRunning(), true)
  })

cases['templates: built of steps, with files, logs, tags'] = async () => {
  const { Template } = e2b
  const dir = await mkdtemp(join(tmpdir(), 'sbt'))
  try {
    await mkdir(join(dir, 'src/sub'), { recursive: true })
    await writeFile(join(dir, 'app.txt'), 'hello\n')
    await writeFile(join(dir, 'src/sub/x.sh'), 'echo $GREETING')
    const template = Template({ fileContextPath: dir })
      .fromBaseImage()
      .setEnvs({ GREETING: 'hi', WHERE: '$HOME/y' })
      .setWorkdir('/srv/app')
      .copy('app.txt', 'deep/', { mode: 0o600 })
      .copy('src', '/srv/src', { user: 'root' })
      .runCmd('echo $WHERE > built; id -un >> built')
      .runCmd('id -un > by-root', { user: 'root' })
    const lines = []
    const name = 'spec-' + Math.random().toString(36).slice(2)
    const built = await Template.build(template, name, { onBuildLogs: (entry) => lines.push(entry.message) })
    assert.ok(lines.some((line) => line.includes('echo $WHERE')), lines.join('|'))
    assert.equal(await Template.exists(name), true)
    assert.equal(await Template.exists(name + 'x'), false)
    const sbx = await Sandbox.create(name, { timeoutMs: 60000 })
    const r = await sbx.commands.run('pwd; cat built by-root deep/app.txt; sh /srv/src/sub/x.sh; stat -c "%U %a" deep/app.txt /srv/src')
    assert.equal(r.stdout, '/srv/app\n/home/user/y\nuser\nroot\nhello\nhi\nuser 600\nroot 755\n')
    await Template.assignTags(name, 'prod')
    assert.deepEqual((await Template.getTags(name)).map((t) => t.tag).sort(), ['default', 'prod'])
    const tagged = await Sandbox.create(name + ':prod', { timeoutMs: 60000 })
    await Promise.all([sbx.kill(), tagged.kill()])
    await Template.removeTags(name, 'prod')
    const broken = Template().fromTemplate(name).runCmd('echo why >&2; exit 3')
    const error = await Template.build(broken, name + '-b').catch((e) => e)
    assert.ok(error instanceof e2b.BuildError, String(error))
    assert.match(error.message, /failed to run command 'echo why >&2; exit 3': .*exited with 3: why/)
    assert.equal(built.name.split('/').pop(), name)
  } finally {
    await rm(dir, { recursive: true })
  }
}

cases['templates: a start command runs in every sandbox'] = async () => {
  const { Template, waitForFile } = e2b
  const name = 'spec-' + Math.random().toString(36).slice(2)
  const template = Template().fromBaseImage().setStartCmd('echo $$ > /tmp/up; exec sleep 600', waitForFile('/tmp/up'))
  await Template.build(template, name, { cpuCount: 1, memoryMB: 512 })
  const sbx = await Sandbox.create(name, { timeoutMs: 60000 })
  const pid = (await sbx.files.read('/tmp/up')).trim()
  assert.equal((await sbx.commands.run(`cat /proc/${pid}/comm`)).stdout, 'sleep\n')
  await sbx.kill()
}

cases['what there is not is said so'] = async () => {
  await assert.rejects(() => Sandbox.create('no-such-template'), e2b.SandboxError)
  await assert.rejects(() => Sandbox.create({ timeoutMs: 1e9 }), /Timeout cannot be greater than 24 hours/)
  await assert.rejects(() => Sandbox.create({ volumeMounts: { '/mnt/x': 'vol' } }), /volumes cannot be mounted/)
  await assert.rejects(() => Sandbox.connect('inothere0000000000000'), e2b.SandboxNotFoundError)
}

const only = process.argv[3]
const left = Object.entries(cases).filter(([name]) => !only || name.includes(only))

// Some at a time: each has to be done in time whatever the machine does beside.
async function work() {
  for (let next = left.shift(); next; next = left.shift()) {
    const [name, run] = next
    let timer
    const began = Date.now()
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error('not done in time')), LIMIT)
    })
    try {
      await Promise.race([run(), late])
      console.log('ok', name, `(${Date.now() - began} ms)`)
    } catch (e) {
      console.log('not ok', name + ':', String(e.stack || e).replaceAll('\n', ' | '))
    }
    clearTimeout(timer)
  }
}

await Promise.all(Array.from({ length: AT_ONCE }, work))
process.exit(0)
