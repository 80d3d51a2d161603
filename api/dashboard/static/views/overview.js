// The whole service at a glance: what needs a person, how predictions end, and every queue.

import { fill, h, keyed, refill, say, table } from "../dom.js";
import { bytes, count, seconds } from "../format.js";
import { waiting } from "../live.js";
import { stateOf } from "../states.js";
import { findings } from "./findings.js";
import { firstRun } from "./first_run.js";
import { history } from "./history.js";
import { loading, queueLink } from "./parts.js";
import { line } from "./queues.js";

const HEADS = ["Queue", "State", "#Waiting", "#Oldest", "#Running", "#Ended", "#Failed", "#Wait, 95 %", "#Run, 95 %", "#Dead"];
const MOST = 10; // queues: Home shows those to look at first
const URGENCY = ["bad", "warn", "good", "calm"];

export function overview({ session, signal }) {
  const attention = findings({ session });
  const head = h("h1", {}, "Home");
  const wait = loading();
  const place = h("div", {}, wait);
  let part = null; // what Home shows below the findings: the first run, or the whole

  function draw(snapshot) {
    if (!part) show(snapshot.queues.length ? whole({ session, signal }) : firstRun({ signal, leave: () => { show(whole({ session, signal })); draw(session.live.last); } }));
    attention.draw(snapshot, { isCalm: part.isCalm });
    part.draw(snapshot);
  }

  function show(one) {
    part = one;
    say(head, one.title);
    fill(place, one.node);
  }

  const stop = session.live.hear(draw, wait);
  signal.addEventListener("abort", stop, { once: true });
  return { title: "Home", node: h("section", { class: "home" }, head, attention.node, place) };
}

/** Home of a service with models: figures, charts, devices and queues. */
function whole({ session, signal }) {
  const totals = h("ul", { class: "totals figures" });
  const body = h("tbody", { class: "figures" });
  const shared = h("section", { hidden: true, "aria-label": "Devices" }, h("h2", {}, "Devices"), h("ul", { class: "devices figures" }));
  const nothing = h("div", { class: "card nothing", hidden: true });
  const found = h("p", { class: "hint" });
  let paces = new Map();
  let hasHistory = null; // null until it is known
  const show = keyed(body, (queue) => queue.name, (queue) => line(queue, (name) => paces.get(name)));

  function draw(snapshot) {
    if (!snapshot) return;
    const urgency = (queue) => URGENCY.indexOf(stateOf(queue, paces.get(queue.name))[1]);
    const queues = [...snapshot.queues].sort((a, b) => urgency(a) - urgency(b) || waiting(b) - waiting(a) || (a.name < b.name ? -1 : 1));
    show(queues.slice(0, MOST));
    const all = snapshot.queues.length + snapshot.more_queues;
    refill(found, all > MOST ? `${MOST} of ${count(all)} queues, the worst and the fullest first. ` : "", h("a", { href: "#/queues" }, "All queues"));
    sums(totals, snapshot);
    shared.hidden = !snapshot.devices?.length;
    refill(shared.lastChild, (snapshot.devices ?? []).map(device));
    // charts of nothing answer nothing
    const isNew = hasHistory === false && snapshot.queues.every((queue) => !queue.accepted);
    past.node.hidden = isNew;
    nothing.hidden = !isNew;
    if (isNew) refill(nothing, h("p", {}, h("strong", {}, "Nothing has run yet."), snapshot.directors.some((one) => one.alive) ? " Run a model, and this page shows how it goes." : [" ", h("a", { href: "#/directors" }, "Start a director"), ": what is sent waits until one runs."]), h("p", { class: "actions" }, models(snapshot).map((model) => h("a", { class: "button", href: `#/models/${model}` }, `Run ${model}`))));
  }

  const past = history({ session, signal, onPace: (answer) => {
    paces = new Map(answer.queues.map((one) => [one.queue, one]));
    hasHistory = answer.points.length > 0;
    draw(session.live.last);
  } });
  return {
    title: "Home",
    isCalm: true,
    draw,
    node: h("div", {},
      totals, nothing, past.node, shared,
      h("h2", {}, "Queues"),
      table("Queues", HEADS, body), found),
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
