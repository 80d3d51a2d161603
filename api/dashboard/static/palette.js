// The palette: find a section, a model, a queue, an account, an id or an act by a few letters, and go there by Enter.

import { ask, pause } from "./api.js";
import { accountNames, modelNames, MOST_NAMES } from "./choices.js";
import { dialog, fill, h, say } from "./dom.js";
import { icon } from "./icons.js";
import { MODEL, sections } from "./sections.js";
import { session } from "./session.js";
import { notice, queuePath, sure } from "./views/parts.js";

const MOST = 40; // lines
const FEW = 5; // of each kind, while nothing is typed
const MOST_RECENT = 6;
const PREDICTION = /^[0-9a-hjkmnp-tv-z]{26}$/;
const WHOLE_NAME = new RegExp(`^${MODEL}$`);
const SEEK_MS = 200; // without another letter, before the service is asked
const BATCH = /^batch_[a-z0-9]{26}$/;

const acts = new Map(); // acts of the frame, by name

/** Add an act of the frame: `{name, words, icon, act, isFor()}`; `words` find it too. */
export const addAct = (given) => acts.set(given.name, given);

const go = (address) => () => { location.hash = address; };
const line = (kind, name, act, { words = "", note = "", picture = "act" } = {}) => ({ kind, name, act, note, picture, text: `${name} ${words}`.toLowerCase() });

/** How well words fit a text: 0 if one is missing; the more of them begin a word of it, the better. */
export function score(text, words) {
  let sum = 1;
  for (const word of words) {
    const at = text.indexOf(word);
    if (at >= 0) sum += at === 0 || /[\s/:._-]/.test(text[at - 1]) ? 4 : 2;
    else if (isSpread(text, word)) sum += 0.5;
    else return 0;
  }
  return sum - text.length / 1000;
}

/** All letters of it in this order, from the begin of a word, with no space between. */
function isSpread(text, word) {
  if (word.length < 2) return false;
  return text.split(/\s+/).some((part) => starts(part, word[0]).some((start) => {
    let at = start;
    for (const letter of word.slice(1)) if ((at = part.indexOf(letter, at + 1)) < 0) return false;
    return true;
  }));
}

const starts = (part, letter) => [...part.matchAll(/^.|[/:._-]./g)].map((found) => found.index + found[0].length - 1).filter((at) => part[at] === letter);

const onQueue = (name, what, message) => async () => {
  if (what === "pause" && !(await sure(`Pause ${name}? Nothing of it starts until it is resumed.`, "Pause"))) return;
  await ask(`${queuePath(name)}/${what}`, { method: "POST", body: {} });
  notice(message);
};

function fixed() {
  const found = sections().map(({ name, path, icon: picture, key }) => line("Go to", name, go(`#${path}`), { note: `g ${key}`, picture }));
  for (const { name, act, words = "", icon: picture = "act", isFor = () => true } of acts.values()) if (isFor()) found.push(line("Act", name, act, { words, picture }));
  if (session.administers) {
    found.push(line("Act", "New account", go("#/accounts"), { words: "create make" }));
    found.push(line("Act", `New token for ${session.who.username}`, go(`#/accounts/${session.who.username}`), { words: "create make" }));
  }
  return found;
}

function ofQueues() {
  return (session.live?.last?.queues ?? []).flatMap(({ name, paused }) => {
    const at = name.lastIndexOf(":");
    if (at < 0) return [];
    const found = [line("Queue", name, go(`#/queues/${name}`), { picture: "queues" })];
    if (session.operates) found.push(paused ? line("Act", `Resume ${name}`, onQueue(name, "resume", "It is handed out again."), { words: "queue" }) : line("Act", `Pause ${name}`, onQueue(name, "pause", "Nothing of this queue is handed out; what runs goes on."), { words: "queue stop" }));
    return found;
  });
}

const ofModel = (name, note = "") => line("Model", name, go(`#/models/${name}`), { words: "run try", note, picture: "models" });

async function ofNames() {
  const [models, accounts] = await Promise.all([modelNames(), accountNames()]);
  return [
    ...models.map((name) => ofModel(name)),
    ...accounts.flatMap((name) => [line("Account", name, go(`#/accounts/${name}`), { picture: "accounts" }),
      ...(session.administers && name !== session.who.username ? [line("Act", `New token for ${name}`, go(`#/accounts/${name}`), { words: "create make" })] : [])]),
  ];
}

/** What an id or a whole name leads to, known here or not. */
function byId(text) {
  if (WHOLE_NAME.test(text)) return [ofModel(text, "by this name")];
  if (PREDICTION.test(text)) return [line("Prediction", text, go(`#/predictions/${text}`), { picture: "predictions" })];
  if (BATCH.test(text)) return [line("Batch", text, go(`#/batches/${text}`), { picture: "batches" })];
  return [];
}

let recent = []; // ids that were looked at

/** Keep an id that was looked at, until the page is left. */
export function remember(id) {
  recent = [id, ...recent.filter((one) => one !== id)].slice(0, MOST_RECENT);
}

export const forgetRecent = () => { recent = []; };

function chosen(all, text) {
  const words = text.split(/\s+/).filter(Boolean);
  if (!words.length) {
    const counts = new Map();
    return all.filter(({ kind, name }) => {
      if (kind === "Act" && /^(Pause|Resume|New token for) /.test(name)) return false;
      counts.set(kind, (counts.get(kind) ?? 0) + 1);
      return kind === "Go to" || kind === "Act" || counts.get(kind) <= FEW;
    }).slice(0, MOST);
  }
  return all.map((one) => [score(one.text, words), one]).filter(([found]) => found > 0).sort(([a], [b]) => b - a).slice(0, MOST).map(([, one]) => one);
}

let box = null;

/** Open the palette. A second call, by a key, changes nothing. */
export function openPalette() {
  if (box || !session.who || document.querySelector("dialog[open]")) return;
  const list = h("ul", { id: "palette-list", role: "listbox", "aria-label": "Found" });
  const field = h("input", { type: "text", id: "palette-field", role: "combobox", "aria-label": "Find a section, model, queue, account, id or act", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list", placeholder: "Find a model, an id, an action…", autocomplete: "off", spellcheck: "false", maxlength: "200" });
  const status = h("p", { class: "unseen", role: "status" });
  const none = h("p", { class: "hint none", hidden: true }, "Nothing is called like this. A whole id of a prediction or a batch leads to it.");
  let names = [];
  let more = []; // models beyond them that the service found for the words
  let seeking = new AbortController();
  let found = [];
  let at = 0;

  function draw() {
    const text = field.value.trim().toLowerCase();
    const ids = recent.flatMap(byId).map((one) => ({ ...one, note: "seen before" }));
    const all = [...fixed(), ...(text ? [] : ids), ...ofQueues(), ...names, ...more];
    const fitting = chosen([...all, ...(text ? ids : [])], text);
    const known = new Set(fitting.map(({ name }) => name));
    const beyond = byId(text).filter(({ name }) => !known.has(name));
    found = WHOLE_NAME.test(text) ? [...fitting, ...beyond] : [...beyond, ...fitting];
    at = 0;
    fill(list, found.map(option));
    none.hidden = found.length > 0;
    list.hidden = !found.length;
    say(status, found.length === 1 ? "1 found" : `${found.length} found`);
    point();
  }

  function option(one, number) {
    const row = h("li", { id: `palette-${number}`, role: "option", "aria-selected": "false" }, icon(one.picture), h("span", { class: "name" }, one.name), h("span", { class: "hint" }, one.note || one.kind));
    row.addEventListener("click", () => take(one));
    row.addEventListener("pointermove", () => { if (at !== number) { at = number; point(); } });
    return row;
  }

  function point() {
    for (const [number, row] of [...list.children].entries()) row.setAttribute("aria-selected", String(number === at));
    if (found.length) field.setAttribute("aria-activedescendant", `palette-${at}`);
    else field.removeAttribute("aria-activedescendant");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }

  async function take(one) {
    box.close();
    try { await one.act(); } catch (error) { notice(error.message, "trouble"); }
  }

  const steps = { ArrowDown: () => at + 1, ArrowUp: () => at - 1, PageDown: () => Math.min(at + 8, found.length - 1), PageUp: () => Math.max(at - 8, 0) };
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && found[at]) { event.preventDefault(); take(found[at]); }
    const step = steps[event.key];
    if (!step || !found.length) return;
    event.preventDefault();
    at = (step() + found.length) % found.length;
    point();
  });
  /** Ask the service for models where it has more than the page knows by name. */
  async function seek() {
    seeking.abort();
    const { signal } = (seeking = new AbortController());
    const text = field.value.trim().toLowerCase();
    if (names.filter(({ kind }) => kind === "Model").length < MOST_NAMES || text.length < 2) return;
    await pause(SEEK_MS, signal);
    if (signal.aborted) return;
    try {
      const { models } = await ask(`/v1/search?${new URLSearchParams({ query: text })}`, { signal });
      const known = new Set(names.map(({ name }) => name));
      more = models.map(({ model }) => `${model.owner}/${model.name}`).filter((name) => !known.has(name)).map((name) => ofModel(name));
    } catch { return; } // what the page knows stays
    if (box && !signal.aborted) redraw();
  }

  field.addEventListener("input", () => { draw(); seek(); });
  box = dialog({ class: "palette", "aria-label": "Find", on: { close: () => { seeking.abort(); box = null; } } }, h("div", { class: "palette-field" }, icon("find"), field), list, none, status,
    h("p", { class: "hint palette-foot", "aria-hidden": "true" }, h("kbd", {}, "↑"), h("kbd", {}, "↓"), " choose ", h("kbd", {}, "Enter"), " go ", h("kbd", {}, "Esc"), " close ", h("kbd", {}, "?"), " keys"));
  draw();
  ofNames().then((all) => { names = all; if (box) { redraw(); seek(); } });

  /** Names that came later change nothing under the hand of a reader who has chosen already. */
  function redraw() {
    const mine = found[at]?.name;
    const hasChosen = at > 0;
    draw();
    const again = found.findIndex(({ name }) => name === mine);
    if (hasChosen && again > 0) { at = again; point(); }
  }
}
