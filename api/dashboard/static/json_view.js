// JSON that can be unfolded: each level is made when it is opened.

import { fill, h } from "./dom.js";
import { json } from "./format.js";
import { outward, webAddress } from "./markdown.js";

const MOST = 200; // members of one level that are shown
const LONG = 400; // characters of a text in it

/** A value, with its first level open. `isOpen`: whether it is unfolded at first. */
export function jsonView(value, { isOpen = true, name = "JSON" } = {}) {
  if (!isBranch(value)) return h("pre", { class: "out" }, json(value));
  return h("div", { class: "tree" }, branch(name, value, isOpen));
}

const isBranch = (value) => typeof value === "object" && value !== null;

function branch(name, value, isOpen) {
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const body = h("div", { class: "level" });
  const node = h("details", { open: isOpen }, h("summary", {}, h("span", { class: "key" }, name), " ", h("span", { class: "hint" }, size)), body);
  const open = () => {
    if (!node.open || body.childElementCount) return;
    const more = entries.length - MOST;
    fill(body, entries.slice(0, MOST).map(([key, one]) => (isBranch(one) ? branch(key, one, false) : leaf(key, one))), more > 0 ? h("p", { class: "hint" }, `… ${more} more`) : null);
  };
  node.addEventListener("toggle", open);
  open();
  return node;
}

function leaf(key, value) {
  const url = typeof value === "string" && /^https?:\/\/\S+$/.test(value) ? webAddress(value) : null;
  const text = typeof value === "string" && value.length > LONG ? `${value.slice(0, LONG)}… (${value.length} characters)` : typeof value === "string" ? value : json(value);
  return h("p", { class: "leaf" }, h("span", { class: "key" }, key), " ", url ? outward(url, url.href.length > 80 ? `${url.href.slice(0, 79)}…` : url.href) : h("span", { class: `value ${typeof value}` }, text));
}
