// Usage: who used what in a month. Of all accounts for operators, of one's own otherwise.

import { readdress } from "../address.js";
import { askSites, saveAs } from "../api.js";
import { chart } from "../chart.js";
import { fill, h, table } from "../dom.js";
import { bytes, count, now, seconds, share } from "../format.js";
import { action, lack, picks, ranThere, untilAnswered } from "./parts.js";

const MONTH = /^\d{4}-\d{2}$/;
const DAY_S = 86_400;
const MOST_SHOWN = 4; // names in the chart, beside the others
const TONES = ["team1", "team2", "team3", "team4", "team5"];
const COLUMNS = { runs: ["#Runs", count], seconds: ["#Time", seconds], input_tokens: ["#Input tokens", count], cached_tokens: ["#Of them cached", count], output_tokens: ["#Output tokens", count], file_bytes: ["#Files", bytes], cost: ["#Cost", (value) => (value === null ? "–" : value.toFixed(2))] };
const FIGURES = Object.keys(COLUMNS);
const MEASURES = Object.fromEntries(["cost", "seconds", "runs", "output_tokens", "input_tokens"].map((name) => [name, [COLUMNS[name][0].slice(1), COLUMNS[name][1]]]));
const GROUPS = { "account,model": "Account and model", account: "Account", model: "Model" };

/** The month before or after one, as 2026-11. */
const beside = (month, by) => new Date(Date.UTC(Number(month.slice(0, 4)), Number(month.slice(5)) - 1 + by, 1)).toISOString().slice(0, 7);
const nameOf = (month) => new Intl.DateTimeFormat("en", { month: "long", year: "numeric", timeZone: "UTC" }).format(new Date(`${month}-01T00:00:00Z`));

export function usage({ session, signal, query }) {
  const present = new Date(now()).toISOString().slice(0, 7);
  const month = MONTH.test(query.get("month") ?? "") ? query.get("month") : present;
  const last = new Date(Date.UTC(Number(month.slice(0, 4)), Number(month.slice(5)), 0)).toISOString().slice(0, 10);
  const path = session.seesAll ? "/v1/admin/usage" : "/v1/usage";
  const groups = session.seesAll ? GROUPS : { model: "Model" };
  const chosen = { by: query.get("by") in groups ? query.get("by") : Object.keys(groups)[0], of: query.get("of") in MEASURES ? query.get("of") : "" };
  const body = h("div", {}, h("p", { class: "hint" }, "Adding it up…"));
  const about = (by, mine = signal) => askSites(`${path}?from=${month}-01&to=${last}&by=${by}`, { signal: mine });
  const address = (given) => `#/usage?${new URLSearchParams(Object.entries({ month, ...chosen, ...given }).filter(([, value]) => value))}`;
  let drawing = new AbortController();
  let shown = signal; // aborted once another choice is drawn

  function load() {
    drawing.abort();
    drawing = new AbortController();
    shown = AbortSignal.any([signal, drawing.signal]);
    untilAnswered(look, body, shown);
  }

  async function look() {
    const mine = shown;
    const keys = chosen.by.split(",");
    const [{ answer: sums, away }, days] = await Promise.all([about(chosen.by, mine), about(`${keys[0]},day`, mine)]);
    if (mine.aborted) return undefined;
    const missing = lack(away, days.away);
    if (!sums.results.length) return fill(body, missing ?? h("p", { class: "hint" }, "Nothing ran in this month."));
    const of = chosen.of || (sums.total.cost ? "cost" : "seconds");
    const at = document.activeElement;
    const picked = body.contains(at) && at.closest(".picks")?.ariaLabel; // which goes with what is drawn now
    fill(body, missing, figures(sums.total), choices(sums.total, of), perDay(days.answer.results, keys[0], of), rows(sums, keys, of));
    if (picked) body.querySelector(`[aria-label="${picked}"] [aria-pressed="true"]`)?.focus();
  }

  function choose(given) {
    Object.assign(chosen, given);
    readdress(address({}));
    load();
  }

  function pick(label, options, current, name) {
    const values = Object.keys(options);
    const { node, show } = picks(label, Object.values(options), (at) => choose({ [name]: values[at] }));
    show(values.indexOf(current));
    return node;
  }

  const choices = (total, of) => h("div", { class: "usage-picks" },
    Object.keys(groups).length > 1 ? pick("Group by", groups, chosen.by, "by") : null,
    pick("Measure", Object.fromEntries(Object.entries(MEASURES).filter(([name]) => total[name]).map(([name, [words]]) => [name, words])), of, "of"),
    action("Download CSV", csv, { needs: "" }));

  /** Bars of the days, with the largest names apart. */
  function perDay(results, key, of) {
    const [words, format] = MEASURES[of];
    const totals = new Map();
    for (const one of results) totals.set(one[key], (totals.get(one[key]) ?? 0) + (one[of] ?? 0));
    const largest = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a));
    const names = largest.slice(0, MOST_SHOWN);
    const rest = largest.length - names.length;
    const series = [...names, ...(rest ? [`${rest} more`] : [])].map((name, at) => ({ name, tone: TONES[at] }));
    const first = Date.parse(`${month}-01T00:00:00Z`) / 1000;
    const until = Math.min(Date.parse(`${last}T00:00:00Z`) / 1000, now() / 1000);
    const times = [];
    for (let at = first; at <= until; at += DAY_S) times.push(at);
    const columns = series.map(() => times.map(() => 0));
    for (const one of results) {
      const place = names.indexOf(one[key]);
      const day = (Date.parse(`${one.day}T00:00:00Z`) / 1000 - first) / DAY_S;
      if (day < times.length) columns[place < 0 ? names.length : place][day] += one[of] ?? 0;
    }
    const drawn = chart({ title: `${words} by day`, series, format, sync: "usage", signal: shown, isStacked: true });
    drawn.set({
      times, step: DAY_S, columns, words: "",
      span: (at) => new Date(times[at] * 1000).toISOString().slice(0, 10),
      lines: (at) => series.map((one, place) => ({ tone: one.tone, text: `${one.name}: ${format(columns[place][at])}` })).filter((_, place) => columns[place][at]),
    });
    return drawn.node;
  }

  async function csv() {
    const keys = [...(session.seesAll ? ["account"] : []), "model", "day"];
    const { answer: { results }, away } = await about(keys.join(","));
    const lines = [[...keys, ...FIGURES], ...results.map((one) => [...keys, ...FIGURES].map((name) => one[name] ?? ""))];
    saveAs(new Blob([`${lines.map((cells) => cells.join(",")).join("\n")}\n`], { type: "text/csv" }), `usage-${month}.csv`);
    return `${results.length} lines.${away ? ` ${ranThere(away)}` : ""}`;
  }

  load();
  return {
    title: "Usage",
    node: h("section", { class: "usage" },
      h("div", { class: "head" }, h("h1", {}, `Usage in ${nameOf(month)}`),
        h("div", { class: "months", role: "group", "aria-label": "Months" }, h("a", { class: "button", href: address({ month: beside(month, -1) }) }, "‹ ", nameOf(beside(month, -1))),
          month < present ? h("a", { class: "button", href: address({ month: beside(month, 1) }) }, nameOf(beside(month, 1)), " ›") : null)),
      body,
      h("p", { class: "hint" }, "Days are those of UTC. ", session.seesAll ? ["In a terminal: ", h("code", {}, `director usage --month ${month} --csv`), ". Prices: ", h("code", {}, "director model price"), "."] : null)),
  };
}

/** The sums of a month, without zeros. */
export const figures = (total) => h("dl", { class: "tiles" }, [
  ["Runs", count(total.runs)], ["Time", seconds(total.seconds)],
  ["Tokens, in · out", total.input_tokens + total.output_tokens ? `${count(total.input_tokens)} · ${count(total.output_tokens)}` : ""],
  ["Files", total.file_bytes ? bytes(total.file_bytes) : ""], ["Cost", total.cost === null ? "" : total.cost.toFixed(2)],
].filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

const PLACES = { account: (name) => `#/accounts/${encodeURIComponent(name)}`, model: (name) => `#/predictions?model=${encodeURIComponent(name)}` };

/** The largest first, with its part of the whole. A column of zeros says nothing. */
function rows({ results, total }, keys, of) {
  const sorted = [...results].sort((a, b) => (b[of] ?? 0) - (a[of] ?? 0));
  const columns = Object.entries(COLUMNS).filter(([name]) => total[name]);
  const cell = (one, key, at) => h(at ? "td" : "th", { scope: at ? null : "row" }, key === "account" || one[key].includes("/") ? h("a", { href: PLACES[key](one[key]) }, one[key]) : one[key]);
  const figuresOf = (one) => columns.map(([name, [, format]]) => h("td", { class: "num" }, format(one[name])));
  const whole = h("tr", { class: "total" }, h("th", { scope: "row" }, "all"), keys.slice(1).map(() => h("td", {}, "")), h("td", { class: "num" }, ""), figuresOf(total));
  return table("Usage", [...keys.map((key) => key[0].toUpperCase() + key.slice(1)), `#Share of ${MEASURES[of][0].toLowerCase()}`, ...columns.map(([, [head]]) => head)],
    h("tbody", {}, sorted.map((one) => h("tr", {}, keys.map((key, at) => cell(one, key, at)), h("td", { class: "num share" }, bar(one[of], total[of]), h("span", { class: "percent" }, share(one[of] ?? 0, total[of]))), figuresOf(one))), whole));
}

function bar(part, of) {
  const inside = h("span", {});
  inside.style.setProperty("width", `${of ? (100 * (part ?? 0)) / of : 0}%`);
  return h("span", { class: "share-bar", "aria-hidden": "true" }, inside);
}
