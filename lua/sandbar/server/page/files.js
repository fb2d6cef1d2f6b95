// The files of a sandbox: directories to walk through, the beginning of a file to look at, up and down.

const PREVIEW = 256 * 1024 // bytes
const IMAGES = { png: 'image/png', jpg: 'image/jpeg', jpeg: 'image/jpeg', gif: 'image/gif', webp: 'image/webp' }
const IMAGE_MOST = 16 * 1024 * 1024

function below(directory, name) {
  return directory === '/' ? `/${name}` : `${directory}/${name}`
}

class Files {
  constructor(box) {
    this.box = box
    this.path = '/home/user'
    this.trail = el('nav', { class: 'trail mono grow', 'aria-label': 'Path' })
    this.picker = el('input', { type: 'file', class: 'away', multiple: true, tabindex: '-1', 'aria-label': 'Files to upload',
      onchange: () => this.upload(this.picker.files) })
    this.rows = el('ul', { class: 'entries', 'aria-label': 'Entries' })
    this.empty = el('p', { class: 'empty', hidden: true })
    this.preview = el('div', { class: 'detail', hidden: true })
    const drop = el('div', { class: 'split', ondragover: (event) => event.preventDefault(), ondrop: (event) => {
      event.preventDefault()
      this.upload(event.dataTransfer.files)
    } }, el('div', null, this.rows, this.empty), this.preview)
    this.node = el('section', { class: 'pane', 'aria-label': 'Files' },
      el('div', { class: 'bar' }, this.trail,
        button('Upload', () => this.picker.click(), { icon: 'up' }), button('New folder', () => this.make(), { icon: 'plus' }), this.picker),
      drop)
  }

  show() {
    this.open(this.path)
  }

  async open(path) {
    this.path = path
    this.drawTrail()
    try {
      const { entries = [] } = await unary(this.box, 'filesystem.Filesystem/ListDir', { path, depth: 1 })
      if (this.path === path) this.draw(entries)
    } catch (cause) {
      if (this.path !== path) return
      this.rows.replaceChildren()
      this.empty.hidden = false
      setText(this.empty, cause.message)
    }
  }

  drawTrail() {
    const parts = this.path.split('/').filter((part) => part !== '')
    const steps = [['/', '/'], ...parts.map((part, i) => [part, `/${parts.slice(0, i + 1).join('/')}`])]
    this.trail.replaceChildren(...steps.flatMap(([name, path], i) => [
      i > 1 ? el('span', { 'aria-hidden': 'true' }, '/') : null,
      el('button', { type: 'button', class: 'step', 'aria-current': i === steps.length - 1 ? 'page' : null, onclick: () => this.open(path) },
        visible(name)),
    ]).filter(Boolean))
  }

  draw(entries) {
    const isDirectory = (entry) => entry.type === 'FILE_TYPE_DIRECTORY'
    entries.sort((a, b) => isDirectory(b) - isDirectory(a) || a.name.localeCompare(b.name))
    this.rows.replaceChildren(...entries.map((entry) => this.row(entry, isDirectory(entry))))
    this.empty.hidden = entries.length > 0
    setText(this.empty, 'Nothing is in this folder. Drop files here to upload them.')
  }

  row(entry, isDirectory) {
    const path = below(this.path, entry.name)
    const open = () => (isDirectory ? this.open(path) : this.look(path, entry))
    return el('li', null,
      el('button', { type: 'button', class: 'entry', onclick: open },
        icon(isDirectory ? 'folder' : 'file'), el('bdi', { class: 'mono cut grow' }, visible(entry.name)),
        entry.symlinkTarget ? icon('link') : null,
        el('span', { class: 'mono muted wide-only' }, entry.permissions ?? ''),
        el('span', { class: 'muted size' }, isDirectory ? '' : bytes(entry.size ?? 0)),
        el('span', { class: 'muted wide-only time' }, when(entry.modifiedTime))),
      button(`Delete ${visible(entry.name)}`, () => this.remove(path, entry.name), { icon: 'kill', kind: 'quiet', short: true }))
  }

  // ---- one file ----

  address(path) {
    return `/files?path=${encodeURIComponent(path)}&username=user`
  }

  async look(path, entry) {
    const name = visible(entry.name)
    const body = el('div', { class: 'output' }, el('p', { class: 'empty' }, 'Reading…'))
    const note = el('p', { class: 'hint' })
    this.preview.hidden = false
    this.preview.replaceChildren(
      el('div', { class: 'bar' }, el('h3', { class: 'mono grow cut' }, el('bdi', null, name)),
        button('Download', () => this.download(path, entry.name), { icon: 'down' }),
        button('Close', () => { this.preview.hidden = true }, { icon: 'kill', kind: 'quiet', short: true })), body, note)
    this.preview.scrollIntoView({ block: 'nearest' })
    this.looking = path
    try {
      const type = IMAGES[entry.name.split('.').at(-1).toLowerCase()]
      const shown = type && entry.size <= IMAGE_MOST ? await this.image(path, type, name) : await this.text(path, note)
      if (this.looking === path) body.replaceChildren(shown)
    } catch (cause) {
      body.replaceChildren(el('p', { class: 'empty' }, cause.message))
    }
  }

  async image(path, type, name) {
    const answer = await daemon(this.box, this.address(path))
    const url = URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type }))
    const free = () => URL.revokeObjectURL(url)
    return el('img', { src: url, alt: name, onload: free, onerror: free })
  }

  // The first of it as text; of what is no text, that it is none.
  async text(path, note) {
    const cut = new AbortController()
    const answer = await daemon(this.box, this.address(path), { signal: cut.signal })
    const reader = answer.body.getReader()
    const all = new Uint8Array(PREVIEW)
    let length = 0
    let more = false
    for (;;) {
      const { done, value } = await reader.read()
      if (done) break
      const piece = value.subarray(0, PREVIEW - length)
      all.set(piece, length)
      length += piece.length
      if (piece.length < value.length) {
        more = true
        cut.abort()
        break
      }
    }
    const seen = all.subarray(0, length)
    if (seen.includes(0)) return el('p', { class: 'empty' }, 'This is no text. Download it to look at it.')
    if (more) setText(note, `The first ${bytes(PREVIEW)}.`)
    return el('pre', { class: 'text', tabindex: '0' }, new TextDecoder().decode(seen))
  }

  async download(path, name) {
    try {
      const answer = await daemon(this.box, this.address(path))
      const url = URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type: 'application/octet-stream' }))
      el('a', { href: url, download: name }).click()
      setTimeout(() => URL.revokeObjectURL(url), 60000)
    } catch (cause) {
      toast(cause.message, 'bad')
    }
  }

  // ---- changes ----

  async change(work) {
    try {
      await work()
    } catch (cause) {
      toast(cause.message, 'bad')
    }
    await this.open(this.path)
  }

  upload(files) {
    const directory = this.path
    this.change(async () => {
      for (const file of [...files]) {
        toast(`Uploading ${visible(file.name)}…`)
        await daemon(this.box, this.address(below(directory, file.name)), {
          method: 'POST', headers: { 'Content-Type': 'application/octet-stream' }, body: file })
      }
      this.picker.value = ''
    })
  }

  async make() {
    const name = await askText('New folder', 'Name', 'Create')
    if (name) await this.change(() => unary(this.box, 'filesystem.Filesystem/MakeDir', { path: below(this.path, name) }))
  }

  async remove(path, name) {
    if (!await confirmed(`Delete ${visible(name)}?`, 'It is deleted with everything in it.', 'Delete')) return
    if (this.looking === path) this.preview.hidden = true
    await this.change(() => unary(this.box, 'filesystem.Filesystem/Remove', { path }))
  }

  close() {}
}
