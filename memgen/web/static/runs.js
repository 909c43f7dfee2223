// Runs: curves that go on while a model trains, and settings side by side.

import { follow, shownToken, stop } from "./api.js";
import { card, choice, colour, font, h, note, number, scroller, sharp, unit } from "./dom.js";

const TALL = 340;
const MOST = 8; // runs that are drawn at once
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
let parts = {};
let runs = new Map();
let hidden = new Set();
let key = "bound";
let only = true;

export function open(root) {
  runs = new Map();
  parts = { list: h("div", { class: "runlist" }), canvas: h("canvas", { role: "img", "aria-label": "Curves of the runs" }), said: note("Looking for runs …"), settings: scroller("Settings") };
  parts.canvas.painted = draw;
  root.append(
    card("Curves", { class: "curves" },
      choice("Curve", [["bound", "Bound, training steps"], ["train_bound", "Bound, training rows"], ["valid_bound", "Bound, validation rows"]], key, (value) => { key = value; draw(); }),
      h("div", { class: "fit" }, parts.canvas), parts.said),
    card("Runs", { class: "list" }, parts.list),
    card("Settings side by side", { class: "settings wide" },
      choice("Which settings", [[true, "Those that differ"], [false, "All"]], only, (value) => { only = value; compare(); }), parts.settings));
  follow("/api/runs", null, "runs", heard).catch(() => { parts.said.textContent = "The connection was lost; open this panel again."; });
}

export const close = () => stop("runs");

function heard(name, value) {
  if (name === "run") {
    runs.set(value.number, value);
    list();
    draw();
    compare();
  }
  if (name === "listed" && !value && !runs.size) {
    parts.said.textContent = "No runs are known. Start with memgen serve --runs FOLDER, where FOLDER holds run folders; they need not be finished.";
  }
}

const shown = () => [...runs.values()].filter((run) => !hidden.has(run.number)).slice(0, MOST);

function list() {
  parts.list.replaceChildren(...[...runs.values()].map((run) => {
    const box = h("input", { type: "checkbox", change: () => { (box.checked ? hidden.delete(run.number) : hidden.add(run.number)); draw(); compare(); } });
    box.checked = !hidden.has(run.number);
    const last = run.epochs.at(-1);
    const words = run.error ?? (last ? `epoch ${last.epoch} of ${run.settings["training.epochs"] ?? "?"}, bound ${number(last.bound)}, ${Math.round(last.seconds)} s` : "not one epoch yet");
    const report = run.report ? h("a", { href: `/report/${run.number}?token=${encodeURIComponent(shownToken())}`, target: "_blank", rel: "noopener" }, "Report") : null;
    return h("p", { class: "run" }, h("label", {}, box, " ", h("strong", {}, run.name)), h("span", { class: "soft" }, ` ${words} `), report);
  }));
}

function draw() {
  const width = parts.canvas.parentElement?.clientWidth ?? 0;
  if (width <= 0) return;
  const u = unit();
  const height = TALL * u;
  const context = sharp(parts.canvas, width, height);
  const lines = shown().map((run) => [run, run.epochs.filter((line) => typeof line[key] === "number").map((line) => [line.epoch, line[key]])]).filter(([, points]) => points.length);
  if (runs.size) parts.said.textContent = lines.length ? "In nats per row; higher is better. The first epochs may lie below the frame. Curves go on while a run trains." : "No run that is chosen has this curve.";
  if (!lines.length) return;
  const values = lines.flatMap(([, points]) => points.map((p) => p[1])).sort((a, b) => a - b);
  const high = values.at(-1);
  const low = Math.min(values[Math.floor(values.length * 0.08)], high - 1e-6);
  const pad = (high - low) * 0.08;
  const last = Math.max(2, ...lines.map(([, points]) => points.at(-1)[0]));
  const frame = { left: 62 * u, right: width - Math.min(150 * u, width * 0.25), top: 12, bottom: height - 30 * u };
  const x = (epoch) => frame.left + ((epoch - 1) / (last - 1)) * (frame.right - frame.left);
  const y = (value) => frame.bottom - ((value - low + pad) / (high - low + 2 * pad)) * (frame.bottom - frame.top);
  axes(context, frame, low, high, last, x, y);
  lines.forEach(([run, points], i) => curve(context, frame, run, points, i, x, y));
}

function axes(context, frame, low, high, last, x, y) {
  context.font = font(12);
  context.fillStyle = colour("soft");
  context.strokeStyle = colour("line");
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let i = 0; i <= 4; i += 1) {
    const value = low + (i / 4) * (high - low);
    context.beginPath();
    context.moveTo(frame.left, y(value));
    context.lineTo(frame.right, y(value));
    context.stroke();
    context.fillText(number(value, high - low < 5 ? 2 : 1), frame.left - 8, y(value));
  }
  context.textAlign = "center";
  for (const epoch of [1, Math.round((1 + last) / 2), last]) context.fillText(`epoch ${epoch}`, Math.max(x(epoch), frame.left + 20), frame.bottom + 16 * unit());
}

function curve(context, frame, run, points, i, x, y) {
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top - 6, frame.right - frame.left + 4, frame.bottom - frame.top + 6);
  context.clip();
  context.setLineDash(DASHES[Math.floor(i / 2) % DASHES.length]);
  context.strokeStyle = colour(i % 2 ? "ink" : "accent");
  context.lineWidth = 2;
  context.beginPath();
  points.forEach(([epoch, value], j) => (j ? context.lineTo(x(epoch), y(value)) : context.moveTo(x(epoch), y(value))));
  if (points.length === 1) context.arc(x(points[0][0]), y(points[0][1]), 2, 0, 7);
  context.stroke();
  context.restore();
  const [epoch, value] = points.at(-1);
  context.fillStyle = colour(i % 2 ? "ink" : "accent");
  context.textAlign = "left";
  context.textBaseline = i % 2 ? "bottom" : "top";
  context.fillText(run.name.slice(0, 22), x(epoch) + 6, Math.max(14, Math.min(frame.bottom - 4, y(value))), frame.right + 150 - x(epoch));
}

function compare() {
  const chosen = shown().filter((run) => !run.error);
  const names = [...new Set(chosen.flatMap((run) => Object.keys(run.settings)))];
  const text = (run, name) => JSON.stringify(run.settings[name] ?? null);
  const differ = (name) => new Set(chosen.map((run) => text(run, name))).size > 1;
  const rows = names.filter((name) => !only || differ(name));
  if (!chosen.length || !rows.length) {
    parts.settings.replaceChildren(note(chosen.length ? "These runs do not differ in their settings." : "No run is chosen."));
    return;
  }
  parts.settings.replaceChildren(h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), ...chosen.map((run) => h("th", { scope: "col" }, run.name)))),
    h("tbody", {}, ...rows.map((name) => h("tr", {}, h("th", { scope: "row" }, name),
      ...chosen.map((run) => h("td", { class: !only && differ(name) ? "differs" : null }, text(run, name))))))));
}
