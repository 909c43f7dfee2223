// Tables: fill in missing cells, score rows, draw rows given some columns.

import { ask, quietly } from "./api.js";
import { button, card, download, h, note, notice, number, percent, scroller } from "./dom.js";
import { model, models, state } from "./state.js";

const LARGEST = 1_000_000;
const UNUSUAL = 1; // per cent of the reference rows that have a lower log p
const LISTED = 3; // columns that are named for a row
let parts = {};

export function open(root) {
  if (!model().schema.length) {
    root.append(noTable());
    return;
  }
  parts = {};
  root.append(inputCard(), drawCard(), resultCard());
}

function noTable() {
  const others = models.filter((one) => one.schema.length);
  const words = others.length
    ? `Choose a model of a table above: ${others.map((one) => one.name).join(", ")}.`
    : "None of the models served here is of a table. Train one on your own, in a minute or two, and serve it:";
  const commands = "memgen train --data table.csv --out runs/table\nmemgen serve runs/table";
  return card("Tables", { class: "wide" }, h("p", {}, words), others.length ? null : h("pre", {}, commands),
    note("Numbers, counts, categories and text columns are recognised; missing cells may be empty, NA or ?."));
}

// ---- the user's table

function inputCard() {
  parts.text = h("textarea", { id: "csv", rows: 10, spellcheck: "false", placeholder: model().schema.map((column) => column.name).join(",") });
  parts.file = h("input", { type: "file", id: "file", accept: ".csv,.tsv,text/csv", change: readFile });
  parts.about = note("An empty cell, NA or ? is missing. Up to 1,000 rows here; memgen impute and memgen score take any number.");
  return card("Your table", { class: "input" },
    h("div", { class: "row" }, h("label", { for: "file" }, "Choose a CSV file ", parts.file), button("Take an example", example)),
    h("label", { for: "csv" }, "or paste it here"), parts.text,
    h("div", { class: "row" }, button("Fill in missing cells", () => run("fill", filled), { class: "main", id: "fill" }),
      button("Score rows", () => run("score", scored), { id: "score" })), parts.about);
}

const readFile = quietly(async () => {
  const [file] = parts.file.files;
  if (!file) return;
  if (file.size > LARGEST) { notice("The file is larger than 1 MB; use memgen impute or memgen score."); return; }
  parts.text.value = await file.text();
  run("fill", filled);
});

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** Rows of the model itself, with every fifth cell taken away. */
const example = quietly(async () => {
  const answer = await ask("rows", { model: state.model, n: 12, seed: 7 }, "example");
  const rows = answer.cells.map((row, i) => row.map((text, j) => ((i * 2 + j * 3) % 5 ? quoted(text) : "")).join(","));
  parts.text.value = [answer.names.map(quoted).join(","), ...rows].join("\n");
  parts.about.textContent = "These rows were drawn from the model, and one cell in five taken away.";
});

// ---- the result

function resultCard() {
  parts.result = scroller("Result", note("The result will stand here."));
  parts.status = h("p", { role: "status", class: "status" }, "");
  parts.actions = h("div", { class: "row" });
  return card("Result", { class: "result-table" }, parts.actions, parts.status, parts.result);
}

const run = quietly(async (name, show) => {
  if (!parts.text.value.trim()) { notice("Paste a table first, or choose a file."); return; }
  parts.status.textContent = name === "fill" ? "Filling in …" : "Scoring …";
  try {
    show(await ask(name, { model: state.model, text: parts.text.value }, "table"));
  } catch (error) {
    parts.status.textContent = "";
    throw error;
  }
});

const save = (name, csv) => button("Download CSV", () => download(name, new Blob([csv], { type: "text/csv" })));
const heading = (names) => h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name))));

function filled(answer) {
  const tell = (text) => () => { parts.status.textContent = text; };
  const cell = (i, j, text) => {
    const k = answer.filled[i].indexOf(j);
    if (k < 0) return h("td", {}, text);
    const words = `Row ${i + 1}, ${answer.names[j]}: ${text}; ${answer.spread[i][k]}`;
    return h("td", { class: "new", tabindex: 0, title: answer.spread[i][k], mouseenter: tell(words), focus: tell(words) }, text);
  };
  const lines = answer.cells.map((row, i) => h("tr", {}, h("th", { scope: "row" }, i + 1), ...row.map((text, j) => cell(i, j, text))));
  const count = answer.filled.reduce((sum, places) => sum + places.length, 0);
  parts.status.textContent = `${count} cells were filled in, marked below. Point at one, or reach it with Tab, to see the spread of ${answer.draws} draws.`;
  parts.actions.replaceChildren(save("filled.csv", answer.csv));
  parts.result.replaceChildren(h("table", {}, heading(["Row", ...answer.names]), h("tbody", {}, ...lines)));
}

function scored(answer) {
  let sorted = true;
  const order = () => {
    const index = answer.cells.map((_, i) => i);
    return sorted ? index.sort((a, b) => (answer.log_p[a] ?? -Infinity) - (answer.log_p[b] ?? -Infinity)) : index;
  };
  const show = () => parts.result.replaceChildren(h("table", {}, heading(["Row", "log p", "less likely than it", "unusual given the others", ...answer.names]),
    h("tbody", {}, ...order().map((i) => scoredRow(answer, i)))));
  const toggle = button("Least likely first", () => {
    sorted = !sorted;
    toggle.setAttribute("aria-pressed", String(sorted));
    show();
  }, { "aria-pressed": "true" });
  const rows = `${answer.reference} ${answer.real ? "training rows" : "rows drawn from the model (its data are not on this machine)"}`;
  parts.status.textContent = `log p of what each row holds, in nats, by ${answer.samples} importance samples, with its standard error; and which of ${rows} are less likely. `
    + `A cell is marked if its log p given the rest of its row is lower than in ${100 - UNUSUAL} % of them. Rows with missing cells hold less, so they are not compared.`;
  parts.actions.replaceChildren(save("scores.csv", answer.csv), toggle);
  show();
}

function scoredRow(answer, i) {
  const ranks = answer.column_percentile[i];
  const unusual = (j) => answer.columns[i][j] !== null && ranks[j] <= UNUSUAL;
  const names = answer.names.map((name, j) => [ranks[j], answer.columns[i][j], name, j]).filter(([, , , j]) => unusual(j)).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const words = names.slice(0, LISTED).map(([, , name]) => name).join(", ") + (names.length > LISTED ? ` and ${names.length - LISTED} more` : "");
  const title = (j) => (answer.columns[i][j] === null ? null : `log p given the others ${number(answer.columns[i][j])} nats; lower in ${percent(ranks[j] / 100)} of the reference rows`);
  return h("tr", {}, h("th", { scope: "row" }, i + 1),
    h("td", {}, `${number(answer.log_p[i])} ± ${number(answer.standard_error[i])}`), h("td", {}, answer.percentile[i] === null ? "–" : percent(answer.percentile[i] / 100)), h("td", {}, words || "–"),
    ...answer.cells[i].map((text, j) => h("td", { class: unusual(j) ? "new" : null, title: title(j) }, text)));
}

// ---- draw rows

function drawCard() {
  const fields = model().schema.map((column, i) => {
    const id = `column-${i}`;
    const input = column.levels.length
      ? h("select", { id }, h("option", { value: "" }, "any"), ...column.levels.map((level) => h("option", { value: level }, level)))
      : h("input", { id, placeholder: "any, 50, >50, 20..30" });
    return [column.name, input, h("label", { for: id }, h("span", {}, column.name), input)];
  });
  const n = h("input", { type: "number", id: "n", min: 1, max: 200, value: 10 });
  const about = note();
  const place = scroller("Rows that were drawn");
  let seed = 0;
  const draw = quietly(async () => {
    const given = Object.fromEntries(fields.map(([name, input]) => [name, input.value.trim()]).filter(([, text]) => text));
    const answer = await ask("rows", { model: state.model, given, n: Math.max(1, Math.min(200, Number(n.value) || 10)), seed });
    seed += 1;
    about.textContent = aboutDraws(answer);
    place.replaceChildren(
      h("table", {}, heading(answer.names), h("tbody", {}, ...answer.cells.map((row) => h("tr", {}, ...row.map((text, j) => h("td", { class: answer.given.includes(j) ? "given" : null }, text)))))),
      save("rows.csv", answer.csv));
  });
  return card("Draw rows given some columns", { class: "conditional" },
    h("div", { class: "fields" }, ...fields.map(([, , label]) => label)),
    h("div", { class: "row" }, h("label", { for: "n" }, "Rows ", n), button("Draw rows", draw, { class: "main", id: "draw-rows" })), about, place);
}

function aboutDraws(answer) {
  if (!answer.given.length) return "Draws from the model, as memgen sample --csv.";
  const what = answer.density ? "Log density" : "Log probability";
  return `Draws given the marked columns, as memgen sample --where. ${what} of the condition: ${number(answer.log_p)} nats; ${answer.effective.toLocaleString("en")} effective states.`;
}
