// Keys of the whole page. They do nothing while a field has the focus, or a dialog is open.

import { dialog, h } from "./dom.js";
import * as drawer from "./drawer.js";
import { openPalette } from "./palette.js";
import * as panel from "./panel.js";
import { sections } from "./sections.js";
import { session } from "./session.js";

const CHORD_MS = 1500;
const FIELDS = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]";

// key, what it does in words, and the act
const KEYS = [
  ["/", "Find: models, ids, accounts, acts", () => openPalette()],
  ["?", "Show these keys", () => showKeys()],
  ["j", "The next row", () => panel.step(1)],
  ["k", "The row before", () => panel.step(-1)],
];
const OTHERS = [[["Ctrl", "K"], "Find, also while a field has the focus"], [["Enter"], "Open the row beside its list"], [["Esc"], "Close the panel, the drawer or a dialog"]];

/** All keys, in a dialog. */
export function showKeys() {
  const line = ([keys, words]) => h("div", {}, h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, words));
  const list = (name, lines) => h("section", {}, h("h3", {}, name), h("dl", { class: "keys" }, lines.map(line)));
  dialog({ class: "card help", "aria-labelledby": "keys-title" },
    h("div", { class: "head" }, h("h2", { id: "keys-title" }, "Keys"), h("form", { method: "dialog" }, h("button", { class: "quiet" }, "Close"))),
    h("div", { class: "columns" },
      list("Everywhere", [...KEYS.map(([key, words]) => [[key], words]), ...OTHERS]),
      list("Go to", sections().map(({ key, name }) => [["g", key], name]))));
}

let chordAt = -CHORD_MS;

function press(event) {
  if (!session.who) return;
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    return openPalette();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return undefined;
  if (event.key === "Escape") {
    if (drawer.isOpen()) return drawer.slide(false, { back: true });
    return event.target.closest("input, textarea, select") ? undefined : panel.close();
  }
  if (event.target.closest(FIELDS) || drawer.isOpen()) return undefined;
  const isChord = event.timeStamp - chordAt < CHORD_MS;
  chordAt = event.key === "g" && !isChord ? event.timeStamp : -CHORD_MS;
  const act = isChord ? goTo(event.key) : KEYS.find(([key]) => key === event.key)?.[2];
  if (!act) return undefined;
  event.preventDefault();
  return act();
}

function goTo(letter) {
  const wanted = sections().find(({ key }) => key === letter);
  return wanted && (() => { location.hash = `#${wanted.path}`; });
}

export const listenToKeys = () => document.addEventListener("keydown", press);
