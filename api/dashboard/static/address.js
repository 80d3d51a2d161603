// The address, and the view that it shows. The frame makes another view where these differ, so a view that changes its
// own address does it by `readdress`.

let shown = "";

/** What an address says: its path in plain letters, its query, and what stands in the panel beside the view. */
export function read(hash = location.hash) {
  const [path, search] = hash.slice(1).split("?");
  const query = new URLSearchParams(search ?? "");
  const beside = query.get("show") ?? "";
  query.delete("show");
  return { path: plain(path), query, beside };
}

function plain(path) {
  try { return decodeURIComponent(path) || "/"; } catch { return "/"; }
}

function viewOf(hash) {
  const { path, query } = read(hash);
  return `${path}?${query}`;
}

export const isShown = () => shown === viewOf(location.hash);

export const setShown = () => { shown = viewOf(location.hash); };

/** Make the next look at the address show its view from its begin. */
export const forgetShown = () => { shown = ""; };

const ASKED = "director.asked"; // in all tabs, because the link that logs in opens another one
const ASKED_MS = 3_600_000;

/** Keep the view that was asked for without a log-in, for after it. */
export function keepAsked() {
  if (!/^(#\/?|#\/login\/.*)?$/.test(location.hash)) localStorage.setItem(ASKED, JSON.stringify([location.hash.slice(1), Date.now()]));
}

/** The view that was asked for, this once. */
export function takeAsked() {
  const [view, at] = JSON.parse(localStorage.getItem(ASKED)) ?? [];
  localStorage.removeItem(ASKED);
  return at > Date.now() - ASKED_MS ? view : "/";
}

/** The view that a link names, which anyone may have written: of a path on this site alone, else Home. */
export const viewNamed = (text) => (/^\/(?![/\\])[^\\\s]*$/.test(text) ? text.replace(/^\/p\//, "/predictions/") : "/");

/** Give the view that is shown another address, without a step of the way back. What stands beside it stays. */
export function readdress(hash) {
  history.replaceState(null, "", withBeside(hash, read().beside));
  setShown();
}

/** An address with another panel beside its view, or with none for "". */
export function withBeside(hash, id) {
  const { path, query } = read(hash);
  if (id) query.set("show", id);
  return `#${path}${query.size ? `?${query}` : ""}`;
}
