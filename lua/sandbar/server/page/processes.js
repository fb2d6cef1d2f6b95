// The processes of a sandbox and what one of them writes. Output is not kept by the server: it is shown from the moment on
// at which somebody looks.

const SEEN = 20 // ended ones that stay to be looked at
const OUTPUT_COLS = 1000
const TITLE_MOST = 500 // characters

function titleOf(tag, argv) {
  if (tag?.startsWith(SHELL_TAG)) return 'the shell of this page’s terminal'
  const shell = argv.length >= 4 && argv[1] === '-l' && argv[2] === '-c' // how SDKs run commands
  return (shell ? argv[3] : argv.join(' ')).slice(0, TITLE_MOST)
}

class Processes {
  constructor(box) {
    this.box = box
    this.list = new Map() // by pid: { pid, text, state, glass, cut, node, ... }
    this.chosen = null
    this.command = el('input', {
      class: 'mono grow', 'aria-label': 'Command', placeholder: 'Command to run, as /bin/bash -l -c', autocomplete: 'off', spellcheck: 'false',
      autocapitalize: 'off',
    })
    const form = el('form', { class: 'bar', onsubmit: (event) => this.run(event) }, this.command, el('button', { class: 'main', type: 'submit' }, 'Run'))
    this.rows = el('ul', { class: 'processes', 'aria-label': 'Processes' })
    this.empty = el('p', { class: 'empty' }, 'Nothing runs here yet. Run a command, or start one with an SDK.')
    this.title = el('h3', { class: 'mono grow cut' })
    this.actions = el('div', { class: 'actions' },
      button('Stop', () => this.signal('SIGNAL_SIGTERM')), button('Kill', () => this.signal('SIGNAL_SIGKILL'), { kind: 'danger' }))
    this.output = el('div', { class: 'output' })
    this.note = el('p', { class: 'hint' })
    this.detail = el('div', { class: 'detail', hidden: true }, el('div', { class: 'bar' }, this.title, this.actions), this.output, this.note)
    this.node = el('section', { class: 'pane', 'aria-label': 'Processes' }, form,
      el('div', { class: 'split' }, el('div', null, this.rows, this.empty), this.detail))
  }

  show() {
    this.refresh().catch(() => {})
  }

  // What runs now; others have ended. Of one whose end came after the question, the answer may be old.
  async refresh() {
    const asked = performance.now()
    const { processes = [] } = await unary(this.box, 'process.Process/List', {})
    const running = new Set()
    for (const { pid, tag, config = {} } of processes) {
      running.add(pid)
      const there = this.list.get(pid)
      if (there?.state !== 'runs' && !(there?.over >= asked)) {
        this.add({ pid, text: titleOf(tag, [config.cmd, ...(config.args ?? [])]), state: 'runs' })
      }
    }
    for (const one of this.list.values()) {
      if (one.state === 'runs' && !one.cut && !running.has(one.pid)) this.ended(one, 'ended')
    }
    this.draw()
  }

  // One that was started here; a look at the list may have been faster.
  known(pid, text) {
    const there = this.list.get(pid)
    const one = there?.state === 'runs' ? there : this.add({ pid, text, state: 'runs' })
    return Object.assign(one, { note: '' })
  }

  add(one) {
    this.list.get(one.pid)?.node.remove() // an ended one, whose number it has
    one.glass = new Glass(new Screen(OUTPUT_COLS, 40, { newline: true }))
    one.glass.node.setAttribute('aria-label', 'Output')
    one.mark = el('span', { class: 'badge' })
    one.node = el('li', null, el('button', { type: 'button', class: 'process', onclick: () => this.choose(one) },
      el('span', { class: 'pid' }, String(one.pid)), el('span', { class: 'mono cut grow' }, visible(one.text)), one.mark))
    this.list.set(one.pid, one)
    this.rows.prepend(one.node)
    const old = [...this.list.values()].filter((other) => other.state !== 'runs' && other !== this.chosen)
    for (const other of old.slice(0, Math.max(old.length - SEEN, 0))) {
      this.list.delete(other.pid)
      other.node.remove()
    }
    return one
  }

  draw() {
    this.empty.hidden = this.list.size > 0
    for (const one of this.list.values()) {
      setText(one.mark, one.state === 'runs' ? 'running' : one.state)
      one.mark.className = `badge ${one.state === 'runs' ? 'running' : one.failed ? 'bad' : ''}`
      one.node.firstChild.setAttribute('aria-pressed', String(one === this.chosen))
    }
    const one = this.chosen
    this.detail.hidden = !one
    if (!one) return
    setText(this.title, visible(one.text))
    this.actions.hidden = one.state !== 'runs'
    setText(this.note, one.note ?? '')
  }

  ended(one, text, failed = false) {
    one.state = text
    one.over = performance.now()
    one.failed = failed
    if (one.note === 'Shown from now on.') one.note = ''
  }

  // ---- output ----

  choose(one) {
    if (this.chosen && this.chosen !== one && this.chosen.cut) {
      this.chosen.cut.abort()
      this.chosen.cut = null
      if (this.chosen.state === 'runs') this.chosen.note = 'Something may be missing: it was not looked at all the time.'
    }
    this.chosen = one
    this.output.replaceChildren(one.glass.node)
    one.glass.refresh()
    if (one.state === 'runs' && !one.cut) {
      one.note ??= 'Shown from now on.'
      this.follow(one, 'process.Process/Connect', { process: { pid: one.pid } })
    }
    this.draw()
    this.detail.scrollIntoView({ block: 'nearest' })
  }

  // Reads a process until its end, or until another one is looked at.
  async follow(one, method, message) {
    const cut = new AbortController()
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder(), pty: new TextDecoder() }
    const onmessage = ({ event }) => {
      if (cut.signal.aborted) return
      if (event?.start) {
        if (!one) this.started(one = this.known(event.start.pid, message.process.args[2].slice(0, TITLE_MOST)), cut)
      } else if (event?.data) {
        for (const [name, data] of Object.entries(event.data)) {
          if (!decoders[name]) continue
          const { screen } = one.glass
          screen.newline = name !== 'pty'
          if (Boolean(screen.style.error) !== (name === 'stderr')) {
            screen.style = Object.freeze({ ...screen.style, error: name === 'stderr' })
          }
          one.glass.write(decoders[name].decode(unbase64(data), { stream: true }))
        }
      } else if (event?.end) {
        const { exitCode = 0, exited, status } = event.end
        this.ended(one, exited ? `exit ${exitCode}` : status, !exited || exitCode !== 0)
      }
    }
    if (one) one.cut = cut
    try {
      await stream(this.box, method, message, { signal: cut.signal, onmessage })
    } catch (cause) {
      if (cause.name === 'AbortError') return
      if (!one) toast(cause.message, 'bad')
      else if (one.state === 'runs') one.note = cause.message
    }
    if (one) one.cut = null
    this.draw()
  }

  started(one, cut) {
    this.choose(Object.assign(one, { cut }))
    this.command.value = ''
  }

  run(event) {
    event.preventDefault()
    const text = this.command.value.trim()
    if (text === '') return
    this.follow(null, 'process.Process/Start', { process: { cmd: '/bin/bash', args: ['-l', '-c', text] }, stdin: false })
  }

  async signal(signal) {
    const one = this.chosen
    try {
      await unary(this.box, 'process.Process/SendSignal', { process: { pid: one.pid }, signal })
      await this.refresh()
    } catch (cause) {
      toast(cause.message, 'bad')
    }
  }

  close() {
    for (const one of this.list.values()) one.cut?.abort()
  }
}
