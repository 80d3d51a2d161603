// Predictions, newest first and live, narrowed by what is known of them, with what can be done to many.

import { ask, page, repeat } from "../api.js";
import { h, keyed, say, table } from "../dom.js";
import { ago, between, now, seconds } from "../format.js";
import { action, chip, failure, isTerminal, predictionLink } from "./parts.js";

const STATES = ["", "starting", "processing", "succeeded", "failed", "canceled", "aborted"];
const SINCE = [["", "any time"], ["15m", "the last 15 min", 900], ["1h", "the last hour", 3600], ["24h", "the last day", 86_400], ["7d", "the last week", 604_800]];
const createdAfter = (since) => {
  const [, , span] = SINCE.find(([name]) => name === since) ?? [];
  return span ? new Date(now() - span * 1000).toISOString() : "";
};
const LOOK_MS = 4000;
const SHOWN = 80; // characters of an error
const MOST_LIVE = 1000; // rows, beyond which the list no longer updates itself

const MOST_IDS = 500; // of one request
const parted = (ids) => Array.from({ length: Math.ceil(ids.length / MOST_IDS) }, (_, at) => ({ ids: ids.slice(MOST_IDS * at, MOST_IDS * (at + 1)) }));

export function predictions({ session, signal, query }) {
  const select = (id, options, value) => h("select", { id }, options.map(([name, words]) => h("option", { value: name, selected: name === value }, words)));
  const given = (name) => query.get(name) ?? "";
  const fields = {
    status: ["Status", select("by-status", STATES.map((state) => [state, state || "any"]), given("status"))],
    model: ["Model", h("input", { id: "by-model", placeholder: "owner/name", value: given("model") })],
    ...(session.seesAll ? {
      account: ["Account", h("input", { id: "by-account", placeholder: "any", value: given("account") })],
      code: ["Error code", h("input", { id: "by-code", placeholder: "server_lost", value: given("code") })],
    } : {}),
    since: ["Created in", select("by-since", SINCE, given("since"))],
  };
  const wanted = () => Object.fromEntries(Object.entries(fields).map(([name, [, field]]) => [name, field.value.trim()]).filter(([, value]) => value));

  function submit(event) {
    event.preventDefault();
    const search = new URLSearchParams(wanted());
    location.hash = `#/predictions${search.size ? `?${search}` : ""}`;
  }

  const base = session.seesAll ? "/v1/admin/predictions" : "/v1/predictions";
  const filters = Object.fromEntries(Object.keys(fields).filter((name) => query.get(name) && name !== "since").map((name) => [name, query.get(name)]));
  const path = () => {
    const search = new URLSearchParams(filters);
    if (createdAfter(given("since"))) search.set("created_after", createdAfter(given("since")));
    return `${base}${search.size ? `?${search}` : ""}`;
  };

  const known = new Map();
  const chosen = new Set();
  const body = h("tbody", {});
  const count = h("p", { class: "hint", role: "status" });
  const more = h("button", { type: "button", hidden: true, on: { click: () => load(next) } }, "Show more");
  const trouble = h("div", {});
  const show = keyed(body, (one) => one.id, line);
  let next = null;
  let isLooked = false;

  function draw() {
    show([...known.values()].sort((a, b) => (a.id < b.id ? 1 : -1)));
    const live = known.size < MOST_LIVE ? "The list updates itself." : "The list is long, and no longer updates itself.";
    say(count, !known.size && isLooked ? "No prediction is like this." : `${known.size} shown${chosen.size ? `, ${chosen.size} chosen` : ""}. ${live}`);
    bulk.hidden = !known.size;
  }

  async function load(from) {
    const found = await page(path(), from, { signal });
    if (signal.aborted) return;
    if (!from) forget(found);
    for (const one of found.results) known.set(one.id, one);
    if (from || !isLooked) { next = found.next; more.hidden = !next; }
    isLooked = true;
    trouble.replaceChildren();
    draw();
  }

  /** Drop what no longer matches: what the first page would have, and has not. */
  function forget({ results, next: older }) {
    const found = new Set(results.map((one) => one.id));
    const last = older ? results.at(-1)?.id ?? "~" : "";
    for (const id of known.keys()) if (id >= last && !found.has(id)) { known.delete(id); chosen.delete(id); }
  }

  /** Do one thing to all that are chosen, or to all that match: as often as the answer says where to go on. */
  async function change(what, wanted) {
    let done = 0;
    const refused = [];
    for (const part of wanted.ids ? parted(wanted.ids) : [wanted]) {
      for (let cursor = ""; cursor !== null;) {
        const answer = await ask(`/v1/admin/predictions/${what}`, { method: "POST", body: { ...part, ...(cursor ? { cursor } : {}) } });
        done += answer.done;
        refused.push(...answer.refused);
        cursor = answer.next ?? null;
      }
    }
    chosen.clear();
    await load(null);
    const why = refused.length ? ` ${refused.length} left alone: ${[...new Set(refused.map((one) => one.why.replaceAll("_", " ")))].join(", ")}.` : "";
    return `${done} ${what === "cancel" ? "canceled" : "queued again"}.${why}`;
  }

  /** Only operators may change many at once; others cancel one after the other. */
  async function cancelEach() {
    const ids = [...chosen].filter((id) => !isTerminal(known.get(id)?.status));
    const answers = await Promise.allSettled(ids.map((id) => ask(`/v1/predictions/${id}/cancel`, { method: "POST" })));
    chosen.clear();
    await load(null);
    return `${answers.filter((answer) => answer.status === "fulfilled").length} canceled.`;
  }

  /** The filters that the list was made with, whatever the fields say by now. */
  const matching = () => {
    const after = createdAfter(given("since"));
    return Object.keys(filters).length || after ? { ...filters, ...(after ? { created_after: after } : {}) } : { all: true };
  };
  const ofChosen = (act) => async () => (chosen.size ? act({ ids: [...chosen] }) : "None is chosen.");

  const all = h("button", { type: "button", on: { click: () => { const isFull = chosen.size === known.size; chosen.clear(); if (!isFull) for (const id of known.keys()) chosen.add(id); draw(); } } }, "Choose all shown");
  const isSure = "Cancel every prediction, of all accounts, that matches the filters?";
  const bulk = h("div", { class: "actions", hidden: true }, all,
    action("Cancel chosen", ofChosen((ids) => (session.seesAll ? change("cancel", ids) : cancelEach())), { kind: "danger", confirm: "Cancel all that are chosen?" }),
    session.seesAll ? [
      action("Retry chosen", ofChosen((ids) => change("retry", ids))),
      action("Cancel all that match", () => change("cancel", matching()), { kind: "danger", confirm: isSure }),
      action("Retry all that match", () => change("retry", matching()), { confirm: "Retry every prediction that matches the filters and did not succeed?" }),
    ] : null);

  repeat(async () => {
    if (known.size >= MOST_LIVE) return;
    try { await load(null); } catch (error) { if (!signal.aborted && !known.size) trouble.replaceChildren(failure(error)); }
  }, { every: LOOK_MS, signal });

  return {
    title: "Predictions",
    node: h("section", {},
      h("h1", {}, "Predictions"),
      h("form", { class: "filters", on: { submit } },
        Object.values(fields).map(([name, field]) => h("div", {}, h("label", { for: field.id }, name), field)),
        h("button", { type: "submit", class: "main" }, "Filter"), query.size ? h("a", { class: "button", href: "#/predictions" }, "Clear") : null),
      bulk, count, trouble,
      table("Predictions", [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Chosen")), "Id", "Status", "Model", "Account", "#Created", "#Waited", "#Ran", "Error"], body),
      h("p", { class: "foot" }, more)),
  };

  function line(first) {
    const tick = h("input", { type: "checkbox", "aria-label": `Choose ${first.id}`, on: { change: () => { if (tick.checked) chosen.add(first.id); else chosen.delete(first.id); draw(); } } });
    const status = h("td", {});
    const created = h("td", { class: "num broad" });
    const [waited, ran] = [0, 1].map(() => h("td", { class: "num" }));
    const error = h("td", { class: "error" });
    const account = first.account ?? session.who.username;
    const node = h("tr", {}, h("td", {}, tick), h("td", {}, predictionLink(first.id)), status, h("td", { class: "whole" }, first.model), h("td", {}, account), created, waited, ran, error);
    return {
      node,
      update(one) {
        tick.checked = chosen.has(one.id);
        if (status.textContent !== one.status) status.replaceChildren(chip(one.status));
        say(created, ago(one.created_at));
        say(waited, seconds(between(one.created_at, one.started_at)));
        say(ran, seconds(one.metrics?.predict_time ?? between(one.started_at, one.completed_at)));
        say(error, one.error ? `${one.code ? `${one.code}: ` : ""}${one.error.slice(0, SHOWN)}${one.error.length > SHOWN ? "…" : ""}` : "");
      },
    };
  }
}
