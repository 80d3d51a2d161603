// The panel at the right: what a row is about, beside its list. The address has it as `show`. Where the window is narrow,
// the row leads to the full view.

import { withBeside } from "./address.js";
import { announce, fill, h, isPlainClick } from "./dom.js";
import { icon } from "./icons.js";
import { remember } from "./palette.js";
import { viewAt } from "./sections.js";
import { session } from "./session.js";

const LINK = /^#\/(predictions|batches)\/([a-z0-9_]+)$/;
const ACTING = "a, button, input, select, textarea, label, summary, pre";
const wide = matchMedia("(min-width: 1180px)");
const main = document.getElementById("main");
const place = document.getElementById("panel");

let shown = null; // {id, ending}
let isByKey = false; // a row was opened by Enter: the reader goes along

const pathOf = (id) => (id.startsWith("batch_") ? `/batches/${id}` : `/predictions/${id}`);
const linkOf = (row) => [...row.querySelectorAll("a")].find((link) => LINK.test(link.getAttribute("href")));
const rows = () => [...main.querySelectorAll("tbody tr")].filter((row) => linkOf(row));
const idOf = (row) => LINK.exec(linkOf(row).getAttribute("href"))[2];

/** Show what the address says, or nothing for "". Where the window is narrow, the full view is shown in its place. */
export function peek(id) {
  if (id && !wide.matches) {
    location.replace(`#${pathOf(id)}`);
    return;
  }
  if (id !== (shown?.id ?? "")) draw(id);
  mark();
}

function draw(id) {
  shown?.ending.abort();
  const found = id ? viewAt(pathOf(id)) : null;
  const isNothing = !found?.view;
  document.body.classList.toggle("beside", !isNothing);
  place.hidden = isNothing;
  if (isNothing) {
    shown = null;
    return fill(place);
  }
  const ending = new AbortController();
  shown = { id, ending };
  const made = found.view({ params: found.params, session, signal: ending.signal, refresh: () => draw(id), query: new URLSearchParams() });
  fill(place,
    h("div", { class: "panel-head" }, h("strong", {}, id.startsWith("batch_") ? "Batch" : "Prediction"),
      h("a", { class: "button quiet", href: `#${pathOf(id)}` }, icon("wide"), " Full view"),
      h("button", { type: "button", class: "quiet", "aria-label": "Close the panel", title: "Close (Esc)", on: { click: close } }, icon("close"))),
    made.node);
  place.scrollTop = 0;
  remember(id);
  announce(made.title);
  if (isByKey) place.focus({ preventScroll: true });
  isByKey = false;
}

/** The row that is shown is marked, also after the list was drawn again. */
export function mark() {
  const row = shown ? main.querySelector(`tbody a[href="#${pathOf(shown.id)}"]`)?.closest("tr") : null;
  for (const one of main.querySelectorAll("tr.shown")) if (one !== row) one.classList.remove("shown");
  row?.classList.add("shown");
}

/** Close it, and give the focus back to its row. */
export function close() {
  if (!shown) return;
  const row = rows().find((one) => idOf(one) === shown.id);
  location.hash = withBeside(location.hash, "");
  (row ? linkOf(row) : main).focus();
}

/** Go to the next row, or to the one before; the panel follows. */
export function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.contains(document.activeElement) || (shown && idOf(row) === shown.id && !main.contains(document.activeElement)));
  const row = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  linkOf(row).focus();
  row.scrollIntoView({ block: "nearest" });
  if (shown) location.replace(withBeside(location.hash, idOf(row)));
}

function opened(event) {
  const row = event.target.closest("tbody tr");
  if (!row || event.defaultPrevented || !isPlainClick(event)) return undefined;
  const link = event.target.closest("a");
  if (!link && (event.target.closest(ACTING) || String(getSelection()))) return undefined;
  const found = LINK.exec((link ?? linkOf(row))?.getAttribute("href") ?? "");
  if (!found) return undefined;
  if (!wide.matches) {
    if (!link) location.hash = `#${pathOf(found[2])}`;
    return undefined;
  }
  event.preventDefault();
  if (found[2] === shown?.id) return place.focus({ preventScroll: true });
  isByKey = Boolean(link) && event.detail === 0;
  location.hash = withBeside(location.hash, found[2]);
  return undefined;
}

main.addEventListener("click", opened);
