// Every queue at a glance, and above them what needs a person.

import { sparkline } from "../chart.js";
import { fill, h, keyed, refill, say, table } from "../dom.js";
import { count, seconds } from "../format.js";
import { waiting } from "../live.js";
import { stateOf } from "../states.js";
import { queueLink } from "./parts.js";

// head, how a row is sorted by it, is it a number
const COLUMNS = [
  ["Queue", (queue) => queue.name, false],
  ["State", (queue) => stateOf(queue)[0], false],
  ["High", (queue) => queue.waiting.high, true],
  ["Normal", (queue) => queue.waiting.normal, true],
  ["Low", (queue) => queue.waiting.low, true],
  ["Oldest", (queue) => queue.oldest_s ?? -1, true],
  ["Running", (queue) => queue.claimed, true],
  ["Starts/min", null, true],
  ["Waiting, lately", null, false],
  ["Dead", (queue) => queue.dead, true],
];

const LATELY_MS = 120_000;

export function overview({ session, signal }) {
  const totals = h("ul", { class: "totals" });
  const findings = h("ul", { class: "findings" });
  const attention = h("section", { class: "attention", hidden: true }, h("h2", {}, "Needs attention"), findings);
  const body = h("tbody", {});
  const filter = h("input", { id: "queue-filter", type: "search", placeholder: "owner/name", autocomplete: "off" });
  const found = h("p", { class: "hint", role: "status" });
  let by = 0;
  let falling = false;

  const heads = COLUMNS.map(([name, sort], at) => {
    const head = h("th", { scope: "col", class: COLUMNS[at][2] ? "num" : null }, sort ? h("button", { type: "button", class: "sort", on: { click: () => sortBy(at) } }, name) : name);
    return head;
  });
  const show = keyed(body, (queue) => queue.name, (queue) => line(queue, session.live));

  function sortBy(at) {
    falling = by === at ? !falling : COLUMNS[at][2];
    by = at;
    draw();
  }

  function draw() {
    const snapshot = session.live?.last;
    if (!snapshot) return;
    const wanted = filter.value.trim().toLowerCase();
    const key = COLUMNS[by][1];
    const queues = snapshot.queues.filter((queue) => queue.name.includes(wanted))
      .sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (falling ? -1 : 1));
    show(queues);
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === by ? (falling ? "descending" : "ascending") : "none"));
    say(found, snapshot.queues.length ? `${queues.length} of ${snapshot.queues.length + snapshot.more_queues} queues` : "No model was registered yet: start a director.");
    sums(totals, snapshot);
    attention.hidden = !snapshot.findings?.length;
    refill(findings, (snapshot.findings ?? []).map(finding)); // whoever selects the command to copy it keeps it selected
  }

  filter.addEventListener("input", draw);
  const stop = session.live.hear(draw);
  signal.addEventListener("abort", stop, { once: true });
  return {
    title: "Queues",
    node: h("section", {},
      h("h1", {}, "Queues"), totals, attention,
      h("div", { class: "filters" }, h("div", {}, h("label", { for: "queue-filter" }, "Filter by name"), filter), found),
      table("Queues", heads, body)),
  };
}

function finding(one) {
  return h("li", { class: one.level, "data-code": one.code },
    h("strong", {}, one.title), one.queue ? [" in ", queueLink(one.queue)] : null, h("p", {}, one.detail), h("code", {}, one.ask));
}

function sums(place, snapshot) {
  const sum = (of) => snapshot.queues.reduce((whole, queue) => whole + of(queue), 0);
  const pairs = [
    ["waiting", sum(waiting)], ["running", sum((queue) => queue.claimed)], ["slots", sum((queue) => queue.slots)],
    ["delayed", sum((queue) => queue.delayed)], ["dead letters", sum((queue) => queue.dead)], ["webhooks owed", snapshot.owed.count],
    ["directors", snapshot.directors.filter((one) => one.alive).length],
  ];
  if (place.children.length !== pairs.length) fill(place, pairs.map(([name]) => h("li", {}, h("strong", {}, ""), " ", name)));
  pairs.forEach(([, value], at) => say(place.children[at].firstChild, count(value)));
}

function line(first, live) {
  const state = h("span", {});
  const cells = Array.from({ length: 6 }, () => h("td", { class: "num" }));
  const [high, normal, low, oldest, running, starts] = cells;
  const dead = h("td", { class: "num" });
  const curve = sparkline("waiting");
  const node = h("tr", {}, h("th", { scope: "row" }, queueLink(first.name)), h("td", {}, state), cells, h("td", {}, curve.node), dead);
  return {
    node,
    update(queue) {
      const [words, kind] = stateOf(queue);
      say(state, words);
      state.className = `chip ${kind}`;
      say(high, count(queue.waiting.high));
      say(normal, count(queue.waiting.normal));
      say(low, count(queue.waiting.low));
      say(oldest, queue.live ? seconds(queue.oldest_s) : "–");
      say(running, `${queue.claimed} / ${queue.slots}`);
      const seen = live.curve(queue.name);
      say(starts, rate(seen));
      curve.set(seen.map((sample) => sample.waiting), `${waiting(queue)} now`);
      say(dead, count(queue.dead));
    },
  };
}

/** Starts a minute, lately: of these samples the last ones, since a feed may have been away for an hour before them. */
export function rate(seen) {
  const lately = seen.filter(({ at }) => at > seen.at(-1).at - LATELY_MS);
  if (lately.length < 2) return "–";
  const passed = (lately.at(-1).at - lately[0].at) / 60_000;
  const since = (now, before) => (now >= before ? now - before : now); // less than before: it began anew
  const starts = lately.slice(1).reduce((sum, one, at) => sum + since(one.started, lately[at].started), 0);
  return passed > 0 ? count(Math.round(starts / passed)) : "–";
}
