// Usage: what the runs of a month used, of one's own account or, for operators, of all accounts.

import { ask } from "../api.js";
import { fill, h, table } from "../dom.js";
import { bytes, count, now, seconds } from "../format.js";
import { failure } from "./parts.js";

const MONTH = /^\d{4}-\d{2}$/;

/** The month before or after one, as 2026-11. */
const beside = (month, by) => new Date(Date.UTC(Number(month.slice(0, 4)), Number(month.slice(5)) - 1 + by, 1)).toISOString().slice(0, 7);

export function usage({ session, signal, query }) {
  const present = new Date(now()).toISOString().slice(0, 7);
  const month = MONTH.test(query.get("month") ?? "") ? query.get("month") : present;
  const last = new Date(Date.UTC(Number(month.slice(0, 4)), Number(month.slice(5)), 0)).toISOString().slice(0, 10);
  const keys = session.seesAll ? ["account", "model"] : ["model"];
  const body = h("div", {});

  async function load() {
    try {
      const path = session.seesAll ? "/v1/admin/usage" : "/v1/usage";
      const seen = await ask(`${path}?from=${month}-01&to=${last}&by=${keys.join(",")}`, { signal });
      if (signal.aborted) return;
      if (!seen.results.length) return fill(body, h("p", { class: "hint" }, "Nothing ran in this month."));
      const total = h("tr", {}, h("th", { scope: "row" }, "all"), keys.slice(1).map(() => h("td", {}, "")), figures(seen.total));
      fill(body, table("Usage", [...keys.map((key) => key[0].toUpperCase() + key.slice(1)), "#Runs", "#Time", "#Input tokens", "#Of them cached", "#Output tokens", "#Files", "#Cost"],
        h("tbody", {}, seen.results.map((one) => h("tr", {}, h("th", { scope: "row" }, one[keys[0]]), keys.slice(1).map((key) => h("td", {}, one[key])), figures(one))), total)));
    } catch (error) {
      if (!signal.aborted) fill(body, failure(error));
    }
  }

  load();
  return {
    title: "Usage",
    node: h("section", {}, h("h1", {}, `Usage in ${month}`),
      h("p", { class: "hint" }, "Days are those of UTC. ", session.seesAll ? ["As a CSV: ", h("code", {}, `director usage --month ${month} --csv`)] : null),
      h("p", {}, h("a", { href: `#/usage?month=${beside(month, -1)}` }, beside(month, -1)), month < present ? [" · ", h("a", { href: `#/usage?month=${beside(month, 1)}` }, beside(month, 1))] : null),
      body),
  };
}

const figures = (one) => [
  h("td", { class: "num" }, count(one.runs)), h("td", { class: "num" }, seconds(one.seconds)),
  h("td", { class: "num" }, count(one.input_tokens)), h("td", { class: "num" }, count(one.cached_tokens)), h("td", { class: "num" }, count(one.output_tokens)),
  h("td", { class: "num" }, bytes(one.file_bytes)), h("td", { class: "num" }, one.cost === null ? "–" : one.cost.toFixed(2)),
];
