// Inside the memory: what the row on the bench reads from every slot, and what happens without it.

import { ask, follow, live, quietly, stop } from "./api.js";
import { button, card, h, note, number, paint, percent, picture, scroller, select as choose } from "./dom.js";
import { chooser, columnsOf, isImage, rowsOf, shortened, viewOf } from "./rows.js";
import { chart, describe } from "./slots.js";
import { keep, model, state } from "./state.js";

const EXAMPLES = 20;
const QUICK = 50; // importance samples while a person tries slots
const FINE = 1000; // and when the hand rests
const REST = 400; // milliseconds
let parts = {};
let layers = []; // what is known of all slots, per layer
let charts = [];
let seen = null; // the latest look
let timer = 0;

export function open(root) {
  if (!model().memory.length) {
    root.append(card("No memory to look into", {}, h("p", {}, "This model was built without one. Choose a model with memory slots above, such as zoo:mnist-mem-vae.")));
    return;
  }
  parts = {};
  layers = model().memory.map(() => null);
  seen = null;
  charts = model().memory.map((layer, i) => chart(layer, i, { select, toggle, data: () => ({ known: layers[i], seen, place: i }) }));
  root.append(h("div", { class: "stack" }, benchCard(), slotCard()), h("div", { class: "stack" }, ...groupCard(), ...charts.map(layerCard)));
  begin();
}

export function close() {
  stop("values");
  clearTimeout(timer);
}

const begin = quietly(async () => {
  fillExamples();
  tell();
  if (!state.z && isImage(model())) state.z = (await ask("samples", { model: state.model, seed: state.seed, n: 1 })).z[0];
  if (state.z) look();
  else await takeExample(0);
  await readSlots();
});

// ---- bench

function benchCard() {
  parts.before = h("output", { class: "figure" }, "–");
  parts.after = h("output", { class: "figure" }, "–");
  parts.difference = h("output", { class: "figure large", id: "difference", "aria-live": "polite" }, "–");
  parts.change = h("p", { class: "change" }, "The change costs ", parts.difference, " nats of log p(x)");
  parts.hint = h("p", { class: "change" }, "Nothing is changed yet. Click a slot twice, or press S on it, to silence it.");
  parts.list = h("ul", { class: "chips", "aria-label": "Changes to the memory" });
  parts.examples = h("div", { class: "examples" });
  parts.examplesNote = note();
  parts.lookNote = note();
  parts.shown = isImage(model()) ? pictures() : cells();
  return card("On the bench", { class: "onbench" }, parts.shown.element, parts.change, parts.hint, parts.list, parts.lookNote,
    parts.examples, parts.examplesNote);
}

/** x, and the image of z with the memory intact and changed. */
function pictures() {
  const canvases = ["The image x whose log p is estimated", "The image of z, memory intact", "The image of z, memory as changed"].map((label) => picture(label));
  const captions = ["x", "memory intact", "as changed"];
  const values = [null, parts.before, parts.after];
  return {
    element: h("div", { class: "trio" }, ...canvases.map((canvas, i) => h("figure", {}, canvas, h("figcaption", {}, captions[i], values[i])))),
    show: (...rows) => rows.forEach((row, i) => paint(canvases[i], row, model())),
  };
}

function cells() {
  const place = scroller("The row on the bench");
  const titles = ["x", "Memory intact", "As changed"];
  const show = (x, ...decoded) => {
    const rows = [x, ...decoded.map(shortened)];
    place.replaceChildren(columnsOf(model(), titles, rows, (i, j) => (j === 2 && rows[1][i] !== rows[2][i] ? "new" : null)));
  };
  return { element: h("div", {}, place, h("p", { class: "measure" }, "Intact ", parts.before, h("br"), "As changed ", parts.after)), show };
}

const fillExamples = quietly(async () => {
  const answer = await ask("examples", { model: state.model, n: EXAMPLES });
  parts.examples.replaceChildren(chooser("Examples for the bench", rowsOf(answer.rows, model()), answer.labels, model(), takeExample));
  parts.examplesNote.textContent = answer.about;
});

const takeExample = quietly(async (i) => {
  const answer = await ask("encode", { model: state.model, row: i });
  state.z = answer.z;
  state.image = i;
  look();
  keep();
});

const lookBy = (samples) => {
  const changes = state.changes.map(({ other, ...change }) => ({ ...change, ...(other === null ? {} : { other }) }));
  return ask("look", { model: state.model, z: state.z, changes, samples, ...(state.image === null ? {} : { row: state.image }) });
};

const look = live(async () => {
  clearTimeout(timer);
  show(await lookBy(QUICK));
  timer = setTimeout(quietly(async () => show(await lookBy(FINE))), REST);
});

function show(answer) {
  seen = answer;
  const [intact, changed] = rowsOf(seen.means, model());
  parts.shown.show(rowsOf(seen.x, model())[0], intact, changed);
  parts.before.textContent = `log p(x) ${number(seen.log_p)}`;
  parts.after.textContent = `log p(x) ${number(seen.log_p_changed)}`;
  parts.difference.textContent = number(seen.log_p - seen.log_p_changed, 2);
  parts.difference.dataset.samples = seen.samples;
  const what = state.image === null ? "x is the likeliest image at z" : `x is ${isImage(model()) ? "image" : "row"} ${state.image}, z the mean of q(z|x)`;
  const means = isImage(model()) ? "" : " Beside it what the model decodes from z: means, and the likeliest level of a category.";
  parts.lookNote.textContent = `${what}.${means} log p(x) in nats by ${seen.samples.toLocaleString("en")} importance samples, with the same z before and after.`;
  if (state.slot === null) select(0, seen.attention[0].indexOf(Math.max(...seen.attention[0])));
  for (const one of charts) one.draw();
  showWeight();
}

// ---- changes

const same = (a, place, slot) => a.place === place && a.slot === slot && a.other === null;
const factorOf = (place, slot) => state.changes.find((c) => same(c, place, slot))?.factor ?? 1;

function setFactor(place, slot, factor) {
  state.changes = state.changes.filter((c) => !same(c, place, slot));
  if (factor !== 1) state.changes.push({ place, slot, factor, other: null });
  changed();
}

const toggle = (place, slot) => setFactor(place, slot, factorOf(place, slot) === 0 ? 1 : 0);

function swap(other) {
  const slots = model().memory[state.place].slots;
  if (!Number.isInteger(other) || other < 0 || other >= slots || other === state.slot) return;
  state.changes.push({ place: state.place, slot: state.slot, factor: 0, other });
  changed();
}

function changed() {
  tell();
  look();
  showSlot();
  keep();
}

function inWords({ place, slot, factor, other }) {
  const layer = model().memory[place].name;
  if (other !== null) return `${layer}: slots ${slot} and ${other} swapped`;
  const what = slot < 0 ? "all slots" : `slot ${slot}`;
  return factor === 0 ? `${layer}: ${what} silenced` : `${layer}: ${what} × ${number(factor, 1)}`;
}

function tell() {
  parts.list.replaceChildren(...state.changes.map((change, i) => h("li", {},
    button(`${inWords(change)} ✕`, () => { state.changes.splice(i, 1); changed(); }, { "aria-label": `Undo: ${inWords(change)}` }))));
  if (state.changes.length > 1) parts.list.append(h("li", {}, button("Undo all", () => { state.changes = []; changed(); }, { class: "main" })));
  model().memory.forEach((_, i) => parts[`layer${i}`].setAttribute("aria-pressed", String(factorOf(i, -1) === 0)));
  parts.list.hidden = parts.change.hidden = !state.changes.length;
  parts.hint.hidden = state.changes.length > 0;
}

// ---- layers

/** The heat map of a table is by a column with levels. */
function groupCard() {
  const columns = model().schema.filter((column) => column.levels.length);
  if (!columns.length) return [];
  const options = [["", "classes of the rows"], ...columns.map((column) => [column.name, column.name])];
  if (!columns.some((column) => column.name === state.by)) state.by = columns[0].name;
  return [card("Heat maps", {}, h("div", { class: "row" }, choose("by", "Which rows read which slot, by", options, state.by, (value) => { state.by = value; readSlots(); })))];
}

async function readSlots() {
  for (let i = 0; i < layers.length; i += 1) {
    const by = model().schema.length && state.by ? { by: state.by } : {};
    const answer = await ask("slots", { model: state.model, place: i, ...by }, `slots-${i}`);
    layers[i] = { ...answer, values: layers[i]?.values, rowsOfSlots: rowsOf(answer.pictures, model()) };
    charts[i].draw();
    parts[`usage${i}`].textContent = usage(layers[i]);
    if (i === state.place) showSlot();
  }
}

function layerCard(one, i) {
  const layer = model().memory[i];
  parts[`usage${i}`] = note("Reading what is known of its slots …");
  parts[`values${i}`] = note();
  parts[`readout${i}`] = h("p", { class: "readout" });
  return card(`${layer.name[0].toUpperCase()}${layer.name.slice(1)}, ${layer.slots} slots`, { class: "layer" },
    h("div", { class: "row" },
      (parts[`layer${i}`] = button("Silence the layer", () => toggle(i, -1), { "aria-pressed": "false" })),
      button("Measure the value of every slot", () => measure(i), { id: `measure-${i}` }), parts[`values${i}`]),
    one.element, parts[`readout${i}`], parts[`usage${i}`]);
}

function usage(known) {
  const by = known.classes ? `Below: the share of its attention that each class gives to each slot, mean over ${known.rows.toLocaleString("en")} rows.` : "The rows have no classes, so there is no heat map.";
  const dead = known.dead.length ? `${known.dead.length} are never read` : "none is dead";
  return `Bars: the attention that the ${isImage(model()) ? "image" : "row"} pays to each slot, before (line) and after (filled) your changes. ${by} The attention of a row is spread as if over ${number(known.effective, 1)} slots, in the mean; ${dead}.`;
}

const measure = quietly(async (i) => {
  const line = parts[`values${i}`];
  await follow("/api/values", { model: state.model, place: i }, "values", (name, value) => {
    if (name === "progress") line.textContent = `Silencing slot by slot: ${value[1] ? percent(value[0] / value[1]) : "…"}`;
    if (name === "failed") line.textContent = value.error;
    if (name === "result" && layers[i]) {
      layers[i].values = value;
      line.textContent = `Value: what log p(x) loses without the slot, in nats; mean over ${value.rows} rows, ${value.samples} samples each.`;
      charts[i].draw();
      showSlot();
    }
  });
});

// ---- one slot

function slotCard() {
  parts.slotTitle = h("h2", {}, "Slot");
  parts.slotView = viewOf("The slot alone, decoded", model());
  parts.slotFacts = h("dl", { class: "facts-list" });
  parts.weight = h("output", {}, "");
  parts.factor = h("input", { type: "range", min: 0, max: 5, step: 0.1, value: 1, id: "factor", input: () => setFactor(state.place, state.slot, Number(parts.factor.value)) });
  parts.factorValue = h("output", { for: "factor" }, "× 1.0");
  parts.other = h("input", { type: "number", min: 0, value: 0, id: "other" });
  parts.silence = button("Silence", () => toggle(state.place, state.slot), { class: "main", id: "silence" });
  parts.nearest = h("div", { class: "nearest" });
  parts.nearestNote = note();
  const rows = isImage(model()) ? "images" : "rows";
  return h("section", { class: "card slot", "aria-live": "off" }, parts.slotTitle,
    h("div", { class: isImage(model()) ? "pair" : "pair cells" }, h("figure", {}, parts.slotView.element, h("figcaption", {}, "the slot alone, decoded")), parts.slotFacts),
    h("div", { class: "row" }, parts.silence,
      h("label", { for: "factor" }, "Amplify ", parts.factor), parts.factorValue),
    h("div", { class: "row" }, h("label", { for: "other" }, "Swap with slot ", parts.other), button("Swap", () => swap(Number(parts.other.value)), { id: "swap" })),
    h("h3", {}, `Nearest ${rows}`), parts.nearest, parts.nearestNote);
}

function select(place, slot) {
  const before = [state.place, state.slot];
  [state.place, state.slot] = [place, slot];
  for (const one of charts) one.draw();
  if (before[0] !== place || before[1] !== slot) showSlot();
  keep();
}

function showWeight() {
  const weight = seen?.changed[state.place]?.[state.slot];
  parts.weight.textContent = weight === undefined ? "–" : number(weight, 3);
  charts.forEach((_, i) => {
    const chosen = i === state.place;
    const words = chosen && layers[i] ? describe(layers[i], state.slot).map(([term, value]) => `${term.toLowerCase()} ${value}`).join(" · ") : "";
    parts[`readout${i}`].textContent = chosen ? `Slot ${state.slot} · weight ${parts.weight.textContent} · ${words}` : "Choose a slot: click a column, or use the arrow keys.";
  });
}

function showSlot() {
  const { place, slot } = state;
  if (slot === null) return;
  const layer = model().memory[place];
  const known = layers[place];
  parts.slotTitle.textContent = `Slot ${slot} of ${layer.name}`;
  const factor = factorOf(place, slot);
  parts.factor.value = factor;
  parts.factorValue.textContent = `× ${number(factor, 1)}`;
  parts.silence.textContent = factor === 0 ? "Restore" : "Silence";
  parts.other.max = layer.slots - 1;
  showWeight();
  if (!known?.rowsOfSlots[slot]) return;
  parts.slotView.show(known.rowsOfSlots[slot]);
  const lines = [["Weight now", parts.weight], ["Mean share of attention", percent(known.share[slot])], ...describe(known, slot)];
  parts.slotFacts.replaceChildren(...lines.flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
  if (parts.near !== `${place}-${slot}`) showNearest(place, slot);
}

const showNearest = quietly(async (place, slot) => {
  parts.near = `${place}-${slot}`;
  const answer = await ask("nearest", { model: state.model, place, slot });
  const rows = rowsOf(answer.rows, model());
  if (isImage(model())) {
    parts.nearest.replaceChildren(h("div", { class: "tiles near" }, ...rows.map((row, i) => {
      const canvas = picture(`Nearest image ${i + 1}, distance ${answer.distances[i]}`);
      paint(canvas, row, model());
      return h("figure", {}, canvas, h("figcaption", {}, number(answer.distances[i], 1)));
    })));
  } else {
    parts.nearest.replaceChildren(scroller("Nearest rows",
      columnsOf(model(), answer.distances.map((distance) => `Distance ${number(distance, 1)}`), rows)));
  }
  const units = isImage(model()) ? "" : ", numbers in standard deviations of their column";
  parts.nearestNote.textContent = `Nearest to the slot among ${answer.where}, by Euclidean distance${units}.`;
});
