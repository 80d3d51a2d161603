// Predictions, newest first and live, narrowed by what is known of them, with what can be done to many.

import { ask, askForAll, page, repeat, whyRefused } from "../api.js";
import { accountNames, modelNames, pick } from "../choices.js";
import { fill, h, keyed, refill, say, table } from "../dom.js";
import { between, day, moment, now, seconds } from "../format.js";
import { pictured, thumb } from "./model_parts.js";
import { action, chip, failure, isTerminal, lack, loading, MOST_ROWS, predictionLink, preview, STATUSES, when } from "./parts.js";

const SINCE = [["", "any time"], ["15m", "the last 15 min", 900], ["1h", "the last hour", 3600], ["24h", "the last day", 86_400], ["7d", "the last week", 604_800]];
const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;
/** Between which times: a choice of SINCE, or the two times that an address names, as a bar of a chart does. */
function created(since, until) {
  const [, , span] = SINCE.find(([name]) => name === since) ?? [];
  const after = TIME.test(since) ? since : span ? new Date(now() - span * 1000).toISOString() : "";
  return { ...(after ? { created_after: after } : {}), ...(TIME.test(until) ? { created_before: until } : {}) };
}
const LOOK_MS = 4000;
const MOST_LIVE = 1000; // rows, beyond which the list no longer updates itself

const MOST_IDS = 500; // of one request
const parted = (ids) => Array.from({ length: Math.ceil(ids.length / MOST_IDS) }, (_, at) => ({ ids: ids.slice(MOST_IDS * at, MOST_IDS * (at + 1)) }));

export function predictions({ session, signal, query }) {
  const select = (id, options, value) => h("select", { id }, options.map(([name, words]) => h("option", { value: name, selected: name === value }, words)));
  const given = (name) => query.get(name) ?? "";
  const chosenFrom = (name, placeholder, names) => pick({ id: `by-${name}`, value: given(name), placeholder, names });
  const times = TIME.test(given("since")) ? [[given("since"), `${moment(given("since"))} to ${TIME.test(given("until")) ? moment(given("until")) : "now"}`]] : [];
  const picks = {
    model: chosenFrom("model", "owner/name", modelNames),
    account: chosenFrom("account", "any", accountNames),
    code: chosenFrom("code", "server_lost", async () => []),
  };
  const fields = {
    status: ["Status", select("by-status", [["", "any"], ...STATUSES.map(([status]) => [status, status])], given("status"))],
    model: ["Model", picks.model.field, picks.model.node],
    ...(session.seesAll ? { account: ["Account", picks.account.field, picks.account.node], code: ["Error code", picks.code.field, picks.code.node] } : {}),
    since: ["Created in", select("by-since", [...times, ...SINCE], given("since"))],
  };
  const codes = new Set(); // of the rows that were seen
  const wanted = () => Object.fromEntries(Object.entries(fields).map(([name, [, field]]) => [name, field.value.trim()]).filter(([, value]) => value));

  function submit(event) {
    event.preventDefault();
    const asked = wanted();
    const search = new URLSearchParams({ ...asked, ...(TIME.test(asked.since) && given("until") ? { until: given("until") } : {}) });
    location.hash = `#/predictions${search.size ? `?${search}` : ""}`;
  }

  const base = session.seesAll ? "/v1/admin/predictions" : "/v1/predictions";
  const filters = Object.fromEntries(Object.keys(fields).filter((name) => query.get(name) && name !== "since").map((name) => [name, query.get(name)]));
  const path = () => {
    const search = new URLSearchParams({ ...filters, ...created(given("since"), given("until")), ...(session.seesAll ? { previews: "true" } : {}) });
    return `${base}${search.size ? `?${search}` : ""}`;
  };

  const known = new Map();
  const chosen = new Set();
  const body = h("tbody", {});
  const count = h("p", { class: "hint", role: "status" });
  const more = h("button", { type: "button", hidden: true, on: { click: () => load(next).catch((error) => refill(trouble, failure(error))) } }, "Show more");
  const trouble = h("div", {});
  const wait = loading();
  const none = h("div", { class: "empty", hidden: true }, query.size
    ? h("p", {}, h("strong", {}, "No prediction is like this. "), h("a", { href: "#/predictions" }, "Clear the filters"))
    : [h("p", {}, h("strong", {}, "Nothing ran yet.")), h("p", {}, "What programs and people run is listed here, newest first. ", h("a", { href: "#/models" }, "Try a model"))]);
  const valueOf = (text) => { // an operator's list has the begin of the JSON, its own account's the whole value
    if (!session.seesAll || typeof text !== "string") return text;
    try { return JSON.parse(text); } catch { return text; }
  };
  const head = (words, title, kind = "") => h("th", { scope: "col", class: kind || null, title }, words);
  const list = h("div", { hidden: true }, table("Predictions", [
    ...(session.acts ? [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Chosen"))] : []), "Id", "Status", "Model", ...(session.seesAll ? [head("Account", "The account that made it", "lesser")] : []),
    head("Created", "When it was accepted", "num"), head("Waited", "Until its first attempt started", "num lesser"), head("Ran", "In a slot", "num"), head("Input", "Its first words", "lesser"), pictured(), head("Output or error", "Its first words", "lesser")], body));
  const show = keyed(body, (one) => one.id, line);
  let next = null;
  let isLooked = false;
  let hasMore = false; // more than the first page was asked for
  let away = ""; // from the first page
  const gaps = []; // what no later look at the first page brings

  function draw() {
    show([...known.values()].sort((a, b) => (a.id < b.id ? 1 : -1)));
    const live = known.size < MOST_LIVE ? "The list updates itself." : "The list is long, and no longer updates itself.";
    say(count, known.size ? `${known.size} shown${chosen.size ? `, ${chosen.size} chosen` : ""}. ${live}` : next ? "None among the newest. Show more looks further back." : "");
    bulk.hidden = !known.size || !session.acts;
    for (const button of ofSome) button.disabled = !chosen.size && button !== document.activeElement; // it would lose the focus
    list.hidden = !known.size;
    wait.hidden = isLooked;
    none.hidden = known.size > 0 || !isLooked || Boolean(next || away);
    more.hidden = !next || known.size >= MOST_ROWS;
    if (next && known.size >= MOST_ROWS) say(count, `${known.size} shown. Narrow the list by filters to see others.`);
  }

  async function load(from) {
    const found = await page(path(), from, { signal });
    if (signal.aborted) return;
    if (!from && !found.away) forget(found);
    if (from) { hasMore = true; gaps.push(away, found.away); } else away = found.away;
    for (const one of found.results) known.set(one.id, one);
    learn(found.results);
    if (from || !hasMore) next = found.next;
    isLooked = true;
    refill(trouble, lack(away, ...gaps));
    draw();
  }

  /** Error codes that were seen are offered to filter by. */
  function learn(results) {
    const seen = results.map(({ code }) => code).filter((code) => code && !codes.has(code));
    for (const code of new Set(seen)) { codes.add(code); picks.code.node.lastChild.append(h("option", { value: code })); }
  }

  /** Drop what no longer matches: what the first page would have, and has not. A reader who asked for no more has the
   * first page alone, so that a page that stays open does not grow. */
  function forget({ results, next: older }) {
    const found = new Set(results.map((one) => one.id));
    const last = older ? results.at(-1)?.id ?? "~" : "";
    for (const id of known.keys()) {
      const isOver = id >= last;
      if (found.has(id) || (!isOver && (hasMore || chosen.has(id)))) continue;
      known.delete(id);
      if (isOver) chosen.delete(id);
    }
  }

  /** Do one thing to all that are chosen, or to all that match: as often as the answer says where to go on. */
  async function change(what, wanted) {
    let done = 0;
    const refused = [];
    for (const part of wanted.ids ? parted(wanted.ids) : [wanted]) {
      const answer = await askForAll(`/v1/admin/predictions/${what}`, part);
      done += answer.done;
      refused.push(...answer.refused);
    }
    chosen.clear();
    await load(null);
    return `${done} ${what === "cancel" ? "canceled" : "queued again"}.${whyRefused(refused)}`;
  }

  /** Only operators may change many at once; others cancel one after the other. */
  async function cancelEach() {
    const ids = [...chosen].filter((id) => !isTerminal(known.get(id)?.status));
    const answers = await Promise.allSettled(ids.map((id) => ask(`/v1/predictions/${id}/cancel`, { method: "POST" })));
    chosen.clear();
    await load(null);
    const refused = answers.filter((answer) => answer.status === "rejected").map(({ reason }) => reason.message.replace(/\.$/, ""));
    return `${answers.length - refused.length} canceled.${whyRefused(refused)}`;
  }

  /** The filters that the list was made with, whatever the fields say by now. */
  const matching = () => {
    const found = { ...filters, ...created(given("since"), given("until")) };
    return Object.keys(found).length ? found : { all: true };
  };
  const ofChosen = (act) => async () => (chosen.size ? act({ ids: [...chosen] }) : "None is chosen.");

  const all = h("button", { type: "button", on: { click: () => { const isFull = chosen.size === known.size; chosen.clear(); if (!isFull) for (const id of known.keys()) chosen.add(id); draw(); } } }, "Choose all shown");
  const isSure = "Cancel every prediction, of all accounts, that matches the filters?";
  const ofSome = [
    action("Cancel chosen", ofChosen((ids) => (session.operates ? change("cancel", ids) : cancelEach())), { kind: "danger", confirm: "Cancel all that are chosen?" }),
    action("Retry chosen", ofChosen((ids) => change("retry", ids)), { needs: "operates" })];
  const bulk = h("div", { class: "actions bulk", hidden: true }, all, ofSome,
    action("Cancel all that match", () => change("cancel", matching()), { kind: "danger", needs: "operates", confirm: isSure }),
    action("Retry all that match", () => change("retry", matching()), { needs: "operates", confirm: "Retry every prediction that matches the filters and did not succeed?" }));

  repeat(async () => {
    if (known.size >= MOST_LIVE) return;
    try { await load(null); } catch (error) { if (!signal.aborted) { wait.hidden = true; refill(trouble, failure(error, true)); } }
  }, { every: LOOK_MS, signal });

  return {
    title: "Predictions",
    node: h("section", {},
      h("h1", {}, "Predictions"),
      h("form", { class: "filters", on: { submit } },
        Object.values(fields).map(([name, field, node]) => h("div", {}, h("label", { for: field.id }, name), node ?? field)),
        h("button", { type: "submit" }, "Filter"), query.size ? h("a", { class: "button quiet", href: "#/predictions" }, "Clear") : null),
      h("div", { class: "above" }, count, bulk), trouble, wait, none, list, h("p", { class: "foot" }, more)),
  };

  function line(first) {
    const tick = h("input", { type: "checkbox", "aria-label": `Choose ${first.id}`, on: { change: () => { if (tick.checked) chosen.add(first.id); else chosen.delete(first.id); draw(); } } });
    const status = h("td", {});
    const created = h("td", { class: "num broad" }, when(first.created_at));
    const picture = h("td", { class: "pic lesser" });
    const waited = h("td", { class: "num lesser" });
    const ran = h("td", { class: "num" });
    const result = h("td", { class: "brief lesser" });
    const whose = session.seesAll ? h("td", { class: "lesser" }, first.account) : null;
    const input = h("td", { class: "brief lesser" }, preview(valueOf(first.input)));
    const node = h("tr", { class: "opens" }, session.acts ? h("td", {}, tick) : null, h("td", {}, predictionLink(first.id)), status, h("td", { class: "whole" }, first.model), whose, created, waited, ran, input, picture, result);
    return {
      node,
      update(one) {
        tick.checked = chosen.has(one.id);
        say(created.firstChild, day(first.created_at)); // today, until midnight
        if (status.textContent !== one.status) status.replaceChildren(chip(one.status));
        say(waited, seconds(between(one.created_at, one.started_at)));
        say(ran, seconds(one.metrics?.predict_time ?? between(one.started_at, one.completed_at)));
        if (!picture.firstChild && one.output) fill(picture, thumb(one.output));
        const words = one.error ? [one.code, preview(one.error)].filter(Boolean).join(": ") : preview(valueOf(one.output));
        if (result.textContent !== words) fill(result, one.error ? h("span", { class: "bad" }, words) : words);
        result.title = one.error ? one.error.slice(0, 300) : "";
      },
    };
  }
}
