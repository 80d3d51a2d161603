// What operators changed: who, when and what, newest first.

import { ask } from "../api.js";
import { h, table } from "../dom.js";
import { moment } from "../format.js";
import { endless, queueLink } from "./parts.js";

const words = (value) => (value === null ? "none" : Array.isArray(value) ? value.map(words).join(", ") : typeof value === "object" ? detail(value) : String(value));
const detail = (given) => Object.entries(given).map(([name, value]) => `${name.replaceAll("_", " ")}: ${words(value)}`).join(" · ");

export function audit({ signal }) {
  const body = h("tbody", {});
  async function more(next) {
    const found = await ask(`/v1/admin/audit?order=desc${next ? `&after=${encodeURIComponent(next)}` : ""}`, { signal });
    return { results: found.changes, next: found.next };
  }
  const what = (one) => (one.kind === "void" ? h("span", { class: "chip" }, "did not happen") : one.kind.replaceAll("_", " "));
  const row = (one) => h("tr", { title: one.id },
    h("td", {}, moment(one.at)), h("td", {}, one.by), h("td", {}, what(one)),
    h("td", {}, one.queue ? queueLink(one.queue) : one.account ? h("a", { href: `#/accounts/${one.account}` }, one.account) : "–", one.queue && one.account ? `, ${one.account}` : ""),
    h("td", { class: "error" }, one.kind === "void" ? "The change after it was refused, or changed nothing." : detail(one.detail) || "–"));
  return {
    title: "Changes",
    node: h("section", {}, h("h1", {}, "Changes"), h("p", { class: "hint" }, "What operators changed, by the page, the API and the command line."),
      table("What operators changed", ["When", "Who", "Change", "Queue or account", "Details"], body), endless(body, more, row, { signal, empty: "None yet." })),
  };
}
