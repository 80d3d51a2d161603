// Pieces that the pages of models share: their state, their picture, and what a run of one looks like.

import { serviceAddress } from "../api.js";
import { h } from "../dom.js";
import { fileOf } from "../media.js";
import { filesOf, textOf } from "../output.js";

const TONES = 8;
const COVER = /^data:image\/(?:png|jpeg|webp|gif);base64,/;
const SHORT = 160; // characters of a text

/** The state of a model, in a word and a colour. */
export const stateChip = (state) => h("span", { class: `chip ${state.shade}`, title: state.detail || null }, state.words);

/** The picture of a model, or a tile of its own with its first letter. One on another site is not loaded. */
export function picture(model) {
  const own = model.cover_image_url ?? "";
  if (COVER.test(own)) return h("img", { class: "cover", src: own, alt: "" });
  const here = fileOf(own);
  if (here?.src && here.kind === "picture") return h("img", { class: "cover", src: here.src, alt: "", loading: "lazy" });
  const name = `${model.owner}/${model.name}`;
  const tone = [...name].reduce((sum, letter) => (sum * 131 + letter.codePointAt(0)) % 65_521, 7) % TONES;
  return h("span", { class: `cover tile tone${tone}`, "aria-hidden": "true" }, model.name.charAt(0).toUpperCase());
}

/** The input or the output of a run, in short: a picture of it, or its first words. */
export function glimpse(value) {
  const file = filesOf(value).find((one) => one.src);
  if (file?.kind === "picture") return h("img", { src: file.src, alt: "", loading: "lazy" });
  if (file) return h("span", { class: "mark", "aria-hidden": "true" }, { sound: "🔊", film: "🎬" }[file.kind] ?? "📄");
  return h("span", { class: "words" }, inShort(value));
}

/** The first words of a value. */
export function inShort(value) {
  const text = textOf(value) ?? (value === null || value === undefined ? "" : typeof value === "object" ? wordsOf(value) : String(value));
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > SHORT ? `${line.slice(0, SHORT)}…` : line;
}

const wordsOf = (value) => {
  const told = Object.values(value).filter((one) => typeof one === "string" && one.trim() && !fileOf(one));
  return told.sort((a, b) => b.length - a.length)[0] ?? JSON.stringify(value).slice(0, 2 * SHORT);
};

export const NARROW = "(max-width: 900px)"; // a result is below its form

/** Why a viewer finds no button to run a model. */
export const MAY_NOT_RUN = "This login may look at models, and not run them. That takes a token with the scope `run`.";

/** The address of a run for those who may see it. */
export const shareLink = (id) => `${serviceAddress()}/p/${id}`;
