// Make elements. Text is only ever set as text: nothing that a model or a caller wrote is read as HTML.

/** An element. `given`: attributes; `on` has listeners, `class` a list of names, and what is null or false is left out. */
export function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "value") element.value = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  fill(element, ...children);
  return element;
}

/** Replace what is inside. Strings become text. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * Bring what is inside in line with these children, and leave alone what is the same: what has the focus, is selected,
 * scrolled or open stays so. Two that look the same must also do the same, since the older one stays.
 */
export function refill(element, ...children) {
  settle(element, fill(element.cloneNode(false), ...children));
}

const ACTING = "a, button, input, select, textarea"; // replaced as a whole: what they do is not to be seen

/** A button at work is the one that it was before: replaced, it would lose the focus. */
function isSame(old, node) {
  if (old.ariaBusy !== "true") return old.isEqualNode(node);
  const calm = old.cloneNode(true);
  calm.ariaBusy = null;
  return calm.isEqualNode(node);
}

function settle(element, wanted) {
  const there = [...element.childNodes];
  const given = [...wanted.childNodes];
  for (const [at, node] of given.entries()) {
    const old = there[at];
    if (node.tagName === "DETAILS" && old?.tagName === "DETAILS") node.open = old.open;
    if (!old) element.append(node);
    else if (isSame(old, node)) continue;
    else if (old instanceof Text && node instanceof Text) old.data = node.data;
    else if (old instanceof Element && !old.matches(ACTING) && old.cloneNode(false).isEqualNode(node.cloneNode(false))) settle(old, node);
    else old.replaceWith(node);
  }
  for (const old of there.slice(given.length)) old.remove();
}

/** Set a text where it changed: a page that is read aloud, or selected from, is not disturbed by what stays. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/**
 * Keep the children of `parent` in line with `items`: made once for each key, updated after, in this order.
 * `make(item)` returns {node, update(item)}.
 */
export function keyed(parent, key, make) {
  const known = new Map();
  return (items) => {
    const wanted = new Set(items.map(key));
    for (const [name, part] of known) if (!wanted.has(name)) { part.node.remove(); known.delete(name); }
    let before = parent.firstChild;
    for (const item of items) {
      const name = key(item);
      let part = known.get(name);
      if (!part) known.set(name, (part = make(item)));
      part.update(item);
      if (part.node === before) before = before.nextSibling;
      else parent.insertBefore(part.node, before);
    }
  };
}

/** A click that opens a link in this tab. */
export const isPlainClick = (event) => !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);

/** Open each `details` around a node, so that it can be seen. */
export function reveal(node) {
  for (let outer = node.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
}

/**
 * Show a dialog over the page, and remove it when it closes. A light one also closes by a click beside it: one in its
 * padding is a click on the dialog itself too, so the place decides.
 */
export function dialog({ isLight = true, ...given }, ...children) {
  const box = h("dialog", given, ...children);
  box.addEventListener("close", () => box.remove(), { once: true });
  if (isLight) box.addEventListener("click", (event) => { if (event.target === box && isBeside(box, event)) box.close(); });
  document.body.append(box);
  box.showModal();
  return box;
}

function isBeside(box, { clientX: x, clientY: y }) {
  const { left, right, top, bottom } = box.getBoundingClientRect();
  return x < left || x > right || y < top || y > bottom;
}

/** Announce a text to screen readers. */
export function announce(text) {
  say(document.getElementById("announcer"), text);
}

/** A table with a name, in a region of its own that can be scrolled by keyboard where the window is narrow. A head that
 * begins with # is one of numbers. On a telephone each row is a block, whose cells have their heads as labels. */
export function table(name, heads, body) {
  const cells = heads.map((head) => (head instanceof Node ? head : h("th", { scope: "col", class: head.startsWith("#") ? "num" : null }, head.replace(/^#/, ""))));
  const names = cells.map((cell) => (cell.querySelector(".unseen") ? "" : cell.textContent));
  const label = () => { for (const row of body.rows) for (const [at, cell] of [...row.cells].entries()) labelled(cell, names[at]); };
  body.setAttribute("role", "rowgroup");
  label();
  new MutationObserver(label).observe(body, { childList: true });
  return h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": name },
    h("table", { role: "table" }, h("caption", { class: "unseen" }, name), h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, cells)), body));
}

function labelled(cell, name) {
  if (cell.hasAttribute("role")) return;
  cell.dataset.label = name ?? "";
  cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell"); // as blocks, cells lose their role
  cell.parentElement.setAttribute("role", "row");
}
