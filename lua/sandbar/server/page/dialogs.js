// Questions to the one who looks at the page: is it meant, what is its name, what shall the new sandbox be.

// A modal dialog. `build(done)` gives what is in it; done(value) closes it with an answer, Esc with none.
function openDialog(title, build, kind = '') {
  return new Promise((resolve) => {
    let answer
    const node = el('dialog', { class: kind, 'aria-labelledby': 'dialog-title', onclose: () => {
      node.remove()
      resolve(answer)
    } })
    const done = (value) => {
      answer = value
      node.close()
    }
    node.append(el('h2', { id: 'dialog-title' }, title), ...build(done))
    document.body.append(node)
    node.showModal()
  })
}

function field(label, input, help) {
  return el('label', { class: 'field' }, el('span', null, label), input, help ? el('small', { class: 'muted' }, help) : null)
}

function confirmed(title, text, verb) {
  return openDialog(title, (done) => [
    el('p', null, text),
    el('div', { class: 'actions end' }, button('Cancel', () => done(false), { autofocus: true }), button(verb, () => done(true), { kind: 'danger main' })),
  ])
}

function askText(title, label, verb, props = {}) {
  return openDialog(title, (done) => {
    const input = el('input', { autocomplete: 'off', required: true, autofocus: true, ...props })
    return [el('form', { onsubmit: (event) => {
      event.preventDefault()
      done(input.value)
    } }, field(label, input),
    el('div', { class: 'actions end' }, button('Cancel', () => done()), el('button', { class: 'main', type: 'submit' }, verb)))]
  })
}

// ---- a new sandbox ----

// "name = value" lines as an object, or the line that is none.
function pairsOf(text) {
  const out = {}
  for (const line of text.split('\n')) {
    if (line.trim() === '') continue
    const [, name, value] = /^\s*([^=]*?)\s*=\s*(.*?)\s*$/.exec(line) ?? []
    if (!name) throw new Failure(0, `“${visible(line.trim())}” is not of the form name=value.`)
    Object.defineProperty(out, name, { value, enumerable: true, configurable: true }) // whatever it is called
  }
  return out
}

function createDialog() {
  return openDialog('New sandbox', (done) => {
    const template = el('select', null, el('option', { value: 'base' }, 'base'))
    const minutes = el('input', { type: 'number', min: '1', max: '1440', value: '15', required: true, inputmode: 'numeric' })
    const end = el('select', null, el('option', { value: 'kill' }, 'is destroyed'), el('option', { value: 'pause' }, 'is paused'),
      el('option', { value: 'resume' }, 'is paused, and the next call wakes it'))
    const network = el('select', null, el('option', { value: '' }, 'the server’s default'), el('option', { value: 'yes' }, 'internet'),
      el('option', { value: 'no' }, 'none'))
    const labels = el('textarea', { rows: '2', placeholder: 'owner=me', spellcheck: 'false' })
    const env = el('textarea', { rows: '2', placeholder: 'NAME=value', spellcheck: 'false' })
    const why = el('p', { class: 'bad', role: 'alert' })
    const submit = el('button', { class: 'main', type: 'submit' }, 'Create')
    api.templates().then((list) => {
      for (const one of list) {
        const name = one.names?.[0] ?? one.templateID
        if (name !== 'base') template.append(el('option', { value: one.templateID }, visible(name)))
      }
    }).catch((cause) => setText(why, cause.message))
    const create = async (event) => {
      event.preventDefault()
      submit.disabled = true
      setText(why, '')
      try {
        const spec = { templateID: template.value, timeout: minutes.valueAsNumber * 60, metadata: pairsOf(labels.value), envVars: pairsOf(env.value) }
        if (end.value !== 'kill') spec.autoPause = true
        if (end.value === 'resume') spec.autoResume = { enabled: true }
        if (network.value) spec.allow_internet_access = network.value === 'yes'
        done(await api.create(spec))
      } catch (cause) {
        setText(why, cause.message)
      }
      submit.disabled = false
    }
    return [el('form', { onsubmit: create },
      field('Template', template),
      el('div', { class: 'pair' }, field('Lives for (minutes)', minutes), field('Then it', end)),
      field('Network', network),
      field('Labels', labels, 'One name=value a line.'),
      field('Environment', env, 'For every command in it. One NAME=value a line.'),
      why,
      el('div', { class: 'actions end' }, button('Cancel', () => done()), submit))]
  }, 'broad')
}

// ---- set-up for programs ----

function setups(key) {
  const url = location.origin
  const quoted = JSON.stringify(key)
  const word = /^[\w•.-]+$/.test(key) ? key : `'${key.replace(/'/g, `'\\''`)}'`
  const usual = /^e2b_[0-9a-f]+$/.test(session.key)
  return {
    Shell: `export E2B_API_URL=${url}\nexport E2B_SANDBOX_URL=${url}\nexport E2B_VOLUME_API_URL=${url}\nexport E2B_API_KEY=${word}`
      + (usual ? '' : '\nexport E2B_VALIDATE_API_KEY=false    # for Python: the key is not of the hosted service’s form'),
    JavaScript: `// npm install e2b, and the variables of “Shell”\nimport { Sandbox } from 'e2b'\n\n`
      + `const sandbox = await Sandbox.create()\nconst { stdout } = await sandbox.commands.run('echo hello')\n`
      + `console.log(stdout)\nawait sandbox.kill()`,
    Python: `# pip install e2b, and the variables of “Shell”\nfrom e2b import Sandbox\n\n`
      + `sandbox = Sandbox.create()\nprint(sandbox.commands.run("echo hello").stdout)\nsandbox.kill()`,
    CLI: `# with the variables of “Shell”\nnpx @e2b/cli sandbox list`,
    Lua: `local sandbar = require "sandbar"\n\nlocal sandboxes = assert(sandbar.open {\n  provider = "e2b", api_url = "${url}",\n`
      + `  sandbox_url = "${url}", api_key = ${quoted},\n})\nlocal box = assert(sandboxes:create {})\n`
      + `print(assert(box:exec { "echo", "hello" }).stdout)\nassert(box:destroy())`,
    curl: `curl ${url}/v2/sandboxes -H X-API-Key:${word} \\\n  -H 'Content-Type: application/json' -d '{"templateID":"base"}'`,
  }
}

// Snippets by name, one at a time: what is shown of them, and what is copied.
function snippets(shown, whole) {
  const text = el('pre', { class: 'text', tabindex: '0' })
  let chosen
  const tabs = Object.keys(shown).map((name) => button(name, () => choose(name), { kind: 'step' }))
  const choose = (name) => {
    chosen = name
    setText(text, shown[name])
    tabs.forEach((tab) => tab.setAttribute('aria-pressed', String(tab.textContent === name)))
  }
  choose(Object.keys(shown)[0])
  return el('div', { class: 'snippets' }, el('div', { class: 'bar' }, el('div', { class: 'steps grow' }, tabs),
    button('Copy', () => copy(whole[chosen]), { icon: 'copy' })), text)
}

function setupDialog() {
  return openDialog('Use this server from a program', (done) => [
    el('p', { class: 'muted' }, 'What is copied has your key in it; here it is not shown.'),
    snippets(setups('e2b_••••'), setups(session.key)),
    el('div', { class: 'actions end' }, button('Close', () => done(), { kind: 'main', autofocus: true })),
  ], 'broad')
}
