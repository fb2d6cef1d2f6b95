// One sandbox: what it is and uses, and the three ways into it.

class Details {
  constructor(view) {
    this.view = view
    this.facts = el('dl', { class: 'facts' })
    this.port = el('input', { type: 'number', min: '1', max: '65535', placeholder: '3000', 'aria-label': 'Port', required: true })
    const ports = el('form', { class: 'bar', onsubmit: (event) => this.openPort(event) }, el('label', { class: 'inline' }, 'A server inside, on port ', this.port),
      el('button', { type: 'submit' }, 'Open'))
    const { id } = view
    const code = {
      JavaScript: `import { Sandbox } from 'e2b'\n\nconst sandbox = await Sandbox.connect('${id}')`,
      Python: `from e2b import Sandbox\n\nsandbox = Sandbox.connect("${id}")`,
      CLI: `npx @e2b/cli sandbox connect ${id}`,
      Lua: `local box = assert(sandboxes:connect("${id}"))`,
    }
    this.node = el('section', { class: 'pane', 'aria-label': 'Details' }, this.facts, ports, snippets(code, code))
  }

  show() {
    this.refresh()
  }

  refresh() {
    const { info } = this.view
    if (!info) return
    const network = info.network ? JSON.stringify(info.network) : info.allowInternetAccess === false ? 'none' : 'the default'
    const end = info.lifecycle?.onTimeout === 'pause' ? 'is paused' : 'is destroyed'
    const list = [
      ['Template', info.alias ?? info.templateID], ['Started', when(info.startedAt)],
      ['Ends', info.state === 'running' ? when(info.endAt) : '–'],
      ['At its end it', info.lifecycle?.autoResume ? `${end}; the next call wakes it` : end],
      ['Processors', info.cpuCount], ['Memory', `${info.memoryMB} MiB`], ['Network', network], ['Domain', info.domain],
    ]
    const text = JSON.stringify(list)
    if (text === this.text) return
    this.text = text
    this.facts.replaceChildren(...list.map(([name, value]) => el('div', null, el('dt', null, name), el('dd', null, visible(value)))))
  }

  // On a host name of its own, so that what it serves is of another origin than this page.
  openPort(event) {
    event.preventDefault()
    const port = this.port.valueAsNumber
    open(`${location.protocol}//${port}-${this.view.id}.${this.view.info.domain}/`, '_blank', 'noopener')
  }

  close() {}
}

const TABS = { processes: ['Processes', Processes], terminal: ['Terminal', Terminal], files: ['Files', Files], details: ['Details', Details] }

class BoxView {
  constructor(id, tab) {
    this.id = id
    this.box = { id, token: null }
    this.info = null
    this.panes = {}
    this.badge = stateBadge()
    this.labels = el('div', { class: 'chips' })
    this.age = el('dd')
    this.left = el('dd')
    this.charts = new Charts(KEPT)
    const act = (deed) => async () => { if (await deed(id)) refreshNow() }
    this.pauseButton = button('Pause', act(deeds.pause), { icon: 'pause' })
    this.resumeButton = button('Resume', act(deeds.resume), { icon: 'play', kind: 'main' })
    this.longer = button('Lifetime', () => this.prolong(), { icon: 'clock' })
    this.actions = el('div', { class: 'actions' }, this.longer, this.pauseButton, this.resumeButton,
      button('Destroy', async () => { if (await deeds.kill(id)) location.hash = '#/' }, { icon: 'kill', kind: 'danger' }))
    this.tabs = el('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Ways into it', onkeydown: (event) => this.tabKey(event) })
    for (const [name, [label]] of Object.entries(TABS)) {
      this.tabs.append(el('button', { type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': 'panel', onclick: () => { location.hash = `#/${id}/${name}` } }, label))
    }
    this.panel = el('div', { id: 'panel', class: 'panel', role: 'tabpanel' })
    this.notice = el('div', { class: 'blank', hidden: true })
    this.node = el('div', { class: 'box' },
      el('div', { class: 'bar head' }, el('a', { class: 'back', href: '#/', 'aria-label': 'All sandboxes', title: 'All sandboxes' }, icon('back')),
        el('h1', { class: 'mono cut' }, id), button('Copy the id', () => copy(id), { icon: 'copy', kind: 'quiet', short: true }), this.badge,
        el('span', { class: 'grow' }), this.actions),
      this.labels,
      el('div', { class: 'figures' },
        el('dl', { class: 'times' }, el('div', null, el('dt', null, 'Age'), this.age), el('div', null, el('dt', null, 'Left'), this.left)),
        this.charts.nodes),
      this.tabs, this.notice, this.panel)
    this.choose(tab)
  }

  choose(tab) {
    this.tab = TABS[tab] ? tab : 'processes'
    for (const node of this.tabs.children) {
      const on = node.id === `tab-${this.tab}`
      node.setAttribute('aria-selected', String(on))
      node.tabIndex = on ? 0 : -1
    }
    this.panel.setAttribute('aria-labelledby', `tab-${this.tab}`)
    this.showPane()
  }

  tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (!step) return
    const all = [...this.tabs.children]
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus()
    event.preventDefault()
  }

  // The pane of the tab, once it is known that the sandbox runs. Made when it is first looked at.
  showPane() {
    if (!this.info) return
    const running = this.info.state === 'running'
    const usable = running || this.tab === 'details'
    this.panel.hidden = !usable
    this.notice.hidden = usable
    if (!usable) {
      this.notice.replaceChildren(el('h2', null, 'It is paused'), el('p', { class: 'muted' }, 'Its files wait here, and its memory if that was kept.'),
        button('Resume', async () => { if (await deeds.resume(this.id)) refreshNow() }, { icon: 'play', kind: 'main' }))
      return
    }
    const Kind = TABS[this.tab][1]
    const pane = this.panes[this.tab] ??= new Kind(this.tab === 'details' ? this : this.box)
    if (this.panel.firstChild === pane.node && this.shown === this.tab) return
    this.panel.replaceChildren(pane.node)
    this.shown = this.tab
    pane.show()
  }

  // The daemon is asked only of a sandbox that was running a moment ago: a question would wake one that sleeps.
  async refresh() {
    try {
      this.info = await api.get(this.id)
    } catch (cause) {
      if (cause.status !== 404 && cause.status !== 400) throw cause
      return this.gone()
    }
    this.box.token = this.info.envdAccessToken ?? null
    const running = this.info.state === 'running'
    if (this.ran === false && running) this.woken()
    this.ran = running
    const usage = usageOf(this.id)
    if (running) {
      const from = this.seeded ? usage.points.at(-1)?.at ?? 0 : clock.now() / 1000 - KEPT
      const samples = await api.series(this.id, from).catch((cause) => {
        if (cause.status === 401 || cause.status === 0) throw cause
        return []
      })
      if (!this.seeded) usage.seed(samples)
      samples.forEach((sample) => usage.add(sample))
      this.seeded = true
    }
    this.draw(running, usage)
    this.showPane()
    const pane = this.panes[this.tab]
    if (running && (this.tab === 'processes' || this.tab === 'details')) {
      try {
        await pane?.refresh()
      } catch (cause) { // it has just been paused or ended: the next look tells
        if (cause.status === 401 || cause.status === 0) throw cause
      }
    }
  }

  // What was cut by a pause begins again.
  woken() {
    this.panes.terminal?.leave()
    this.shown = null
  }

  draw(running, usage) {
    showState(this.badge, this.info.state)
    showLabels(this.labels, this.info.metadata)
    setText(this.age, duration((clock.now() - Date.parse(this.info.startedAt)) / 1000))
    setText(this.left, running ? duration(leftOf(this.info)) : '–')
    this.left.className = running && leftOf(this.info) < 60 ? 'soon' : ''
    this.pauseButton.hidden = this.longer.hidden = !running
    this.resumeButton.hidden = running
    this.charts.show(usage, running)
  }

  gone() {
    this.close()
    this.over = true
    this.node.replaceChildren(el('div', { class: 'blank' }, el('h1', null, 'This sandbox is gone'),
      el('p', { class: 'muted' }, 'It has ended, or it never was.'), el('p', null, el('a', { href: '#/' }, 'All sandboxes'))))
  }

  async prolong() {
    const minutes = await askText('How long shall it live?', 'Minutes from now', 'Set', { type: 'number', min: '1', max: '1440', value: '15', inputmode: 'numeric' })
    if (minutes && await deeds.attempt(() => api.timeout(this.id, Number(minutes) * 60), 'Set.')) refreshNow()
  }

  close() {
    for (const pane of Object.values(this.panes)) pane.close()
    this.panes = {}
  }
}
