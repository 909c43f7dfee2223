// Inside the memory: what the image on the bench reads from every slot, and what happens without it.

import { ask, follow, live, quietly, stop } from "./api.js";
import { button, bytes, card, h, note, nth, number, paint, percent, picture, pictureButton } from "./dom.js";
import { chart, describe } from "./slots.js";
import { keep, model, state } from "./state.js";

const IMAGES = 20;
let parts = {};
let layers = []; // what is known of all slots, per layer
let charts = [];
let seen = null; // the latest look

export function open(root, frame) {
  if (!model().memory.length) {
    root.append(card("No memory to look into", {}, h("p", {}, "This model was built without one. Choose a model with memory slots above, such as zoo:mnist-mem-vae.")));
    return;
  }
  if (!model().shape.length) {
    root.append(card("A model of a table", {}, h("p", {}, "This panel shows images. For the memory of a table's model use memgen inspect."),
      button("Go to Tables", () => frame.go("tables"))));
    return;
  }
  parts = {};
  layers = model().memory.map(() => null);
  seen = null;
  charts = model().memory.map((layer, i) => chart(layer, i, { select, toggle, data: () => ({ known: layers[i], seen, place: i }) }));
  root.append(h("div", { class: "stack" }, benchCard(), slotCard()), h("div", { class: "stack" }, ...charts.map((own, i) => layerCard(own, i))));
  begin();
}

export const close = () => stop("values");

const begin = quietly(async () => {
  fillStrip();
  if (!state.z) state.z = (await ask("samples", { model: state.model, seed: state.seed, n: 1 })).z[0];
  tell();
  look();
  for (let i = 0; i < layers.length; i += 1) {
    layers[i] = await ask("slots", { model: state.model, place: i }, `slots-${i}`);
    layers[i].pixels = bytes(layers[i].pictures);
    charts[i].draw();
    parts[`usage${i}`].textContent = usage(layers[i]);
    if (i === state.place) showSlot();
  }
});

// ---- bench

function benchCard() {
  parts.intact = picture("The image of z, memory intact");
  parts.changed = picture("The image of z, memory as changed");
  parts.scored = picture("The image x whose log p is estimated");
  parts.before = h("output", { class: "figure" }, "–");
  parts.after = h("output", { class: "figure" }, "–");
  parts.difference = h("output", { class: "figure large", id: "difference", "aria-live": "polite" }, "–");
  parts.change = h("p", { class: "change" }, "The change costs ", parts.difference, " nats of log p(x)");
  parts.hint = h("p", { class: "change" }, "Nothing is changed yet. Click a slot twice, or press S on it, to silence it.");
  parts.list = h("ul", { class: "chips", "aria-label": "Changes to the memory" });
  parts.strip = h("div", { class: "tiles strip", role: "group", "aria-label": "Images for the bench" });
  parts.stripNote = note();
  parts.lookNote = note();
  const stand = (canvas, title, more) => h("figure", {}, canvas, h("figcaption", {}, title, more));
  return card("On the bench", { class: "onbench" },
    h("div", { class: "trio" }, stand(parts.scored, "x"), stand(parts.intact, "memory intact", parts.before), stand(parts.changed, "as changed", parts.after)),
    parts.change, parts.hint,
    parts.list, parts.lookNote, parts.strip, parts.stripNote);
}

const fillStrip = quietly(async () => {
  const own = model();
  const found = await ask("images", { model: state.model, n: IMAGES });
  const pixels = bytes(found.images);
  parts.strip.replaceChildren(...Array.from({ length: found.count }, (_, i) =>
    pictureButton(`Image ${i}${found.labels ? `, class ${found.labels[i]}` : ""}`, nth(pixels, i, own.columns), own, () => takeImage(i))));
  parts.stripNote.textContent = found.about;
});

const takeImage = quietly(async (i) => {
  const found = await ask("encode", { model: state.model, image: i });
  state.z = found.z;
  state.image = i;
  look();
  keep();
});

const look = live(async () => {
  const own = model();
  const changes = state.changes.map(({ place, slot, factor, other }) => ({ place, slot, factor, ...(other === null ? {} : { other }) }));
  seen = await ask("look", { model: state.model, z: state.z, changes, ...(state.image === null ? {} : { image: state.image }) });
  paint(parts.scored, bytes(seen.x), own);
  paint(parts.intact, bytes(seen.image), own);
  paint(parts.changed, bytes(seen.image_changed), own);
  parts.before.textContent = `log p(x) ${number(seen.log_p)}`;
  parts.after.textContent = `log p(x) ${number(seen.log_p_changed)}`;
  parts.difference.textContent = number(seen.log_p - seen.log_p_changed, 2);
  parts.difference.dataset.count = Number(parts.difference.dataset.count ?? 0) + 1;
  const what = state.image === null ? "x is the likeliest image at z" : `x is image ${state.image}, z the mean of q(z|x)`;
  parts.lookNote.textContent = `${what}. log p(x) in nats by ${seen.samples} importance samples, with the same z before and after.`;
  if (state.slot === null) select(0, seen.attention[0].indexOf(Math.max(...seen.attention[0])));
  for (const own of charts) own.draw();
  showWeight();
});

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

function tell() {
  const name = (place) => model().memory[place].name;
  const words = ({ place, slot, factor, other }) => {
    if (other !== null) return `${name(place)}: slots ${slot} and ${other} swapped`;
    const what = slot < 0 ? "all slots" : `slot ${slot}`;
    return factor === 0 ? `${name(place)}: ${what} silenced` : `${name(place)}: ${what} × ${number(factor, 1)}`;
  };
  parts.list.replaceChildren(...state.changes.map((change, i) => h("li", {},
    button(`${words(change)} ✕`, () => { state.changes.splice(i, 1); changed(); }, { "aria-label": `Undo: ${words(change)}` }))));
  if (state.changes.length > 1) parts.list.append(h("li", {}, button("Undo all", () => { state.changes = []; changed(); }, { class: "main" })));
  model().memory.forEach((_, i) => parts[`layer${i}`].setAttribute("aria-pressed", String(factorOf(i, -1) === 0)));
  parts.list.hidden = parts.change.hidden = !state.changes.length;
  parts.hint.hidden = state.changes.length > 0;
}

// ---- layers

function layerCard(own, i) {
  const layer = model().memory[i];
  parts[`usage${i}`] = note("Reading what is known of its slots …");
  parts[`values${i}`] = note();
  parts[`readout${i}`] = h("p", { class: "readout" });
  return card(`${layer.name[0].toUpperCase()}${layer.name.slice(1)}, ${layer.slots} slots`, { class: "layer" },
    h("div", { class: "row" },
      (parts[`layer${i}`] = button("Silence the layer", () => toggle(i, -1), { "aria-pressed": "false" })),
      button("Measure the value of every slot", () => measure(i), { id: `measure-${i}` }), parts[`values${i}`]),
    own.element, parts[`readout${i}`], parts[`usage${i}`]);
}

function usage(found) {
  const by = found.classes ? `Below: the share of its attention that each class gives to each slot, mean over ${found.rows.toLocaleString("en")} rows.` : "The rows have no classes, so there is no map of classes.";
  const dead = found.dead.length ? `${found.dead.length} are never read` : "none is dead";
  return `Bars: the attention that the image pays to each slot, before (line) and after (filled) your changes. ${by} The attention of a row is spread as if over ${number(found.effective, 1)} slots, in the mean; ${dead}.`;
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
  parts.slotPicture = picture("The picture of the slot");
  parts.slotFacts = h("dl", { class: "facts-list" });
  parts.weight = h("output", {}, "");
  parts.factor = h("input", { type: "range", min: 0, max: 5, step: 0.1, value: 1, id: "factor", input: () => setFactor(state.place, state.slot, Number(parts.factor.value)) });
  parts.factorValue = h("output", { for: "factor" }, "× 1.0");
  parts.other = h("input", { type: "number", min: 0, value: 0, id: "other" });
  parts.silence = button("Silence", () => toggle(state.place, state.slot), { class: "main", id: "silence" });
  parts.nearest = h("div", { class: "tiles near" });
  parts.nearestNote = note();
  return h("section", { class: "card slot", "aria-live": "off" }, parts.slotTitle,
    h("div", { class: "pair" }, h("figure", {}, parts.slotPicture, h("figcaption", {}, "the slot alone, decoded")), parts.slotFacts),
    h("div", { class: "row" }, parts.silence,
      h("label", { for: "factor" }, "Amplify ", parts.factor), parts.factorValue,
      h("label", { for: "other" }, "Swap with ", parts.other), button("Swap", () => swap(Number(parts.other.value)))),
    h("h3", {}, "Nearest images"), parts.nearest, parts.nearestNote);
}

function select(place, slot) {
  const before = [state.place, state.slot];
  [state.place, state.slot] = [place, slot];
  for (const own of charts) own.draw();
  if (before[0] !== place || before[1] !== slot) showSlot();
  keep();
}

function showWeight() {
  const own = seen?.changed[state.place]?.[state.slot];
  parts.weight.textContent = own === undefined ? "–" : number(own, 3);
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
  const found = layers[place];
  parts.slotTitle.textContent = `Slot ${slot} of ${layer.name}`;
  const factor = factorOf(place, slot);
  parts.factor.value = factor;
  parts.factorValue.textContent = `× ${number(factor, 1)}`;
  parts.silence.textContent = factor === 0 ? "Restore" : "Silence";
  parts.other.max = layer.slots - 1;
  showWeight();
  if (!found) return;
  paint(parts.slotPicture, nth(found.pixels, slot, model().columns), model());
  const rows = [["Weight now", parts.weight], ["Mean share of attention", percent(found.share[slot])], ...describe(found, slot)];
  parts.slotFacts.replaceChildren(...rows.flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
  if (parts.near !== `${place}-${slot}`) showNearest(place, slot);
}

const showNearest = quietly(async (place, slot) => {
  parts.near = `${place}-${slot}`;
  const own = model();
  const found = await ask("nearest", { model: state.model, place, slot });
  const pixels = bytes(found.images);
  parts.nearest.replaceChildren(...Array.from({ length: found.count }, (_, i) => {
    const canvas = picture(`Nearest image ${i + 1}, distance ${found.distances[i]}`);
    paint(canvas, nth(pixels, i, own.columns), own);
    return h("figure", {}, canvas, h("figcaption", {}, number(found.distances[i], 1)));
  }));
  parts.nearestNote.textContent = `Nearest to the slot's picture among ${found.where}, by Euclidean distance.`;
});
