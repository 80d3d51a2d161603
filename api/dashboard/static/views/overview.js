// The whole service at a glance: what needs a person, how predictions end, and every queue.

import { fill, h, keyed, refill, say, table } from "../dom.js";
import { count, seconds, share } from "../format.js";
import { waiting } from "../live.js";
import { stateOf } from "../states.js";
import { failing, history } from "./history.js";
import { finding, queueLink } from "./parts.js";

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
  const totals = h("ul", { class: "totals figures" });
  const findings = h("ul", { class: "findings" });
  const attention = h("section", { class: "attention", hidden: true }, h("h2", {}, "Needs attention"), findings);
  const body = h("tbody", { class: "figures" });
  const filter = h("input", { id: "queue-filter", type: "search", placeholder: "owner/name", autocomplete: "off" });
  const found = h("p", { class: "hint", role: "status" });
  let paces = new Map();
  let by = 0;
  let falling = false;

  const heads = COLUMNS.map(([name, , isNumber], at) => h("th", { scope: "col", class: isNumber ? "num" : null }, h("button", { type: "button", class: "sort", on: { click: () => sortBy(at) } }, name)));
  const show = keyed(body, (queue) => queue.name, (queue) => line(queue, (name) => paces.get(name)));

  function sortBy(at) {
    falling = by === at ? !falling : COLUMNS[at][2];
    by = at;
    draw();
  }

  function draw() {
    const snapshot = session.live?.last;
    if (!snapshot) return;
    const wanted = filter.value.trim().toLowerCase();
    const key = (queue) => COLUMNS[by][1](queue, paces.get(queue.name));
    const queues = snapshot.queues.filter((queue) => queue.name.includes(wanted))
      .sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (falling ? -1 : 1));
    show(queues);
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === by ? (falling ? "descending" : "ascending") : "none"));
    say(found, snapshot.queues.length ? `${queues.length} of ${snapshot.queues.length + snapshot.more_queues} queues. Ended, failed and times are of the range above.` : "No model was registered yet: start a director.");
    sums(totals, snapshot);
    attention.hidden = !snapshot.findings?.length;
    refill(findings, (snapshot.findings ?? []).map(finding)); // a command that is selected to be copied stays selected
  }

  const past = history({ signal, onPace: (answer) => { paces = new Map(answer.queues.map((one) => [one.queue, one])); draw(); } });
  filter.addEventListener("input", draw);
  const stop = session.live.hear(draw);
  signal.addEventListener("abort", stop, { once: true });
  return {
    title: "Home",
    node: h("section", {},
      h("h1", {}, "Home"), totals, attention, past.node,
      h("h2", {}, "Queues"),
      h("div", { class: "filters" }, h("div", {}, h("label", { for: "queue-filter" }, "Filter by name"), filter), found),
      table("Queues", heads, body)),
  };
}

function sums(place, snapshot) {
  const sum = (of) => snapshot.queues.reduce((whole, queue) => whole + of(queue), 0);
  const pairs = [
    ["waiting", "waiting", sum(waiting)], ["running", "running", sum((queue) => queue.claimed)], ["slot", "slots", sum((queue) => queue.slots)],
    ["delayed", "delayed", sum((queue) => queue.delayed)], ["dead letter", "dead letters", sum((queue) => queue.dead), "#/dead"],
    ["webhook owed", "webhooks owed", snapshot.owed.count, "#/webhooks"], ["director", "directors", snapshot.directors.filter((one) => one.alive).length, "#/directors"],
  ];
  if (place.children.length !== pairs.length) fill(place, pairs.map(([, , , link]) => h("li", {}, h("strong", {}, ""), " ", h(link ? "a" : "span", { href: link ?? null }, ""))));
  pairs.forEach(([one, many, value], at) => {
    say(place.children[at].firstChild, count(value));
    say(place.children[at].lastChild, value === 1 ? one : many);
  });
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
