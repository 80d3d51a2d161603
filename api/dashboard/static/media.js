// Files that a model made: pictures in a grid with a large view, players for audio and video, and other files with size
// and download. Only files of this service, and those within the output itself, are loaded.

import { ours, placed } from "./api.js";
import { dialog, fill, h, say } from "./dom.js";
import { bytes, dataBytes } from "./format.js";
import { outward, webAddress } from "./markdown.js";

const DATA = /^data:([a-z]+)\/([a-z0-9.+-]+)[;,]/i;
const ENDINGS = {
  picture: ["png", "jpg", "jpeg", "gif", "webp", "avif"],
  sound: ["wav", "mp3", "mpeg", "ogg", "oga", "opus", "flac", "m4a", "aac", "x-wav", "wave"],
  film: ["mp4", "webm", "mov", "ogv", "m4v", "quicktime"],
};
const OF_DATA = { image: "picture", audio: "sound", video: "film" };
const MOST = 500; // files of one output that are shown

/** What a text of an output is: `{kind, src, url, name}` for a file, or null for any other text. */
export function fileOf(text) {
  const data = DATA.exec(text);
  if (data) {
    const [, group, ending] = data;
    const kind = OF_DATA[group.toLowerCase()];
    return { kind: kind && ENDINGS[kind].includes(ending.toLowerCase()) ? kind : "file", src: text, url: null, name: `output.${ending.replace(/^x-|\+.*$/g, "")}` };
  }
  if (!/^https?:\/\/\S+$/.test(text)) return null;
  const url = webAddress(text);
  if (!url) return null;
  const name = url.pathname.split("/").at(-1) || url.host;
  const ending = name.split(".").at(-1).toLowerCase();
  const kind = Object.keys(ENDINGS).find((one) => ENDINGS[one].includes(ending)) ?? "file";
  const isOurs = /\/v1\/(outputs|files)\//.test(url.pathname);
  return { kind: isOurs ? kind : "file", src: isOurs ? placed(ours(url.href)) : "", url, name };
}

/** Files of one output, in its order; pictures come first. What is there stays as it is when `add(file)` brings one more. */
export class Media {
  constructor() {
    this._grid = h("ul", { class: "grid", hidden: true });
    this._more = h("p", { class: "hint" });
    this.node = h("div", { class: "media" }, this._grid, this._more);
    this._pictures = [];
    this._count = 0;
  }

  add(file) {
    this._count += 1;
    if (this._count > MOST) say(this._more, `… ${this._count - MOST} more`);
    else if (file.kind === "picture") this._paint(file);
    else this._more.before(file.kind === "sound" || file.kind === "film" ? player(file) : row(file));
  }

  _paint(file) {
    const at = this._pictures.length;
    this._pictures.push(file);
    const image = h("img", { loading: "lazy", src: file.src, alt: `What the model made, ${at + 1}`, decoding: "async" });
    const button = h("button", { type: "button", class: "picture", on: { click: () => large(this._pictures, at) } }, image);
    image.addEventListener("error", () => button.replaceWith(missing(file)), { once: true });
    this._grid.append(h("li", {}, button, foot(file)));
    this._grid.hidden = false;
    this._grid.className = `grid of${Math.min(at + 1, 4)}`;
    for (const [number, one] of [...this._grid.children].entries()) one.querySelector(".picture")?.setAttribute("aria-label", `Picture ${number + 1} of ${at + 1}, larger`);
  }
}

/** All files of one output. */
export function media(files) {
  const shown = new Media();
  for (const one of files) shown.add(one);
  return shown.node;
}

/** In place of what could not be loaded: it was deleted, or it is another service's. */
const missing = ({ kind, url }) => h("p", { class: "hint" }, `This ${kind} cannot be loaded.`, url && url.host !== location.host ? [" It is at ", outward(url, url.host), "."] : null);

/** One picture over the page; the arrows go to its neighbours. */
function large(pictures, first) {
  let at = first;
  const image = h("img", { alt: "" });
  const words = h("span", { class: "hint", role: "status" });
  const save = h("a", { class: "button" }, "Download");
  const go = (by) => { at = (at + by + pictures.length) % pictures.length; show(); };
  function show() {
    image.src = pictures[at].src;
    image.alt = `Picture ${at + 1} of ${pictures.length}`;
    save.href = pictures[at].src;
    save.download = pictures[at].name;
    say(words, pictures.length > 1 ? `${at + 1} of ${pictures.length}` : pictures[at].name);
  }
  const step = (name, by) => (pictures.length > 1 ? h("button", { type: "button", on: { click: () => go(by) } }, name) : null);
  const turn = ({ key }) => {
    if (key === "ArrowLeft") go(-1);
    if (key === "ArrowRight") go(1);
  };
  show();
  dialog({ class: "large", "aria-label": "A picture", on: { keydown: turn } }, image,
    h("form", { method: "dialog", class: "actions" }, step("Previous", -1), step("Next", 1), words, save, h("button", { class: "main" }, "Close")));
}

function player(file) {
  const element = h(file.kind === "sound" ? "audio" : "video", { src: file.src, controls: true, preload: "metadata", playsinline: true, "aria-label": file.name });
  element.addEventListener("error", () => element.replaceWith(missing(file)), { once: true });
  return h("figure", { class: `player ${file.kind}` }, element, foot(file));
}

const row = (file) => h("div", { class: "attachment" }, h("span", { class: "mark", "aria-hidden": "true" }, "📄"), foot(file));

/** Name, size and download of a file. One elsewhere is a link to there, and nothing is asked of that place. */
function foot(file) {
  if (!file.src) return h("p", { class: "foot-of" }, outward(file.url, short(file.name)), h("span", { class: "hint" }, ` at ${file.url.host}`));
  const size = h("span", { class: "hint" });
  measure(file).then((found) => found !== null && fill(size, bytes(found)), () => {});
  return h("p", { class: "foot-of" }, h("a", { href: file.src, download: file.name, title: file.name }, "Download"), h("span", { class: "hint" }, short(file.name)), size);
}

async function measure({ src }) {
  if (src.startsWith("data:")) return dataBytes(src);
  const answer = await fetch(src, { method: "HEAD", credentials: "omit" });
  const length = answer.ok ? Number(answer.headers.get("Content-Length")) : 0;
  return length || null;
}

/** The name without what makes it unguessable. */
const short = (name) => (name.length > 36 ? `${name.slice(0, 12)}…${name.slice(-12)}` : name);
