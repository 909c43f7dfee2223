// Generate: samples, a bench, a map of the latent space, directions, a morph.

import { ask, live, quietly } from "./api.js";
import { button, bytes, card, choice, colour, download, font, h, note, nth, number, paint, percent, picture, pictureButton, select, sharp, unit } from "./dom.js";
import { keep, model, state } from "./state.js";

const N = 48;
const STEPS = 9;
const SLIDERS = 6;
const REACH = 3.2; // deviations that a slider goes to each side
let parts = {};
let map = null;
let ends = [null, null];

export function open(root, frame) {
  if (!model().shape.length) {
    root.append(card("A model of a table", {}, h("p", {}, "This model makes rows, not images. Choose another model above, or draw rows in the panel Tables."),
      button("Go to Tables", () => frame.go("tables"), { class: "main" })));
    return;
  }
  map = null;
  ends = [null, null];
  parts = {};
  root.append(samplesCard(), benchCard(frame), mapCard(), morphCard());
  drawSamples();
  offerClasses();
  readMap();
}

// ---- samples

function samplesCard() {
  parts.grid = h("div", { class: "tiles", "aria-label": "Samples", role: "group" });
  parts.samplesNote = note();
  parts.classes = h("span", { hidden: true });
  parts.seed = h("input", { type: "number", min: 0, max: 999999, value: state.seed, id: "seed", change: () => seed(Number(parts.seed.value)) });
  return card("Samples", { class: "samples" },
    h("div", { class: "row" },
      button("New samples", () => seed(state.seed + 1), { class: "main" }),
      h("label", { for: "seed" }, "Seed ", parts.seed),
      choice("What is shown", [[false, "Means"], [true, "Draws"]], state.draw, (value) => { state.draw = value; drawSamples(); decode(); }),
      parts.classes, heldLevels()),
    parts.grid, parts.samplesNote);
}

/** Levels that all samples share, for models with more than one. */
function heldLevels() {
  const levels = model().latent.length;
  if (levels < 2) return null;
  const options = Array.from({ length: levels }, (_, i) => [i, i ? `the top ${i}` : "none"]);
  return select("hold", "Levels held", options, state.hold, (value) => { state.hold = Number(value); drawSamples(); });
}

const offerClasses = quietly(async () => {
  const { classes } = await ask("examples", { model: state.model, n: 1 }, "classes");
  if (state.label && !classes.includes(state.label)) {
    state.label = "";
    drawSamples();
  }
  if (!classes.length) return;
  parts.classes.hidden = false;
  parts.classes.replaceChildren(select("class", "Class", [["", "any"], ...classes.map((name) => [name, name])], state.label, (value) => { state.label = value; drawSamples(); }));
});

function seed(value) {
  state.seed = Number.isInteger(value) && value >= 0 ? Math.min(value, 999999) : 0;
  parts.seed.value = state.seed;
  drawSamples();
}

const drawSamples = quietly(async () => {
  const current = model();
  const by = state.label ? { label: state.label } : { hold: state.hold };
  const answer = await ask("samples", { model: state.model, seed: state.seed, n: N, draw: state.draw, ...by });
  const pixels = bytes(answer.images);
  parts.grid.replaceChildren(...answer.z.map((z, i) =>
    pictureButton(`Sample ${i + 1}: take it onto the bench`, nth(pixels, i, current.columns), current, () => take(z))));
  parts.samplesNote.textContent = `${state.draw ? "One draw of x from p(x|z)" : "The mean of p(x|z)"} for each of the first ${N} draws of z ${source()}, seed ${state.seed}. Nothing is picked.`;
  if (!state.z) take(answer.z[0]);
  else decode();
  if (!ends[0]) {
    setEnd(0, answer.z[0]);
    setEnd(1, answer.z[1]);
  }
  keep();
});

/** Where z comes from, in words. */
function source() {
  if (state.label) return `from q(z|x) of random examples x of class ${state.label} (the model itself has no classes)`;
  return state.hold ? `from the prior, all with the same top ${state.hold === 1 ? "level" : `${state.hold} levels`}` : "from the prior";
}

// ---- the bench

function benchCard(frame) {
  parts.bench = picture("The image of the point z on the bench", { id: "bench" });
  parts.benchNote = note();
  return card("Bench", { class: "bench" },
    h("div", { class: "stage" }, parts.bench),
    h("div", { class: "row" },
      button("Look inside", () => frame.go("memory"), { class: "main", disabled: !model().memory.length, title: model().memory.length ? null : "This model has no memory" }),
      button("To the centre", () => map && take(map.centre)),
      button("Start of morph", () => setEnd(0, state.z)),
      button("End of morph", () => setEnd(1, state.z)),
      button("Save PNG", save)),
    parts.benchNote);
}

function save() {
  const large = h("canvas", { width: parts.bench.width * 10, height: parts.bench.height * 10 });
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(parts.bench, 0, 0, large.width, large.height);
  large.toBlob((blob) => download("memgen.png", blob));
}

function take(z) {
  state.z = z.slice();
  state.image = null;
  moved();
}

/** z has changed: everything that shows it follows. */
function moved() {
  placeKnobs();
  decode();
  keep();
}

const decode = live(async () => {
  if (!state.z) return;
  const current = model();
  const answer = await ask("decode", { model: state.model, z: state.z, draw: state.draw, seed: state.seed });
  paint(parts.bench, bytes(answer.image), current);
  parts.bench.dataset.count = Number(parts.bench.dataset.count ?? 0) + 1;
  const length = Math.sqrt(state.z.reduce((sum, v) => sum + v * v, 0));
  parts.benchNote.textContent = `${state.draw ? "One draw from p(x|z)" : "The mean of p(x|z)"} at z of length ${number(length)}; most of the prior lies near ${number(Math.sqrt(state.z.length))}.`;
});

// ---- the map

function mapCard() {
  parts.map = h("canvas", { class: "map", tabindex: 0, role: "application", "aria-label": "Map of the latent space. Drag the point, or move it with the arrow keys." });
  parts.mapNote = note("Reading the map …");
  parts.sliders = h("div", { class: "sliders" });
  parts.map.painted = drawMap;
  let held = false;
  const drag = (event) => {
    const box = parts.map.getBoundingClientRect();
    goTo((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  };
  parts.map.addEventListener("pointerdown", (event) => {
    held = true;
    parts.map.setPointerCapture(event.pointerId);
    drag(event);
  });
  parts.map.addEventListener("pointermove", (event) => held && drag(event));
  for (const end of ["pointerup", "pointercancel"]) parts.map.addEventListener(end, () => { held = false; });
  parts.map.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!step || !map || !state.z) return;
    event.preventDefault();
    step.forEach((s, k) => setCoordinate(k, coordinate(k) + 0.1 * s * map.deviations[k]));
    moved();
  });
  return card("Latent space", { class: "latent" }, h("div", { class: "fit" }, parts.map), parts.mapNote, parts.sliders);
}

const readMap = quietly(async () => {
  map = await ask("map", { model: state.model });
  const k = Math.min(SLIDERS, map.axes.length);
  parts.ranges = Array.from({ length: k }, (_, i) => {
    const range = h("input", { type: "range", min: -REACH, max: REACH, step: 0.01, value: 0, id: `direction-${i}`,
      input: () => { setCoordinate(i, Number(range.value) * map.deviations[i]); moved(); } });
    return range;
  });
  parts.sliders.replaceChildren(...parts.ranges.map((range, i) =>
    h("label", { for: `direction-${i}` }, h("span", {}, `Direction ${i + 1}`), range, h("span", { class: "soft" }, percent(map.explained[i])))));
  const classes = map.labels ? " A figure is the class of a row." : "";
  parts.mapNote.textContent = `The first two principal axes of the posterior means of ${map.rows.toLocaleString("en")} rows; they hold ${percent(map.explained[0] + map.explained[1])} of the variance.${classes} Sliders are in standard deviations. ${map.about}`;
  placeKnobs();
});

const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
const coordinate = (k) => dot(state.z.map((v, i) => v - map.centre[i]), map.axes[k]);

function setCoordinate(k, value) {
  if (!state.z) state.z = map.centre.slice();
  const change = value - coordinate(k);
  state.z = state.z.map((v, i) => v + change * map.axes[k][i]);
  state.image = null;
}

function goTo(x, y) {
  if (!map) return;
  setCoordinate(0, (2 * x - 1) * REACH * map.deviations[0]);
  if (map.axes.length > 1) setCoordinate(1, (1 - 2 * y) * REACH * map.deviations[1]);
  moved();
}

function placeKnobs() {
  if (!map || !state.z) return;
  parts.ranges.forEach((range, i) => {
    const value = coordinate(i) / map.deviations[i];
    range.value = value;
    range.setAttribute("aria-valuetext", `${number(value, 1)} standard deviations`);
  });
  drawMap();
}

function drawMap() {
  const size = parts.map.parentElement?.clientWidth ?? 0;
  if (!map || !size) return;
  const width = Math.min(size, 900);
  const context = sharp(parts.map, width, width);
  const at = (point) => [0.5 + point[0] / map.deviations[0] / REACH / 2, 0.5 - (point[1] ?? 0) / (map.deviations[1] ?? 1) / REACH / 2].map((v) => v * width);
  context.strokeStyle = colour("line");
  context.beginPath();
  for (const v of [0, width]) { context.moveTo(width / 2, v); context.lineTo(width / 2, width / 2); context.moveTo(v, width / 2); context.lineTo(width / 2, width / 2); }
  context.stroke();
  context.fillStyle = colour("soft");
  context.font = font(12);
  context.textAlign = "center";
  context.textBaseline = "middle";
  map.points.forEach((point, i) => {
    const [x, y] = at(point);
    if (map.labels) context.fillText(map.labels[i].slice(0, 3), x, y);
    else { context.beginPath(); context.arc(x, y, 2, 0, 7); context.fill(); }
  });
  if (!state.z) return;
  const [x, y] = at([coordinate(0), map.axes.length > 1 ? coordinate(1) : 0]).map((v) => Math.max(9, Math.min(width - 9, v)));
  context.beginPath();
  context.arc(x, y, 8 * unit(), 0, 7);
  context.fillStyle = colour("accent");
  context.fill();
  context.lineWidth = 3;
  context.strokeStyle = colour("paper");
  context.stroke();
}

// ---- the morph

function morphCard() {
  parts.strip = h("div", { class: "tiles strip", role: "group", "aria-label": "Morph" });
  parts.between = h("input", { type: "range", min: 0, max: STEPS - 1, step: 1, value: 0, id: "between", input: () => between() });
  return card("Morph", { class: "morph" }, parts.strip,
    h("label", { for: "between", class: "wide" }, "From start to end ", parts.between),
    note("From one code to another: the direction turns at a constant rate, the length goes linearly, as in memgen sample --interpolate. Choose start and end on the bench."));
}

function setEnd(which, z) {
  if (!z) return;
  ends[which] = z.slice();
  if (ends[0] && ends[1]) drawMorph();
}

function between() {
  const z = parts.codes?.[Number(parts.between.value)];
  if (z) take(z);
}

const drawMorph = quietly(async () => {
  const current = model();
  const answer = await ask("morph", { model: state.model, a: ends[0], b: ends[1], steps: STEPS });
  parts.codes = answer.z;
  const pixels = bytes(answer.images);
  parts.strip.replaceChildren(...answer.z.map((z, i) =>
    pictureButton(`Step ${i + 1} of ${STEPS}: take it onto the bench`, nth(pixels, i, current.columns), current, () => { parts.between.value = i; take(z); })));
});
