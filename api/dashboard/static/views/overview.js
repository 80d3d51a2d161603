// The whole service at a glance: what needs a person, how predictions end, and every queue.

import { fill, h, keyed, refill, say, table } from "../dom.js";
import { bytes, count, seconds, share } from "../format.js";
import { waiting } from "../live.js";
import { stateOf } from "../states.js";
import { findings } from "./findings.js";
import { firstRun } from "./first_run.js";
import { failing, history } from "./history.js";
import { queueLink } from "./parts.js";

const ran = (pace) => (pace ? pace.succeeded + pace.failed : 0);
const ended = (pace) => (pace ? ran(pace) + pace.canceled : 0);
const part = (pace) => (ran(pace) ? pace.failed / ran(pace) : -1);

// head, how a row is sorted by it (`pace`: how its predictions ended in the range), is it a number
const COLUMNS = [
  ["Queue", (queue) => queue.name, false],
  ["State", (queue, pace) => stateOf(queue, pace)[0], false],
  ["Waiting", (queue) => waiting(queue), true],
  ["Oldest", (queue) => queue.oldest_s ?? -1, true],
  ["Running", (queue) => queue.claimed, true],
  ["Ended", (_, pace) => ended(pace), true],
  ["Failed", (_, pace) => part(pace), true],
  ["Wait, 95 %", (_, pace) => pace?.wait_p95_s ?? -1, true],
  ["Run, 95 %", (_, pace) => pace?.run_p95_s ?? -1, true],
  ["Dead", (queue) => queue.dead, true],
];

export function overview({ session, signal }) {
  const attention = findings({ session, isCalm: true });
  const head = h("h1", {}, "Home");
  const place = h("div", {}, h("p", { class: "hint" }, "Looking at the service…"));
  let part = null; // what Home shows below the findings: the first run, or the whole

  function draw(snapshot) {
    if (!part) show(snapshot.queues.length ? whole({ session, signal }) : firstRun({ session, signal, leave: () => { show(whole({ session, signal })); draw(session.live.last); } }));
    attention.draw(snapshot);
    part.draw(snapshot);
  }

  function show(one) {
    part = one;
    say(head, one.title);
    fill(place, one.node);
  }

  const stop = session.live.hear(draw);
  signal.addEventListener("abort", stop, { once: true });
  return { title: "Home", node: h("section", { class: "home" }, head, attention.node, place) };
}

/** Home of a service with models: figures, charts, devices and queues. */
function whole({ session, signal }) {
  const totals = h("ul", { class: "totals figures" });
  const body = h("tbody", { class: "figures" });
  const shared = h("section", { hidden: true, "aria-label": "Devices" }, h("h2", {}, "Devices"), h("ul", { class: "devices figures" }));
  const nothing = h("div", { class: "card nothing", hidden: true });
  const filter = h("input", { id: "queue-filter", type: "search", placeholder: "owner/name", autocomplete: "off" });
  const found = h("p", { class: "hint", role: "status" });
  let paces = new Map();
  let hasHistory = null; // null until it is known
  let by = 0;
  let falling = false;

  const heads = COLUMNS.map(([name, , isNumber], at) => h("th", { scope: "col", class: isNumber ? "num" : null }, h("button", { type: "button", class: "sort", on: { click: () => sortBy(at) } }, name)));
  const show = keyed(body, (queue) => queue.name, (queue) => line(queue, (name) => paces.get(name)));

  function sortBy(at) {
    falling = by === at ? !falling : COLUMNS[at][2];
    by = at;
    draw(session.live?.last);
  }

  function draw(snapshot) {
    if (!snapshot) return;
    const wanted = filter.value.trim().toLowerCase();
    const key = (queue) => COLUMNS[by][1](queue, paces.get(queue.name));
    const queues = snapshot.queues.filter((queue) => queue.name.includes(wanted))
      .sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (falling ? -1 : 1));
    show(queues);
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === by ? (falling ? "descending" : "ascending") : "none"));
    const of = snapshot.queues.length + snapshot.more_queues;
    say(found, `${queues.length} of ${of} ${of === 1 ? "queue" : "queues"}. Ended, failed and times are of the range above.`);
    sums(totals, snapshot);
    shared.hidden = !snapshot.devices?.length;
    refill(shared.lastChild, (snapshot.devices ?? []).map(device));
    // charts of nothing answer nothing
    const isNew = hasHistory === false && snapshot.queues.every((queue) => !queue.accepted);
    past.node.hidden = isNew;
    nothing.hidden = !isNew;
    if (isNew) refill(nothing, h("p", {}, h("strong", {}, "Nothing has run yet."), " Run a model, and this page shows how it goes."), h("p", { class: "actions" }, models(snapshot).map((model) => h("a", { class: "button", href: `#/run/${model}` }, `Run ${model}`))));
  }

  const past = history({ session, signal, onPace: (answer) => {
    paces = new Map(answer.queues.map((one) => [one.queue, one]));
    hasHistory = answer.points.length > 0;
    draw(session.live.last);
  } });
  filter.addEventListener("input", () => draw(session.live.last));
  return {
    title: "Home",
    draw,
    node: h("div", {},
      totals, nothing, past.node, shared,
      h("h2", {}, "Queues"),
      h("div", { class: "filters" }, h("div", {}, h("label", { for: "queue-filter" }, "Filter by name"), filter), found),
      table("Queues", heads, body)),
  };
}

const FEW = 3;
const models = (snapshot) => [...new Set(snapshot.queues.filter((queue) => queue.state === "serving").map((queue) => queue.model))].slice(0, FEW);

/** Memory that is taken on a device that models share, and which are loaded there. */
const device = (one) => h("li", { class: "card" },
  h("strong", {}, one.name), ` on ${one.machine}`,
  h("progress", { max: String(one.bytes || 1), value: String(Math.min(one.taken, one.bytes || 1)), "aria-label": `Memory that is taken on ${one.name}` }),
  h("p", { class: "hint" }, `${bytes(one.taken)} of ${bytes(one.bytes)}${one.swaps ? ` · ${one.swaps} ${one.swaps === 1 ? "load" : "loads"} in the last hour took ${seconds(one.lost_s)}` : ""}`),
  h("p", {}, one.models.map((model, at) => [at ? ", " : "", queueLink(model.queue), ` ${model.state}`])));

function sums(place, snapshot) {
  const sum = (of) => snapshot.queues.reduce((all, queue) => all + of(queue), 0);
  const slots = sum((queue) => queue.slots);
  const pairs = [
    ["waiting", "waiting", sum(waiting)], ["running", "running", sum((queue) => queue.claimed)], ["slot", "slots", slots],
    ["director", "directors", snapshot.directors.filter((one) => one.alive).length, "#/directors"],
    // zeros are no news
    ...[
      ["delayed", "delayed", sum((queue) => queue.delayed)], ["dead letter", "dead letters", sum((queue) => queue.dead), "#/dead"],
      ["webhook owed", "webhooks owed", snapshot.owed.count, "#/webhooks"],
    ].filter(([, , value]) => value),
  ];
  refill(place, pairs.map(([one, many, value, link]) => h("li", {}, h("strong", {}, count(value)), " ", h(link ? "a" : "span", { href: link ?? null }, value === 1 ? one : many))));
}

function line(first, paceOf) {
  const state = h("span", {});
  const cells = Array.from({ length: 8 }, () => h("td", { class: "num" }));
  const [all, oldest, running, done, failed, waits, runs, dead] = cells;
  const node = h("tr", {}, h("th", { scope: "row" }, queueLink(first.name)), h("td", {}, state), cells);
  return {
    node,
    update(queue) {
      const pace = paceOf(queue.name);
      const [words, kind] = stateOf(queue, pace);
      say(state, words);
      state.className = `chip ${kind}`;
      say(all, count(waiting(queue)));
      all.title = `high ${queue.waiting.high}, normal ${queue.waiting.normal}, low ${queue.waiting.low}, delayed ${queue.delayed}`;
      say(oldest, queue.live ? seconds(queue.oldest_s) : "–");
      say(running, queue.slots ? `${queue.claimed} / ${queue.slots}` : count(queue.claimed));
      say(done, pace ? count(ended(pace)) : "–");
      say(failed, share(pace?.failed, ran(pace)));
      failed.classList.toggle("bad", failing(pace) === "all");
      say(waits, seconds(pace?.wait_p95_s));
      say(runs, seconds(pace?.run_p95_s));
      say(dead, count(queue.dead));
    },
  };
}
