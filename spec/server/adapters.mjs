// What is built on the official SDK, unchanged: two adapters for agents' frameworks, and the command line tool. Prints as
// sdk.mjs does.
//
//   E2B_API_URL=... E2B_SANDBOX_URL=... E2B_API_KEY=... node adapters.mjs DIRECTORY_WITH_NODE_MODULES

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

const root = process.argv[2]
const require = createRequire(root + '/')
const load = (name) => import(pathToFileURL(require.resolve(name)))
const { Sandbox } = require('e2b')
const apiKey = process.env.E2B_API_KEY

const cases = {}

cases['computesdk: a sandbox, commands, files, a snapshot, the end'] = async () => {
  const { e2b } = await load('@computesdk/e2b')
  const compute = e2b({ apiKey })
  const sandbox = await compute.sandbox.create({ envs: { A: '1' }, metadata: { by: 'computesdk' }, timeout: 60000 })
  const ok = await sandbox.runCommand('echo $A; pwd')
  assert.deepEqual([ok.stdout, ok.stderr, ok.exitCode], ['1\n/home/user\n', '', 0])
  const bad = await sandbox.runCommand('echo no >&2; exit 3', { cwd: '/tmp', env: { B: 'x y' } })
  assert.deepEqual([bad.stderr, bad.exitCode], ['no\n', 3])
  await sandbox.filesystem.mkdir('/home/user/d')
  await sandbox.filesystem.writeFile('/home/user/d/f', 'text')
  assert.equal(await sandbox.filesystem.readFile('/home/user/d/f'), 'text')
  assert.equal(await sandbox.filesystem.exists('/home/user/d/g'), false)
  assert.deepEqual((await sandbox.filesystem.readdir('/home/user/d')).map((e) => e.name), ['f'])
  await sandbox.filesystem.remove('/home/user/d/f')
  assert.equal(await sandbox.filesystem.exists('/home/user/d/f'), false)
  const listed = await compute.sandbox.list()
  assert.ok(listed.some((one) => one.sandboxId === sandbox.sandboxId))
  const again = await compute.sandbox.getById(sandbox.sandboxId)
  assert.equal((await again.runCommand('echo again')).stdout, 'again\n')
  await sandbox.filesystem.writeFile('/home/user/kept', 'yes')
  const snapshot = await compute.snapshot.create(sandbox.sandboxId, { name: 'by-computesdk' })
  const copy = await compute.sandbox.create({ snapshotId: snapshot.id, timeout: 60000 })
  assert.equal(await copy.filesystem.readFile('/home/user/kept'), 'yes')
  assert.match(await sandbox.getUrl({ port: 3000 }), new RegExp(`^https://3000-${sandbox.sandboxId}\\.`))
  await copy.destroy()
  await compute.sandbox.destroy(sandbox.sandboxId)
  assert.equal(await compute.sandbox.getById(sandbox.sandboxId), null)
}

cases['mastra: a sandbox, processes, files, a pause, the end'] = async () => {
  const { E2BSandbox } = await load('@mastra/e2b')
  const id = 'spec-' + Math.random().toString(36).slice(2)
  const options = { id, apiKey, template: 'base', timeout: 60000, env: { A: '1' }, metadata: { by: 'mastra' } }
  const sandbox = new E2BSandbox(options)
  await sandbox._start()
  const ok = await sandbox.executeCommand('echo', ['$HOME', 'a b'])
  assert.equal(ok.exitCode, 0)
  assert.equal(ok.stdout, '$HOME a b\n')
  const bad = await sandbox.executeCommand('sh', ['-c', 'echo $A >&2; exit 4'])
  assert.deepEqual([bad.exitCode, bad.success], [4, false])
  assert.match(bad.stderr, /^1\n/) // the adapter has the output of what failed twice
  await sandbox.writeFiles([{ path: '/home/user/kept', content: 'yes' }])
  let text = ''
  const process_ = await sandbox.processes.spawn('while read l; do echo "got $l"; done', { onStdout: (d) => (text += d) })
  await process_.sendStdin('one\n')
  for (const until = Date.now() + 10000; !text.includes('got one'); ) {
    assert.ok(Date.now() < until, 'no output')
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  assert.deepEqual((await sandbox.processes.list()).map((p) => p.pid), [process_.pid])
  assert.equal((await sandbox.getInfo()).status, 'running')
  const inner = sandbox.e2b.sandboxId
  await sandbox._stop()
  assert.equal((await Sandbox.getInfo(inner)).state, 'paused')
  const again = new E2BSandbox(options)
  await again._start()
  assert.equal(again.e2b.sandboxId, inner)
  assert.equal((await again.executeCommand('cat', ['/home/user/kept'])).stdout, 'yes')
  const same = await again.processes.get(process_.pid)
  await same.kill()
  await again._destroy()
  await assert.rejects(() => Sandbox.getInfo(inner))
}

const cli = (...args) =>
  new Promise((resolve) => {
    const main = join(dirname(require.resolve('@e2b/cli/package.json')), 'dist/index.js')
    execFile(process.execPath, [main, ...args], { env: { ...process.env, NO_COLOR: '1' } }, (error, stdout, stderr) =>
      resolve({ code: error ? error.code : 0, stdout, stderr })
    )
  })

cases['the command line tool: list, info, logs, kill'] = async () => {
  const mark = String(Math.random())
  const sandboxes = await Promise.all([1, 2].map(() => Sandbox.create({ timeoutMs: 60000, metadata: { mark } })))
  const ids = sandboxes.map((sbx) => sbx.sandboxId).sort()
  const listed = await cli('sandbox', 'list', '--format', 'json', '--metadata', 'mark=' + mark)
  assert.equal(listed.code, 0, listed.stderr)
  assert.deepEqual(JSON.parse(listed.stdout).map((one) => one.sandboxId).sort(), ids)
  const table = await cli('sandbox', 'list')
  assert.ok(ids.every((id) => table.stdout.includes(id)), table.stdout)
  const info = await cli('sandbox', 'info', ids[0])
  assert.ok(info.code === 0 && info.stdout.includes(ids[0]), info.stderr)
  await sandboxes[0].commands.run('true')
  const logs = await cli('sandbox', 'logs', sandboxes[0].sandboxId)
  assert.ok(logs.code === 0 && logs.stdout.includes('process started'), logs.stdout + logs.stderr)
  const killed = await cli('sandbox', 'kill', ids[0])
  assert.equal(killed.code, 0, killed.stderr)
  const left = await Sandbox.list({ query: { metadata: { mark } } }).nextItems()
  assert.deepEqual(left.map((one) => one.sandboxId), [ids[1]])
  await cli('sandbox', 'kill', ids[1])
  assert.deepEqual(await Sandbox.list({ query: { metadata: { mark } } }).nextItems(), [])
}

for (const [name, run] of Object.entries(cases)) {
  const began = Date.now()
  try {
    await run()
    console.log('ok', name, `(${Date.now() - began} ms)`)
  } catch (e) {
    console.log('not ok', name + ':', String(e.stack || e).replaceAll('\n', ' | '))
  }
}
process.exit(0)
