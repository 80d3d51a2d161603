// All queues: how each is served, what waits in it, and how its predictions ended recently.

import { readdress } from "../address.js";
import { ask, repeat } from "../api.js";
import { h, keyed, say, table } from "../dom.js";
import { count, seconds, share } from "../format.js";
import { waiting } from "../live.js";
import { stateOf } from "../states.js";
import { failing } from "./history.js";
import { loading, queueLink } from "./parts.js";

const MOST = 100; // rows at first: each is looked at with every snapshot
const LOOK_MS = 10_000;
const OVER = "15m";

const ran = (pace) => (pace ? pace.succeeded + pace.failed : 0);
const ended = (pace) => (pace ? ran(pace) + pace.canceled : 0);
const part = (pace) => (ran(pace) ? pace.failed / ran(pace) : -1);

// head, what it means, how a row is sorted by it (`pace`: how its predictions ended), is it a number
const COLUMNS = [
  ["Queue", "One version of a model", (queue) => queue.name, false],
  ["State", "Whether it is served, and if not, why", (queue, pace) => stateOf(queue, pace)[0], false],
  ["Waiting", "Accepted and not started, of all lanes", (queue) => waiting(queue), true],
  ["Oldest", "Age of the oldest that waits or runs", (queue) => queue.oldest_s ?? -1, true],
  ["Running", "In a slot now, of all slots", (queue) => queue.claimed, true],
  ["Ended", "In the last 15 minutes", (_, pace) => ended(pace), true],
  ["Failed", "Of those that ran to an end in the last 15 minutes", (_, pace) => part(pace), true],
  ["Wait, 95 %", "95 of 100 waited no longer, in the last 15 minutes", (_, pace) => pace?.wait_p95_s ?? -1, true],
  ["Run, 95 %", "95 of 100 ran no longer, in the last 15 minutes", (_, pace) => pace?.run_p95_s ?? -1, true],
  ["Dead", "Dead letters", (queue) => queue.dead, true],
];

export function queues({ session, signal, query }) {
  const body = h("tbody", { class: "figures" });
  const filter = h("input", { id: "queue-filter", type: "search", placeholder: "owner/name", autocomplete: "off", value: query.get("name") ?? "" });
  const sums = h("p", { class: "hint", role: "status" });
  const wait = loading();
  const more = h("button", { type: "button", hidden: true, on: { click: () => { most = Infinity; draw(); } } }, "Show all");
  let paces = new Map();
  let by = 0;
  let falling = false;
  let most = MOST;

  const heads = COLUMNS.map(([name, title, , isNumber], at) => h("th", { scope: "col", class: isNumber ? "num" : null }, h("button", { type: "button", class: "sort", title, on: { click: () => sortBy(at) } }, name)));
  const show = keyed(body, (queue) => queue.name, (queue) => line(queue, (name) => paces.get(name)));

  function sortBy(at) {
    falling = by === at ? !falling : COLUMNS[at][3];
    by = at;
    draw();
  }

  function draw() {
    const snapshot = session.live?.last;
    if (!snapshot) return;
    wait.hidden = true;
    const wanted = filter.value.trim().toLowerCase();
    const key = (queue) => COLUMNS[by][2](queue, paces.get(queue.name));
    const fitting = snapshot.queues.filter((queue) => queue.name.includes(wanted))
      .sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (falling ? -1 : 1));
    show(fitting.slice(0, most));
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === by ? (falling ? "descending" : "ascending") : "none"));
    more.hidden = fitting.length <= most;
    say(more, `Show all ${count(fitting.length)}`);
    const all = snapshot.queues.length + snapshot.more_queues;
    say(sums, all ? `${Math.min(fitting.length, most)} of ${count(all)} queues.` : "No model was registered yet: start a director, and its queue is here.");
  }

  /** The words of the filter stand in the address, and no step of the way back is made for each letter. */
  function typed() {
    const words = filter.value.trim();
    readdress(`#/queues${words ? `?name=${encodeURIComponent(words)}` : ""}`);
    draw();
  }

  filter.addEventListener("input", typed);
  const stop = session.live.hear(draw, wait);
  signal.addEventListener("abort", stop, { once: true });
  repeat(async () => {
    try {
      const found = await ask(`/v1/admin/history?over=${OVER}`, { signal });
      if (signal.aborted) return;
      paces = new Map(found.queues.map((one) => [one.queue, one]));
      draw();
    } catch { /* the feed tells that the service is away */ }
  }, { every: LOOK_MS, signal });

  return {
    title: "Queues",
    node: h("section", {},
      h("h1", {}, "Queues"),
      h("p", { class: "lead" }, "Each version of a model has a queue."),
      h("div", { class: "filters" }, h("div", {}, h("label", { for: "queue-filter" }, "Filter by name"), filter), sums),
      wait, table("Queues", heads, body), h("p", { class: "foot" }, more)),
  };
}

/** The row of a queue. `paceOf(name)`: how its predictions ended recently. */
export function line(first, paceOf) {
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
