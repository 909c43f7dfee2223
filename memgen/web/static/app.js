// The frame around the panels: model, theme, tabs, address.

import { about, begin, shownToken } from "./api.js";
import { button, h, notice, number, repaint } from "./dom.js";
import { address, keep, model, models, restore, setModels, state } from "./state.js";
import * as generate from "./generate.js";
import * as complete from "./complete.js";
import * as memory from "./memory.js";
import * as tables from "./tables.js";
import * as runs from "./runs.js";

const PANELS = {
  generate: ["Generate", generate],
  complete: ["Complete", complete],
  memory: ["Inside the memory", memory],
  tables: ["Tables", tables],
  runs: ["Runs", runs],
};

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
let shown = null;

/** Show a panel, fresh. */
export function open(panel, focus = false) {
  state.panel = panel in PANELS ? panel : "generate";
  shown?.close?.();
  const [title, module] = PANELS[state.panel];
  for (const tab of tabs.children) {
    const chosen = tab.id === `tab-${state.panel}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) tab.focus();
  }
  notice("");
  const section = h("div", { role: "tabpanel", id: "panel", "aria-labelledby": `tab-${state.panel}`, class: `panel ${state.panel}` });
  main.replaceChildren(section);
  document.title = `${title} · memgen`;
  shown = module;
  module.open(section, { go: (name) => open(name) });
  keep();
}

function makeTabs() {
  const names = Object.keys(PANELS);
  tabs.replaceChildren(...names.map((name) =>
    h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", click: () => open(name) }, PANELS[name][0])));
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    open(names[(names.indexOf(state.panel) + step + names.length) % names.length], true);
  });
}

function makeModels() {
  const choose = document.getElementById("model");
  choose.replaceChildren(...models.map((one, i) => h("option", { value: i }, one.name)));
  choose.value = state.model;
  choose.addEventListener("change", () => {
    const before = state.model;
    Object.assign(state, { model: Number(choose.value), z: null, image: null, changes: [], place: 0, slot: null, shown: 0, hidden: null, label: "", hold: 0, by: "" });
    if (state.beside === state.model) state.beside = before;
    facts();
    open(state.panel);
  });
}

function facts() {
  const chosen = model();
  const slots = chosen.memory.map((layer) => layer.slots).join(" + ");
  const words = [`${chosen.parameters.toLocaleString("en")} parameters`, slots ? `${slots} memory slots` : "no memory"];
  if (chosen.measured) {
    words.push(`log p(x) ${number(chosen.measured.log_likelihood)} ± ${number(chosen.measured.standard_error)} nats on ${chosen.data} test data`);
  }
  document.getElementById("facts").textContent = words.join(" · ");
}

function makeTheme() {
  const control = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const current = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const update = () => {
    control.textContent = current() === "dark" ? "Light theme" : "Dark theme";
    repaint();
  };
  const kept = localStorage.getItem("memgen-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  control.addEventListener("click", () => {
    document.documentElement.dataset.theme = current() === "dark" ? "light" : "dark";
    localStorage.setItem("memgen-theme", document.documentElement.dataset.theme);
    update();
  });
  system.addEventListener("change", update);
  update();
}

function makeLink() {
  const control = document.getElementById("link");
  control.addEventListener("click", async () => {
    const fields = address();
    fields.set("token", shownToken());
    const text = `${location.origin}/#${fields}`;
    try {
      await navigator.clipboard.writeText(text);
      control.textContent = "Copied";
    } catch {
      history.replaceState(null, "", `#${fields}`);
      control.textContent = "It is in the address bar";
    }
    setTimeout(() => { control.textContent = "Copy link"; }, 2500);
  });
}

async function start() {
  const given = new URLSearchParams(location.hash.slice(1));
  begin(given.get("token"));
  makeTheme();
  makeTabs();
  let answer;
  try {
    answer = await about();
  } catch (error) {
    main.replaceChildren(h("section", { class: "card" }, h("h2", {}, "This page needs its token"),
      h("p", {}, "Open the whole address that memgen serve has printed, with what stands behind #token=. ", String(error.message)),
      button("Try again", () => location.reload())));
    return;
  }
  setModels(answer.models);
  restore(location.hash.slice(1));
  makeModels();
  makeLink();
  facts();
  open(state.panel);
  window.addEventListener("hashchange", () => {
    begin(new URLSearchParams(location.hash.slice(1)).get("token"));
    restore(location.hash.slice(1));
    document.getElementById("model").value = state.model;
    facts();
    open(state.panel);
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) repaint();
    width = window.innerWidth;
  });
}

start();
