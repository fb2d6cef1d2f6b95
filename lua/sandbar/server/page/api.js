// Calls of the server: the control plane, and a sandbox's daemon by headers on the same port, as the SDKs call them.

const DAEMON = '49983'
const END = 2 // flag of a stream's last envelope
const COMPRESSED = 1
const MOST = 64 * 1024 * 1024 // bytes of a message

class Failure extends Error {
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

// The key lives in this tab, and only while it is open.
const session = {
  key: '',
  keep(key) {
    this.key = key
    try { sessionStorage.setItem('sandbar.key', key) } catch { /* in memory, then */ }
  },
  find() {
    try { this.key = sessionStorage.getItem('sandbar.key') ?? '' } catch { /* none kept */ }
    return this.key !== ''
  },
  drop() {
    this.key = ''
    try { sessionStorage.removeItem('sandbar.key') } catch { /* none kept */ }
  },
}

// How far the server's clock is ahead of this one, in milliseconds.
const clock = {
  ahead: 0,
  now() { return Date.now() + this.ahead },
  heed(answer) {
    const at = Date.parse(answer.headers.get('date') ?? '')
    if (!Number.isNaN(at) && Math.abs(at - this.now()) > 2000) this.ahead = at - Date.now()
  },
}

async function failureOf(answer) {
  let text = ''
  try {
    text = await answer.text()
    text = JSON.parse(text).message ?? text
  } catch { /* as it came */ }
  return new Failure(answer.status, text || `The server answered ${answer.status}.`)
}

async function ask(path, init) {
  let answer
  try {
    answer = await fetch(path, { cache: 'no-store', credentials: 'omit', redirect: 'error', ...init })
  } catch (cause) {
    if (cause.name === 'AbortError') throw cause
    throw new Failure(0, 'The server does not answer.')
  }
  clock.heed(answer)
  if (!answer.ok) throw await failureOf(answer)
  return answer
}

// ---- the control plane ----

async function control(method, path, body) {
  const headers = { 'X-API-Key': session.key }
  if (body) headers['Content-Type'] = 'application/json'
  const answer = await ask(path, { method, headers, body: body && JSON.stringify(body) })
  const text = await answer.text()
  return { value: text ? JSON.parse(text) : null, next: answer.headers.get('x-next-token') }
}

const api = {
  list: (next) => control('GET', `/v2/sandboxes?limit=100${next ? `&nextToken=${encodeURIComponent(next)}` : ''}`),
  get: async (id) => (await control('GET', `/sandboxes/${encodeURIComponent(id)}`)).value,
  create: async (spec) => (await control('POST', '/v2/sandboxes', spec)).value,
  kill: (id) => control('DELETE', `/sandboxes/${encodeURIComponent(id)}`),
  pause: (id) => control('POST', `/sandboxes/${encodeURIComponent(id)}/pause`, {}),
  resume: (id, timeout) => control('POST', `/v2/sandboxes/${encodeURIComponent(id)}/connect`, { timeout }),
  timeout: (id, timeout) => control('POST', `/sandboxes/${encodeURIComponent(id)}/timeout`, { timeout }),
  use: async (ids) => (await control('GET', `/sandboxes/metrics?sandbox_ids=${ids.join(',')}`)).value.sandboxes,
  series: async (id, start) =>
    (await control('GET', `/sandboxes/${encodeURIComponent(id)}/metrics?start=${Math.floor(start)}`)).value,
  templates: async () => (await control('GET', '/templates')).value,
}

// ---- in a sandbox ---- `box` is { id, token }

function daemonHeaders(box, user) {
  const headers = { 'E2b-Sandbox-Id': box.id, 'E2b-Sandbox-Port': DAEMON }
  if (box.token) headers['X-Access-Token'] = box.token
  if (user) headers.Authorization = `Basic ${btoa(`${user}:`)}`
  return headers
}

async function daemon(box, path, { user, headers, ...init } = {}) {
  try {
    return await ask(path, { ...init, headers: { ...daemonHeaders(box, user), ...headers } })
  } catch (cause) { // what a sandbox says of its users and tokens is nothing about the key
    throw cause.status === 401 ? new Failure(403, cause.message) : cause
  }
}

async function unary(box, method, message, { user, signal } = {}) {
  const answer = await daemon(box, `/${method}`, {
    method: 'POST', user, signal, body: JSON.stringify(message),
    headers: { 'Content-Type': 'application/json', 'Connect-Protocol-Version': '1' },
  })
  return answer.json()
}

function envelope(message) {
  const body = new TextEncoder().encode(JSON.stringify(message))
  const all = new Uint8Array(body.length + 5)
  new DataView(all.buffer).setUint32(1, body.length)
  all.set(body, 5)
  return all
}

// The envelopes in a body that comes piece by piece: calls give(flags, text) for each.
function envelopes(give) {
  let kept = new Uint8Array(0)
  return (piece) => {
    let all = piece
    if (kept.length > 0) {
      all = new Uint8Array(kept.length + piece.length)
      all.set(kept)
      all.set(piece, kept.length)
    }
    let at = 0
    while (all.length - at >= 5) {
      const length = new DataView(all.buffer, all.byteOffset + at).getUint32(1)
      if (length > MOST) throw new Failure(0, 'The server sent a message that is too long.')
      if (all.length - at < 5 + length) break
      give(all[at], new TextDecoder().decode(all.subarray(at + 5, at + 5 + length)))
      at += 5 + length
    }
    kept = all.slice(at)
  }
}

// A server stream: onmessage(message) for each, until its end. Reading is what lets the program inside go on: one that is
// slow to read slows it down.
async function stream(box, method, message, { user, signal, onmessage }) {
  const answer = await daemon(box, `/${method}`, {
    method: 'POST', user, signal, body: envelope(message),
    headers: { 'Content-Type': 'application/connect+json', 'Connect-Protocol-Version': '1' },
  })
  let last = null
  const feed = envelopes((flags, text) => {
    if (flags & COMPRESSED) throw new Failure(0, 'The server sent a compressed message.')
    if (flags & END) last = JSON.parse(text)
    else onmessage(JSON.parse(text))
  })
  const reader = answer.body.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) break
      feed(value)
    }
  } catch (cause) {
    reader.cancel().catch(() => {})
    if (cause.name === 'AbortError' || cause instanceof Failure) throw cause
    throw new Failure(0, 'The connection was cut.')
  }
  if (!last) throw new Failure(0, 'The connection was cut.')
  if (last.error) throw new Failure(0, last.error.message ?? last.error.code)
}

function unbase64(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0))
}

function base64(text) {
  let out = ''
  for (const byte of new TextEncoder().encode(text)) out += String.fromCharCode(byte)
  return btoa(out)
}
