// The page as a whole: the key at its door, which view the address names, and the rounds on which views look again.

const EACH = 2000 // milliseconds between looks
const UNKNOWN = 'The server does not know this key any more.'

const main = document.getElementById('main')
const offline = document.getElementById('offline')
const tools = document.getElementById('tools')

let view = null
let timer = null
let looking = false
let again = false

// ---- the door ----

function login(why = '') {
  closeView()
  tools.hidden = true
  offline.hidden = true
  const input = el('input', { type: 'password', autocomplete: 'off', required: true, autofocus: true, spellcheck: 'false', placeholder: 'e2b_…' })
  const note = el('p', { class: 'bad', role: 'alert' }, why)
  const submit = el('button', { class: 'main', type: 'submit' }, 'Open')
  const enter = async (event) => {
    event.preventDefault()
    const key = input.value.trim()
    submit.disabled = true
    setText(note, '')
    try {
      if (!/^[\x21-\x7e]+$/.test(key)) throw new Failure(401)
      session.key = key
      await api.list()
      session.keep(key)
      route()
    } catch (cause) {
      session.drop()
      setText(note, cause.status === 401 ? 'This server does not know that key.' : cause.message)
      input.select()
    }
    submit.disabled = false
  }
  main.replaceChildren(el('form', { class: 'door', onsubmit: enter },
    el('h1', null, 'sandbar'),
    el('p', { class: 'muted' }, 'Sandboxes on this machine. The server’s screen shows the key; it stays in this tab until you close it.'),
    field('API key', input), note, submit))
  input.focus()
}

function leave(why) {
  session.drop()
  usages.clear()
  login(why)
}

// ---- rounds ----

async function look() {
  if (looking) {
    again = true
    return
  }
  clearTimeout(timer)
  const mine = view
  if (!mine || mine.over) return
  looking = true
  try {
    await mine.refresh()
    offline.hidden = true
  } catch (cause) {
    if (cause.status === 401) leave(UNKNOWN)
    else if (mine === view) {
      offline.hidden = false
      setText(offline, `${cause.message} What is shown is from before; it is asked again every 2 seconds.`)
    }
  }
  looking = false
  const soon = again || mine !== view
  again = false
  if (soon) look()
  else if (!document.hidden) timer = setTimeout(look, EACH)
}

function refreshNow() {
  look()
}

document.addEventListener('visibilitychange', () => { if (!document.hidden) look() })

// ---- views ----

function closeView() {
  clearTimeout(timer)
  view?.close()
  view = null
}

async function newSandbox() {
  const made = await createDialog()
  if (made) location.hash = `#/${made.sandboxID}`
}

// "#/" is the list, "#/ID/TAB" a sandbox.
function route() {
  if (location.hash === '#main') return main.focus() // the way past the head
  if (session.key === '') return login()
  const [, id, tab] = /^#\/([a-z0-9]+)(?:\/([a-z]+))?$/.exec(location.hash) ?? []
  tools.hidden = false
  if (id && view instanceof BoxView && view.id === id && !view.over) {
    view.choose(tab)
  } else {
    closeView()
    view = id ? new BoxView(id, tab) : new ListView()
    main.replaceChildren(view.node)
    document.title = id ? `${id} · sandbar` : 'sandbar'
  }
  look()
}

tools.append(button('Use from a program', setupDialog, { icon: 'code' }), button('Leave', () => leave(), { icon: 'leave', kind: 'quiet' }))
setText(document.getElementById('where'), location.host)
addEventListener('hashchange', route)
session.find()
route()
