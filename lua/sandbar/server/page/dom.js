// Elements, and how values are told to people. Text is set as text: nothing here reads HTML.

const SVG = 'http://www.w3.org/2000/svg'

// el('button', { class: 'quiet', onclick: fn, disabled: true }, 'Text', child, ...)
function el(tag, props, ...children) {
  const node = document.createElement(tag)
  for (const [name, value] of Object.entries(props ?? {})) {
    if (typeof value === 'function') node.addEventListener(name.slice(2), value)
    else if (value === true) node.setAttribute(name, '')
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value)
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined))
  return node
}

function svg(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag)
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value)
  node.append(...children)
  return node
}

const ICONS = {
  pause: 'M7 5v14M17 5v14',
  play: 'M8 5l11 7-11 7z',
  kill: 'M6 6l12 12M18 6L6 18',
  plus: 'M12 5v14M5 12h14',
  back: 'M15 5l-7 7 7 7',
  code: 'M9 6l-6 6 6 6M15 6l6 6-6 6',
  leave: 'M10 4H5v16h5M9 12h11M16 8l4 4-4 4',
  folder: 'M3 6h6l2 2h10v11H3z',
  file: 'M6 3h8l4 4v14H6zM14 3v4h4',
  link: 'M9 12h6M10 8H8a4 4 0 0 0 0 8h2M14 8h2a4 4 0 0 1 0 8h-2',
  down: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  up: 'M12 20V9M7 13l5-5 5 5M5 4h14',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  clock: 'M12 3a9 9 0 1 0 .01 0M12 7v5l3 2',
}

function icon(name) {
  return svg('svg', { viewBox: '0 0 24 24', class: 'icon', 'aria-hidden': 'true' }, svg('path', { d: ICONS[name] }))
}

// A button with an icon; `label` is read to those who do not see it.
function button(label, onclick, { icon: name, kind = '', short = false, ...more } = {}) {
  const text = short ? null : el('span', null, label)
  return el('button', { type: 'button', class: kind, onclick, 'aria-label': short ? label : null, title: short ? label : null, ...more },
    name ? icon(name) : null, text)
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text
}

// Names as one can see them: controls and marks that turn the direction of text are shown, not obeyed.
function visible(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (char) =>
    char < ' ' ? String.fromCharCode(0x2400 + char.charCodeAt(0)) : '\ufffd')
}

// ---- values ----

function duration(seconds) {
  const s = Math.max(Math.floor(seconds), 0)
  if (s < 60) return `${s} s`
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 && s < 600 ? `${s % 60} s` : ''}`.trim()
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`
}

function bytes(count) {
  const n = Number(count)
  if (n < 1000) return `${n} B`
  const power = Math.min(Math.floor(Math.log10(n) / 3), 4)
  const value = n / 1000 ** power
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${['B', 'kB', 'MB', 'GB', 'TB'][power]}`
}

function when(text) {
  const date = new Date(text)
  return Number.isNaN(date.getTime()) ? '' : date.toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' })
}

// ---- telling ----

function toast(text, kind = '') {
  const node = el('p', { class: `toast ${kind}` }, text)
  document.getElementById('toasts').append(node)
  setTimeout(() => node.remove(), kind === 'bad' ? 8000 : 4000)
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text)
  } catch { // not over plain HTTP from another machine
    const area = el('textarea', { class: 'away', readonly: true })
    area.value = text
    const dialogs = document.querySelectorAll('dialog[open]')
    const place = dialogs[dialogs.length - 1] ?? document.body
    place.append(area)
    area.select()
    const done = document.execCommand('copy')
    area.remove()
    if (!done) return toast('The browser did not let it be copied.', 'bad')
  }
  toast('Copied.')
}
