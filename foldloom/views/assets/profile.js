// What a profile adds to the page: the one thing to change first, where the time went, and times on the loom.
const PHASES = ["#8c8c8c", "#cc79a7", "#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#c9c5ba"];

function showProfile(profile) {
  const section = element("profile");
  section.hidden = false;
  const total = profile.phases.reduce((sum, phase) => sum + phase.seconds, 0) || 1;
  const block = (phase, index) => {
    const part = made("div", { title: `${phase.name}: ${duration(phase.seconds)}` });
    part.style.cssText = `flex: ${phase.seconds / total} 1 0; background: ${PHASES[index % PHASES.length]}`;
    return part;
  };
  const key = (phase, index) => {
    const square = made("span", { class: "swatch" });
    square.style.background = PHASES[index % PHASES.length];
    return made("span", {}, square, `${phase.name} ${duration(phase.seconds)} · ${Math.round(100 * phase.seconds / total)} %`);
  };
  section.append(
    made("div", { class: "panel advice" }, made("h2", {}, "Change first"), made("p", {}, ...withCode(profile.advice)), made("small", {}, profile.place),
      made("div", { class: "time-bar", role: "img", "aria-label": "Where the time went" }, ...profile.phases.map(block)),
      made("div", { class: "time-key" }, ...profile.phases.map(key))),
    made("div", { class: "panel" }, made("h2", {}, "Time by operation"), made("div", { class: "scroll", tabindex: "0" }, timesTable(profile.operations))),
  );
  showHeights();
}

// `code` between backticks.
function withCode(text) {
  return text.split("`").map((piece, at) => (at % 2 ? made("code", {}, piece) : piece));
}

function timesTable(operations) {
  const head = ["operation", "steps", "nodes", "mean batch", "forward", "backward", "gathers", "copied"];
  const cells = (entry) => [entry.name, number(entry.steps), number(entry.nodes), (entry.nodes / Math.max(1, entry.steps)).toFixed(1),
    duration(entry.forward), duration(entry.backward), duration(entry.gathers), `${number(Math.ceil(entry.bytes / 1024))} KiB`];
  return made("table", { class: "times" },
    made("thead", {}, made("tr", {}, ...head.map((name) => made("th", { scope: "col" }, name)))),
    made("tbody", {}, ...operations.map((entry) => made("tr", {}, ...cells(entry).map((cell) => made("td", {}, cell))))));
}

function showHeights() {
  const group = element("heights");
  group.hidden = false;
  const show = (name) => {
    group.querySelectorAll("button").forEach((button) => button.setAttribute("aria-checked", button.textContent === name));
    looms.forEach((loom) => { loom.heights = loom.schedule.seconds ? name : "batch"; });
    arrangeLooms();
    redraw();
  };
  for (const name of ["batch", "time"]) {
    group.append(made("button", { type: "button", role: "radio", "aria-checked": name === "batch", onclick: () => show(name) }, name));
  }
}
