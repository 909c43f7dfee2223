// Tables: fill in missing cells, draw rows given some columns, find odd rows.

import { ask, quietly } from "./api.js";
import { button, card, download, h, note, notice, number } from "./dom.js";
import { model, models, state } from "./state.js";

const LARGEST = 1_000_000;
let parts = {};

export function open(root) {
  if (!model().schema.length) {
    root.append(nothing());
    return;
  }
  parts = {};
  root.append(inputCard(), filledCard(), drawCard());
}

function nothing() {
  const others = models.filter((one) => one.schema.length);
  const words = others.length
    ? `Choose a model of a table above: ${others.map((one) => one.name).join(", ")}.`
    : "None of the models served here is of a table. Train one on your own, in a minute or two, and serve it:";
  const commands = "memgen train --data table.csv --out runs/table\nmemgen serve runs/table";
  return card("Tables", { class: "wide" }, h("p", {}, words), others.length ? null : h("pre", {}, commands),
    note("Numbers, counts, categories and text columns are recognised; missing cells may be empty, NA or ?."));
}

// ---- fill in

function inputCard() {
  parts.text = h("textarea", { id: "csv", rows: 10, spellcheck: "false", placeholder: model().schema.map((column) => column.name).join(",") });
  parts.file = h("input", { type: "file", id: "file", accept: ".csv,.tsv,text/csv", change: readFile });
  parts.said = note("An empty cell, NA or ? is missing. Up to 1,000 rows here; memgen impute takes any number.");
  return card("Your table", { class: "input" },
    h("div", { class: "row" }, h("label", { for: "file" }, "Choose a CSV file ", parts.file), button("Take an example", example)),
    h("label", { for: "csv" }, "or paste it here"), parts.text,
    h("div", { class: "row" }, button("Fill in", fill, { class: "main", id: "fill" })), parts.said);
}

const readFile = quietly(async () => {
  const [file] = parts.file.files;
  if (!file) return;
  if (file.size > LARGEST) { notice("The file is larger than 1 MB; use memgen impute."); return; }
  parts.text.value = await file.text();
  fill();
});

/** Rows of the model itself, with every fifth cell taken away. */
const example = quietly(async () => {
  const found = await ask("rows", { model: state.model, n: 12, seed: 7 }, "example");
  const cell = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = found.cells.map((row, i) => row.map((text, j) => ((i * 2 + j * 3) % 5 ? cell(text) : "")).join(","));
  parts.text.value = [found.names.map(cell).join(","), ...rows].join("\n");
  parts.said.textContent = "These rows were drawn from the model, and one cell in five taken away.";
});

function filledCard() {
  parts.filled = h("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": "Filled table" }, note("The filled table will stand here."));
  parts.spread = h("p", { role: "status", class: "told" }, "");
  parts.save = button("Download CSV", () => {}, { disabled: true });
  parts.order = button("Oddest rows first", () => {}, { disabled: true });
  return card("Filled in", { class: "filled" }, h("div", { class: "row" }, parts.save, parts.order), parts.spread, parts.filled);
}

const fill = quietly(async () => {
  if (!parts.text.value.trim()) { notice("Paste a table first, or choose a file."); return; }
  parts.spread.textContent = "Filling in …";
  let found;
  try {
    found = await ask("fill", { model: state.model, text: parts.text.value });
  } finally {
    parts.spread.textContent = "";
  }
  let odd = false;
  const show = () => parts.filled.replaceChildren(filledTable(found, odd));
  renew("save", "Download CSV", () => download("filled.csv", new Blob([found.csv], { type: "text/csv" })));
  renew("order", "Oddest rows first", () => {
    odd = !odd;
    parts.order.setAttribute("aria-pressed", String(odd));
    show();
  });
  const count = found.filled.reduce((sum, own) => sum + own.length, 0);
  parts.spread.textContent = `${count} cells were filled in, marked below. Point at one, or reach it with Tab, to see the spread of ${found.draws} draws.`;
  show();
});

function renew(name, text, action) {
  const own = button(text, action);
  parts[name].replaceWith(own);
  parts[name] = own;
}

function filledTable(found, odd) {
  const order = found.cells.map((_, i) => i);
  if (odd) order.sort((a, b) => (found.log_p[a] ?? Infinity) - (found.log_p[b] ?? Infinity));
  const least = Math.min(...found.log_p.filter((v) => v !== null));
  const most = Math.max(...found.log_p.filter((v) => v !== null));
  const tell = (text) => () => { parts.spread.textContent = text; };
  return h("table", {}, h("caption", {}, "log p: of what each row holds, in nats. The lower, the odder."),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Row"), ...found.names.map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col" }, "log p"))),
    h("tbody", {}, ...order.map((i) => h("tr", {}, h("th", { scope: "row" }, i + 1),
      ...found.cells[i].map((text, j) => {
        const k = found.filled[i].indexOf(j);
        if (k < 0) return h("td", {}, text);
        const words = `Row ${i + 1}, ${found.names[j]}: ${text}; ${found.spread[i][k]}`;
        return h("td", { class: "new", tabindex: 0, title: found.spread[i][k], mouseenter: tell(words), focus: tell(words) }, text);
      }),
      h("td", {}, h("meter", { min: least - 1e-6, max: most + 1e-6, value: found.log_p[i] ?? least, "aria-label": `log p of row ${i + 1}` }), ` ${number(found.log_p[i], 1)}`)))));
}

// ---- draw rows

function drawCard() {
  const fields = model().schema.map((column, i) => {
    const id = `column-${i}`;
    const input = column.levels.length
      ? h("select", { id }, h("option", { value: "" }, "free"), ...column.levels.map((level) => h("option", { value: level }, level)))
      : h("input", { id, placeholder: "free", inputmode: "decimal" });
    return [column.name, input, h("label", { for: id }, h("span", {}, column.name), input)];
  });
  const n = h("input", { type: "number", id: "n", min: 1, max: 200, value: 10 });
  const place = h("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": "Rows that were drawn" });
  let seed = 0;
  const draw = quietly(async () => {
    const fixed = Object.fromEntries(fields.map(([name, input]) => [name, input.value.trim()]).filter(([, text]) => text));
    const found = await ask("rows", { model: state.model, fixed, n: Math.max(1, Math.min(200, Number(n.value) || 10)), seed });
    seed += 1;
    place.replaceChildren(
      h("table", {}, h("caption", {}, found.fixed.length ? "Draws given the marked columns, as memgen impute --draws." : "Draws from the model, as memgen sample --csv."),
        h("thead", {}, h("tr", {}, ...found.names.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...found.cells.map((row) => h("tr", {}, ...row.map((text, j) => h("td", { class: found.fixed.includes(j) ? "fixed" : null }, text)))))),
      button("Download CSV", () => download("rows.csv", new Blob([found.csv], { type: "text/csv" }))));
  });
  return card("Draw rows given some columns", { class: "conditional" },
    h("div", { class: "fields" }, ...fields.map(([, , label]) => label)),
    h("div", { class: "row" }, h("label", { for: "n" }, "Rows ", n), button("Draw rows", draw, { class: "main", id: "draw-rows" })), place);
}
