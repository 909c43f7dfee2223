// What is looked at, and how it stands in the address, so that a view can be shared.

export const state = {
  panel: "generate",
  model: 0,
  beside: 1,
  seed: 0,
  draw: false,
  label: "", // the class whose rows give z; "" for the prior
  hold: 0, // levels that all samples share
  z: null, // of the bench
  image: null, // of the pool, if the bench holds one as it is
  changes: [], // {place, slot, factor, other}
  place: 0,
  slot: null, // none chosen yet
  by: "", // the column of a table that groups the rows of a heat map
  shown: 0, // the image that is completed
  hidden: null, // which of its pixels are erased
};

export let models = [];
export const setModels = (served) => { models = served; };
export const model = () => models[state.model];

const SCALE = 1000;

const unpadded = (text) => text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const padded = (text) => text.replaceAll("-", "+").replaceAll("_", "/");

function fromCode(z) {
  const numbers = Int16Array.from(z, (v) => Math.max(-32000, Math.min(32000, Math.round(v * SCALE))));
  return unpadded(btoa(String.fromCharCode(...new Uint8Array(numbers.buffer))));
}

function toCode(text) {
  const raw = Uint8Array.from(atob(padded(text)), (c) => c.charCodeAt(0));
  return Array.from(new Int16Array(raw.buffer.slice(0, raw.length - (raw.length % 2))), (v) => v / SCALE);
}

function fromBits(bits) {
  const packed = new Uint8Array(Math.ceil(bits.length / 8));
  bits.forEach((bit, i) => { if (bit) packed[i >> 3] |= 1 << (i & 7); });
  return unpadded(btoa(String.fromCharCode(...packed)));
}

function toBits(text, length) {
  const packed = Uint8Array.from(atob(padded(text)), (c) => c.charCodeAt(0));
  return Uint8Array.from({ length }, (_, i) => (packed[i >> 3] >> (i & 7)) & 1);
}

const fromChanges = (changes) => changes.map((c) => [c.place, c.slot, c.factor, c.other ?? ""].join("_")).join("*");
const toChanges = (text) => text.split("*").filter(Boolean).slice(0, 64).map((part) => {
  const [place, slot, factor, other] = part.split("_");
  return { place: Number(place), slot: Number(slot), factor: Number(factor), other: other ? Number(other) : null };
}).filter((c) => [c.place, c.slot, c.factor, c.other ?? 0].every(Number.isFinite));

export function address() {
  const fields = new URLSearchParams({ panel: state.panel, model: models[state.model].name });
  if (models[state.beside]) fields.set("beside", models[state.beside].name);
  if (state.seed) fields.set("seed", state.seed);
  if (state.draw) fields.set("draw", 1);
  if (state.label) fields.set("class", state.label);
  if (state.hold) fields.set("hold", state.hold);
  if (state.by) fields.set("by", state.by);
  if (state.z) fields.set("z", fromCode(state.z));
  if (state.image !== null) fields.set("image", state.image);
  if (state.changes.length) fields.set("changes", fromChanges(state.changes));
  if (state.slot !== null) fields.set("slot", `${state.place}_${state.slot}`);
  if (state.shown) fields.set("shown", state.shown);
  if (state.hidden?.some(Boolean)) fields.set("hidden", fromBits(state.hidden));
  return fields;
}

let waiting = 0;
/** The address follows what is looked at, a little later: browsers limit how often it may change. */
export function keep() {
  clearTimeout(waiting);
  waiting = setTimeout(() => history.replaceState(null, "", `#${address()}`), 200);
}

/** What an address says, as far as it makes sense. */
export function restore(text) {
  const fields = new URLSearchParams(text);
  const named = (key, otherwise) => {
    const index = models.findIndex((one) => one.name === fields.get(key));
    return index < 0 ? otherwise : index;
  };
  state.model = named("model", 0);
  state.beside = named("beside", state.model === 0 ? Math.min(1, models.length - 1) : 0);
  const whole = (key, otherwise) => (/^\d{1,9}$/.test(fields.get(key) ?? "") ? Number(fields.get(key)) : otherwise);
  state.panel = fields.get("panel") ?? state.panel;
  state.seed = whole("seed", 0);
  state.draw = fields.get("draw") === "1";
  state.label = fields.get("class") ?? "";
  state.by = fields.get("by") ?? "";
  state.hold = Math.min(whole("hold", 0), models[state.model].latent.length - 1);
  state.image = whole("image", null);
  state.shown = whole("shown", 0);
  try {
    state.z = fields.has("z") ? toCode(fields.get("z")) : null;
    if (state.z?.length !== models[state.model].latent[0]) state.z = null;
    state.changes = toChanges(fields.get("changes") ?? "");
    state.hidden = fields.has("hidden") ? toBits(fields.get("hidden"), model().columns) : null;
  } catch {
    Object.assign(state, { z: null, changes: [], hidden: null }); // an address that was cut short
  }
  const layers = models[state.model].memory;
  state.changes = state.changes.filter((c) => c.place < layers.length && c.slot < layers[c.place].slots);
  const [place, slot] = (fields.get("slot") ?? "").split("_").map(Number);
  [state.place, state.slot] = layers[place]?.slots > slot && slot >= 0 ? [place, slot] : [0, null];
}
