// What operators changed: who, when and what, newest first.

import { ask } from "../api.js";
import { h, table } from "../dom.js";
import { json, moment } from "../format.js";
import { endless } from "./parts.js";

export function audit({ signal }) {
  const body = h("tbody", {});
  async function more(next) {
    const found = await ask(`/v1/admin/audit?order=desc${next ? `&after=${encodeURIComponent(next)}` : ""}`, { signal });
    return { results: found.changes, next: found.next };
  }
  const row = (one) => h("tr", {},
    h("td", {}, moment(one.at)), h("td", {}, one.by), h("td", {}, one.kind), h("td", {}, one.account ?? one.queue ?? "–"), h("td", { class: "mono" }, json(one.detail)));
  return {
    title: "Changes",
    node: h("section", {}, h("h1", {}, "Changes"), table("What operators changed", ["When", "Who", "What", "Of", "More"], body), endless(body, more, row, { signal, empty: "None yet." })),
  };
}
