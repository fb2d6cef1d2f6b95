// What a sandbox has used: samples of the last minutes, and lines of them.

const KEPT = 600 // seconds
const LEAST_SPAN = 60 // seconds that a chart is broad at least

class Usage {
  constructor() {
    this.points = [] // { at (seconds), cpu (percent), memory (bytes) }
  }

  add(sample) {
    const last = this.points.at(-1)
    if (last && sample.timestampUnix <= last.at) return
    this.points.push({ at: sample.timestampUnix, cpu: sample.cpuUsedPct, memory: sample.memUsed })
    while (this.points[0].at < sample.timestampUnix - KEPT) this.points.shift()
  }

  // Samples from before those that are here.
  seed(samples) {
    const first = this.points[0]?.at ?? Infinity
    const earlier = new Usage()
    samples.filter((sample) => sample.timestampUnix < first).forEach((sample) => earlier.add(sample))
    this.points = earlier.points.concat(this.points)
  }
}

// A line over what is known of the last `seconds`, as high as the highest value and at least `least`.
class Chart {
  constructor(label, kind, seconds, least) {
    this.label = label
    this.seconds = seconds
    this.least = least
    this.area = svg('path', { class: 'area' })
    this.line = svg('path', { class: 'line' })
    this.svg = svg('svg', { class: 'plot', viewBox: '0 0 100 32', preserveAspectRatio: 'none', role: 'img' }, this.area, this.line)
    this.value = el('span', { class: 'value' }, '–')
    this.node = el('div', { class: `chart ${kind}` }, el('span', { class: 'label' }, label), this.value, this.svg)
  }

  set(points, text) {
    setText(this.value, text)
    this.svg.setAttribute('aria-label', `${this.label} ${text}`)
    const now = clock.now() / 1000
    const seen = points.filter((point) => point.at >= now - this.seconds)
    const span = Math.max(now - (seen[0]?.at ?? now), LEAST_SPAN)
    const top = Math.max(this.least, ...seen.map((point) => point.value)) * 1.08
    const spots = seen.map((point) => [
      (100 - Math.max(now - point.at, 0) / span * 100).toFixed(2), (31 - point.value / top * 30).toFixed(2)])
    if (spots.length === 0) {
      this.line.removeAttribute('d')
      this.area.removeAttribute('d')
      return
    }
    const line = `M${spots.map((spot) => spot.join(' ')).join('L')}`
    this.line.setAttribute('d', spots.length > 1 ? line : `${line}h.01`)
    this.area.setAttribute('d', `${line}L${spots.at(-1)[0]} 32L${spots[0][0]} 32Z`)
  }
}

// The two charts of a sandbox.
class Charts {
  constructor(seconds) {
    this.cpu = new Chart('CPU', 'cpu', seconds, 5)
    this.memory = new Chart('Memory', 'memory', seconds, 10e6)
    this.nodes = [this.cpu.node, this.memory.node]
  }

  show(usage, running) {
    const last = usage.points.at(-1)
    const of = (name) => usage.points.map((point) => ({ at: point.at, value: point[name] }))
    const known = running && last
    this.cpu.set(of('cpu'), known ? `${last.cpu < 10 ? last.cpu.toFixed(1) : Math.round(last.cpu)} %` : '–')
    this.memory.set(of('memory'), known ? bytes(last.memory) : '–')
  }
}
