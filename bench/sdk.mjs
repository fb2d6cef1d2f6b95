// How long the official SDK takes for a command with two servers, in turn. Prints the medians in milliseconds.
//
//   node sdk.mjs DIRECTORY_WITH_NODE_MODULES ROUNDS KEY URL [URL...]

import { createRequire } from 'node:module'
import { performance } from 'node:perf_hooks'

const [npm, rounds, apiKey, ...urls] = process.argv.slice(2)
const { Sandbox } = createRequire(npm + '/')('e2b')

const sandboxes = []
for (const url of urls) sandboxes.push(await Sandbox.create({ apiUrl: url, sandboxUrl: url, apiKey }))
const times = urls.map(() => [])
for (let round = -10; round < rounds; round++) {
  for (const [i, sbx] of sandboxes.entries()) {
    const began = performance.now()
    await sbx.commands.run('true')
    if (round >= 0) times[i].push(performance.now() - began)
  }
}
console.log(times.map((list) => list.sort((a, b) => a - b)[list.length >> 1].toFixed(3)).join(' '))
await sandboxes[0].kill()
process.exit(0)
