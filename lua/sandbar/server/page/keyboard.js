// Keys as a terminal sends them.

const CURSOR_KEYS = { ArrowUp: 'A', ArrowDown: 'B', ArrowRight: 'C', ArrowLeft: 'D', Home: 'H', End: 'F' }
const NUMBERED_KEYS = {
  Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F5: 15, F7: 18, F8: 19, F9: 20, F10: 21, F11: 23, F12: 24,
}
const LETTERED_KEYS = { F1: 'P', F2: 'Q', F3: 'R', F4: 'S' }

// The control character of a letter or sign, or ''.
function controlOf(key) {
  const code = key.toUpperCase().charCodeAt(0)
  if (key.length !== 1) return ''
  if (code >= 64 && code <= 95) return String.fromCharCode(code - 64)
  return key === ' ' ? '\0' : key === '?' ? '\x7f' : key === '/' ? '\x1f' : ''
}

// What a key sends, or null for one that is text or the browser's own. `application`: cursor keys in their second form.
function keyBytes(event, application) {
  const { key, ctrlKey: ctrl, altKey: alt, shiftKey: shift } = event
  if (event.metaKey || event.isComposing) return null
  const mods = 1 + (shift ? 1 : 0) + (alt ? 2 : 0) + (ctrl ? 4 : 0)
  if (CURSOR_KEYS[key]) {
    if (mods > 1) return `\x1b[1;${mods}${CURSOR_KEYS[key]}`
    return (application ? '\x1bO' : '\x1b[') + CURSOR_KEYS[key]
  } else if (LETTERED_KEYS[key]) {
    return mods > 1 ? `\x1b[1;${mods}${LETTERED_KEYS[key]}` : `\x1bO${LETTERED_KEYS[key]}`
  } else if (NUMBERED_KEYS[key]) {
    return mods > 1 ? `\x1b[${NUMBERED_KEYS[key]};${mods}~` : `\x1b[${NUMBERED_KEYS[key]}~`
  }
  const escape = alt ? '\x1b' : ''
  switch (key) {
    case 'Enter': return `${escape}\r`
    case 'Backspace': return escape + (ctrl ? '\b' : '\x7f')
    case 'Tab': return shift ? '\x1b[Z' : `${escape}\t`
    case 'Escape': return `${escape}\x1b`
  }
  if (ctrl && !(shift && /^[cv]$/i.test(key))) { // those copy and paste
    const control = controlOf(key)
    return control === '' ? null : escape + control
  }
  const isText = key.length === 1 && key <= '~'
  return alt && isText && !event.getModifierState?.('AltGraph') ? `\x1b${key}` : null
}
