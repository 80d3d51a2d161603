// One prediction: why it failed, or why it waits; its input and output; where its time went; and what can be done.

import { ask, serviceAddress } from "../api.js";
import { gantt, legend } from "../chart.js";
import { fill, h, refill, table } from "../dom.js";
import { followRun } from "../follow_run.js";
import { between, due, json, moment, seconds } from "../format.js";
import { text } from "../output.js";
import { asCurl, asPython } from "../snippets.js";
import { madeFrom } from "./model_parts.js";
import { action, canceler, chip, copier, facts, finding, isTerminal, loading, queueLink, sharer, untilAnswered, waits, when } from "./parts.js";

const KINDS = { training: "trainings", procedure: "procedures" }; // what stands behind ~ in the name of a queue

const LONGEST = 90; // characters of a title
const KINDS_OF_BARS = [["waited", "waits"], ["ran", "runs"], ["lost", "an attempt that failed"], ["delivered", "webhook delivered"], ["refused", "webhook not accepted"]];

export function prediction({ params: [id], session, signal, refresh, retitle = () => {} }) {
  const title = h("h1", {}, "A run");
  const share = sharer(id, "");
  const named = h("p", { class: "hint id-of" }, h("span", { class: "mono" }, id), " ", copier("Copy id", () => id));
  const head = h("div", {});
  const wait = h("p", { class: "callout", role: "status", hidden: true });
  const buttons = h("div", { class: "actions" });
  const story = h("div", {});
  const body = h("div", {}, loading());
  const alarm = h("div", {});
  const causes = h("div", {});
  const died = h("div", {});
  const node = h("article", { class: "run" }, h("div", { class: "head" }, title, share), head, buttons, alarm, wait, causes, died, body, story);

  async function tell() {
    const explained = await ask(`/v1/predictions/${id}/explain`, { signal });
    const dead = session.seesAll && explained.next.some((next) => next.what === "dead_letter");
    if (signal.aborted) return explained;
    refill(causes, explained.causes?.length ? h("section", { class: "attention" }, h("h2", {}, explained.ended ? "What holds its webhook up" : "What holds it up"), h("ul", { class: "findings" }, explained.causes.map(finding))) : null);
    refill(died, dead ? letter(id, refresh) : null);
    refill(story, timeline(explained, session), explained.webhook ? deliveries(explained.id, explained.webhook, session.rightOn(explained.submitted.account)) : null);
    return explained;
  }

  function show(seen, path, account) {
    refill(head, h("p", {}, chip(seen.status), " ", h("a", { href: `#/models/${seen.model}` }, seen.model), " · made ", when(seen.created_at), account ? [" by ", h("a", { href: `#/accounts/${account}` }, account)] : null), named);
    wait.hidden = !seen.queue || isTerminal(seen.status);
    refill(wait, seen.queue ? waits(seen.queue) : "");
    tell().catch(() => {}); // the story stays as it was last shown
  }

  function own(seen, path, account) {
    const cancel = canceler(path, { needs: session.rightOn(account) });
    const again = h("a", { class: "button", href: `#/models/${seen.model}?again=${id}` }, "Run again…");
    const retry = action("Retry", async () => retried(await ask(`/v1/admin/predictions/${id}/retry`, { method: "POST" }), id, refresh), { needs: "operates" });
    const raw = h("div", {});
    const lay = () => { if (details.open) fill(raw, text(json(last))); };
    const details = h("details", { on: { toggle: lay } }, h("summary", {}, "Raw JSON"), raw); // large, and seldom asked for
    const metrics = h("div", {});
    let last = seen;
    const onChange = (now) => {
      last = now;
      cancel.hidden = isTerminal(now.status);
      retry.hidden = !session.seesAll || !["failed", "canceled", "aborted"].includes(now.status);
      refill(metrics, measured(now.metrics));
      show(now, path, account);
    };
    const input = seen.data_removed ? h("p", { class: "hint" }, "Its data was removed.") : text(json(seen.input));
    fill(buttons, cancel, path.startsWith("/v1/predictions/") ? again : null, retry, copier("Copy as curl", () => asCurl(last, serviceAddress())), copier("Copy as Python", () => asPython(last, serviceAddress())), copier("Copy as JSON", () => json(last)));
    const { error, output, logs } = followRun(seen, { path, signal, onChange });
    const words = seen.data_removed ? "" : madeFrom(seen.input);
    const name = [seen.model, words.length > LONGEST ? `${words.slice(0, LONGEST)}…` : words].filter(Boolean).join(": ");
    fill(title, name);
    retitle(name);
    fill(alarm, error);
    fill(body,
      h("div", { class: "two even" }, h("div", {}, h("h2", {}, "Output"), output), h("section", { "aria-label": "Input" }, h("h2", {}, "Input"), input)),
      logs, metrics,
      details);
  }

  async function look() {
    const explained = await tell();
    const account = explained.submitted.account;
    const kind = KINDS[explained.queue_name.split("~")[1]] ?? "predictions";
    const path = `/v1/${kind}/${id}`;
    const seen = await ask(path, { signal });
    if (!signal.aborted) own(seen, path, session.seesAll ? account : "");
  }

  function miss(error) {
    if (error.status === 404) {
      fill(title, "This run cannot be shown");
      share.remove();
      named.lastChild.remove();
    }
    throw error;
  }

  fill(head, named);
  untilAnswered(() => look().catch(miss), body, signal);
  return { title: `Prediction ${id}`, node };
}

/** Where a retry led: a dead letter is the same prediction, any other one has a new one. */
function retried({ refused, retried: made = [] }, id, refresh) {
  if (refused.length) throw new Error(`It is not retried: ${refused[0].why.replaceAll("_", " ")}.`);
  const after = made[0]?.new_id ?? id;
  if (after === id) refresh();
  else location.hash = `#/predictions/${after}`;
  return "It is queued again.";
}

const measured = (metrics) => (Object.keys(metrics ?? {}).length
  ? [h("h2", {}, "Metrics"), facts(Object.entries(metrics).map(([name, value]) => [name.replaceAll("_", " "), typeof value !== "number" ? json(value) : name.includes("time") ? seconds(value) : String(Math.round(value * 1000) / 1000)]))]
  : null);

/** Rows of the picture: each wait, each attempt, each attempt to deliver the webhook. */
function rows(explained) {
  const { submitted, held, ended, webhook } = explained;
  const ms = (iso) => Date.parse(iso);
  const end = ended ? ms(ended.at) : ms(explained.now);
  const found = [];
  let since = ms(submitted.at);
  for (const one of held) {
    const [claimed, done] = [ms(one.claimed_at), one.ended_at ? ms(one.ended_at) : end];
    const isGood = !one.ended_at || one.how === "succeeded";
    found.push({ name: "waits", from: since, until: claimed, kind: "waited", text: seconds((claimed - since) / 1000) });
    found.push({ name: `attempt ${one.number}`, from: claimed, until: done, kind: isGood ? "ran" : "lost", text: seconds((done - claimed) / 1000) });
    since = done;
  }
  if (!held.length || (!ended && held.at(-1).ended_at)) found.push({ name: "waits", from: since, until: end, kind: "waited", text: seconds((end - since) / 1000) });
  for (const one of webhook?.deliveries ?? []) {
    const at = ms(one.at);
    found.push({ name: "webhook", from: at, until: at, kind: one.outcome === "delivered" ? "delivered" : "refused", text: one.status ? String(one.status) : one.outcome === "failed" ? "no answer" : one.outcome });
  }
  return found.filter((row) => row.from === row.from);
}

function timeline(explained, session) {
  const { submitted, held, ended } = explained;
  const found = rows(explained);
  const from = Date.parse(submitted.at);
  const until = Math.max(from + 1, ...found.map((row) => row.until));
  const queue = session.seesAll ? queueLink(explained.queue_name) : explained.queue_name;
  const quarters = [0.25, 0.5, 0.75, 1].map((part) => seconds(((until - from) * part) / 1000));
  return h("section", { "aria-label": "Timeline" },
    h("h2", {}, "Timeline"),
    legend(KINDS_OF_BARS.filter(([kind]) => found.some((row) => row.kind === kind))),
    gantt(found, { from, until, label: "Where the time went", ticks: ["0", ...quarters.map((words, at) => (quarters.indexOf(words) === at ? words : ""))] }),
    h("ol", { class: "timeline" },
      h("li", {}, `${moment(submitted.at)}: created in `, queue, `, lane ${submitted.lane}`),
      explained.version_because ? h("li", {}, `Version ${explained.version.slice(0, 12)}, ${explained.version_because}`) : null,
      held.map((one) => h("li", {}, attempt(one))),
      ended ? h("li", {}, `${moment(ended.at)}: ${ended.status}${ended.code ? ` (${ended.code})` : ""} after ${seconds(ended.total_s)} in all`) : null,
      ended ? null : explained.next.map((next) => h("li", { class: "next" }, `${next.at ? `${moment(next.at)}: ` : ""}next: ${next.detail || next.what}`))));
}

const attempt = (one) => [
  `${moment(one.claimed_at)}: attempt ${one.number} on ${one.director || "a director"}`,
  one.ended_at ? `, ${one.how} after ${seconds(between(one.claimed_at, one.ended_at))}${one.is_spent ? "" : ", not counted"}` : ", runs",
].join("");

function deliveries(id, webhook, needs) {
  const again = action("Send again", async () => { await ask(`/v1/predictions/${id}/webhooks/redeliver`, { method: "POST" }); return "Its end is sent once more."; }, { needs });
  const lines = webhook.deliveries.map((one) => h("tr", {},
    h("td", {}, moment(one.at)), h("td", {}, one.event ?? "completed"), h("td", {}, one.outcome), h("td", {}, one.status ?? (one.outcome === "failed" ? "no answer" : "–")), h("td", {}, one.next_at ? moment(one.next_at) : "–")));
  return h("section", { "aria-label": "Webhooks" },
    h("h2", {}, "Webhooks"),
    facts([["Receiver", webhook.host], ["Owed", webhook.is_owed ? `yes, next attempt ${due(webhook.next_at)}` : "no"], ["Attempts", webhook.attempts], ["Last", webhook.last]]),
    lines.length ? table("Attempts to deliver webhooks", ["At", "Event", "Outcome", "Status", "Next"], h("tbody", {}, lines)) : null,
    h("div", { class: "actions" }, again));
}

function letter(id, refresh) {
  const act = (what, message) => async () => { await ask(`/v1/admin/dead/${id}/${what}`, { method: "POST" }); refresh(); return message; };
  return h("section", { class: "attention" },
    h("h2", {}, "A dead letter"),
    h("p", {}, "It used up its attempts, and waits for an operator."),
    h("div", { class: "actions" },
      action("Revive", act("revive", "It is queued again."), { kind: "main", needs: "operates" }),
      action("Drop", act("drop", "It is dropped."), { kind: "danger", needs: "operates", confirm: "Drop this dead letter for good?" })));
}
