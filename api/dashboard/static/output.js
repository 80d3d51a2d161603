// Show what a model put out. It is never trusted: text is text, a picture is a picture, an address is a link.

import { fill, h } from "./dom.js";
import { json } from "./format.js";
import { jsonView } from "./json_view.js";
import { LiveText, MOST } from "./live_text.js";
import { fileOf, Media, media } from "./media.js";

const DEEP = 6; // levels of an output that are searched for files
const MOST_FILES = 100; // that are shown of an object

/** Text as it is. */
export const text = (value) => h("pre", { class: "out" }, value.length > MOST ? `${value.slice(0, MOST)}\n… ${value.length - MOST} more characters` : value);

const isFile = (value) => typeof value === "string" && fileOf(value) !== null;

/** The text that an output is, or null. */
export function textOf(value) {
  if (typeof value === "string") return isFile(value) ? null : value;
  if (Array.isArray(value) && value.length && value.every((one) => typeof one === "string" && !isFile(one))) return value.join("");
  return null;
}

/** The files that an output is, or has within it. */
export function filesOf(value, depth = 0) {
  if (isFile(value)) return [fileOf(value)];
  if (typeof value !== "object" || value === null || depth > DEEP) return [];
  return Object.values(value).slice(0, 1000).flatMap((one) => filesOf(one, depth + 1)).slice(0, depth ? MOST_FILES : Infinity);
}

/** The place of one output, while it comes and when it is whole. */
export class OutputArea {
  constructor({ name = "Output" } = {}) {
    this.node = h("div", { class: "live", "aria-label": name, role: "region", tabindex: "0" });
    this.pieces = 0;
    this._clear();
  }

  _clear() {
    this.live = null; // the text that grows
    this._files = []; // that came one by one
    this._media = null;
    fill(this.node);
  }

  /** Begin again: another attempt has another output. */
  clear() {
    this.pieces = 0;
    this._clear();
  }

  /** One more piece. */
  add(data) {
    this.pieces += 1;
    const file = fileOf(data);
    if (file) {
      if (this.live) this.live.settle();
      if (!this._media) this.node.append((this._media = new Media()).node);
      this._files.push(file);
      this._media.add(file);
      return;
    }
    if (!this.live) this.node.append((this.live = new LiveText()).node);
    this.live.append(data);
  }

  /** The whole output. A text that came piece by piece stays where it is. */
  settle(value) {
    const whole = textOf(value);
    if (whole !== null && this.live && !this._media && this.live.completes(whole)) return undefined;
    if (this._media && !this.live && isAllFiles(value) && isSame(filesOf(value), this._files)) return undefined; // a player goes on
    this._clear();
    if (value === null || value === undefined) return fill(this.node, h("p", { class: "hint" }, "No output."));
    if (whole !== null) {
      this.live = new LiveText();
      fill(this.node, this.live.node);
      this.live.append(whole);
      return this.live.settle();
    }
    return fill(this.node, parts(value));
  }

  /** Words in place of an output. */
  tell(words) {
    this._clear();
    fill(this.node, h("p", { class: "hint" }, words));
  }
}

const isAllFiles = (value) => isFile(value) || (Array.isArray(value) && value.every(isFile));
const isSame = (files, others) => files.length === others.length && files.every((one, at) => one.src === others[at].src && one.name === others[at].name);

function parts(value) {
  const files = filesOf(value);
  return [
    files.length ? media(files) : null,
    isAllFiles(value) ? null : typeof value === "object" ? jsonView(value, { isOpen: !files.length, name: "JSON" }) : text(json(value)),
  ];
}
