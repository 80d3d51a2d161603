// One prediction: its timeline, its output while it runs, and what can be done about it.

import { ask, pause } from "../api.js";
import { bar } from "../chart.js";
import { fill, h, refill, table } from "../dom.js";
import { followed } from "../follow_run.js";
import { ago, between, json, moment, seconds } from "../format.js";
import { action, chip, facts, failure, isTerminal, queueLink } from "./parts.js";

const LOOK_MS = 3000;
const KINDS = { training: "trainings", procedure: "procedures" }; // what stands behind ~ in the name of a queue

export function prediction({ params: [id], session, signal, refresh }) {
  const head = h("div", {});
  const buttons = h("div", { class: "actions" });
  const story = h("div", {});
  const body = h("div", {});
  const node = h("article", {}, h("h1", { class: "mono" }, id), head, buttons, story, body);

  async function tell() {
    const told = await ask(`/v1/predictions/${id}/explain`, { signal });
    const dead = session.isAdmin && told.next.some((next) => next.what === "dead_letter");
    if (!signal.aborted) refill(story, timeline(told, session), dead ? letter(id, refresh) : null);
    return told;
  }

  async function own(path) {
    const cancel = action("Cancel", async () => { await ask(`${path}/cancel`, { method: "POST" }); return "It is asked to stop."; }, { kind: "danger" });
    const onChange = (seen) => {
      cancel.hidden = isTerminal(seen.status);
      refill(head, summary(seen));
      tell().catch(() => {}); // it stays as it was told last
    };
    const seen = await ask(path, { signal });
    fill(buttons, cancel);
    fill(body,
      followed(seen, { path, signal, onChange }),
      h("details", {}, h("summary", {}, "Input"), h("pre", { class: "out" }, seen.data_removed ? "Its data was removed." : json(seen.input))));
  }

  /** Another account's: operators read its story, and not what it was given or made. */
  async function abroad(first) {
    for (let told = first; !signal.aborted; told = await tell().catch(() => told)) {
      refill(head, h("p", {}, chip(told.status), " ", told.model, ", of ", told.submitted.account));
      if (told.ended && !told.webhook?.is_owed) return;
      await pause(LOOK_MS, signal);
    }
  }

  async function load() {
    try {
      const told = await tell();
      const kind = KINDS[told.queue_name.split("~")[1]] ?? "predictions";
      await (told.submitted.account === session.who.username ? own(`/v1/${kind}/${id}`) : abroad(told));
    } catch (error) {
      if (!signal.aborted) fill(body, failure(error));
    }
  }

  load();
  return { title: `Prediction ${id}`, node };
}

function summary(seen) {
  return h("div", { class: "summary" },
    h("p", {}, chip(seen.status), " ", h("a", { href: `#/run/${seen.model}` }, seen.model), ` · made ${ago(seen.created_at)}`),
    seen.queue ? h("p", {}, waits(seen.queue)) : null,
    seen.metrics ? h("details", {}, h("summary", {}, "Metrics"), facts(Object.entries(seen.metrics).map(([name, value]) => [name, typeof value === "number" ? String(Math.round(value * 1000) / 1000) : json(value)]))) : null);
}

function waits(queue) {
  const eta = queue.eta_s ? `, probably for ${seconds(queue.eta_s.p50 ?? queue.eta_s)}` : "";
  return `Waits at position ${queue.position} (${queue.ahead} ahead)${eta}${queue.reason ? `: ${queue.reason}` : ""}`;
}

function timeline(told, session) {
  const { submitted, held, ended, webhook } = told;
  const parts = held.flatMap((one) => [
    { label: `waited ${seconds(one.waited_s)}`, value: one.waited_s ?? 0, kind: "waited" },
    { label: `attempt ${one.number}: held ${seconds(one.held_s)}`, value: one.held_s ?? between(one.claimed_at, told.now) ?? 0, kind: one.how && one.how !== "succeeded" ? "lost" : "ran" },
  ]);
  if (!held.length) parts.push({ label: `waits since ${seconds(between(submitted.at, told.now))}`, value: 1, kind: "waited" });
  const queue = session.isAdmin ? queueLink(told.queue_name) : told.queue_name;
  return h("section", { "aria-label": "Timeline" },
    h("h2", {}, "Timeline"),
    bar(parts, "Where the time went"),
    h("ol", { class: "timeline" },
      h("li", {}, `${moment(submitted.at)} · filed in `, queue, `, lane ${submitted.lane}${session.isAdmin ? `, by ${submitted.account}` : ""}`),
      held.map((one) => h("li", {}, attempt(one))),
      ended ? h("li", {}, `${moment(ended.at)} · ${ended.status}${ended.code ? ` (${ended.code})` : ""} after ${seconds(ended.total_s)}`) : null,
      ended ? null : told.next.map((next) => h("li", { class: "next" }, `${next.at ? `${moment(next.at)} · ` : ""}next: ${next.detail || next.what}`))),
    webhook ? deliveries(told.id, webhook, session) : null);
}

const attempt = (one) => [
  `${moment(one.claimed_at)} · attempt ${one.number} on ${one.director || "a director"} after ${seconds(one.waited_s)} of waiting`,
  one.ended_at ? `: ${one.how} after ${seconds(one.held_s)}${one.is_spent ? "" : ", not counted"}` : ": runs",
].join("");

function deliveries(id, webhook, session) {
  const again = action("Send again", async () => { await ask(`/v1/predictions/${id}/webhooks/redeliver`, { method: "POST" }); return "Its end is told once more."; });
  const rows = webhook.deliveries.map((one) => h("tr", {},
    h("td", {}, moment(one.at)), h("td", {}, one.event ?? "completed"), h("td", {}, one.outcome), h("td", {}, one.status ?? "–"), h("td", {}, one.next_at ? moment(one.next_at) : "–")));
  return h("section", {},
    h("h2", {}, "Webhooks"),
    facts([["Host", webhook.host], ["Owed", webhook.is_owed ? `yes, next attempt ${moment(webhook.next_at)}` : "no"], ["Attempts", webhook.attempts], ["Last", webhook.last]]),
    rows.length ? table("Attempts to tell its end", ["At", "Event", "Outcome", "Status", "Next"], h("tbody", {}, rows)) : null,
    h("div", { class: "actions" }, again));
}

function letter(id, refresh) {
  const act = (what, said) => async () => { await ask(`/v1/admin/dead/${id}/${what}`, { method: "POST" }); refresh(); return said; };
  return h("section", { class: "attention" },
    h("h2", {}, "A dead letter"),
    h("p", {}, "It failed for good, and waits for a person."),
    h("div", { class: "actions" },
      action("Revive", act("revive", "It is queued again."), { kind: "main" }),
      action("Drop", act("drop", "It is let go of."), { kind: "danger", confirm: "Let go of this dead letter for good?" })));
}
