// The chart of a layer: a bar for every slot, and below it what the classes read of it.

import { colour, font, h, number, percent, rgb, sharp, unit } from "./dom.js";
import { state } from "./state.js";

// In pixels, at the usual size of text.
let BARS = 96;
let ROW = 13;
let VALUES = 34;
let GAP = 6;
let LEFT = 44;
const NARROWEST = matchMedia("(pointer: coarse)").matches ? 15 : 9;

/** The slot's favourite classes and its value, in words. */
export function describe(known, slot) {
  const rows = [];
  if (known.classes) {
    const order = known.labels.map((label, i) => [known.classes[i][slot], label]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    rows.push(["Favourite classes", order.map(([part, label]) => `${label} (${percent(part)})`).join(", ")]);
  }
  if (known.values) {
    const error = known.values.standard_error[slot];
    rows.push(["Value", `${number(known.values.mean[slot], 3)} ± ${number(error, 3)} nats`]);
  } else {
    rows.push(["Value", "not measured yet"]);
  }
  return rows;
}

/** An element that is moved through with the arrow keys, and its draw(). */
export function chart(layer, place, { select, toggle, data }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const focus = h("div", { class: "chart", tabindex: 0, role: "slider", "aria-label": `Slots of ${layer.name}. Arrow keys choose a slot, S silences it.`,
    "aria-valuemin": 0, "aria-valuemax": layer.slots - 1, "aria-valuenow": 0 }, canvas);
  const element = h("div", { class: "scroller" }, focus);
  const current = () => (state.place === place ? state.slot ?? 0 : 0);
  const one = { element, width: 0 };

  const slotAt = (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left - LEFT;
    return Math.max(0, Math.min(layer.slots - 1, Math.floor(x / one.width)));
  };
  canvas.addEventListener("click", (event) => {
    const slot = slotAt(event);
    if (state.place === place && state.slot === slot) toggle(place, slot);
    else select(place, slot);
    focus.focus({ preventScroll: true });
  });
  canvas.addEventListener("dblclick", (event) => event.preventDefault());
  focus.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
    if (step) select(place, Math.max(0, Math.min(layer.slots - 1, current() + step)));
    else if (event.key === "Home") select(place, 0);
    else if (event.key === "End") select(place, layer.slots - 1);
    else if (event.key === "s" || event.key === "S" || event.key === " " || event.key === "Enter") toggle(place, current());
    else return;
    event.preventDefault();
    element.scrollLeft = LEFT + current() * one.width - element.clientWidth / 2; // where the chart is wider than the screen
  });

  one.draw = () => draw(one, canvas, focus, layer, current(), data());
  canvas.painted = one.draw;
  return one;
}

/** Sizes follow the size of text. */
function scale() {
  [BARS, ROW, VALUES, GAP, LEFT] = [96, 13, 34, 6, 44].map((v) => Math.round(v * unit()));
}

function draw(one, canvas, focus, layer, slot, { known, seen, place }) {
  scale();
  const room = one.element.clientWidth - LEFT - 16; // an outline around it, too
  if (room <= 0) return;
  one.width = Math.max(NARROWEST, Math.min(40 * unit(), room / layer.slots));
  const classes = known?.classes ?? null;
  const values = known?.values ?? null;
  const total = one.width * layer.slots;
  const valuesTop = BARS + GAP;
  const mapTop = valuesTop + (values ? VALUES + GAP : 0);
  const height = mapTop + (classes ? classes.length * ROW : 0) + Math.round(16 * unit());
  const context = sharp(canvas, LEFT + total, height);
  context.font = font(11);
  context.textBaseline = "middle";
  context.textAlign = "right";
  const before = seen?.attention[place] ?? [];
  const after = seen?.changed[place] ?? [];
  const most = Math.max(1e-6, ...before, ...after);
  const atSlot = (i) => LEFT + i * one.width;
  if (state.place === place && state.slot !== null) {
    context.fillStyle = colour("accent-soft");
    context.fillRect(atSlot(slot), 0, one.width, height);
  }
  bars(context, before, after, most, atSlot, one.width);
  context.fillStyle = colour("soft");
  context.fillText(number(most, 2), LEFT - 6, 8 * unit());
  context.fillText("0", LEFT - 6, BARS - 4);
  if (values) valueBars(context, values.mean, valuesTop, atSlot, one.width);
  if (classes) heat(context, classes, known.labels, mapTop, atSlot, one.width);
  context.textAlign = "center";
  context.fillStyle = colour("soft");
  const every = one.width * 5 > 24 * unit() ? 5 : 10;
  for (let i = 0; i < layer.slots; i += every) context.fillText(String(i), atSlot(i) + one.width / 2, height - 7 * unit());
  marks(context, place, atSlot, one.width);
  focus.setAttribute("aria-valuenow", slot);
  const facts = known ? describe(known, slot).map(([term, value]) => `${term} ${value}`).join(", ") : "";
  focus.setAttribute("aria-valuetext", `slot ${slot}, weight ${number(after[slot] ?? 0, 3)}, ${facts}`);
}

function bars(context, before, after, most, at, width) {
  const inner = Math.max(2, width - 3);
  after.forEach((v, i) => {
    const tall = (v / most) * (BARS - 4);
    context.fillStyle = colour("accent");
    context.fillRect(at(i) + 1.5, BARS - tall, inner, tall);
  });
  context.fillStyle = colour("ink");
  before.forEach((v, i) => {
    if (v !== after[i]) context.fillRect(at(i) + 0.5, BARS - (v / most) * (BARS - 4) - 1, inner + 2, 2);
  });
  context.fillStyle = colour("line");
  context.fillRect(LEFT, BARS, before.length * width, 1);
}

function valueBars(context, mean, top, at, width) {
  const high = Math.max(1e-6, ...mean.map(Math.abs));
  const zero = top + VALUES * (Math.max(0, ...mean) / (Math.max(0, ...mean) - Math.min(0, ...mean) || 1));
  const scale = VALUES / (Math.max(0, ...mean) - Math.min(0, ...mean) || 1);
  context.fillStyle = colour("soft");
  context.fillText("nats", LEFT - 6, top + 8 * unit());
  context.fillText(number(high, high < 0.1 ? 3 : 2), LEFT - 6, top + 22 * unit());
  mean.forEach((v, i) => context.fillRect(at(i) + 1.5, Math.min(zero, zero - v * scale), Math.max(2, width - 3), Math.max(1, Math.abs(v * scale))));
}

function heat(context, classes, labels, top, at, width) {
  const [r, g, b] = rgb(colour("accent"));
  const high = Math.max(1e-6, ...classes.flat());
  classes.forEach((row, c) => {
    row.forEach((v, i) => {
      context.fillStyle = `rgba(${r}, ${g}, ${b}, ${0.05 + 0.95 * (v / high)})`;
      context.fillRect(at(i) + 0.5, top + c * ROW, width - 1, ROW - 1);
    });
    context.fillStyle = colour("soft");
    context.fillText(labels[c].slice(0, 6), LEFT - 6, top + c * ROW + ROW / 2);
  });
}

/** A mark over what is changed: × silenced, ↑ or ↓ amplified or damped, ⇄ swapped. */
function marks(context, place, at, width) {
  context.fillStyle = colour("ink");
  context.font = font(13);
  const rows = new Map(); // marks on a slot so far: they stand above each other
  for (const { place: where, slot, factor, other } of state.changes) {
    if (where !== place || slot < 0) continue;
    const sign = other !== null ? "⇄" : factor === 0 ? "×" : factor > 1 ? "↑" : "↓";
    for (const chosen of other === null ? [slot] : [slot, other]) {
      const row = rows.get(chosen) ?? 0;
      rows.set(chosen, row + 1);
      context.fillText(sign, at(chosen) + width / 2, BARS - (9 + 13 * row) * unit());
    }
  }
}
