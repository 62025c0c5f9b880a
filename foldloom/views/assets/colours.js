// Colours that the colour-blind tell apart: Okabe and Ito's for operations, with textures where there are more operations than
// colours; viridis for the order of steps.
const OPERATION_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900", "#8c8c8c"];
const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function stepColour(share, dark) {
  // The ends that would vanish into the background are left out.
  const place = (dark ? 0.22 + 0.78 * share : 0.9 * share) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const [from, to] = [channels(VIRIDIS[low]), channels(VIRIDIS[low + 1])];
  return `rgb(${from.map((value, n) => Math.round(value + (to[n] - value) * (place - low))).join(" ")})`;
}

const operationColour = (kind) => OPERATION_COLOURS[kind % OPERATION_COLOURS.length];

const patterns = new Map();
function operationFill(context, kind) {
  const texture = Math.floor(kind / OPERATION_COLOURS.length) % 3;
  if (!texture) return operationColour(kind);
  if (!patterns.has(kind)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.fillStyle = operationColour(kind);
    pen.fillRect(0, 0, 6, 6);
    pen.fillStyle = "rgb(255 255 255 / 70%)";
    if (texture === 1) for (let n = 0; n < 6; n++) pen.fillRect(n, 5 - n, 1.5, 1.5);
    else pen.fillRect(2, 2, 2, 2);
    patterns.set(kind, context.createPattern(tile, "repeat"));
  }
  return patterns.get(kind);
}

function swatch(kind) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 14;
  canvas.className = "swatch";
  const context = canvas.getContext("2d");
  context.fillStyle = operationFill(context, kind);
  context.fillRect(0, 0, 14, 14);
  return canvas;
}
