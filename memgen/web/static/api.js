// Requests to the server. A request that is outdated is dropped, on both sides.

import { notice } from "./dom.js";

const client = Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(36)).join("");
const turns = new Map();
const running = new Map();

let token = "";
export function begin(given) {
  if (given) localStorage.setItem("memgen-token", given);
  token = given || localStorage.getItem("memgen-token") || "";
}
export const shownToken = () => token;

export class Outdated extends Error {}

function headers(topic) {
  const turn = (turns.get(topic) ?? 0) + 1;
  turns.set(topic, turn);
  return { "content-type": "application/json", "x-memgen-token": token, "x-memgen-client": client,
    "x-memgen-topic": topic, "x-memgen-turn": String(turn) };
}

async function send(path, options, topic) {
  running.get(topic)?.abort();
  const control = new AbortController();
  running.set(topic, control);
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(topic), signal: control.signal });
  } catch (error) {
    if (error.name === "AbortError") throw new Outdated();
    notice("The server does not answer. Is memgen serve still running?");
    throw error;
  }
  if (response.status === 409) throw new Outdated();
  if (!response.ok) {
    const { error } = await response.json().catch(() => ({ error: `error ${response.status}` }));
    notice(error);
    throw new Error(error);
  }
  return response;
}

/** The answer to a request; a newer one on the same topic gives it up. */
export async function ask(name, body, topic = name) {
  try {
    const response = await send(`/api/${name}`, { method: "POST", body: JSON.stringify(body) }, topic);
    const answer = await response.json();
    notice("");
    return answer;
  } catch (error) {
    if (error.name === "AbortError") throw new Outdated();
    throw error;
  }
}

export const about = async () => (await send("/api/about", {}, "about")).json();

/** For dragging: one run of work() at a time; calls in between lead to one more run at the end. */
export function live(work) {
  let busy = false;
  let again = false;
  const run = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Outdated)) console.error(error.message);
    }
    busy = false;
    if (again) { again = false; run(); }
  };
  return run;
}

/** work() without its errors: being outdated is none, and others have been shown by then. */
export const quietly = (work) => async (...values) => {
  try {
    return await work(...values);
  } catch (error) {
    if (!(error instanceof Outdated)) console.error(error.message);
    return undefined;
  }
};

/** Server-sent events: use(name, value) for each. */
export async function follow(path, body, topic, use) {
  const options = body === null ? {} : { method: "POST", body: JSON.stringify(body) };
  const response = await send(path, options, topic);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const lines = event.split("\n");
        use(lines[0].slice("event: ".length), JSON.parse(lines[1].slice("data: ".length)));
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

export const stop = (topic) => running.get(topic)?.abort();
