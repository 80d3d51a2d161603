// A text that grows: as Markdown or as it is. Blocks that are finished keep their nodes, so that each frame costs as
// much as the last blocks do, however long the text is.

import { fill, h, say } from "./dom.js";
import { block, item, lex } from "./markdown.js";

export const MOST = 200_000; // characters of one text that are shown
const OPEN = 3; // blocks at the end that later text may still change
const REST = 3; // times as long as drawing took, the page is left alone
const KEPT = "director.plain";

/** Whether this reader wants texts as they are. */
export const wantsPlain = () => localStorage.getItem(KEPT) === "yes";

export class LiveText {
  constructor() {
    this.node = h("div", { class: "text" });
    this.text = "";
    this._isPlain = wantsPlain();
    this._isDue = false;
    this._after = 0; // of performance.now(): nothing is drawn before
    this._cut = 0; // characters of its begin that are not kept
    this._begin();
  }

  append(more) {
    this.text += more.replace(/\r\n?/g, "\n");
    if (!this._isDue) this._wait();
  }

  /** Show the whole text if this is its beginning, and say whether it is. */
  completes(whole) {
    const wanted = whole.replace(/\r\n?/g, "\n");
    if (!wanted.startsWith(this.text)) return false;
    this.text = wanted;
    this._draw();
    return true;
  }

  /** Draw what is not drawn yet, at once. */
  settle() {
    this._draw();
  }

  /** Show it as Markdown, or as it is. */
  show(isPlain) {
    localStorage.setItem(KEPT, isPlain ? "yes" : "no");
    this._isPlain = isPlain;
    this._begin();
    this._draw();
  }

  _begin() {
    this._from = 0; // where the text begins that is not finished
    this._open = []; // {token, node}
    this._body = this._isRaw ? h("pre", { class: "out" }, "") : h("div", { class: "md" });
    fill(this.node, this._body);
    this._tellCut();
  }

  get _isRaw() {
    return this._isPlain || this.text.length > MOST;
  }

  _wait() {
    this._isDue = true;
    requestAnimationFrame(() => {
      if (performance.now() < this._after) return this._wait();
      const began = performance.now();
      this._draw();
      this._after = performance.now() + REST * (performance.now() - began);
      return undefined;
    });
  }

  _draw() {
    this._isDue = false;
    if (this._isRaw !== (this._body.tagName === "PRE")) this._begin(); // it has become too long for Markdown
    if (this._body.tagName === "PRE") this._lengthen();
    else this._grow();
  }

  /** Of a text that grows beyond all bounds, its end. */
  _lengthen() {
    const shown = this._body.firstChild ?? this._body.appendChild(document.createTextNode(""));
    if (this.text.length > 2 * MOST) {
      this._cut += this.text.length - MOST;
      this.text = this.text.slice(-MOST);
      shown.data = this.text;
      this._tellCut();
    } else if (this.text.startsWith(shown.data)) shown.appendData(this.text.slice(shown.length));
    else shown.data = this.text;
  }

  _tellCut() {
    if (!this._cut) return;
    this._note ??= h("p", { class: "hint" });
    say(this._note, `The first ${this._cut} characters are not shown.`);
    if (!this._note.isConnected) this.node.prepend(this._note);
  }

  _grow() {
    const rest = this.text.slice(this._from);
    const tokens = lex(rest);
    const before = this._open;
    this._open = tokens.map((token, at) => {
      const old = before[at];
      if (old?.token.raw === token.raw && old.token.type === token.type) return old;
      if (old && grown(old, token)) return { token, node: old.node };
      const node = block(token) ?? document.createTextNode("");
      const made = typeof node === "string" ? document.createTextNode(node) : node;
      if (old) old.node.replaceWith(made);
      else this._body.append(made);
      return { token, node: made };
    });
    for (const old of before.slice(tokens.length)) old.node.remove();
    this._finish(rest);
  }

  /** Keep the nodes of what later text cannot change, and read it no more. */
  _finish(rest) {
    const done = this._open.slice(0, -OPEN);
    const raw = done.map(({ token }) => token.raw).join("");
    if (!done.length || !rest.startsWith(raw)) return;
    this._from += raw.length;
    this._open = this._open.slice(-OPEN);
  }
}

/** Change the node of a block that has only become longer, and say whether that was possible. */
function grown({ token: old, node }, token) {
  if (old.type !== token.type) return false;
  if (token.type === "code" && old.lang === token.lang) {
    const shown = node.querySelector("code").firstChild;
    if (!shown) return false;
    if (token.text.startsWith(shown.data)) shown.appendData(token.text.slice(shown.length));
    else shown.data = token.text;
    return true;
  }
  if (token.type === "list" && old.ordered === token.ordered && old.loose === token.loose && old.start === token.start) {
    for (const [at, one] of token.items.entries()) {
      if (old.items[at]?.raw === one.raw) continue;
      if (node.children[at]) node.children[at].replaceWith(item(one));
      else node.append(item(one));
    }
    while (node.children.length > token.items.length) node.lastChild.remove();
    return true;
  }
  return false;
}
