// The page of a server in a real browser: each case is one thing that somebody does there. They come one after another.
// Prints "ok NAME (MS ms)" or "not ok NAME: WHY" for each.
//
//   E2B_API_URL=... E2B_API_KEY=... node page.mjs CHROMIUM DIRECTORY_FOR_ITS_PROFILE

import assert from 'node:assert/strict'
import { Browser } from './browser.mjs'

const url = process.env.E2B_API_URL
const key = process.env.E2B_API_KEY
const [program, profile] = process.argv.slice(2)
const PROBE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'

const cases = {}
let browser, page

async function api(method, path, body) {
  const answer = await fetch(url + path, { method, headers: { 'X-API-Key': key, 'Content-Type': 'application/json' }, body: body && JSON.stringify(body) })
  const text = await answer.text()
  assert.ok(answer.ok || answer.status === 404, `${method} ${path}: ${text}`)
  return answer.ok && text ? JSON.parse(text) : null
}

const create = (more) => api('POST', '/v2/sandboxes', { templateID: 'base', timeout: 300, ...more })
const go = (hash) => page.run((to) => { location.hash = to }, hash)
const tab = (name) => page.click('[role=tab]', name)

// The text of what a terminal or a process shows; letters that stand beside each other are so in it.
const shown = (text) => page.until((wanted) => [...document.querySelectorAll('.panel .lines')].some((node) => node.textContent.includes(wanted)),
  `"${text}" is shown`, text)

let box // the one that the page has made

cases['asks for the key, and says when it is wrong'] = async () => {
  await page.open(`${url}/`)
  await page.click('input')
  await page.type('e2b_0000000000000000000000000000000000000000\n')
  await page.sees('This server does not know that key.')
  await page.type(`${key}\n`)
  await page.sees('No sandboxes yet')
  assert.ok(!(await page.run(() => document.documentElement.outerHTML + location.href)).includes(key))
}

cases['creates a sandbox'] = async () => {
  await page.click('main button.main', 'New sandbox')
  await page.click('dialog textarea')
  await page.type('owner = the page\n')
  await page.click('dialog button', 'Create')
  box = await page.until(() => /^#\/(i[a-z0-9]{20})$/.exec(location.hash)?.[1], 'it is shown')
  await page.sees('running')
  await page.sees('the page')
  assert.deepEqual((await api('GET', `/sandboxes/${box}`)).metadata, { owner: 'the page' })
}

cases['runs a command and shows its output as it comes'] = async () => {
  await page.click('.panel input')
  await page.type('echo first; until [ -e /tmp/go ]; do sleep 0.02; done; printf "\\033[31mred\\033[0m\\n"; echo wrong >&2; exit 3\n')
  await shown('first')
  await page.sees('Kill')
  const { envdAccessToken } = await api('GET', `/sandboxes/${box}`)
  const headers = { 'E2b-Sandbox-Id': box, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': envdAccessToken }
  const made = await fetch(`${url}/files?path=/tmp/go`, { method: 'POST', headers: { ...headers, 'Content-Type': 'application/octet-stream' }, body: 'x' })
  assert.equal(made.status, 200)
  await page.sees('exit 3')
  await page.until(() => document.querySelector('.panel .lines .f1')?.textContent === 'red', 'red is red')
  await page.until(() => document.querySelector('.panel .lines .error')?.textContent === 'wrong', 'an error looks like one')
}

cases['follows a process that somebody else has started, and ends it'] = async () => {
  const { envdAccessToken } = await api('GET', `/sandboxes/${box}`)
  const headers = { 'E2b-Sandbox-Id': box, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': envdAccessToken, 'Content-Type': 'application/connect+json' }
  const text = JSON.stringify({ process: { cmd: '/bin/sh', args: ['-c', 'while :; do echo tick; sleep 0.1; done'] }, stdin: false })
  const body = Buffer.concat([Buffer.from([0, 0, 0, 0, text.length]), Buffer.from(text)])
  const cut = new AbortController()
  const answer = await fetch(`${url}/process.Process/Start`, { method: 'POST', headers, body, signal: cut.signal })
  assert.equal(answer.status, 200)
  await page.click('button.process', await page.until(() =>
    [...document.querySelectorAll('button.process')].find((one) => one.textContent.includes('tick'))?.textContent, 'it is listed'))
  await shown('tick')
  await page.click('.detail button', 'Kill')
  await page.sees('signal: killed')
  cut.abort()
}

cases['a list that comes late brings no ended process back'] = async () => {
  await page.click('.panel input')
  await page.type('echo pid-$$; exec sleep 100\n')
  const pid = Number(await page.until(() => /pid-(\d+)/.exec(document.querySelector('.panel .lines').textContent)?.[1], 'it runs'))
  await page.run(() => { // answers with a list wait, until they may go on
    const { fetch } = window
    const released = new Promise((resolve) => { window.release = resolve })
    window.held = window.read = 0
    window.fetch = async (...args) => {
      const answer = await fetch(...args)
      if (!args[0].endsWith('/List')) return answer
      window.held++
      await released
      window.fetch = fetch
      return Object.assign(answer, { json: async () => {
        const value = await Response.prototype.json.call(answer)
        window.read++
        return value
      } })
    }
    document.dispatchEvent(new Event('visibilitychange'))
  })
  await page.until(() => window.held > 0, 'a list is there')
  const { envdAccessToken } = await api('GET', `/sandboxes/${box}`)
  const killed = await fetch(`${url}/process.Process/SendSignal`, { method: 'POST', body: JSON.stringify({ process: { pid }, signal: 'SIGNAL_SIGKILL' }),
    headers: { 'E2b-Sandbox-Id': box, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': envdAccessToken, 'Content-Type': 'application/json' } })
  assert.equal(killed.status, 200)
  const state = () => document.querySelector('.process[aria-pressed="true"] .badge')?.textContent
  await page.until((read) => read() === 'signal: killed', 'its end is shown', state)
  await page.run(() => window.release())
  await page.until(() => window.read > 0, 'the list is read')
  assert.equal(await page.run(state), 'signal: killed')
}

cases['types in a terminal'] = async () => {
  await tab('Terminal')
  await shown('$')
  await page.type('echo a$((40 + 2))b; tput cols\n')
  await shown('a42b')
  await page.type('echo s$((1+1)); sleep 100\n')
  await shown('s2') // from here on the terminal is not the shell's
  await page.key('c', { ctrl: true })
  await page.type('echo c$((1+1)); cat > /tmp/typed\n')
  await shown('c2')
  await page.type('half')
  for (let i = 0; i < 4; i++) await page.key('Backspace')
  await page.type('whole\n')
  await page.key('d', { ctrl: true })
  await page.type('printf "\\033[2J\\033[3;5Hover\\033[1D\\033[32mR\\033[0m <b>%s</b>" "$(cat /tmp/typed)"\n')
  await shown('    oveR <b>whole</b>')
  assert.equal(await page.run(() => document.querySelectorAll('.terminal b').length), 0)
  await page.key('F6')
  assert.equal(await page.run(() => document.activeElement.tagName), 'SELECT')
}

cases['finds the shell again, with the size of the window'] = async () => {
  await page.run(() => document.querySelector('.terminal textarea').focus())
  await page.type('clear; kept=there; echo k$((1+1))\n')
  await shown('k2')
  await page.reload()
  await shown('$')
  await page.type('echo is-$kept; stty size\n')
  await shown('is-there')
  const [rows, cols] = (await page.until(() => /(\d+ \d+)\s*\$/.exec(document.querySelector('.terminal .lines').innerText)?.[1], 'the size')).split(' ').map(Number)
  const most = await page.run(() => {
    const glass = document.querySelector('.glass')
    return [glass.clientHeight / document.querySelector('.lines .line').offsetHeight, glass.clientWidth / 6]
  })
  assert.ok(rows > 5 && rows <= most[0] && cols > 60 && cols < most[1], `${rows} ${cols} ${most}`)
}

cases['walks through files, shows one, makes and deletes a folder'] = async () => {
  await tab('Files')
  await page.click('.trail button', '/')
  await page.click('button.entry', await page.until(() => [...document.querySelectorAll('button.entry')].find((one) => one.textContent.startsWith('tmp'))?.textContent, 'tmp is listed'))
  await page.click('button.entry', await page.until(() => [...document.querySelectorAll('button.entry')].find((one) => one.textContent.startsWith('typed'))?.textContent, 'the file is listed'))
  await page.until(() => document.querySelector('pre.text')?.textContent === 'whole\n', 'what was typed is in it')
  await page.click('button', 'New folder')
  await page.type('<b>new\n')
  await page.click('button', 'Delete <b>new')
  await page.click('dialog button', 'Delete')
  await page.until(() => !document.body.innerText.includes('<b>new'), 'it is gone')
}

cases['pauses and resumes, and goes on in the shell'] = async () => {
  await go('#/')
  await page.click('.item button', 'Pause')
  await page.sees('1 paused')
  assert.equal((await api('GET', `/sandboxes/${box}`)).state, 'paused')
  await page.click('.item a')
  await page.sees('It is paused')
  await page.click('.head button', 'Resume')
  await tab('Terminal')
  await shown('$')
  await page.type('echo still-$kept\n')
  await shown('still-there')
}

cases['begins another shell, of root'] = async () => {
  await page.run(() => { document.querySelector('.pane select').value = 'root' })
  await page.click('button', 'New shell')
  await page.sees('Shell of root')
  await page.type('echo u$(id -u) $((6*7))\n')
  await shown('u0 42')
}

cases['shows text as text, wherever it comes from'] = async () => {
  const made = await create({ metadata: { [PROBE]: PROBE, '__proto__': 'x', 'javascript:hit=1': '\u202egnp.exe' }, envVars: { A: 'b' } })
  const headers = { 'E2b-Sandbox-Id': made.sandboxID, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': made.envdAccessToken }
  const name = PROBE.replaceAll('/', '')
  await fetch(`${url}/files?path=${encodeURIComponent(`/home/user/${name}.html`)}`, { method: 'POST', body: PROBE,
    headers: { ...headers, 'Content-Type': 'application/octet-stream' } })
  await go('#/')
  await page.sees(PROBE)
  await go(`#/${made.sandboxID}`)
  await page.click('.panel input')
  await page.type(`echo '${PROBE}'; printf '\\033]0;${PROBE}\\007\\033]8;;javascript:hit=1\\033\\\\link\\033]8;;\\033\\\\ \\033[38;5;"><b>x'; echo end\n`)
  await shown('end')
  await shown(PROBE)
  await tab('Files')
  await page.click('button.entry', await page.until(() => [...document.querySelectorAll('button.entry')].find((one) => one.textContent.includes('hit=1'))?.textContent, 'the file is listed'))
  await page.until((probe) => document.querySelector('pre.text')?.textContent === probe, 'the file is shown', PROBE)
  await tab('Details')
  await page.sees('Processors')
  await go(`#/${made.sandboxID}/<img src=x onerror=hit=1>`)
  await page.sees('Sandboxes')
  const seen = await page.run(() => ({
    hit: window.hit ?? null, title: document.title, images: document.querySelectorAll('main img, main b b').length, scripts: document.scripts.length,
    links: [...document.links].filter((link) => !/^#/.test(link.getAttribute('href'))).length,
  }))
  assert.deepEqual(seen, { hit: null, title: 'sandbar', images: 0, scripts: 1, links: 0 })
  await api('DELETE', `/sandboxes/${made.sandboxID}`)
}

cases['lets no other page and no string make code of it'] = async () => {
  assert.equal(await page.run(() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken' } catch (cause) { return cause.name } }), 'TypeError')
  const refusal = (act) => page.run(async (attempt) => {
    const refused = new Promise((resolve) => document.addEventListener('securitypolicyviolation', (event) => resolve(event.effectiveDirective), { once: true }))
    attempt()
    return window.hit ?? refused
  }, act)
  assert.equal(await refusal(() => {
    const script = document.createElement('script')
    script.append('window.hit = 1')
    document.head.append(script)
    script.remove()
  }), 'require-trusted-types-for')
  assert.equal(await refusal(() => { fetch('http://127.0.0.2:1/').catch(() => {}) }), 'connect-src')
  assert.equal(await refusal(() => {
    const style = document.createElement('style')
    style.append('body { display: none }')
    document.head.append(style)
    style.remove()
  }), 'style-src-elem')
  page.wrong = page.wrong.filter((text) => !/Content Security Policy|TrustedHTML|TrustedScript/.test(text))
}

cases['destroys a sandbox after a question'] = async () => {
  await go(`#/${box}`)
  await page.click('.head button', 'Destroy')
  await page.click('dialog button', 'Cancel')
  assert.equal((await api('GET', `/sandboxes/${box}`)).state, 'running')
  await page.click('.head button', 'Destroy')
  await page.click('dialog button', 'Destroy')
  await page.sees('No sandboxes yet')
  assert.equal(await api('GET', `/sandboxes/${box}`), null)
  await go(`#/${box}`)
  await page.sees('This sandbox is gone')
}

cases['is usable on a phone: nothing is broader than it, and keys are there'] = async () => {
  const made = await create({ metadata: { long: 'x'.repeat(200) } })
  const phone = await browser.page({ width: 360, height: 700, phone: true, dark: true })
  await phone.open(`${url}/#/${made.sandboxID}/terminal`)
  await phone.click('input')
  await phone.type(`${key}\n`)
  const broader = () => phone.run(() => document.documentElement.scrollWidth > innerWidth)
  await phone.until(() => document.querySelector('.terminal .lines')?.textContent.includes('$'), 'a prompt')
  await phone.type('echo up-$((1+1))\n')
  await phone.until(() => document.querySelector('.lines').textContent.includes('up-2'), 'it answers')
  await phone.type('echo back-xx')
  await phone.run(() => { document.execCommand('delete'); document.execCommand('delete') }) // as a phone's keyboard does
  await phone.type('2\n')
  await phone.until(() => document.querySelector('.lines').innerText.includes('\nback-2\n'), 'deletes arrive')
  await phone.type('echo up-$((1+2))\n')
  await phone.until(() => document.querySelector('.lines').textContent.includes('up-3'), 'it answers')
  await phone.click('.touch button', '↑')
  await phone.key('Enter')
  await phone.until(() => document.querySelector('.lines').textContent.split('up-3').length === 3, 'the key up has brought it back')
  assert.equal(await broader(), false)
  for (const [hash, text] of [[`#/${made.sandboxID}`, 'Command'], [`#/${made.sandboxID}/files`, 'Upload'], [`#/${made.sandboxID}/details`, 'Processors'], ['#/', 'Sandboxes']]) {
    await phone.run((to) => { location.hash = to }, hash)
    await phone.until((wanted) => document.body.innerText.includes(wanted) || document.querySelector(`[aria-label="${wanted}"]`), text, text)
    assert.equal(await broader(), false, hash)
  }
  assert.deepEqual(phone.wrong, [])
  await api('DELETE', `/sandboxes/${made.sandboxID}`)
}

cases['says when the server does not answer, and goes on when it does'] = async () => {
  const network = (offline) => page.send('Network.emulateNetworkConditions', { offline, latency: 0, downloadThroughput: -1, uploadThroughput: -1 })
  const look = () => page.run(() => document.dispatchEvent(new Event('visibilitychange'))) // as if the tab was just chosen
  await go('#/')
  await page.sees('No sandboxes yet')
  await page.send('Network.enable')
  await network(true)
  await look()
  await page.sees('The server does not answer.')
  await network(false)
  await look()
  await page.until(() => document.getElementById('offline').hidden, 'the banner is gone')
}

cases['forgets the key when it is left'] = async () => {
  await page.click('button', 'Leave')
  await page.sees('API key')
  assert.equal(await page.run(() => sessionStorage.length + localStorage.length + document.cookie.length), 0)
}

cases['a load that failed counted as one, and why was not told'] = async () => {
  await assert.rejects(page.open('http://127.0.0.1:1/'), /net::ERR_UNSAFE_PORT/)
}

const flags = process.getuid() === 0 ? ['--no-sandbox'] : []
browser = new Browser(program, profile, flags)
try {
  page = await browser.page()
  for (const [name, run] of Object.entries(cases)) {
    const begun = Date.now()
    try {
      await run()
      assert.deepEqual(page.wrong, [])
      console.log(`ok ${name} (${Date.now() - begun} ms)`)
    } catch (cause) {
      console.log(`not ok ${name}: ${cause.stack.replaceAll('\n', ' ')}`)
    }
    page.wrong = []
  }
} finally {
  await browser.close()
}
