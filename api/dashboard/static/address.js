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
