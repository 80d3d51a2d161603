// Show what a model put out. It is never trusted: text is text, a picture is a picture, an address is a link.

import { ours, placed } from "./api.js";
import { h } from "./dom.js";
import { json } from "./format.js";

const PICTURE = /^data:image\/(png|jpeg|gif|webp|avif);base64,/;
const NAMED_PICTURE = /\.(png|jpe?g|gif|webp|avif)$/i;
export const MOST = 200_000; // characters of one text that are shown
export const MOST_PIECES = 500;

/** The whole output of a prediction. */
export function output(value) {
  if (value === null || value === undefined) return h("p", { class: "hint" }, "No output.");
  if (Array.isArray(value) && value.every((item) => typeof item === "string" && !isFile(item))) return text(value.join(""));
  if (Array.isArray(value)) {
    const more = value.length - MOST_PIECES;
    return h("div", { class: "pieces" }, value.slice(0, MOST_PIECES).map(piece), more > 0 ? h("p", { class: "hint" }, `… ${more} more`) : null);
  }
  return piece(value);
}

/** One piece of it. */
export function piece(value) {
  if (typeof value !== "string") return text(json(value));
  if (PICTURE.test(value)) return picture(value);
  const url = webAddress(value);
  if (!url) return text(value);
  const isOurs = url.pathname.includes("/outputs/") && NAMED_PICTURE.test(url.pathname);
  const here = isOurs ? placed(ours(url.href)) : "";
  return h("p", {}, isOurs ? picture(here) : null, h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, shortened(url)));
}

/** Text as the model wrote it. */
export const text = (value) => h("pre", { class: "out" }, value.length > MOST ? `${value.slice(0, MOST)}\n… ${value.length - MOST} more characters` : value);

const isFile = (value) => value.startsWith("data:") || webAddress(value) !== null;
const picture = (src) => h("img", { src, alt: "What the model made", loading: "lazy" });
const shortened = (url) => (url.href.length > 80 ? `${url.href.slice(0, 79)}…` : url.href);

function webAddress(value) {
  if (!/^https?:\/\/\S+$/.test(value)) return null;
  try { return new URL(value); } catch { return null; }
}
