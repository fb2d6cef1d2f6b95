// All sandboxes of the key's team.

const SEEDED = 30 // sandboxes whose last minutes are asked for at first sight

const usages = new Map() // by id, kept between views

function usageOf(id) {
  if (!usages.has(id)) usages.set(id, new Usage())
  return usages.get(id)
}

// Made anew when they have changed only: somebody may be selecting them.
function showLabels(node, metadata) {
  const text = JSON.stringify(metadata ?? {})
  if (node.shown === text) return
  node.shown = text
  node.replaceChildren(...Object.entries(metadata ?? {}).map(([name, value]) =>
    el('span', { class: 'chip' }, el('bdi', null, visible(name)), el('b', null, el('bdi', null, visible(value))))))
}

function leftOf(info) {
  return (Date.parse(info.endAt) - clock.now()) / 1000
}

function stateBadge() {
  return el('span', { class: 'badge' })
}

function showState(badge, state) {
  setText(badge, state)
  badge.className = `badge ${state}`
}

// What can be done with a sandbox from anywhere. True when it was done.
const deeds = {
  async attempt(work, said) {
    try {
      await work()
      if (said) toast(said)
      return true
    } catch (cause) {
      if (cause.status === 401) leave(UNKNOWN)
      else toast(cause.message, 'bad')
      return false
    }
  },
  pause: (id) => deeds.attempt(() => api.pause(id), 'Paused.'),
  resume: (id) => deeds.attempt(() => api.resume(id, 300), 'It runs again, for 5 minutes at first.'),
  async kill(id) {
    const sure = await confirmed('Destroy this sandbox?', `${id} ends, with its processes and its files.`, 'Destroy')
    return sure ? deeds.attempt(() => api.kill(id), 'Destroyed.') : false
  },
}

class Item {
  constructor(info, after) {
    this.id = info.sandboxID
    this.badge = stateBadge()
    this.labels = el('div', { class: 'chips' })
    this.age = el('span')
    this.left = el('span')
    this.charts = new Charts(300)
    const act = (deed) => async () => { if (await deed(this.id)) after() }
    this.pauseButton = button('Pause', act(deeds.pause), { icon: 'pause', short: true })
    this.resumeButton = button('Resume', act(deeds.resume), { icon: 'play', short: true })
    this.node = el('li', { class: 'item' },
      el('div', { class: 'who' },
        el('a', { class: 'id mono', href: `#/${encodeURIComponent(this.id)}` }, this.id),
        el('div', { class: 'chips' }, this.badge, el('span', { class: 'muted' }, visible(info.alias ?? info.templateID)), this.labels)),
      el('dl', { class: 'times' },
        el('div', null, el('dt', null, 'Age'), el('dd', null, this.age)),
        el('div', null, el('dt', null, 'Left'), el('dd', null, this.left))),
      this.charts.nodes,
      el('div', { class: 'actions' }, this.pauseButton, this.resumeButton,
        button('Destroy', act(deeds.kill), { icon: 'kill', kind: 'danger', short: true })))
  }

  update(info) {
    this.info = info
    const running = info.state === 'running'
    showState(this.badge, info.state)
    showLabels(this.labels, info.metadata)
    setText(this.age, duration((clock.now() - Date.parse(info.startedAt)) / 1000))
    setText(this.left, running ? duration(leftOf(info)) : '–')
    this.left.className = running && leftOf(info) < 60 ? 'soon' : ''
    this.pauseButton.hidden = !running
    this.resumeButton.hidden = running
    this.charts.show(usageOf(this.id), running)
  }

  fits(text) {
    return text === '' || JSON.stringify([this.id, this.info.templateID, this.info.alias, this.info.metadata]).toLowerCase().includes(text)
  }
}

class ListView {
  constructor() {
    this.items = new Map()
    this.pages = 1
    this.filter = el('input', { type: 'search', placeholder: 'Filter by id, template or label', 'aria-label': 'Filter', oninput: () => this.sift() })
    this.count = el('span', { class: 'muted', role: 'status' })
    this.rows = el('ul', { class: 'items', 'aria-label': 'Sandboxes' })
    this.more = button('Show more', () => {
      this.pages++
      this.refresh().catch(() => {})
    })
    this.more.hidden = true
    this.empty = el('div', { class: 'blank', hidden: true }, el('h2', null, 'No sandboxes yet'),
      el('p', { class: 'muted' }, 'Create one here, or from a program with an E2B SDK.'),
      el('div', { class: 'actions' }, button('New sandbox', newSandbox, { icon: 'plus', kind: 'main' }),
        button('Use from a program', setupDialog, { icon: 'code' })))
    this.none = el('p', { class: 'blank muted', hidden: true }, 'None of them fits the filter.')
    this.node = el('div', { class: 'list' },
      el('div', { class: 'bar head' }, el('h1', null, 'Sandboxes'), this.count, el('span', { class: 'grow' }), this.filter,
        button('New sandbox', newSandbox, { icon: 'plus', kind: 'main' })),
      this.rows, this.none, this.empty, this.more)
  }

  async refresh() {
    const all = []
    let next
    for (let page = 0; page < this.pages && (page === 0 || next); page++) {
      const { value, next: following } = await api.list(next)
      all.push(...value)
      next = following
    }
    this.more.hidden = !next
    await this.measure(all)
    this.draw(all)
  }

  // Figures are decoration: the list is shown without them, too.
  async measure(all) {
    const running = all.filter((info) => info.state === 'running').map((info) => info.sandboxID)
    try {
      for (const id of running.filter((one) => !usages.has(one)).slice(0, SEEDED)) {
        usageOf(id).seed(await api.series(id, clock.now() / 1000 - 300))
      }
      for (let i = 0; i < running.length; i += 100) {
        const use = await api.use(running.slice(i, i + 100))
        for (const [id, sample] of Object.entries(use)) usageOf(id).add(sample)
      }
    } catch (cause) {
      if (cause.status === 401 || cause.status === 0) throw cause
    }
  }

  draw(all) {
    const ids = new Set(all.map((info) => info.sandboxID))
    for (const [id, item] of this.items) {
      if (ids.has(id)) continue
      item.node.remove()
      this.items.delete(id)
    }
    for (const id of usages.keys()) if (!ids.has(id)) usages.delete(id)
    let at = this.rows.firstChild
    for (const info of all) {
      let item = this.items.get(info.sandboxID)
      if (!item) {
        item = new Item(info, () => refreshNow())
        this.items.set(info.sandboxID, item)
      }
      item.update(info)
      if (item.node === at) at = at.nextSibling
      else this.rows.insertBefore(item.node, at)
    }
    const running = all.filter((info) => info.state === 'running').length
    setText(this.count, all.length === 0 ? '' : `${running} running${all.length > running ? `, ${all.length - running} paused` : ''}`)
    this.empty.hidden = all.length > 0
    this.filter.hidden = all.length === 0
    this.sift()
  }

  sift() {
    const text = this.filter.value.trim().toLowerCase()
    let fitting = 0
    for (const item of this.items.values()) {
      const fits = item.fits(text)
      item.node.hidden = !fits
      if (fits) fitting++
    }
    this.none.hidden = fitting > 0 || this.items.size === 0
  }

  close() {}
}
