// Markdown as elements. Of marked only the lexer is used: its tokens become nodes here, so no HTML that a model wrote is
// ever read as HTML. Links lead to web addresses only, and a picture from elsewhere is a link, since nothing is loaded.

import { h } from "./dom.js";
import { Lexer, getDefaults } from "./marked/marked.esm.js";

const OPTIONS = { ...getDefaults(), breaks: true };
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp));/g;
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const BREAK = /^<br\s*\/?>$/i;
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp|avif);base64,/;

const DEEPEST = 50; // levels of quotes, lists and emphasis: a text with more is shown as it is
const NESTED = /^[ \t]*(?:>[ \t]*|[-*+][ \t]+|\d{1,9}[.)][ \t]+){50}/m; // each level would be read again

/** The blocks of a text. One that nests deeper than a page can show, or a stack can hold, is a block as it is. */
export function lex(text) {
  try {
    const tokens = NESTED.test(text) ? null : new Lexer({ ...OPTIONS }).lex(text);
    if (tokens && isFlat(tokens, DEEPEST)) return tokens;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // the stack is used up
  }
  return [{ type: "unread", raw: text, text }];
}

const isFlat = (tokens, left) => !tokens.length || (left > 0 && tokens.every((one) => isFlat(one.tokens ?? one.items ?? [...(one.header ?? []), ...(one.rows ?? []).flat()], left - 1)));

/** A text that is whole. */
export const markdown = (text) => h("div", { class: "md" }, lex(text).map(block));

/** The element of a block; null for what shows nothing. */
export function block(token) {
  switch (token.type) {
    case "space": case "def": return null;
    case "hr": return h("hr");
    case "unread": return h("p", { class: "as-typed" }, token.text);
    case "code": return code(token);
    case "heading": return h("h3", { class: `depth${token.depth}` }, inline(token.tokens)); // one level: the page has its own outline
    case "blockquote": return h("blockquote", {}, token.tokens.map(block));
    case "list": return h(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== 1 ? token.start : null }, token.items.map(item));
    case "table": return table(token);
    case "html": return h("p", { class: "raw" }, token.raw.trim());
    case "text": return token.tokens ? h("p", { class: "tight" }, inline(token.tokens)) : plain(token.text);
    case "paragraph": return h("p", {}, inline(token.tokens));
    default: return inlined(token);
  }
}

export const item = (token) => h("li", { class: token.task ? "task" : null }, token.tokens.map(block));

function code({ text, lang }) {
  return h("pre", { class: "code", tabindex: "0", "data-lang": (lang ?? "").split(/\s/)[0] || null, "aria-label": "Code", role: "group" }, h("code", {}, text));
}

function table({ header, rows, align }) {
  const cell = (tag) => (one, at) => h(tag, { class: align[at] === "right" ? "num" : null, scope: tag === "th" ? "col" : null }, inline(one.tokens));
  return h("div", { class: "sheet", tabindex: "0", role: "group", "aria-label": "A table" },
    h("table", {}, h("thead", {}, h("tr", {}, header.map(cell("th")))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell("td")))))));
}

/** Nodes of what stands in a line. */
export const inline = (tokens = []) => tokens.map(inlined);

function inlined(token) {
  switch (token.type) {
    case "strong": return h("strong", {}, inline(token.tokens));
    case "em": return h("em", {}, inline(token.tokens));
    case "del": return h("del", {}, inline(token.tokens));
    case "codespan": return h("code", {}, token.text);
    case "br": return h("br");
    case "link": return link(token);
    case "image": return picture(token);
    case "checkbox": return h("span", { class: "box", role: "img", "aria-label": token.checked ? "done" : "to do" }, token.checked ? "☑ " : "☐ ");
    case "html": return BREAK.test(token.raw.trim()) ? h("br") : token.raw;
    case "escape": return token.text;
    default: return token.tokens ? inline(token.tokens) : plain(token.text ?? token.raw);
  }
}

/** Text with its entities as the characters that they stand for. */
const plain = (text) => text.replace(ENTITY, (_, decimal, hex, name) => {
  if (name) return NAMED[name];
  const point = parseInt(decimal ?? hex, decimal ? 10 : 16);
  return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : "\ufffd";
});

/** A web address, or null for a script, a mail address or a place of this page. */
export function webAddress(text) {
  try {
    const url = new URL(plain(text));
    return url.protocol === "https:" || url.protocol === "http:" ? url : null;
  } catch { return null; }
}

/** A link to another site, which learns nothing of this page. */
export const outward = (url, ...words) => h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", title: url.href }, words);

function link({ href, tokens, raw }) {
  const url = webAddress(href);
  return url ? outward(url, inline(tokens)) : raw;
}

function picture({ href, text }) {
  if (PICTURE.test(href)) return h("img", { src: href, alt: text || "A picture in the text" });
  const url = webAddress(href);
  return url ? outward(url, text || url.href) : text;
}
