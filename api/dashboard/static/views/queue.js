// One queue: how its predictions end, which accounts wait in it, and an operator's hand on it.

import { ask, page, repeat } from "../api.js";
import { heat } from "../chart.js";
import { fill, h, keyed, refill, say, table } from "../dom.js";
import { ago, count, seconds } from "../format.js";
import { waiting } from "../live.js";
import { stateOf } from "../states.js";
import { findings } from "./findings.js";
import { history } from "./history.js";
import { action, chip, facts, failure, loading, predictionLink, queuePath } from "./parts.js";

const LOOK_MS = 3000;
const STATUS = { waiting: "starting", running: "processing" }; // the word that the same prediction has elsewhere
const BURNS = ["5m", "1h"];

export function queue({ params: [name], session, signal }) {
  const path = queuePath(name);
  const head = h("div", { class: "figures" });
  const body = h("div", {}, loading());
  const streams = h("div", {});
  const attention = findings({ session, queue: name });
  const tell = (what, message, given) => async () => { await ask(`${path}/${what}`, { method: "POST", body: given ?? {} }); await look(); return message; };
  const stop = action("Pause", tell("pause", "Nothing of this queue is handed out; what runs goes on."), { needs: "operates", confirm: `Pause ${name}? Nothing of it starts until it is resumed.` });
  const go = action("Resume", tell("resume", "It is handed out again."), { kind: "main", needs: "operates" });
  stop.hidden = go.hidden = true; // until it is known which of them fits
  const buttons = h("div", { class: "actions" }, stop, go,
    h("a", { class: "button", href: `#/models/${name.slice(0, name.lastIndexOf(":"))}` }, "Try it"),
    h("a", { class: "button", href: `#/predictions?model=${name.slice(0, name.lastIndexOf(":"))}` }, "Its predictions"),
    h("a", { class: "button", href: `#/dead?queue=${encodeURIComponent(name)}` }, "Its dead letters"));
  let pace = null;
  const past = history({ queue: name, session, signal, onPace: (answer) => { pace = answer.whole; } });
  const hear = session.live.hear((snapshot) => attention.draw(snapshot));
  signal.addEventListener("abort", hear, { once: true });

  async function look() {
    try {
      const listed = page(`${path}/predictions`, null, { signal });
      listed.catch(() => {}); // where both fail, the first error is shown
      const seen = await ask(`${path}?history=0`, { signal });
      if (signal.aborted) return;
      const judged = session.live.last?.queues.find((one) => one.name === name) ?? seen; // with what findings say of it
      const [words, kind] = stateOf({ ...seen, words: judged.words, shade: judged.shade }, pace);
      stop.hidden = seen.paused;
      go.hidden = !seen.paused;
      refill(head, h("p", {}, h("span", { class: `chip ${kind}` }, words)), numbers(seen));
      refill(body, objectives(seen), accountTable(seen, (account, what) => tell(what, `${account}: done.`, { account })));
      refill(streams, lanes(seen));
      const { results } = await listed;
      if (signal.aborted) return;
      show(results);
      listing.hidden = !results.length;
      say(rest, seen.live > results.length ? `The oldest ${results.length} of ${count(seen.live)}.` : results.length ? "" : "Nothing waits or runs.");
    } catch (error) {
      if (signal.aborted) return;
      stop.hidden = go.hidden = true;
      refill(body, failure(error, true));
    }
  }

  const rows = h("tbody", {});
  const rest = h("p", { class: "hint" });
  const listing = table("Predictions in this queue", ["Id", "Status", "Account", "Lane", "#Created", "#Attempt", "Director"], rows);
  const show = keyed(rows, (one) => one.id, live);
  repeat(look, { every: LOOK_MS, signal });
  return {
    title: name,
    node: h("section", {},
      h("p", { class: "hint" }, h("a", { href: "#/queues" }, "Queues")), h("h1", {}, name), head, buttons, attention.node, past.node, body,
      h("h2", {}, "In it now"),
      listing,
      rest,
      h("details", {}, h("summary", {}, "Details: streams"), streams)),
  };
}

const numbers = (seen) => facts([
  ["Waiting", count(waiting(seen))], ["Running", seen.slots ? `${seen.claimed} of ${seen.slots} slot${seen.slots === 1 ? "" : "s"}` : count(seen.claimed)],
  ["Delayed", count(seen.delayed)], ["Dead letters", count(seen.dead)], ["Oldest", seen.live ? seconds(seen.oldest_s) : "–"],
  ["A run takes", seconds(seen.run_s)], ["Directors", seen.directors], ["Breaker", seen.breaker], ["Mode", seen.max_queued ? `${seen.mode}, ${seen.max_queued} at most` : seen.mode],
]);

function lanes(seen) {
  const behind = (name, cells) => seen.waiting[name] - cells.reduce((sum, one) => sum + one, 0);
  return h("section", { "aria-label": "Lanes and streams" }, h("p", { class: "hint" }, "Entries of each Redis Stream that wait to be claimed. Others of the lane wait for the turn of their account."),
    heat(Object.entries(seen.heat).map(([name, cells]) => ({ name: behind(name, cells) > 0 ? `${name} + ${count(behind(name, cells))}` : name, cells }))));
}

function objectives(seen) {
  const lanes = Object.entries(seen.objectives ?? {}).filter(([, one]) => one);
  if (!lanes.length) return null;
  const rows = lanes.map(([lane, one]) => h("tr", {}, h("th", { scope: "row" }, lane),
    h("td", {}, `${Math.round(one.share * 1000) / 10} % start within ${seconds(one.within_s)}`),
    BURNS.map((window) => h("td", { class: "num" }, burn(seen.burns[lane]?.[window]?.rate)))));
  return h("section", { "aria-label": "Objectives" }, h("h2", {}, "Objectives"),
    table("How soon what comes is to start, and how fast what may be missed is used up", ["Lane", "Objective", "#Burn, 5 min", "#Burn, 1 h"], h("tbody", {}, rows)));
}

const burn = (rate) => (rate === null || rate === undefined ? "–" : h("span", { class: `chip ${rate > 1 ? "bad" : "good"}` }, rate.toFixed(1)));

/** Which accounts have what of a queue. `act(account, "pause" | "resume")` returns what a button does. */
function accountTable(seen, act) {
  const accounts = seen.tenants ?? [];
  if (!accounts.length) return null;
  const rows = accounts.map((one) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#/accounts/${one.account}` }, one.account), one.suspended ? [" ", h("span", { class: "chip bad" }, "suspended")] : null, one.paused ? [" ", h("span", { class: "chip warn" }, "paused")] : null),
    h("td", { class: "num" }, count(one.waiting)), h("td", { class: "num" }, one.max_running ? `${one.running} of ${one.max_running} at most` : one.running), h("td", { class: "num" }, one.weight),
    h("td", {}, one.paused ? action("Resume", act(one.account, "resume"), { of: one.account, needs: "operates" }) : action("Pause", act(one.account, "pause"), { of: one.account, needs: "operates" }))));
  return h("section", { "aria-label": "Accounts" }, h("h2", {}, "Accounts in it"),
    table("Accounts in this queue", ["Account", "#Waiting", "#Running", "#Weight", h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions"))], h("tbody", {}, rows)));
}

function live(first) {
  const state = h("td", {});
  const [made, attempt, director] = [h("td", { class: "num" }), h("td", { class: "num" }), h("td", {})];
  const node = h("tr", { class: "opens" }, h("td", {}, predictionLink(first.id)), state, h("td", {}, first.account), h("td", {}, first.lane), made, attempt, director);
  return {
    node,
    update(one) {
      const status = STATUS[one.state] ?? one.state;
      if (state.textContent !== status) fill(state, chip(status));
      say(made, ago(one.created_at));
      say(attempt, one.attempt || "–");
      say(director, one.director ?? "–");
    },
  };
}
