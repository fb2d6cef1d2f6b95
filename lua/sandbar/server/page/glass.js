// A screen as elements: a line for each row, made anew when it has changed, at most once a frame.

class Glass {
  constructor(screen, { cursor = false } = {}) {
    this.screen = screen
    this.cursor = cursor
    this.lines = el('div', { class: 'lines' })
    this.node = el('div', { class: 'glass', tabindex: '0', role: 'log', 'aria-live': 'off' }, this.lines)
    this.turn = 0
    this.asked = false
    this.node.addEventListener('scroll', () => { this.held = !this.atEnd() })
  }

  atEnd() {
    return this.node.scrollTop + this.node.clientHeight >= this.node.scrollHeight - 8
  }

  write(text) {
    this.screen.write(text)
    this.refresh()
  }

  refresh() {
    if (this.asked) return
    this.asked = true
    requestAnimationFrame(() => {
      this.asked = false
      this.draw()
    })
  }

  draw() {
    const rows = this.screen.shown()
    if (!this.cursor) while (rows.length > 1 && rows.at(-1).text.length === 0) rows.pop() // no screen, only output
    this.turn++
    for (const row of rows) row.turn = this.turn
    let at = this.lines.firstChild
    for (const row of rows) {
      while (at && at.row.turn !== this.turn) {
        const gone = at
        at = at.nextSibling
        gone.row.node = null
        gone.remove()
      }
      if (!row.node) {
        row.node = el('div', { class: 'line' })
        row.node.row = row
        row.dirty = true
      }
      if (row.dirty) this.fill(row)
      if (row.node === at) at = at.nextSibling
      else this.lines.insertBefore(row.node, at)
    }
    while (at) {
      const gone = at
      at = at.nextSibling
      gone.row.node = null
      gone.remove()
    }
    if (!this.held) this.node.scrollTop = this.node.scrollHeight
  }

  // Characters of one look become one span; wide ones are their own, two columns broad.
  fill(row) {
    row.dirty = false
    const here = this.cursor && this.screen.modes.cursor && row === this.screen.rows[this.screen.y] ? this.screen.x : -1
    const spans = []
    let run = ''
    let look = null
    const flush = () => {
      if (run !== '') spans.push(this.span(run, look, ''))
      run = ''
    }
    const length = Math.max(row.text.length, here + 1)
    for (let x = 0; x < length; x++) {
      const char = row.text[x] ?? ' '
      const style = row.style[x] ?? PLAIN
      if (char === '') continue
      const wide = row.text[x + 1] === ''
      if (x === here || wide) {
        flush()
        spans.push(this.span(char, style, `${x === here ? 'cursor' : ''} ${wide ? 'wide' : ''}`))
      } else {
        if (style !== look) flush()
        look = style
        run += char
      }
    }
    flush()
    row.node.replaceChildren(...spans)
  }

  span(text, style, more) {
    if (style === PLAIN && more === '') return document.createTextNode(text)
    const node = el('span', null, text)
    const names = [more]
    for (const name of ['bold', 'dim', 'italic', 'under', 'error']) if (style[name]) names.push(name)
    const [fg, bg] = style.inverse ? [style.bg, style.fg] : [style.fg, style.bg]
    if (style.inverse) names.push('inverse')
    paint(node, names, 'f', 'color', fg)
    paint(node, names, 'b', 'backgroundColor', bg)
    node.className = names.join(' ').trim()
    return node
  }
}

// The first 16 colours are the style sheet's.
function paint(node, names, prefix, property, color) {
  if (color < 0) return
  if (color < 16) names.push(prefix + color)
  else node.style[property] = colorOf(color)
}

function colorOf(color) {
  if (color >= 0x1000000) return `#${(color - 0x1000000).toString(16).padStart(6, '0')}`
  if (color >= 232) {
    const grey = 8 + (color - 232) * 10
    return `rgb(${grey},${grey},${grey})`
  }
  const step = (n) => (n === 0 ? 0 : 55 + n * 40)
  const n = color - 16
  return `rgb(${step(Math.floor(n / 36))},${step(Math.floor(n / 6) % 6)},${step(n % 6)})`
}
