// Pieces that the pages of models share: their state, their picture, and what a run of one looks like.

import { serviceAddress } from "../api.js";
import { h } from "../dom.js";
import { fileOf } from "../media.js";
import { filesOf } from "../output.js";
import { preview } from "./parts.js";

const TONES = 8;

/** The state of a model, in a word and a colour. */
export const stateChip = (state) => h("span", { class: `chip ${state.shade}`, title: state.detail || null }, state.words);

/** The picture of a model, or a tile of its own with its first letter. One on another site is not loaded. */
export function picture(model) {
  const own = model.cover_image_url ?? "";
  const here = fileOf(own);
  if (here?.src && here.kind === "picture") return h("img", { class: "cover", src: here.src, alt: "", loading: "lazy" });
  const name = `${model.owner}/${model.name}`;
  const tone = [...name].reduce((sum, letter) => (sum * 131 + letter.codePointAt(0)) % 65_521, 7) % TONES;
  return h("span", { class: `cover tile tone${tone}`, "aria-hidden": "true" }, model.name.charAt(0).toUpperCase());
}

/** The input or the output of a run, in short: a picture of it, another file, or its first words. */
export function glimpse(value) {
  const files = filesOf(value).filter(({ src }) => src);
  const file = files.find(({ kind }) => kind === "picture") ?? files[0];
  if (file?.kind === "picture") return h("img", { src: file.src, alt: "", loading: "lazy" });
  if (file) return h("span", { class: "mark", "aria-hidden": "true" }, { sound: "🔊", film: "🎬" }[file.kind] ?? "📄");
  return h("span", { class: "words" }, preview(value));
}

export const NARROW = "(max-width: 900px)"; // a result is below its form

/** Why a viewer finds no button to run a model. */
export const MAY_NOT_RUN = "This login may look at models, and not run them. That takes a token with the scope `run`.";

/** The address of a run for those who may see it. */
export const shareLink = (id) => `${serviceAddress()}/p/${id}`;
