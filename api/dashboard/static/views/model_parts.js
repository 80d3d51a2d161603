// Pieces that the pages of models share: their state, their picture, and what a run of one looks like.

import { h } from "../dom.js";
import { icon } from "../icons.js";
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
  if (here?.src && here.kind === "picture") return h("img", { class: "cover", loading: "lazy", src: here.src, alt: "" });
  const name = `${model.owner}/${model.name}`;
  const tone = [...name].reduce((sum, letter) => (sum * 131 + letter.codePointAt(0)) % 65_521, 7) % TONES;
  return h("span", { class: `cover tile tone${tone}`, "aria-hidden": "true" }, model.name.charAt(0).toUpperCase());
}

const GONE_MS = 60_000;
const gone = new Set(); // pictures that could not be loaded: a list that is drawn again does not ask for them all the time

/** A picture in a box that is there before it. One that is gone or expired leaves a mark. */
function small({ src }) {
  const mark = () => h("span", { class: "no-picture", title: "This picture cannot be loaded." }, icon("picture"));
  if (gone.has(src)) return mark();
  const image = h("img", { loading: "lazy", src, alt: "", decoding: "async" });
  image.addEventListener("error", () => { gone.add(src); setTimeout(() => gone.delete(src), GONE_MS); image.replaceWith(mark()); }, { once: true });
  return image;
}

/** The first picture of an output, for a row of a list, or null. An operator's list has the begin of its JSON. */
export function thumb(output) {
  const begun = typeof output === "string" ? /^(?=["[{]).*?"((?:https?:|data:)[^"\\]+)"/.exec(output)?.[1] : null;
  const file = filesOf(begun ?? output).find(({ kind, src }) => kind === "picture" && src);
  return file ? h("span", { class: "thumb mini" }, small(file)) : null;
}

/** The head of a column of these pictures. */
export const pictured = () => h("th", { scope: "col", class: "pic lesser" }, h("span", { class: "unseen" }, "Picture"));

const ASKED = /^(prompt|text|message|query|question|input)$/;

/** What made an output, in a line: the text that was asked for, and the fields that are not at their defaults. */
export function madeFrom(input, properties = {}) {
  const given = Object.entries(input ?? {}).filter(([name, value]) => value !== null && JSON.stringify(value) !== JSON.stringify(properties[name]?.default));
  const asked = given.find(([name, value]) => ASKED.test(name) && typeof value === "string" && value.trim());
  const said = asked?.[1] ?? (Array.isArray(input?.messages) ? input.messages.at(-1)?.content : null);
  const others = given.filter((one) => one !== asked && (one[0] !== "messages" || typeof said !== "string"));
  return [typeof said === "string" ? `“${preview(said)}”` : "", preview(Object.fromEntries(others))].filter(Boolean).join(" · ");
}

/** The input or the output of a run, in short: a picture of it, another file, or its first words. */
export function glimpse(value) {
  const files = filesOf(value).filter(({ src }) => src);
  const file = files.find(({ kind }) => kind === "picture") ?? files[0];
  if (file?.kind === "picture") return small(file);
  if (file) return h("span", { class: "mark", "aria-hidden": "true" }, { sound: "🔊", film: "🎬" }[file.kind] ?? "📄");
  return h("span", { class: "words" }, preview(value));
}

export const NARROW = "(max-width: 900px)"; // a result is below its form

/** Why a viewer finds no button to run a model. */
export const MAY_NOT_RUN = "This login may look at models, and not run them. That takes a token with the scope `run`.";
