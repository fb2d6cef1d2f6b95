// The same as e2b_client.lua with the official SDK: e2b_client.mjs DIRECTORY_WITH_NODE_MODULES URL MODE [ARGUMENT]

import { createReadStream, createWriteStream, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { performance } from 'node:perf_hooks'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

const [npm, url, mode, argument] = process.argv.slice(2)
const { Sandbox } = createRequire(npm + '/')('e2b')

const sbx = await Sandbox.create({ apiUrl: url, sandboxUrl: url, apiKey: 'e2b_' + '7'.repeat(40) })
let measured = []

const run = () => sbx.commands.run('true')

async function timed(fn) {
  const began = performance.now()
  await fn()
  measured.push((performance.now() - began) / 1e3)
}

const modes = {
  one: run,
  async exec(n) {
    for (let i = 0; i < 50; i++) await run()
    for (let i = 0; i < n; i++) await timed(run)
    measured.sort((a, b) => a - b)
    measured = [measured[n >> 1], measured[Math.ceil(n * 0.99) - 1]]
  },
  async flight(n) {
    let left = n
    await timed(() =>
      Promise.all(
        Array.from({ length: 32 }, async () => {
          while (left-- > 0) await run()
        })
      )
    )
  },
  async output() {
    await timed(async () => {
      const { stdout } = await sbx.commands.run('head -c 200000000 /dev/zero')
      if (stdout.length < 200000000) throw new Error('that is not all')
    })
  },
  async up(path) {
    await timed(() => sbx.files.write('/f', Readable.toWeb(createReadStream(path)), { useOctetStream: true }))
  },
  async down(path) {
    await timed(async () => {
      await pipeline(Readable.fromWeb(await sbx.files.read('/f', { format: 'stream' })), createWriteStream(path))
    })
  },
}

await modes[mode](argument && !isNaN(argument) ? Number(argument) : argument)
await sbx.kill()
measured.push(readFileSync('/proc/self/status', 'latin1').match(/^VmHWM:\s*(\d+)/m)[1])
console.log(measured.join(' '))
process.exit(0)
