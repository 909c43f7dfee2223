// Rows of a model as a person sees them: pictures of images, cells of tables.

import { button, bytes, h, nth, paint, picture, pictureButton, scroller } from "./dom.js";

export const isImage = (model) => model.shape.length > 0;

/** The rows of an answer: the bytes of an image each, or the cells of a table's row. */
export function rowsOf(content, model) {
  if (!isImage(model)) return content.map((cells) => cells.map(String));
  const all = bytes(content);
  return Array.from({ length: all.length / model.columns }, (_, i) => nth(all, i, model.columns));
}

/** Cells that were computed: numbers to five digits. */
export const shortened = (cells) => cells.map((text) => (text.length > 6 && Number.isFinite(Number(text)) ? String(Number(Number(text).toPrecision(5))) : text));

/** The names of a table's columns; their numbers where it has no schema. */
export const columnNames = (model) =>
  (model.schema.length ? model.schema.map((column) => column.name) : Array.from({ length: model.columns }, (_, i) => `column ${i}`));

/** A table of rows: `lines` are [title, cells]; a title may be an element. */
export function tableOf(names, lines, { first = "", mark = () => null } = {}) {
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, first), ...names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...lines.map(([title, cells], i) => h("tr", {}, h("th", { scope: "row" }, title),
      ...cells.map((text, j) => h("td", { class: mark(i, j) }, text))))));
}

/** A table with a line for each column of the model, and the rows side by side. */
export function columnsOf(model, titles, rows, mark = () => null) {
  const lines = columnNames(model).map((name, i) => [name, rows.map((row) => row[i])]);
  return tableOf(titles, lines, { first: "Column", mark });
}

/** Rows from which one is chosen: a strip of pictures, or a table. */
export function chooser(label, rows, labels, model, choose) {
  const name = (i) => `${isImage(model) ? "Image" : "Row"} ${i}${labels?.[i] ? `, class ${labels[i]}` : ""}`;
  if (isImage(model)) {
    return h("div", { class: "tiles strip", role: "group", "aria-label": label },
      ...rows.map((row, i) => pictureButton(name(i), row, model, () => choose(i))));
  }
  const list = scroller(label, tableOf(columnNames(model), rows.map((row, i) => [button(name(i), () => choose(i)), row])));
  list.classList.add("long");
  return list;
}

/** A place that shows one row, and can show another. */
export function viewOf(label, model) {
  if (isImage(model)) {
    const canvas = picture(label);
    return { element: canvas, show: (row) => paint(canvas, row, model) };
  }
  const element = scroller(label);
  return { element, show: (row) => element.replaceChildren(columnsOf(model, ["Value"], [shortened(row)])) };
}
