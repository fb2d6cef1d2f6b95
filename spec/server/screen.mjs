// The terminal of the server's page without a browser: what is written to a screen, and what stands there then.
// Prints "ok NAME" or "not ok NAME: WHY" for each case.

import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { runInThisContext, Script } from 'node:vm'

const read = (name) => readFileSync(`lua/sandbar/server/page/${name}.js`, 'utf8')
const { Screen, keyBytes, pairsOf, visible, envelopes } = runInThisContext(
  `${['row', 'screen', 'keyboard', 'dom', 'api', 'dialogs'].map(read).join('\n')};({ Screen, keyBytes, pairsOf, visible, envelopes })`)

const cases = {}

// A screen of 10 by 4 with a text on it.
function screen(text, options) {
  const s = new Screen(10, 4, options)
  s.write(text)
  return s
}

const lines = (s, rows = s.rows) => rows.map((row) => row.text.join('').trimEnd())
const shows = (text, ...wanted) => assert.deepEqual(lines(screen(text)).slice(0, wanted.length), wanted, JSON.stringify(text))

cases['text: ends of lines, tabs, backspaces'] = () => {
  shows('one\r\ntwo', 'one', 'two')
  shows('one\ntwo', 'one', '   two')
  assert.deepEqual(lines(screen('one\ntwo', { newline: true })), ['one', 'two', '', ''])
  shows('10 %\r20', '20 %')
  shows('a\tb', 'a       b')
  shows('abc\b\bX', 'aXc')
  shows('a\0\x07\x7fb', 'ab')
}

cases['text: the end of a line wraps at the next character only'] = () => {
  shows('0123456789', '0123456789', '')
  shows('0123456789a', '0123456789', 'a')
  shows('0123456789\r\nb', '0123456789', 'b')
  shows('\x1b[?7l0123456789ab', '012345678b', '')
}

cases['text: wide and joined characters'] = () => {
  const s = screen('日本e\u0301!')
  assert.deepEqual([...s.rows[0].text], ['日', '', '本', '', 'e\u0301', '!'])
  shows('日\x1b[1;2Hx', ' x')
  shows('12345678 日', '12345678', '日')
  assert.ok(screen('e' + '\u0301'.repeat(1000)).rows[0].text[0].length < 12)
}

cases['moves stay on the screen'] = () => {
  shows('\x1b[2;3Hx', '', '  x')
  shows('\x1b[99;99Hx\x1b[Hy', 'y', '', '', '         x')
  shows('abc\x1b[2Dx', 'axc')
  shows('\x1b[99A\x1b[99Dx', 'x')
  shows('\x1b[5Gx\x1b[3dy', '    x', '', '     y')
  shows('a\x1b7\r\n\nb\x1b8c', 'ac', '', 'b')
}

cases['erases, inserts, deletes'] = () => {
  shows('abcdef\x1b[3D\x1b[K', 'abc')
  shows('abcdef\x1b[3D\x1b[1K', '    ef')
  shows('a\r\nb\r\nc\x1b[2;1H\x1b[J', 'a', '', '')
  shows('a\r\nb\x1b[2J', '', '')
  shows('abc\r\x1b[2P', 'c')
  shows('abc\r\x1b[2@x', 'x abc')
  shows('abc\r\x1b[2X', '  c')
  shows('a\r\nb\r\nc\x1b[1;1H\x1b[L', '', 'a', 'b', 'c')
  shows('a\r\nb\r\nc\x1b[1;1H\x1b[M', 'b', 'c', '')
  shows('x\x1b[3b', 'xxxx')
}

cases['scrolls, in a region too, and keeps what left'] = () => {
  const s = screen('1\r\n2\r\n3\r\n4\r\n5\r\n6')
  assert.deepEqual(lines(s), ['3', '4', '5', '6'])
  assert.deepEqual(lines(s, s.history), ['1', '2'])
  shows('1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3;1H\n', '1', '3', '', '4')
  shows('1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[2;1H\x1bM', '1', '', '2', '4')
  const kept = screen('x\r\n'.repeat(100), { history: 7 })
  assert.equal(kept.shown().length, 7 + 4)
}

cases['the second screen leaves the first as it was'] = () => {
  const s = screen('one\x1b[?1049htwo\r\n\r\n\r\n\r\n')
  assert.deepEqual(lines(s, s.shown()), ['', '', '', ''])
  assert.equal(s.history.length, 0)
  s.write('\x1b[?1049l!')
  assert.deepEqual(lines(s), ['one!', '', '', ''])
}

cases['colours, of all three kinds'] = () => {
  const look = (text) => { const { fg, bg, bold, inverse } = screen(`${text}x`).rows[0].style[0]; return [fg, bg, bold, inverse] }
  assert.deepEqual(look('\x1b[1;31;44m'), [1, 4, true, false])
  assert.deepEqual(look('\x1b[97;100;7m'), [15, 8, false, true])
  assert.deepEqual(look('\x1b[38;5;200m\x1b[48;2;1;2;3m'), [200, 0x1010203, false, false])
  assert.deepEqual(look('\x1b[31m\x1b[m'), [-1, -1, false, false])
  assert.deepEqual(look('\x1b[38;5m'), [0, -1, false, false])
}

cases['reads over what it does not know'] = () => {
  shows('\x1b]0;title\x07a', 'a')
  shows('\x1b]8;;http://x\x1b\\a\x1b]8;;\x1b\\b', 'ab')
  shows('\x1bPq#0;2;0\x1b\\a', 'a')
  shows('\x1b[?1000h\x1b[>4;2m\x1b[=1c\x1b%Ga\x1b[1 qb\x1b#8', 'ab')
  shows('\x1b(0lqk\x1b(Bx', '┌─┐x')
  shows('\x1b[31\x18a', 'a')
}

cases['takes sequences in pieces, and any text at all'] = () => {
  const whole = 'a\x1b[31mb\x1b]0;t\x1b\\c\x1b[2;2Hd日'
  const s = new Screen(10, 4)
  for (const char of whole) s.write(char)
  assert.deepEqual(lines(s), lines(screen(whole)))
  let seed = 1
  const random = (n) => { seed = (seed * 48271) % 2147483647; return seed % n }
  const parts = ['\x1b[', '\x1b]', '\x1b', '?', ';', '9999999999', '1049h', '1049l', 'r', 'L', 'M', 'S', 'T', 'H', 'J', 'K', '@', 'P', 'X', 'b', 'm', '\n', '\b', '日', '\u0301',
    'abc', '38;2;', '\x1bM', '\x1bc', '\x1b7', '\x1b8', '3', '0', '\t', '\r']
  const t = new Screen(10, 4, { history: 50 })
  for (let i = 0; i < 20000; i++) {
    t.write(parts[random(parts.length)])
    if (i % 50 === 0) t.resize(1 + random(30), 1 + random(9))
    assert.ok(t.rows.length === t.height && t.x >= 0 && t.x < t.cols && t.y >= 0 && t.y < t.height && t.shown().length <= 50 + t.height, `after ${i}`)
  }
}

cases['answers what programs ask'] = () => {
  const said = []
  screen('ab\x1b[6n\x1b[c\x1b[5n', { reply: (text) => said.push(text) })
  assert.deepEqual(said, ['\x1b[1;3R', '\x1b[?6c', '\x1b[0n'])
}

cases['a smaller window keeps the line one is on'] = () => {
  const s = screen('1\r\n2\r\n3\r\n4')
  s.resize(10, 2)
  assert.deepEqual(lines(s), ['3', '4'])
  assert.deepEqual([s.y, lines(s, s.history)], [1, ['1', '2']])
  const empty = screen('$ ')
  empty.resize(10, 2)
  assert.deepEqual([lines(empty), empty.history.length], [['$', ''], 0])
}

cases['keys'] = () => {
  const key = (name, more = {}, application = false) => keyBytes({ key: name, ...more }, application)
  assert.equal(key('a'), null)
  assert.equal(key('é', { altKey: true }), null)
  assert.equal(key('c', { ctrlKey: true }), '\x03')
  assert.equal(key('C', { ctrlKey: true, shiftKey: true }), null)
  assert.equal(key(' ', { ctrlKey: true }), '\0')
  assert.equal(key('x', { altKey: true }), '\x1bx')
  assert.equal(key('x', { metaKey: true }), null)
  assert.deepEqual([key('ArrowUp'), key('ArrowUp', {}, true), key('ArrowUp', { ctrlKey: true }, true)], ['\x1b[A', '\x1bOA', '\x1b[1;5A'])
  assert.deepEqual(['Enter', 'Backspace', 'Tab', 'Escape', 'Delete', 'F1', 'F5'].map((name) => key(name)), ['\r', '\x7f', '\t', '\x1b', '\x1b[3~', '\x1bOP', '\x1b[15~'])
  assert.equal(key('Tab', { shiftKey: true }), '\x1b[Z')
}

cases['names are made visible, forms read strictly'] = () => {
  assert.equal(visible('a\n\x1b\u202eb'), 'a␊␛\ufffdb')
  assert.deepEqual(Object.entries(pairsOf('a=1\n\n b = c=d \n__proto__=x')), [['a', '1'], ['b', 'c=d'], ['__proto__', 'x']])
  assert.throws(() => pairsOf('nothing'), /nothing/)
  assert.throws(() => pairsOf('=x'), /=x/)
}

cases['envelopes come in pieces of any size'] = () => {
  const all = Uint8Array.from([0, 0, 0, 0, 2, 123, 125, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 120])
  for (let size = 1; size <= all.length; size++) {
    const got = []
    const feed = envelopes((flags, text) => got.push(flags + text))
    for (let at = 0; at < all.length; at += size) feed(all.subarray(at, at + size))
    assert.deepEqual(got, ['0{}', '0', '2x'])
  }
  assert.throws(() => envelopes(() => {})(Uint8Array.from([0, 255, 255, 255, 255])), /too long/)
}

cases['all parts of the script are one, in which no name is there twice'] = () => {
  const names = readdirSync('lua/sandbar/server/page').filter((name) => name.endsWith('.js'))
  assert.ok(names.length > 10)
  new Script(`'use strict';{${names.map((name) => read(name.slice(0, -3))).join('\n')}}`)
}

for (const [name, run] of Object.entries(cases)) {
  try {
    run()
    console.log(`ok ${name}`)
  } catch (cause) {
    console.log(`not ok ${name}: ${cause.stack.replaceAll('\n', ' ')}`)
  }
}
