// Elements, pixels and numbers: what all panels share.

/** h("p", {class: "note"}, "text", child): an element with attributes; functions are listeners. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const button = (text, action, attributes = {}) => h("button", { type: "button", click: action, ...attributes }, text);

/** A card with a title. */
export const card = (title, attributes, ...children) =>
  h("section", { ...attributes, class: `card ${attributes.class ?? ""}` }, h("h2", {}, title), ...children);

/** A select with its label: options are [value, text]. */
export function select(id, label, options, value, change) {
  const element = h("select", { id, change: () => change(element.value) }, ...options.map(([key, text]) => h("option", { value: key }, text)));
  element.value = value;
  return h("label", { for: id }, `${label} `, element);
}

/** A region that scrolls sideways. */
export const scroller = (label, ...children) => h("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": label }, ...children);

export const note = (text = "") => h("p", { class: "note" }, text);

/** A group of buttons of which one is pressed. */
export function choice(label, options, value, change) {
  const group = h("div", { role: "group", "aria-label": label, class: "choice" });
  const press = (chosen) => {
    for (const option of group.children) option.setAttribute("aria-pressed", String(option.dataset.value === String(chosen)));
  };
  for (const [key, text] of options) {
    group.append(button(text, () => { press(key); change(key); }, { "data-value": String(key) }));
  }
  press(value);
  group.press = press;
  return group;
}

let colours = new Map();
const probe = h("span", { hidden: true });
/** A colour of the style sheet in the theme of the moment, as "rgb(11, 106, 91)". */
export function colour(name) {
  if (!colours.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

/** "rgb(11, 106, 91)" -> [11, 106, 91] */
export const rgb = (text) => text.match(/\d+/g).slice(0, 3).map(Number);

export function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

export const hex = (values) => Array.from(values, (v) => v.toString(16).padStart(2, "0")).join("");

/** The i-th of several images that stand behind each other. */
export const nth = (all, i, size) => all.subarray(i * size, (i + 1) * size);

/** Values of an image onto a canvas: ink on paper, or light as it is. `tint`: in the accent on paper. */
export function paint(canvas, values, model, { hidden = null, tint = false } = {}) {
  const [height, width, channels = 1] = model.shape;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const low = model.ink || tint ? rgb(colour("paper")) : [0, 0, 0];
  const high = tint ? rgb(colour("accent")) : model.ink ? rgb(colour("ink")) : [255, 255, 255];
  const veil = rgb(colour("veil"));
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) {
      const v = values[i * channels + (channels === 1 ? 0 : c)] / 255;
      let shade = low[c] + v * (high[c] - low[c]);
      if (hidden && hidden[i]) shade = veil[c] * ((i % width + Math.floor(i / width)) % 2 ? 1 : 0.9);
      image.data[4 * i + c] = shade;
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  canvas.painted = () => paint(canvas, values, model, { hidden, tint });
}

export const picture = (label, attributes = {}) =>
  h("canvas", { class: "picture", role: "img", "aria-label": label, width: 28, height: 28, ...attributes });

/** An image as a button. */
export function pictureButton(label, values, model, action) {
  const canvas = h("canvas", { class: "picture", "aria-hidden": "true" });
  paint(canvas, values, model);
  return h("button", { type: "button", class: "tile", "aria-label": label, title: label, click: action }, canvas);
}

/** Everything painted, once more: in the colours of the theme that has just been chosen. */
export function repaint() {
  colours = new Map();
  for (const canvas of document.querySelectorAll("canvas")) canvas.painted?.();
}

/** A canvas with a pixel for each pixel of the screen, and its size in CSS pixels. */
export function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const wide = Math.round(width * scale);
  const high = Math.round(height * scale);
  if (canvas.width !== wide || canvas.height !== high) {
    [canvas.width, canvas.height] = [wide, high];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Drawings grow with the text: pixels per pixel at the usual size. */
export const unit = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;

export const font = (size = 12) => `${size * unit()}px ${getComputedStyle(document.body).fontFamily}`;

/** A number with a real minus sign. */
export const number = (value, digits = 2, sign = false) =>
  value === null || value === undefined ? "–" : `${sign && value > 0 ? "+" : ""}${value.toFixed(digits)}`.replace("-", "−");

export const percent = (value) => `${value >= 0.1 || value === 0 ? Math.round(100 * value) : (100 * value).toFixed(1)} %`;

/** A file that the page has made. */
export function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export function notice(text) {
  const line = document.getElementById("notice");
  line.textContent = text;
  line.hidden = !text;
}
