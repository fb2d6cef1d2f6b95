// A row of a screen: characters and how they look.

const PLAIN = Object.freeze({ fg: -1, bg: -1, bold: false, dim: false, italic: false, under: false, inverse: false })

class Row {
  constructor() {
    this.text = [] // a character for each column; '' is the second half of a wide one
    this.style = []
    this.dirty = true
  }

  put(at, text, style) {
    for (let i = this.text.length; i < at; i++) { this.text[i] = ' '; this.style[i] = PLAIN }
    this.text[at] = text
    this.style[at] = style
    this.dirty = true
  }

  // Blanks of a style from one column to before another.
  blank(from, to, style) {
    if (style.bg === -1 && to >= this.text.length) {
      this.text.length = this.style.length = Math.min(from, this.text.length)
    } else {
      for (let i = from; i < to; i++) this.put(i, ' ', style)
    }
    this.dirty = true
  }

  insert(at, count, cols, style) {
    if (at < this.text.length) {
      this.text.splice(at, 0, ...Array(count).fill(' '))
      this.style.splice(at, 0, ...Array(count).fill(style))
      this.text.length = this.style.length = Math.min(this.text.length, cols)
    }
    this.dirty = true
  }

  remove(at, count) {
    this.text.splice(at, count)
    this.style.splice(at, count)
    this.dirty = true
  }
}
