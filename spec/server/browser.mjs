// A headless Chromium driven by the DevTools protocol over two pipes: no library, no port.

import { spawn } from 'node:child_process'
import { once } from 'node:events'

const LIMIT = 15000 // milliseconds for anything to come about

const KEYS = {
  Enter: [13, '\r'], Tab: [9], Escape: [27], ArrowUp: [38], ArrowDown: [40], ArrowLeft: [37], ArrowRight: [39], Backspace: [8], F6: [117],
}

export class Browser {
  constructor(program, profile, flags = []) {
    this.waiting = new Map()
    this.handlers = []
    this.number = 0
    this.child = spawn(program, ['--headless', '--remote-debugging-pipe', `--user-data-dir=${profile}`, '--no-first-run', '--disable-gpu',
      '--disable-dev-shm-usage', '--disable-background-networking', '--force-color-profile=srgb', ...flags], {
      stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'], detached: true })
    this.said = ''
    this.child.stderr.on('data', (data) => { this.said = (this.said + data).slice(-4000) })
    this.gone = once(this.child, 'exit')
    this.gone.then(() => {
      for (const { reject } of this.waiting.values()) reject(new Error(`the browser has ended: ${this.said}`))
    })
    let kept = ''
    this.child.stdio[4].setEncoding('utf8').on('data', (data) => {
      const parts = (kept + data).split('\0')
      kept = parts.pop()
      for (const part of parts) this.receive(JSON.parse(part))
    })
    this.child.stdio[3].on('error', () => {})
  }

  receive(message) {
    if (!message.id) return this.handlers.forEach((handler) => handler(message))
    const { resolve, reject, method } = this.waiting.get(message.id)
    this.waiting.delete(message.id)
    if (message.error) reject(new Error(`${method}: ${message.error.message}`))
    else resolve(message.result)
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++this.number
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, method })
      this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`)
    })
  }

  // A page in a context of its own: nothing of other pages is kept there.
  async page({ width = 1280, height = 860, dark = false, phone = false } = {}) {
    const { browserContextId } = await this.send('Target.createBrowserContext')
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank', browserContextId, width, height })
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true })
    const page = new Page(this, sessionId, targetId)
    this.handlers.push((message) => { if (message.sessionId === sessionId) page.event(message) })
    for (const domain of ['Page', 'Runtime', 'Log']) await page.send(`${domain}.enable`)
    await page.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: phone ? 2 : 1, mobile: phone })
    if (phone) await page.send('Emulation.setTouchEmulationEnabled', { enabled: true })
    await page.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }] })
    return page
  }

  async close() {
    if (this.child.exitCode === null && this.child.signalCode === null) await this.send('Browser.close').catch(() => {})
    await this.gone
    try { process.kill(-this.child.pid, 'SIGKILL') } catch { /* all of its processes have ended */ }
  }
}

class Page {
  constructor(browser, sessionId, targetId) {
    Object.assign(this, { browser, sessionId, targetId, wrong: [] })
  }

  send(method, params) {
    return this.browser.send(method, params, this.sessionId)
  }

  // What must not happen: errors of scripts, breaches of the policy, dialogs of scripts.
  event({ method, params }) {
    if (method === 'Runtime.exceptionThrown') this.wrong.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text)
    else if (method === 'Log.entryAdded' && params.entry.source !== 'network' && params.entry.level === 'error') this.wrong.push(params.entry.text)
    else if (method === 'Page.javascriptDialogOpening') {
      this.wrong.push(`a dialog: ${params.message}`)
      this.send('Page.handleJavaScriptDialog', { accept: false })
    }
  }

  async open(url) {
    const { errorText } = await this.send('Page.navigate', { url }) // else the browser's own page of errors counts as loaded
    if (errorText) throw new Error(`${url}: ${errorText}; the browser: ${this.browser.said}`)
    await this.until(() => document.readyState === 'complete' && location.href !== 'about:blank', 'the page is loaded')
  }

  async reload() {
    await this.run(() => { window.before = true })
    await this.send('Page.reload')
    await this.until(() => !window.before && document.readyState === 'complete', 'the page is loaded again')
  }

  // fn(...args) in the page, which has only what it is given.
  async run(fn, ...args) {
    const list = args.map((arg) => (typeof arg === 'function' ? `(${arg})` : JSON.stringify(arg))).join(',')
    const { result, exceptionDetails: failed } = await this.send('Runtime.evaluate', {
      expression: `(${fn})(${list})`, awaitPromise: true, returnByValue: true, userGesture: true })
    if (failed) throw new Error(failed.exception?.description ?? failed.text)
    return result.value
  }

  // Until fn(...args) gives something true, which is returned.
  async until(fn, what, ...args) {
    for (const end = Date.now() + LIMIT; ;) {
      const got = await this.run(fn, ...args).catch((cause) => { if (Date.now() > end) throw cause })
      if (got) return got
      if (Date.now() > end) {
        const seen = await this.run(() => `${location.href} ${document.readyState} ${document.body?.innerText.slice(0, 1500)}`)
        throw new Error(`never: ${what}; the page: ${seen}; wrong: ${this.wrong}; the browser: ${this.browser.said}`)
      }
      await new Promise((resolve) => setTimeout(resolve, 15))
    }
  }

  sees(text) {
    return this.until((wanted) => document.body.innerText.includes(wanted), `"${text}" is seen`, text)
  }

  // A click on the middle of what fits, once it is there and nothing is over it. `text`: what is in it or what it is called.
  async click(selector, text = '') {
    const at = await this.until((css, label) => {
      const node = [...document.querySelectorAll(css)].find((one) =>
        one.checkVisibility() && (label === '' || one.textContent.trim() === label || one.getAttribute('aria-label') === label))
      if (!node) return null
      node.scrollIntoView({ block: 'nearest' })
      const box = node.getBoundingClientRect()
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2]
      const there = document.elementFromPoint(x, y)
      return there && (node.contains(there) || there.contains(node)) && !node.disabled ? { x, y } : null
    }, `${selector} ${text} can be clicked`, selector, text)
    for (const type of ['mousePressed', 'mouseReleased']) {
      await this.send('Input.dispatchMouseEvent', { type, ...at, button: 'left', clickCount: 1 })
    }
  }

  // Text into what has the focus, a key at a time.
  async type(text) {
    for (const char of text) {
      if (char === '\n') await this.key('Enter')
      else await this.send('Input.dispatchKeyEvent', { type: 'char', text: char })
    }
  }

  async key(key, { ctrl = false } = {}) {
    const [code, text] = KEYS[key] ?? [key.toUpperCase().charCodeAt(0)]
    const more = { key, windowsVirtualKeyCode: code, modifiers: ctrl ? 2 : 0 }
    await this.send('Input.dispatchKeyEvent', { type: text ? 'keyDown' : 'rawKeyDown', text, ...more })
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...more })
  }

  async picture() {
    const { data } = await this.send('Page.captureScreenshot', { format: 'png' })
    return Buffer.from(data, 'base64')
  }
}
