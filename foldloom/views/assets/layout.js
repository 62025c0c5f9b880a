// Where the nodes of each example stand: what was given at the bottom, everything else above what it reads.
function graphOf(data) {
  const count = data.nodes.op.length;
  const first = new Int32Array(count + 1);
  for (let n = 0; n < count; n++) first[n + 1] = first[n] + data.nodes.arity[n];
  const isGiven = data.nodes.op.map((op) => data.ops[op].given);
  const depth = new Int32Array(count);
  const readers = Array.from({ length: count }, () => []);
  for (let n = 0; n < count; n++) {
    let deepest = 0;
    for (let at = first[n]; at < first[n + 1]; at++) {
      const source = data.nodes.operands[at];
      deepest = Math.max(deepest, depth[source]);
      readers[source].push(n);
    }
    depth[n] = isGiven[n] ? 0 : deepest + 1;
  }
  const examples = Array.from({ length: data.examples }, () => []);
  for (let n = 0; n < count; n++) examples[data.nodes.example[n]].push(n);
  return { count, first, isGiven, depth, readers, examples, operands: data.nodes.operands, example: data.nodes.example };
}

// Units of one node; leaves take a place each, others stand over the middle of what they read, and neighbours make room.
function shapeOf(graph, members, x, y, hidden) {
  const computed = members.filter((node) => !graph.isGiven[node]);
  const rows = new Map();
  let free = 0;
  for (const node of computed) {
    let sum = 0, known = 0;
    for (let at = graph.first[node]; at < graph.first[node + 1]; at++) {
      const source = graph.operands[at];
      if (graph.example[source] === graph.example[node] && !graph.isGiven[source]) { sum += x[source]; known++; }
    }
    x[node] = known ? sum / known : free++;
    y[node] = graph.depth[node];
    if (!rows.has(y[node])) rows.set(y[node], []);
    rows.get(y[node]).push(node);
  }
  for (const row of rows.values()) {
    row.sort((a, b) => x[a] - x[b]);
    const wished = row.reduce((sum, node) => sum + x[node], 0);
    for (let n = 1; n < row.length; n++) x[row[n]] = Math.max(x[row[n]], x[row[n - 1]] + 1);
    const shift = (row.reduce((sum, node) => sum + x[node], 0) - wished) / row.length;
    for (const node of row) x[node] -= shift;
  }
  // Empty levels (an example that begins late, or waits) are closed.
  const levels = [...rows.keys()].sort((a, b) => a - b);
  const level = new Map(levels.map((depth, n) => [depth, n + 1]));
  let left = Infinity, right = -Infinity;
  for (const node of computed) {
    y[node] = level.get(y[node]);
    left = Math.min(left, x[node]);
    right = Math.max(right, x[node]);
  }
  if (!computed.length) left = right = 0;
  for (const node of computed) x[node] -= left;
  for (const node of members) if (graph.isGiven[node]) placeGiven(graph, node, x, y, hidden);
  return { width: right - left, height: levels.length };
}

// What was given stands under its reader where that is at the bottom; higher up it would only be in the way.
function placeGiven(graph, node, x, y, hidden) {
  const reader = graph.readers[node].find((other) => graph.example[other] === graph.example[node]);
  hidden[node] = reader === undefined || y[reader] !== 1 ? 1 : 0;
  if (reader === undefined) return;
  const siblings = graph.operands.slice(graph.first[reader], graph.first[reader + 1]).filter((other) => graph.isGiven[other]);
  const spread = Math.min(0.36, 0.8 / siblings.length);
  x[node] = x[reader] + (hidden[node] ? 0 : spread * (siblings.indexOf(node) - (siblings.length - 1) / 2));
  y[node] = hidden[node] ? y[reader] : 0.25;
}

function unitLayout(graph) {
  const x = new Float32Array(graph.count), y = new Float32Array(graph.count);
  const hidden = new Uint8Array(graph.count);
  const sizes = graph.examples.map((members) => shapeOf(graph, members, x, y, hidden));
  return { x, y, hidden, sizes };
}

// Examples on shelves, in order, standing on one line and spread over the width.
function shelves(sizes, shown, width, unit) {
  const gap = Math.max(10, unit * 1.4);
  const boxes = new Map();
  let shelf = [], used = gap, top = gap / 2;
  const settle = (isLast) => {
    const tallest = Math.max(0, ...shelf.map((box) => box.height));
    const spare = Math.max(0, width - used + gap), extra = isLast ? 0 : spare / Math.max(1, shelf.length - 1);
    shelf.forEach((box, at) => { box.left += at * extra; box.top = top + tallest - box.height; });
    top += tallest + gap;
  };
  for (const example of shown) {
    const box = { width: (sizes[example].width + 1) * unit, height: (sizes[example].height + 1) * unit };
    if (shelf.length && used + box.width > width) { settle(false); shelf = []; used = gap; }
    box.left = used - gap / 2;
    used += box.width + gap;
    shelf.push(box);
    boxes.set(example, box);
  }
  settle(true);
  return { boxes, height: top - gap / 2 };
}

function packed(sizes, shown, width, height, smallest) {
  let low = smallest, high = 64;
  const widest = Math.max(...shown.map((example) => sizes[example].width + 1));
  high = Math.max(low, Math.min(high, (width - 12) / widest));
  for (let round = 0; round < 12; round++) {
    const middle = (low + high) / 2;
    if (shelves(sizes, shown, width, middle).height <= height) low = middle; else high = middle;
  }
  return { unit: low, ...shelves(sizes, shown, width, low) };
}
