// Drawing on canvas. What changes rarely is kept as a picture: pointing at a step draws a few pictures and the nodes that light up.
const ratio = () => Math.max(1, window.devicePixelRatio || 1);
const isDark = () => document.documentElement.dataset.theme === "dark";

const themeColours = new Map();
function theme(name) {
  const key = `${isDark()} ${name}`;
  if (!themeColours.has(key)) themeColours.set(key, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return themeColours.get(key);
}

// An empty canvas of this size; one that has it already is only wiped, which is cheaper than to make it anew.
function sized(canvas, width, height) {
  const scale = ratio(), columns = Math.round(width * scale), rows = Math.round(height * scale);
  const context = canvas.getContext("2d");
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
  } else {
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, columns, rows);
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.globalAlpha = 1;
  context.textAlign = "left";
  return context;
}

class ExamplesView {
  constructor(canvas, frame, data, graph) {
    Object.assign(this, { canvas, frame, data, graph, focus: null });
    this.units = unitLayout(graph);
    this.plain = document.createElement("canvas");
    this.arrange();
  }

  // The picture of all examples is kept while one of them is enlarged.
  arrange() {
    const width = this.frame.clientWidth, room = Math.max(this.frame.clientHeight - 4, 300);
    const look = `${width} ${room}`;
    if (this.focus === null && this.overview?.look === look) {
      Object.assign(this, this.overview);
      this.canvas.style.height = `${this.height}px`;
      return;
    }
    this.px = new Float32Array(this.graph.count);
    this.py = new Float32Array(this.graph.count);
    this.lines = document.createElement("canvas");
    this.place(width, room);
    if (this.focus !== null) return;
    const { height, unit, radius, boxes, shown, px, py, cells, cellSize, lines } = this;
    this.overview = { look, width, height, unit, radius, boxes, shown, px, py, cells, cellSize, lines };
  }

  place(width, room) {
    const all = this.graph.examples.map((_, number) => number).filter((number) => this.graph.examples[number].length);
    this.shown = this.focus === null ? all : [this.focus];
    const found = packed(this.units.sizes, this.shown, width, room, this.focus === null ? 3.2 : 5);
    Object.assign(this, { width, height: Math.max(found.height, room), unit: found.unit, boxes: found.boxes });
    this.canvas.style.height = `${this.height}px`;
    const spare = Math.max(0, (this.height - found.height) / 2);
    this.radius = Math.min(this.unit * 0.4, 15);
    for (const [example, box] of this.boxes) {
      box.top += spare;
      if (this.shown.length === 1) box.left = Math.max(0, (width - box.width) / 2);
      for (const node of this.graph.examples[example]) {
        this.px[node] = box.left + this.unit * (this.units.x[node] + 0.5);
        this.py[node] = box.top + box.height - this.unit * (this.units.y[node] + 0.5);
      }
    }
    this.cells = this.cellsOfNodes();
  }

  cellsOfNodes() {
    const cells = new Map();
    this.cellSize = Math.max(this.unit * 2, 12);
    for (const example of this.shown) {
      for (const node of this.graph.examples[example]) {
        if (this.units.hidden[node]) continue;
        const key = Math.floor(this.px[node] / this.cellSize) * 65536 + Math.floor(this.py[node] / this.cellSize);
        if (!cells.has(key)) cells.set(key, []);
        cells.get(key).push(node);
      }
    }
    return cells;
  }

  nodeAt(x, y) {
    let best = null, nearest = Math.max(this.unit * 0.75, 7) ** 2;
    const column = Math.floor(x / this.cellSize), row = Math.floor(y / this.cellSize);
    for (let c = column - 1; c <= column + 1; c++) {
      for (let r = row - 1; r <= row + 1; r++) {
        for (const node of this.cells.get(c * 65536 + r) || []) {
          const distance = (this.px[node] - x) ** 2 + (this.py[node] - y) ** 2;
          if (distance < nearest) [best, nearest] = [node, distance];
        }
      }
    }
    return best;
  }

  exampleAt(x, y) {
    for (const [example, box] of this.boxes) {
      if (x >= box.left && x <= box.left + box.width && y >= box.top && y <= box.top + box.height) return example;
    }
    return null;
  }

  // Kept, because it is the same for every step.
  edges() {
    if (this.lines.dataset.colour === theme("faint")) return;
    this.lines.dataset.colour = theme("faint");
    const context = sized(this.lines, this.width, this.height);
    context.strokeStyle = theme("faint");
    context.lineWidth = Math.max(0.6, Math.min(1.6, this.unit * 0.07));
    context.beginPath();
    for (const example of this.shown) {
      for (const node of this.graph.examples[example]) {
        for (let at = this.graph.first[node]; at < this.graph.first[node + 1]; at++) {
          const source = this.graph.operands[at];
          if (this.graph.example[source] !== example || this.units.hidden[source]) continue;
          context.moveTo(this.px[source], this.py[source]);
          context.lineTo(this.px[node], this.py[node]);
        }
      }
    }
    context.stroke();
  }

  dot(context, node, radius) {
    const x = this.px[node], y = this.py[node];
    if (radius < 3) { context.rect(x - radius, y - radius, 2 * radius, 2 * radius); return; }
    context.moveTo(x + radius, y);
    context.arc(x, y, radius, 0, 7);
  }

  // The schedule up to a step, as a picture.
  paint(schedule, until) {
    const dark = isDark(), steps = schedule.steps.length;
    const byStep = new Map(), later = [], given = [];
    for (const example of this.shown) {
      for (const node of this.graph.examples[example]) {
        const step = schedule.step[node];
        if (this.units.hidden[node]) continue;
        if (step < 0) given.push(node);
        else if (step > until) later.push(node);
        else if (byStep.has(step)) byStep.get(step).push(node);
        else byStep.set(step, [node]);
      }
    }
    const context = sized(this.plain, this.width, this.height);
    this.edges();
    context.drawImage(this.lines, 0, 0, this.width, this.height);
    const fill = (nodes, colour, radius) => {
      context.beginPath();
      for (const node of nodes) this.dot(context, node, radius);
      context.fillStyle = colour;
      context.fill();
    };
    fill(given, theme("faint"), this.radius * 0.4);
    fill(later, theme("panel"), this.radius * 0.85);
    context.strokeStyle = theme("faint");
    context.lineWidth = 1;
    context.stroke();
    for (const [step, nodes] of byStep) fill(nodes, stepColour(steps > 1 ? step / (steps - 1) : 0, dark), this.radius);
    if (this.focus !== null && this.unit > 24) this.names(context);
  }

  names(context) {
    context.fillStyle = theme("soft");
    context.font = "11px ui-sans-serif, system-ui, sans-serif";
    for (const node of this.graph.examples[this.focus]) {
      if (this.graph.isGiven[node]) continue;
      context.fillText(this.data.ops[this.data.nodes.op[node]].name, this.px[node] + this.radius + 3, this.py[node] - this.radius * 0.4);
    }
  }

  draw(schedule, lit, chosen) {
    const context = sized(this.canvas, this.width, this.height);
    context.globalAlpha = lit ? 0.22 : 1;
    context.drawImage(this.plain, 0, 0, this.width, this.height);
    context.globalAlpha = 1;
    const dark = isDark(), steps = schedule.steps.length, byStep = new Map();
    for (const node of lit || []) {
      if (!this.boxes.has(this.graph.example[node])) continue;
      const step = schedule.step[node];
      if (byStep.has(step)) byStep.get(step).push(node); else byStep.set(step, [node]);
    }
    context.strokeStyle = theme("ink");
    context.lineWidth = 1;
    for (const [step, nodes] of byStep) {
      context.beginPath();
      for (const node of nodes) this.dot(context, node, this.radius * 1.12);
      context.fillStyle = step < 0 ? theme("soft") : stepColour(steps > 1 ? step / (steps - 1) : 0, dark);
      context.fill();
      if (this.unit > 5) context.stroke();
    }
    if (chosen !== null) this.ring(context, chosen);
  }

  ring(context, node) {
    if (!this.boxes.has(this.graph.example[node])) return;
    context.strokeStyle = theme("glow");
    context.lineWidth = 2;
    for (let at = this.graph.first[node]; at < this.graph.first[node + 1]; at++) {
      const source = this.graph.operands[at];
      if (this.graph.example[source] !== this.graph.example[node]) continue;
      context.beginPath();
      context.moveTo(this.px[source], this.py[source]);
      context.lineTo(this.px[node], this.py[node]);
      context.stroke();
    }
    context.beginPath();
    context.arc(this.px[node], this.py[node], this.radius + 4, 0, 7);
    context.stroke();
  }
}

class LoomView {
  constructor(canvas, data, schedule) {
    Object.assign(this, { canvas, data, schedule, picture: document.createElement("canvas"), heights: "batch" });
  }

  get count() { return Math.max(1, this.schedule.steps.length); }

  // Looms of different schedulers share their scales, so that fewer steps look shorter.
  arrange(longest, tallest) {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.left = 44;
    this.base = this.height - 12;
    this.pitch = (this.width - this.left - 4) / Math.max(longest, 1);
    this.tallest = tallest;
    this.paint();
  }

  measure(step) {
    return this.heights === "time" ? this.schedule.seconds[step] : this.schedule.steps[step][1];
  }

  box(step) {
    // By the square root, so that steps of one member are seen beside steps of hundreds.
    const height = Math.max(2, (this.base - 12) * Math.sqrt(this.measure(step) / this.tallest));
    return { left: this.left + step * this.pitch, top: this.base - height, width: this.pitch, height };
  }

  paint() {
    const context = sized(this.picture, this.width, this.height);
    context.font = "10px ui-sans-serif, system-ui, sans-serif";
    context.fillStyle = theme("soft");
    context.textAlign = "right";
    const label = (share) => (this.heights === "time" ? duration(this.tallest * share) : Math.round(this.tallest * share));
    for (const [share, y] of [[1, 15], [0.25, (this.base + 12) / 2 + 4], [0, this.base]]) context.fillText(label(share), this.left - 5, y);
    context.strokeStyle = theme("line");
    for (const y of [12, (this.base + 12) / 2, this.base]) {
      context.beginPath(); context.moveTo(this.left, y + 0.5); context.lineTo(this.width - 4, y + 0.5); context.stroke();
    }
    const gap = this.pitch > 5 ? 1 : 0, dark = isDark(), last = Math.max(1, this.schedule.steps.length - 1);
    let part = 0;
    this.schedule.steps.forEach(([op, , ofPart], step) => {
      const box = this.box(step);
      context.fillStyle = operationFill(context, this.data.ops[op].kind);
      context.beginPath();
      context.roundRect(box.left, box.top, Math.max(box.width - gap, 0.6), box.height, this.pitch > 7 ? [2.5, 2.5, 0, 0] : 0);
      context.fill();
      context.fillStyle = stepColour(step / last, dark);
      context.fillRect(box.left, this.base + 3, Math.max(box.width, 0.6) + 0.3, 5);
      if (ofPart !== part) {
        part = ofPart;
        context.fillStyle = theme("soft");
        for (let y = 12; y < this.base; y += 5) context.fillRect(box.left - 0.5, y, 1, 2);
      }
    });
  }

  stepAt(x) {
    const step = Math.floor((x - this.left) / this.pitch);
    return step >= 0 && step < this.schedule.steps.length ? step : null;
  }

  draw(lit, until) {
    const context = sized(this.canvas, this.width, this.height);
    context.globalAlpha = lit ? 0.3 : 1;
    context.drawImage(this.picture, 0, 0, this.width, this.height);
    context.globalAlpha = 1;
    for (const step of lit || []) {
      const box = this.box(step);
      context.fillStyle = operationFill(context, this.data.ops[this.schedule.steps[step][0]].kind);
      context.fillRect(box.left, box.top, Math.max(box.width, 1.5), box.height);
      context.fillStyle = theme("ink");
      context.fillRect(box.left, this.base + 3, Math.max(box.width, 1.5), 5);
    }
    if (until === null) return;
    context.fillStyle = theme("glow");
    const x = this.left + (until + 1) * this.pitch;
    context.fillRect(x - 1, 4, 2, this.base + 2);
    context.beginPath(); context.moveTo(x - 5, 2); context.lineTo(x + 5, 2); context.lineTo(x, 9); context.fill();
  }
}

function duration(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(1)} ms` : `${(seconds * 1e6).toFixed(0)} µs`;
}
