// A terminal in a sandbox: a shell of its own, typed into and shown. The shell goes on when the page is left, and is found
// again by its tag.

const SHELL_TAG = 'sandbar-page'
const SHELL = { cmd: '/bin/sh', args: ['-c', 'command -v bash > /dev/null && exec bash -i -l; exec sh -i'] }
const SHELL_ENV = { TERM: 'xterm-256color', COLORTERM: 'truecolor', LANG: 'C.UTF-8' }
const SIZE_SETTLES = 120 // milliseconds
const DRAWS_WITHIN = 2000 // milliseconds

const KEPT_TYPED = ' ' // stands in the input, so that a phone has something to delete

const TOUCH_KEYS = [
  ['Esc', '\x1b'], ['Tab', '\t'], ['Ctrl', null], ['↑', 'ArrowUp'], ['↓', 'ArrowDown'], ['←', 'ArrowLeft'], ['→', 'ArrowRight'],
]

class Terminal {
  constructor(box) {
    this.box = box
    this.user = 'user'
    this.pid = null
    this.state = 'none' // none, starting, open, over
    this.waiting = ''
    this.ctrl = false
    this.screen = new Screen(80, 24, { reply: (text) => this.send(text) })
    this.glass = new Glass(this.screen, { cursor: true })
    this.input = el('textarea', {
      class: 'keys', 'aria-label': 'Terminal input', autocapitalize: 'off', autocomplete: 'off', autocorrect: 'off',
      spellcheck: 'false', rows: '1', onkeydown: (event) => this.key(event), oninput: (event) => this.typed(event),
      oncompositionend: (event) => this.typed(event), onpaste: (event) => this.paste(event),
    })
    this.input.value = KEPT_TYPED
    this.status = el('span', { class: 'muted grow cut', role: 'status' })
    this.who = el('select', { 'aria-label': 'User of the shell' }, el('option', { value: 'user' }, 'user'), el('option', { value: 'root' }, 'root'))
    this.again = button('New shell', () => this.restart())
    const bar = el('div', { class: 'bar' }, this.status, el('label', { class: 'inline' }, 'as ', this.who), this.again)
    this.face = el('div', { class: 'terminal' }, this.glass.node, this.input)
    this.glass.node.setAttribute('aria-label', 'Terminal output')
    this.glass.node.addEventListener('mouseup', () => { if (this.selection() === '') this.focus() })
    this.node = el('section', { class: 'pane', 'aria-label': 'Terminal' }, bar, this.face, this.touch(),
      el('p', { class: 'hint' }, 'F6 leaves the terminal for the next control. Leaving this view leaves the shell running.'))
    this.watch = new ResizeObserver(() => this.measure())
    this.watch.observe(this.glass.node)
  }

  // Keys that a phone has none of.
  touch() {
    return el('div', { class: 'touch' }, TOUCH_KEYS.map(([label, what]) => {
      const node = el('button', { type: 'button', 'aria-label': label, onclick: () => {
        if (what === null) this.hold(!this.ctrl)
        else this.send(what.length > 1 ? keyBytes({ key: what }, this.screen.modes.keys) : what)
        this.focus()
      } }, label)
      if (what === null) this.ctrlKey = node
      return node
    }))
  }

  hold(on) {
    this.ctrl = on
    this.ctrlKey.setAttribute('aria-pressed', String(on))
  }

  focus() {
    this.input.focus({ preventScroll: true })
  }

  selection() {
    const chosen = document.getSelection()
    return chosen && this.glass.node.contains(chosen.anchorNode) ? chosen.toString() : ''
  }

  // ---- its life ----

  tell(text, state) {
    this.state = state
    setText(this.status, text)
    this.face.classList.toggle('over', state === 'over')
    setText(this.again.firstChild, state === 'over' ? 'Open again' : 'New shell')
  }

  // Shown: begins one where none is open.
  show() {
    this.measure()
    if (this.state === 'none') this.begin()
    this.focus()
  }

  async begin() {
    const user = this.user
    const tag = `${SHELL_TAG}-${user}`
    const cut = this.cut = new AbortController()
    this.tell('Starting a shell…', 'starting')
    const decoder = new TextDecoder()
    let end = null
    const onmessage = ({ event }) => {
      if (cut.signal.aborted) return
      if (event?.start) this.opened(event.start.pid)
      else if (event?.data?.pty) this.write(decoder.decode(unbase64(event.data.pty), { stream: true }))
      else if (event?.end) end = event.end
    }
    const options = { user, signal: cut.signal, onmessage }
    try {
      const { processes = [] } = await unary(this.box, 'process.Process/List', {}, { signal: cut.signal })
      const old = processes.find((one) => one.tag === tag && one.pid !== this.killed)
      if (old) {
        await stream(this.box, 'process.Process/Connect', { process: { pid: old.pid } }, { ...options,
          onmessage: (message) => {
            onmessage(message)
            if (message.event?.start) this.redraw()
          } })
      } else {
        await stream(this.box, 'process.Process/Start',
          { process: { ...SHELL, envs: SHELL_ENV }, pty: { size: this.size() }, tag }, options)
      }
      if (this.cut === cut) this.tell(`The shell has ended: ${end?.status ?? 'its end was not seen'}.`, 'over')
    } catch (cause) {
      if (this.cut === cut && cause.name !== 'AbortError') this.tell(cause.message, 'over')
    }
    if (this.cut === cut) {
      this.pid = null
      this.waiting = ''
    }
  }

  write(text) {
    this.heard?.()
    this.glass.write(text)
  }

  opened(pid) {
    this.pid = pid
    this.tell(`Shell of ${this.user}, process ${pid}`, 'open')
    this.flush()
  }

  // A new size makes programs draw anew: what they wrote before is nowhere kept. Two of them at once might be the old one
  // again by the time that a program looks.
  async redraw() {
    const heard = new Promise((resolve) => {
      this.heard = resolve
      setTimeout(resolve, DRAWS_WITHIN)
    })
    const { cols, rows } = this.size()
    await this.update({ cols, rows: Math.max(rows - 1, 1) })
    await heard
    await this.update(this.size())
  }

  // Another shell in place of this one, which ends.
  async restart() {
    const pid = this.pid
    this.leave()
    this.user = this.who.value
    this.screen.reset()
    this.screen.history = []
    this.glass.refresh()
    try {
      this.killed = pid // it may be listed for a moment yet
      if (pid) await unary(this.box, 'process.Process/SendSignal', { process: { pid }, signal: 'SIGNAL_SIGKILL' })
    } catch { /* it has ended by itself */ }
    this.begin()
    this.focus()
  }

  leave() {
    this.cut?.abort()
    this.cut = null
    this.pid = null
    this.waiting = ''
    this.state = 'none'
  }

  close() {
    this.leave()
    this.watch.disconnect()
  }

  // ---- its size ----

  size() {
    return { cols: this.screen.cols, rows: this.screen.height }
  }

  measure() {
    const probe = el('span', { class: 'line' }, 'M'.repeat(20))
    this.glass.lines.append(probe)
    const { width, height } = probe.getBoundingClientRect()
    probe.remove()
    const style = getComputedStyle(this.glass.node)
    const room = (side) => parseFloat(style[`padding${side}`])
    const cols = Math.floor((this.glass.node.clientWidth - room('Left') - room('Right')) / (width / 20))
    const rows = Math.floor((this.glass.node.clientHeight - room('Top') - room('Bottom')) / height)
    if (!(cols > 1 && rows > 1)) return
    if (cols === this.screen.cols && rows === this.screen.height) return
    this.screen.resize(Math.min(cols, 400), Math.min(rows, 200))
    this.glass.refresh()
    clearTimeout(this.settling)
    this.settling = setTimeout(() => { if (this.pid) this.update(this.size()) }, SIZE_SETTLES)
  }

  async update(size) {
    try {
      await unary(this.box, 'process.Process/Update', { process: { pid: this.pid }, pty: { size } })
    } catch { /* it has ended, which its stream tells */ }
  }

  // ---- its input ----

  key(event) {
    if (event.key === 'F6') {
      event.preventDefault()
      this.who.focus()
      return
    }
    if (event.ctrlKey && event.key.toLowerCase() === 'c' && this.selection() !== '') {
      event.preventDefault()
      copy(this.selection())
      document.getSelection().removeAllRanges()
      return
    }
    const text = keyBytes(event, this.screen.modes.keys)
    if (text === null) return
    event.preventDefault()
    this.send(text)
  }

  typed(event) {
    if (event.isComposing) return
    const typed = this.input.value
    let text = typed === '' ? '\x7f' : typed.startsWith(KEPT_TYPED) ? typed.slice(KEPT_TYPED.length) : typed
    this.input.value = KEPT_TYPED
    if (this.ctrl && text !== '') {
      text = controlOf(text[0]) + text.slice(1)
      this.hold(false)
    }
    this.send(text.replace(/\n/g, '\r'))
  }

  paste(event) {
    event.preventDefault()
    const text = event.clipboardData.getData('text').replace(/\r?\n/g, '\r').replace(/\x1b/g, '')
    this.send(this.screen.modes.paste ? `\x1b[200~${text}\x1b[201~` : text)
  }

  send(text) {
    if (text === '' || (this.state !== 'open' && this.state !== 'starting')) return
    this.waiting += text
    this.glass.held = false
    this.flush()
  }

  // One call at a time, so that keys arrive in their order; what is typed meanwhile goes with the next.
  async flush() {
    const { pid } = this
    if (this.sending || !pid) return
    this.sending = true
    while (this.waiting !== '' && this.pid === pid) {
      const input = { pty: base64(this.waiting) }
      this.waiting = ''
      try {
        await unary(this.box, 'process.Process/SendInput', { process: { pid }, input })
      } catch (cause) {
        if (this.pid === pid) setText(this.status, cause.message)
      }
    }
    this.sending = false
    if (this.waiting !== '' && this.pid) this.flush()
  }
}
