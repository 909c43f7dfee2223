// Complete: erase a part of an image, and see what a model puts there.

import { ask, quietly } from "./api.js";
import { button, bytes, card, choice, h, hex, note, nth, number, paint, percent, picture, pictureButton, select } from "./dom.js";
import { keep, model, models, state } from "./state.js";

const IMAGES = 24;
let parts = {};
let pixels = null; // of the image
let drawn = false; // whether they were drawn by hand
let tool = "erase";
let brush = 2;
let steps = 200;
let cursor = [0, 0];
let timer = 0;

export function open(root, frame) {
  if (!model().shape.length) {
    root.append(card("A model of a table", {}, h("p", {}, "Missing cells are filled in in the panel Tables."), button("Go to Tables", () => frame.go("tables"), { class: "main" })));
    return;
  }
  parts = { results: h("div", { class: "results" }) };
  pixels = null;
  drawn = false;
  cursor = [model().shape[0] >> 1, model().shape[1] >> 1];
  root.append(editorCard(), parts.results);
  fillStrip();
  takeImage(state.shown, state.hidden === null);
}

export const close = () => clearTimeout(timer);

// ---- the image

function editorCard() {
  const current = model();
  parts.editor = h("canvas", { class: "picture editor", tabindex: 0, role: "application",
    "aria-label": "The image. Brush with the pointer; or move with the arrow keys and press space to use the brush." });
  parts.strip = h("div", { class: "tiles strip", role: "group", "aria-label": "Images" });
  parts.stripNote = note();
  parts.status = h("p", { class: "note", role: "status" }, "");
  const others = models.map((one, i) => [one, i]).filter(([one, i]) => i !== state.model && one.columns === current.columns && String(one.shape) === String(current.shape));
  if (!others.some(([, i]) => i === state.beside)) state.beside = others.length ? others[0][1] : -1;
    const size = h("input", { type: "range", min: 1, max: 6, step: 1, value: brush, id: "brush", input: () => { brush = Number(size.value); } });
  listen();
  return card("The image", { class: "edit" },
    h("div", { class: "stage" }, parts.editor),
    h("div", { class: "row" }, choice("Tool", [["erase", "Erase"], ["restore", "Restore"], ["draw", "Draw"], ["rub", "Rub out"]], tool, (value) => { tool = value; }),
      h("label", { for: "brush" }, "Brush ", size)),
    h("div", { class: "row", role: "group", "aria-label": "Patterns" },
      ...current.patterns.map((name) => button(name.toUpperCase(), () => usePattern(name))),
      button("Nothing erased", () => { state.hidden.fill(0); refresh(); }),
      button("Blank sheet", blank)),
    h("div", { class: "row" },
      select("beside", "Beside it", [[-1, "nothing"], ...others.map(([one, i]) => [i, one.name])], state.beside, (value) => { state.beside = Number(value); complete(); }),
      select("steps", "Steps", [50, 100, 200, 400].map((n) => [n, n]), steps, (value) => { steps = Number(value); complete(); })),
    parts.status, parts.strip, parts.stripNote);
}

const fillStrip = quietly(async () => {
  const current = model();
  const answer = await ask("examples", { model: state.model, n: IMAGES }, "strip");
  const all = bytes(answer.rows);
  parts.strip.replaceChildren(...Array.from({ length: answer.count }, (_, i) =>
    pictureButton(`Image ${i}${answer.labels ? `, class ${answer.labels[i]}` : ""}`, nth(all, i, current.columns), current, () => takeImage(i))));
  parts.stripNote.textContent = `${answer.about} Shift the brush over the image to erase; what is erased is not told to the model.`;
});

const takeImage = quietly(async (i, fresh = false) => {
  const answer = await ask("examples", { model: state.model, first: i, n: 1 }, "image");
  if (!answer.count) return;
  pixels = bytes(answer.rows).slice();
  state.shown = i;
  drawn = false;
  if (fresh || !state.hidden || state.hidden.length !== model().columns) {
    state.hidden = new Uint8Array(model().columns);
    await usePattern(model().patterns.at(-1));
    return;
  }
  refresh();
});

const usePattern = quietly(async (pattern) => {
  const answer = await ask("pattern", { model: state.model, pattern });
  state.hidden = Uint8Array.from(answer.hidden, Number);
  refresh();
});

function blank() {
  pixels = new Uint8Array(model().columns);
  drawn = true;
  state.hidden.fill(0);
  tool = "draw";
  parts.editor.closest(".card").querySelector(".choice").press("draw");
  refresh();
}

/** The image has changed: show it, and complete it when the hand rests. */
function refresh(wait = 0) {
  show();
  keep();
  clearTimeout(timer);
  timer = setTimeout(complete, wait);
}

function show() {
  const [height, width, channels = 1] = model().shape;
  const hidden = Uint8Array.from({ length: height * width }, (_, i) => state.hidden[i * channels]);
  paint(parts.editor, pixels, model(), { hidden });
  parts.editor.painted = show;
  const count = hidden.reduce((sum, v) => sum + v, 0);
  parts.status.textContent = `${count} of ${height * width} pixels erased${drawn ? ", drawn by hand" : `, image ${state.shown}`}.`;
}

// ---- the brush

function listen() {
  let held = false;
  const at = (event) => {
    const box = parts.editor.getBoundingClientRect();
    const [height, width] = model().shape;
    stroke(Math.floor(((event.clientY - box.top) / box.height) * height), Math.floor(((event.clientX - box.left) / box.width) * width));
  };
  parts.editor.addEventListener("pointerdown", (event) => { held = true; parts.editor.setPointerCapture(event.pointerId); at(event); });
  parts.editor.addEventListener("pointermove", (event) => held && at(event));
  for (const end of ["pointerup", "pointercancel"]) parts.editor.addEventListener(end, () => { held = false; });
  parts.editor.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (step) cursor = cursor.map((v, i) => Math.max(0, Math.min(model().shape[i] - 1, v + step[i])));
    else if (event.key !== " ") return;
    event.preventDefault();
    if (event.key === " ") stroke(...cursor);
    parts.status.textContent = `Brush at row ${cursor[0] + 1}, column ${cursor[1] + 1}.`;
  });
}

function stroke(row, column) {
  if (!pixels || !state.hidden) return;
  const [height, width, channels = 1] = model().shape;
  const reach = tool === "draw" ? brush / 2 : brush;
  for (let y = Math.max(0, Math.ceil(row - reach)); y <= Math.min(height - 1, row + reach); y += 1) {
    for (let x = Math.max(0, Math.ceil(column - reach)); x <= Math.min(width - 1, column + reach); x += 1) {
      if ((y - row) ** 2 + (x - column) ** 2 > reach * reach + 0.3) continue;
      for (let c = 0; c < channels; c += 1) touch((y * width + x) * channels + c);
    }
  }
  refresh(180);
}

function touch(i) {
  if (tool === "erase") state.hidden[i] = 1;
  else state.hidden[i] = 0;
  if (tool === "draw" || tool === "rub") {
    pixels[i] = tool === "draw" ? 255 : 0;
    drawn = true;
  }
}

// ---- completions

const complete = quietly(async () => {
  if (!pixels) return;
  const chosen = [state.model, ...(models[state.beside] && state.beside !== state.model ? [state.beside] : [])];
  while (parts.results.children.length > chosen.length) parts.results.lastChild.remove();
  for (const which of chosen.slice(parts.results.children.length)) {
    parts.results.append(card(models[which].name, { class: "result" }, note("Completing …")));
  }
  const hidden = Array.from(state.hidden).join("");
  const image = drawn ? { pixels: hex(pixels) } : { row: state.shown };
  await Promise.all(chosen.map((which, i) => completeBy(which, i, { model: which, hidden, steps, ...image })));
});

const completeBy = quietly(async (which, i, body) => {
  const answer = await ask("complete", body, `complete-${i}`);
  parts.results.children[i]?.replaceWith(result(models[which], answer));
});

function result(chosen, answer) {
  const stand = (values, title, options = {}) => {
    const canvas = picture(title);
    paint(canvas, values, chosen, options);
    return h("figure", {}, canvas, h("figcaption", {}, title));
  };
  const all = bytes(answer.completions);
  const completions = answer.weights.map((weight, i) => stand(nth(all, i, chosen.columns), percent(weight)));
  const few = answer.effective !== null && answer.effective < 5 ? " Few states carry the answer: more steps would help." : "";
  return card(chosen.name, { class: "result" },
    h("div", { class: "duo" }, stand(bytes(answer.mean), "mean of all"), stand(bytes(answer.spread), "where they differ", { tint: true })),
    h("h3", {}, "Completions and their weights"), h("div", { class: "tiles completions" }, ...completions),
    h("p", { class: "measure" }, "log p(visible) ", h("output", { class: "figure" }, number(answer.log_visible)), " nats"),
    note(`${answer.draws} draws from ${answer.steps} steps, as by memgen impute; a weight is the fraction of the draws that this completion got. ${number(answer.effective, 1)} effective states.${few} Where they differ: twice the standard deviation of each pixel. ${Math.round(1000 * answer.seconds)} ms.`));
}
