// The page: what is pointed at, which scheduler is shown, how far the schedule has played.
const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");

function made(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const graph = graphOf(data);
const state = { schedule: 0, until: 0, step: null, node: null, kind: null, pinned: null, playing: null };
let examples, looms;

const schedule = () => data.schedules[state.schedule];
const nameOf = (node) => data.ops[data.nodes.op[node]].name;

const membersOfStep = data.schedules.map((one) => {
  const members = one.steps.map(() => []);
  one.step.forEach((step, node) => { if (step >= 0) members[step].push(node); });
  return members;
});

function litNodes() {
  if (state.step !== null) return membersOfStep[state.schedule][state.step];
  if (state.node !== null && schedule().step[state.node] >= 0) return membersOfStep[state.schedule][schedule().step[state.node]];
  if (state.kind !== null) return [...Array(graph.count).keys()].filter((node) => data.ops[data.nodes.op[node]].kind === state.kind && !graph.isGiven[node]);
  return null;
}

function litSteps(one) {
  const ofOther = one !== schedule();
  if (state.node !== null) return one.step[state.node] >= 0 ? [one.step[state.node]] : null;
  if (state.step !== null) return ofOther ? [...new Set(litNodes().map((node) => one.step[node]))] : [state.step];
  if (state.kind !== null) return one.steps.flatMap(([op], step) => (data.ops[op].kind === state.kind ? [step] : []));
  return null;
}

function redraw() {
  const started = performance.now();
  examples.draw(schedule(), litNodes(), state.node);
  looms.forEach((loom, index) => loom.draw(litSteps(data.schedules[index]), index === state.schedule ? state.until : null));
  describe();
  document.body.dataset.step = state.step ?? "";
  document.body.dataset.node = state.node ?? "";
  document.body.dataset.lit = litNodes()?.length ?? 0;
  window.foldloom.lastDraw = performance.now() - started;
}

function row(name, ...content) {
  return made("tr", {}, made("th", { scope: "row" }, name), made("td", {}, ...content));
}

const types = (list) => made("code", {}, list.length ? list.join(", ") : "nothing");

function describe() {
  const details = element("details");
  if (state.node !== null) details.replaceChildren(...nodeDetails(state.node));
  else if (state.step !== null) details.replaceChildren(...stepDetails(state.step));
  else if (state.kind !== null) details.replaceChildren(...kindDetails(state.kind));
  else details.replaceChildren(made("p", { class: "hint" }, "Point at a step and its nodes light up in every example; point at a node and see what it is."));
}

function nodeDetails(node) {
  const op = data.ops[data.nodes.op[node]];
  const inputs = data.nodes.operands.slice(graph.first[node], graph.first[node + 1]);
  const buttons = inputs.slice(0, 12).map((source) => made("button", { type: "button", onclick: () => pin(source) },
    graph.isGiven[source] ? `given ${data.ops[data.nodes.op[source]].outputs[0]}` : `${nameOf(source)} · step ${schedule().step[source]}`));
  if (inputs.length > 12) buttons.push(`and ${inputs.length - 12} more`);
  const steps = op.given ? "given, not computed" : data.schedules.map((one) => `${one.name} ${one.step[node]}`).join(", ");
  const place = data.nodes.place.length && data.nodes.place[node] >= 0 ? data.places[data.nodes.place[node]] : null;
  return [
    made("div", { class: "what" }, ...(op.given ? [] : [swatch(op.kind)]), op.name, made("span", { class: "hint" }, `example ${data.nodes.example[node]}`)),
    made("table", {},
      row("shapes", types(op.inputs), " → ", types(op.outputs)),
      row("step", steps),
      ...(inputs.length ? [row("inputs", ...buttons)] : []),
      ...(place ? [row("where", made("code", {}, place))] : [])),
  ];
}

function stepDetails(step) {
  const [op, size, part, copied, inPlace, bytes] = schedule().steps[step];
  const members = membersOfStep[state.schedule][step];
  const inExamples = new Set(members.map((node) => data.nodes.example[node])).size;
  const place = members.length && data.nodes.place.length && data.nodes.place[members[0]] >= 0 ? data.places[data.nodes.place[members[0]]] : null;
  const seconds = schedule().seconds;
  return [
    made("div", { class: "what" }, swatch(data.ops[op].kind), `step ${step}: ${number(size)} × ${data.ops[op].name}`,
      made("span", { class: "hint" }, data.parts > 1 ? `part ${part}` : "")),
    made("table", {},
      row("shapes", types(data.ops[op].inputs), " → ", types(data.ops[op].outputs)),
      row("members", `${number(size)} in ${number(inExamples)} ${inExamples === 1 ? "example" : "examples"}`),
      row("rows", `${number(copied)} copied (${number(Math.ceil(bytes / 1024))} KiB), ${number(inPlace)} used in place`),
      ...(seconds ? [row("time", duration(seconds[step]))] : []),
      ...(place ? [row("where", made("code", {}, place))] : [])),
  ];
}

function kindDetails(kind) {
  const entry = data.kinds[kind];
  const steps = litSteps(schedule()).length;
  return [
    made("div", { class: "what" }, swatch(kind), entry.name),
    made("table", {}, row("nodes", number(entry.nodes)), row("steps", number(steps)), row("mean batch", (entry.nodes / Math.max(1, steps)).toFixed(1))),
  ];
}

// Pointing at nothing leads back to the node that was clicked on, if any.
function point(at) {
  const next = { step: null, node: Object.keys(at).length ? null : state.pinned, kind: null, ...at };
  if (next.step === state.step && next.node === state.node && next.kind === state.kind) return;
  Object.assign(state, next);
  redraw();
}

function pin(node) {
  state.pinned = node;
  point({ node });
}

function playTo(step) {
  state.until = Math.max(0, Math.min(schedule().steps.length - 1, step));
  element("slider").value = state.until;
  element("slider").setAttribute("aria-valuetext", `step ${state.until} of ${schedule().steps.length - 1}`);
  element("now").textContent = `step ${number(state.until)} / ${number(Math.max(0, schedule().steps.length - 1))}`;
  examples.paint(schedule(), state.until);
}

function moveTo(step) {
  playTo(step);
  Object.assign(state, { step: schedule().steps.length ? state.until : null, node: null, kind: null });
  redraw();
}

function stop() {
  clearTimeout(state.playing);
  state.playing = null;
  element("play").textContent = "▶";
  element("play").setAttribute("aria-label", "Play the schedule");
}

function play() {
  if (state.playing !== null) { stop(); return; }
  const count = schedule().steps.length, pause = Math.max(16, Math.min(260, 7000 / Math.max(1, count)));
  if (state.until >= count - 1) moveTo(0);
  element("play").textContent = "❚❚";
  element("play").setAttribute("aria-label", "Pause");
  const next = () => {
    if (state.until >= schedule().steps.length - 1) { stop(); point({}); return; }
    moveTo(state.until + 1);
    state.playing = setTimeout(next, pause);
  };
  state.playing = setTimeout(next, pause);
}

function choose(index) {
  stop();
  state.schedule = (index + data.schedules.length) % data.schedules.length;
  document.querySelectorAll(".loom").forEach((loom, at) => {
    loom.setAttribute("aria-checked", at === state.schedule);
    loom.tabIndex = at === state.schedule ? 0 : -1;
    if (at === state.schedule && document.activeElement.classList.contains("loom")) loom.focus();
  });
  element("slider").max = Math.max(0, schedule().steps.length - 1);
  state.step = state.kind = null;
  playTo(schedule().steps.length - 1);
  figures();
  redraw();
}

function figures() {
  const one = schedule();
  const nodes = one.steps.reduce((sum, step) => sum + step[1], 0), steps = one.steps.length;
  const copied = one.steps.reduce((sum, step) => sum + step[3], 0), inPlace = one.steps.reduce((sum, step) => sum + step[4], 0);
  const entries = [
    ["examples", number(data.examples)], ["nodes", number(nodes)], ["steps", number(steps)], ["mean batch", (nodes / Math.max(1, steps)).toFixed(1)],
    ["rows in place", `${Math.round(100 * inPlace / Math.max(1, copied + inPlace))} %`],
    ...(data.parts > 1 ? [["parts", number(data.parts)]] : []),
  ];
  element("figures").replaceChildren(...entries.map(([name, value]) => made("div", {}, made("dt", {}, name), made("dd", {}, value))));
}

function makeLooms() {
  const fewest = Math.min(...data.schedules.map((one) => one.steps.length));
  looms = data.schedules.map((one, index) => {
    const canvas = made("canvas", { "aria-hidden": "true" });
    const nodes = one.steps.reduce((sum, step) => sum + step[1], 0);
    const counts = made("span", {}, `${number(one.steps.length)} steps · mean batch ${(nodes / Math.max(1, one.steps.length)).toFixed(1)} · ${number(one.steps.reduce((sum, step) => sum + step[3], 0))} rows copied`);
    const best = one.steps.length === fewest && data.schedules.some((other) => other.steps.length > fewest) ? [made("span", { class: "best" }, "fewest")] : [];
    const box = made("div", { class: "loom", role: "radio", "aria-checked": "false", "aria-label": `${one.name}: ${one.steps.length} steps`, onclick: () => { if (state.schedule !== index) choose(index); } },
      made("div", { class: "loom-head" }, made("strong", {}, one.name), counts, ...best), canvas);
    element("looms").append(box);
    canvas.addEventListener("mousemove", (event) => {
      if (state.schedule !== index) return;
      const step = looms[index].stepAt(event.offsetX);
      point(step === null ? {} : { step });
    });
    canvas.addEventListener("mouseleave", () => point({}));
    canvas.addEventListener("click", (event) => {
      const step = looms[index].stepAt(event.offsetX);
      if (state.schedule === index && step !== null) moveTo(step);
    });
    return new LoomView(canvas, data, one);
  });
}

function arrangeLooms() {
  const longest = Math.max(...data.schedules.map((one) => one.steps.length));
  for (const measure of ["batch", "time"]) {
    const alike = looms.filter((loom) => loom.heights === measure);
    const tallest = Math.max(1e-9, ...alike.flatMap((loom) => loom.schedule.steps.map((_, step) => loom.measure(step))));
    alike.forEach((loom) => loom.arrange(longest, tallest));
  }
}

function makeLegend() {
  data.kinds.forEach((entry, kind) => {
    const light = () => point({ kind }), dim = () => point({});
    element("legend").append(made("li", {}, made("button", { type: "button", onmouseenter: light, onfocus: light, onmouseleave: dim, onblur: dim },
      swatch(kind), entry.name, made("span", {}, number(entry.nodes)))));
  });
}

function paintScale() {
  const context = element("scale").getContext("2d");
  for (let x = 0; x < 120; x++) { context.fillStyle = stepColour(x / 119, isDark()); context.fillRect(x, 0, 1, 8); }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  if (!examples) return;
  paintScale();
  looms.forEach((loom) => loom.paint());
  playTo(state.until);
  redraw();
}

function enlarge(example) {
  examples.focus = example;
  element("back").hidden = example === null;
  element("examples-hint").textContent = example === null ? "coloured by the step they ran in" : `example ${example}`;
  examples.arrange();
  element("examples-frame").scrollTop = 0;
  playTo(state.until);
  redraw();
}

function walk(event) {
  const node = state.node ?? graph.examples[examples.shown[0]][0];
  const inExample = graph.examples[graph.example[node]], at = inExample.indexOf(node);
  const step = (direction) => inExample[(at + direction + inExample.length) % inExample.length];
  const other = (direction) => {
    const place = examples.shown.indexOf(graph.example[node]) + direction;
    return graph.examples[examples.shown[(place + examples.shown.length) % examples.shown.length]][0];
  };
  const inputs = graph.operands.slice(graph.first[node], graph.first[node + 1]);
  const to = {
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), ArrowUp: () => graph.readers[node][0], ArrowDown: () => inputs[0],
    PageUp: () => other(-1), PageDown: () => other(1),
  }[event.key];
  if (event.key === "Enter") enlarge(examples.focus === null ? graph.example[node] : null);
  else if (to) point({ node: state.node === null ? node : to() ?? node });
  else return false;
  return true;
}

function listen() {
  const canvas = element("examples");
  canvas.addEventListener("mousemove", (event) => {
    const node = examples.nodeAt(event.offsetX, event.offsetY);
    point(node === null ? {} : { node });
  });
  canvas.addEventListener("mouseleave", () => point({}));
  canvas.addEventListener("click", (event) => {
    const node = examples.nodeAt(event.offsetX, event.offsetY);
    const example = node === null ? examples.exampleAt(event.offsetX, event.offsetY) : graph.example[node];
    if (examples.focus === null && example !== null) enlarge(example);
    pin(node);
  });
  canvas.addEventListener("keydown", (event) => { if (walk(event)) { event.preventDefault(); event.stopPropagation(); } });
  element("back").addEventListener("click", () => enlarge(null));
  element("slider").addEventListener("input", (event) => { stop(); moveTo(Number(event.target.value)); });
  element("play").addEventListener("click", play);
  element("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  document.addEventListener("keydown", onKey);
  window.addEventListener("resize", () => { examples.arrange(); arrangeLooms(); playTo(state.until); redraw(); });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const onButton = event.target.tagName === "BUTTON", onLoom = event.target.classList.contains("loom");
  const actions = {
    ArrowRight: () => { stop(); moveTo(state.until + 1); }, ArrowLeft: () => { stop(); moveTo(state.until - 1); },
    ...(onLoom ? { ArrowDown: () => choose(state.schedule + 1), ArrowUp: () => choose(state.schedule - 1) } : {}),
    Home: () => { stop(); moveTo(0); }, End: () => { stop(); moveTo(schedule().steps.length - 1); },
    " ": () => (onButton ? event.target.click() : play()), s: () => choose(state.schedule + 1), S: () => choose(state.schedule + 1),
    t: () => setTheme(isDark() ? "light" : "dark"), T: () => setTheme(isDark() ? "light" : "dark"),
    Escape: () => { pin(null); if (examples.focus !== null) enlarge(null); },
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

// Where things stand, for those who drive the page from outside.
window.foldloom = {
  placeOfNode: (node) => ({ x: examples.px[node], y: examples.py[node] }),
  boxOfStep: (index, step) => looms[index].box(step),
  lastDraw: 0,
};

setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
if (data.profile) showProfile(data.profile);
makeLooms();
makeLegend();
arrangeLooms();
examples = new ExamplesView(element("examples"), element("examples-frame"), data, graph);
paintScale();
listen();
choose(0);
document.body.dataset.ready = "yes";
