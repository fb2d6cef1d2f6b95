// What a program writes to a terminal, as rows of characters. Of xterm's language it knows what shells, editors and pagers
// use: text with wide and combining characters, moves, erasing, inserting and deleting, scroll regions, the second screen,
// colours, line drawing. Everything else is read over.

const WIDE = /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1f64f}\u{1f680}-\u{1faff}\u{20000}-\u{3fffd}]/u
const JOINED = /[\p{Mn}\p{Me}\u200b-\u200f\ufe00-\ufe0f]/u
const DRAWN = { from: '`afgjklmnopqrstuvwxyz{|}~', to: '◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·' }
const MOST_JOINED = 8 // marks on one character
const MOST_ARGUMENTS = 32
const MOST_NUMBER = 9999

class Screen {
  // options: history (rows kept that have left it), newline (a line feed goes to the line's start, for output that did
  // not go through a terminal), reply(text) (an answer to the program).
  constructor(cols, rows, options = {}) {
    this.cols = cols
    this.height = rows
    this.limit = options.history ?? 2000
    this.newline = options.newline === true
    this.reply = options.reply ?? (() => {})
    this.history = []
    this.reset()
  }

  reset() {
    this.rows = Array.from({ length: this.height }, () => new Row())
    this.main = null // the rows of the first screen while the second is shown
    this.x = this.y = this.top = 0
    this.bottom = this.height - 1
    this.style = PLAIN
    this.saved = null
    this.wrapNext = false
    this.modes = { wrap: true, cursor: true, keys: false, paste: false, origin: false, insert: false }
    this.drawing = false
    this.last = ' '
    this.state = 'text'
  }

  // Those to show: what has left the first screen, then the screen.
  shown() {
    return this.main ? this.rows.slice() : this.history.slice(-this.limit).concat(this.rows)
  }

  resize(cols, rows) {
    if (cols === this.cols && rows === this.height) return
    const fit = (list, y) => {
      while (list.length > rows && list.length > y + 1 && list.at(-1).text.length === 0) list.pop()
      const over = Math.max(list.length - rows, 0)
      const gone = list.splice(0, over)
      while (list.length < rows) list.push(new Row())
      return gone
    }
    const first = this.main ? this.main.rows : this.rows
    const y = this.main ? this.main.y : this.y
    const gone = fit(first, y)
    this.keep(gone)
    if (this.main) {
      this.main.y = Math.max(y - gone.length, 0)
      this.y = Math.max(this.y - fit(this.rows, this.y).length, 0)
    } else {
      this.y = Math.max(y - gone.length, 0)
    }
    this.cols = cols
    this.height = rows
    this.x = Math.min(this.x, cols - 1)
    this.y = Math.min(this.y, rows - 1)
    this.top = 0
    this.bottom = rows - 1
    this.wrapNext = false
  }

  // Up to twice as many as are shown: taking the first from an array each time would cost more than all the rest.
  keep(rows) {
    this.history.push(...rows)
    if (this.history.length > 2 * this.limit) this.history = this.history.slice(-this.limit)
  }

  // ---- moves ----

  // One row down, or everything one up.
  feed() {
    if (this.y === this.bottom) this.scroll(1)
    else if (this.y < this.height - 1) this.y++
  }

  scroll(count, from = this.top) {
    for (let i = Math.min(count, this.bottom - from + 1); i > 0; i--) {
      const [row] = this.rows.splice(from, 1)
      if (from === 0 && this.top === 0 && !this.main) this.keep([row])
      this.rows.splice(this.bottom, 0, this.fresh())
    }
  }

  scrollBack(count, from = this.top) {
    for (let i = Math.min(count, this.bottom - from + 1); i > 0; i--) {
      this.rows.splice(this.bottom, 1)
      this.rows.splice(from, 0, this.fresh())
    }
  }

  fresh() {
    const row = new Row()
    if (this.style.bg !== -1) row.blank(0, this.cols, this.erased())
    return row
  }

  erased() {
    return this.style.bg === -1 ? PLAIN : { ...PLAIN, bg: this.style.bg }
  }

  go(x, y) {
    this.rows[this.y].dirty = true
    this.x = Math.max(0, Math.min(x, this.cols - 1))
    this.y = Math.max(0, Math.min(y, this.height - 1))
    this.rows[this.y].dirty = true
    this.wrapNext = false
  }

  save() {
    this.saved = { x: this.x, y: this.y, style: this.style, drawing: this.drawing }
  }

  restore() {
    const s = this.saved ?? { x: 0, y: 0, style: PLAIN, drawing: false }
    this.style = s.style
    this.drawing = s.drawing
    this.go(s.x, s.y)
  }

  second(on) {
    if (on === Boolean(this.main)) return
    if (on) {
      this.main = { rows: this.rows, y: this.y }
      this.rows = Array.from({ length: this.height }, () => new Row())
    } else {
      this.rows = this.main.rows
      this.main = null
    }
    this.top = 0
    this.bottom = this.height - 1
  }

  // ---- text ----

  put(char) {
    if (this.drawing) {
      const at = DRAWN.from.indexOf(char)
      if (at >= 0) char = DRAWN.to[at]
    }
    if (char > '~' && JOINED.test(char)) return this.join(char)
    const wide = char > '~' && WIDE.test(char)
    if (this.wrapNext || (wide && this.x === this.cols - 1 && this.modes.wrap)) {
      this.x = 0
      this.wrapNext = false
      this.feed()
    }
    const row = this.rows[this.y]
    if (this.modes.insert) row.insert(this.x, wide ? 2 : 1, this.cols, this.erased())
    if (row.text[this.x] === '' && this.x > 0) row.put(this.x - 1, ' ', row.style[this.x - 1])
    row.put(this.x, char, this.style)
    if (wide && this.x < this.cols - 1) row.put(++this.x, '', this.style)
    if (row.text[this.x + 1] === '') row.put(this.x + 1, ' ', row.style[this.x + 1])
    this.last = char
    if (this.x < this.cols - 1) this.x++
    else this.wrapNext = this.modes.wrap
  }

  join(mark) {
    const row = this.rows[this.y]
    let at = this.wrapNext ? this.x : this.x - 1
    if (row.text[at] === '') at--
    if (at < 0 || row.text[at] === undefined || row.text[at].length > MOST_JOINED) return
    row.put(at, row.text[at] + mark, row.style[at])
  }

  control(char) {
    const row = this.rows[this.y]
    row.dirty = true
    if (char === '\n' || char === '\v' || char === '\f') {
      if (this.newline) this.x = 0
      this.wrapNext = false
      this.feed()
    } else if (char === '\r') {
      this.x = 0
      this.wrapNext = false
    } else if (char === '\b') {
      this.go(this.x - 1, this.y)
    } else if (char === '\t') {
      this.go(this.x - (this.x % 8) + 8, this.y)
    } else if (char === '\x1b') {
      this.state = 'escape'
    }
    this.rows[this.y].dirty = true
  }

  // Text as it comes, in pieces of any size.
  write(text) {
    for (const char of text) {
      if (this.state === 'text') {
        if (char < ' ') this.control(char)
        else if (char < '\x7f' || char > '\x9f') this.put(char)
      } else if (char === '\x18' || char === '\x1a') {
        this.state = 'text'
      } else {
        this[this.state](char)
      }
    }
  }

  // ---- sequences ----

  escape(char) {
    this.state = 'text'
    if (char === '[') {
      this.state = 'sequence'
      this.raw = ''
    } else if (char === ']' || char === 'P' || char === '_' || char === '^' || char === 'X') {
      this.state = 'string'
    } else if (char === '(') {
      this.state = 'charset'
    } else if (char >= ' ' && char <= '/') {
      this.state = 'skipped'
    } else if (char === '7') {
      this.save()
    } else if (char === '8') {
      this.restore()
    } else if (char === 'D') {
      this.feed()
    } else if (char === 'E') {
      this.x = 0
      this.feed()
    } else if (char === 'M') {
      if (this.y === this.top) this.scrollBack(1)
      else this.go(this.x, this.y - 1)
    } else if (char === 'c') {
      this.keep(this.main ? [] : this.rows.filter((row) => row.text.length > 0))
      this.reset()
    }
  }

  charset(char) {
    this.drawing = char === '0'
    this.state = 'text'
  }

  skipped() {
    this.state = 'text'
  }

  // A title, a colour to set: until BEL or ESC \.
  string(char) {
    if (char === '\x07') this.state = 'text'
    else if (char === '\x1b') this.state = 'stringEnd'
  }

  stringEnd(char) {
    if (char === '\\') this.state = 'text'
    else this.escape(char)
  }

  sequence(char) {
    if (char === '\x1b') {
      this.state = 'escape'
    } else if (char < ' ') {
      this.control(char)
    } else if (char <= '?') {
      if (this.raw.length < 256) this.raw += char
    } else {
      this.state = 'text'
      this.run(char)
    }
  }

  run(final) {
    const [, mark, digits, between] = /^([<-?]?)([\d;:]*)(.*)$/.exec(this.raw)
    if (between !== '') return
    const list = digits.split(/[;:]/, MOST_ARGUMENTS).map((text) => Math.min(Number(text || 0), MOST_NUMBER))
    if (mark === '?') {
      if (final === 'h' || final === 'l') list.forEach((mode) => this.setPrivate(mode, final === 'h'))
    } else if (mark === '') {
      this.execute(final, list, Math.max(list[0], 1))
    } else if (mark === '>' && final === 'c') {
      this.reply('\x1b[>0;0;0c')
    }
  }

  execute(final, list, n) {
    const row = this.rows[this.y]
    const base = this.modes.origin ? this.top : 0
    row.dirty = true
    switch (final) {
      case 'A': return this.go(this.x, Math.max(this.y - n, this.y >= this.top ? this.top : 0))
      case 'B': case 'e': return this.go(this.x, Math.min(this.y + n, this.y <= this.bottom ? this.bottom : Infinity))
      case 'C': case 'a': return this.go(this.x + n, this.y)
      case 'D': return this.go(this.x - n, this.y)
      case 'E': return this.go(0, this.y + n)
      case 'F': return this.go(0, this.y - n)
      case 'G': case '`': return this.go(n - 1, this.y)
      case 'H': case 'f': return this.go(Math.max(list[1] ?? 1, 1) - 1, base + n - 1)
      case 'd': return this.go(this.x, base + n - 1)
      case 'J': return this.eraseScreen(list[0])
      case 'K': return this.eraseLine(list[0])
      case 'X': return row.blank(this.x, Math.min(this.x + n, this.cols), this.erased())
      case '@': return row.insert(this.x, Math.min(n, this.cols - this.x), this.cols, this.erased())
      case 'P': return row.remove(this.x, n)
      case 'L': if (this.y >= this.top && this.y <= this.bottom) this.scrollBack(n, this.y); return
      case 'M': if (this.y >= this.top && this.y <= this.bottom) this.deleteRows(n); return
      case 'S': return this.scroll(n)
      case 'T': return this.scrollBack(n)
      case 'b': for (let i = Math.min(n, this.cols); i > 0; i--) this.put(this.last); return
      case 'r': return this.region(n, list[1] || this.height)
      case 's': return this.save()
      case 'u': return this.restore()
      case 'm': return this.dress(list)
      case 'h': case 'l': if (list.includes(4)) this.modes.insert = final === 'h'; return
      case 'n':
        if (list[0] === 6) this.reply(`\x1b[${this.y - base + 1};${this.x + 1}R`)
        else if (list[0] === 5) this.reply('\x1b[0n')
        return
      case 'c': return this.reply('\x1b[?6c')
    }
  }

  // Rows taken away below the screen's first are not history.
  deleteRows(count) {
    for (let i = Math.min(count, this.bottom - this.y + 1); i > 0; i--) {
      this.rows.splice(this.y, 1)
      this.rows.splice(this.bottom, 0, this.fresh())
    }
  }

  eraseScreen(what) {
    const style = this.erased()
    if (what === 3) {
      this.history = []
      return
    }
    this.eraseLine(what)
    const from = what === 0 ? this.y + 1 : 0
    const to = what === 1 ? this.y : this.height
    for (let y = from; y < to; y++) this.rows[y].blank(0, this.cols, style)
  }

  eraseLine(what) {
    const from = what === 0 ? this.x : 0
    const to = what === 1 ? this.x + 1 : this.cols
    this.rows[this.y].blank(from, to, this.erased())
  }

  region(top, bottom) {
    bottom = Math.min(bottom, this.height)
    if (top >= bottom) return
    this.top = top - 1
    this.bottom = bottom - 1
    this.go(0, this.modes.origin ? this.top : 0)
  }

  setPrivate(mode, on) {
    const names = { 1: 'keys', 6: 'origin', 7: 'wrap', 25: 'cursor', 2004: 'paste' }
    if (names[mode]) this.modes[names[mode]] = on
    if (mode === 1049 && on) this.save()
    if (mode === 47 || mode === 1047 || mode === 1049) this.second(on)
    if (mode === 1049 && !on) this.restore()
    if (mode === 1048) on ? this.save() : this.restore()
    if (mode === 6) this.go(0, on ? this.top : 0)
    this.rows[this.y].dirty = true
  }

  // ---- colours ----

  dress(list) {
    let s = { ...this.style }
    for (let i = 0; i < list.length; i++) {
      const n = list[i]
      if (n === 0) s = { ...PLAIN }
      else if (n === 1) s.bold = true
      else if (n === 2) s.dim = true
      else if (n === 3) s.italic = true
      else if (n === 4) s.under = true
      else if (n === 7) s.inverse = true
      else if (n === 22) s.bold = s.dim = false
      else if (n === 23) s.italic = false
      else if (n === 24) s.under = false
      else if (n === 27) s.inverse = false
      else if (n === 39) s.fg = -1
      else if (n === 49) s.bg = -1
      else if (n >= 30 && n <= 37) s.fg = n - 30
      else if (n >= 40 && n <= 47) s.bg = n - 40
      else if (n >= 90 && n <= 97) s.fg = n - 82
      else if (n >= 100 && n <= 107) s.bg = n - 92
      else if (n === 38 || n === 48) {
        const name = n === 38 ? 'fg' : 'bg'
        if (list[i + 1] === 5) {
          s[name] = (list[i + 2] ?? 0) & 255
          i += 2
        } else if (list[i + 1] === 2) {
          const [r, g, b] = [list[i + 2], list[i + 3], list[i + 4]].map((part) => (part ?? 0) & 255)
          s[name] = 0x1000000 + r * 65536 + g * 256 + b
          i += 4
        }
      }
    }
    this.style = Object.freeze(s)
  }
}
