// One queue: its lanes and streams, who waits in it, its last hour, and an operator's hand on it.

import { ask, page, repeat } from "../api.js";
import { bar, heat, sparkline } from "../chart.js";
import { fill, h, keyed, refill, say, table } from "../dom.js";
import { ago, count, seconds, share } from "../format.js";
import { stateOf } from "../states.js";
import { action, chip, facts, failure, predictionLink, queuePath } from "./parts.js";

const LOOK_MS = 3000;
const SAMPLE_MS = 10_000; // as keepers take them
const IDLE = { waiting: { high: 0, normal: 0, low: 0 }, oldest_ms: 0, started: 0, waited_ms: 0 };
const BURNS = ["5m", "1h"];

export function queue({ params: [name], signal }) {
  const path = queuePath(name);
  const head = h("div", {});
  const body = h("div", {});
  const tell = (what, said, given) => async () => { await ask(`${path}/${what}`, { method: "POST", body: given ?? {} }); await look(); return said; };
  const stop = action("Pause", tell("pause", "Nothing of this queue is handed out; what runs goes on."));
  const go = action("Resume", tell("resume", "It is handed out again."), { kind: "main" });
  const buttons = h("div", { class: "actions" }, stop, go, h("a", { class: "button", href: `#/run/${name.slice(0, name.lastIndexOf(":"))}` }, "Try it"));

  async function look() {
    try {
      const listed = page(`${path}/predictions`, null, { signal });
      listed.catch(() => {}); // where both fail, the first is told
      const seen = await ask(`${path}?history=360`, { signal });
      if (signal.aborted) return;
      const [words, kind] = stateOf(seen);
      stop.hidden = seen.paused;
      go.hidden = !seen.paused;
      refill(head, h("p", {}, h("span", { class: `chip ${kind}` }, words)), numbers(seen));
      refill(body, lanes(seen), objectives(seen), history(seen), tenantTable(seen, (account, what) => tell(what, `${account}: done.`, { account })));
      const { results } = await listed;
      if (signal.aborted) return;
      show(results);
      say(rest, seen.live > results.length ? `The oldest ${results.length} of ${count(seen.live)}.` : results.length ? "" : "Nothing waits or runs.");
    } catch (error) {
      if (!signal.aborted) fill(body, failure(error));
    }
  }

  const rows = h("tbody", {});
  const rest = h("p", { class: "hint" });
  const show = keyed(rows, (one) => one.id, live);
  repeat(look, { every: LOOK_MS, signal });
  return {
    title: name,
    node: h("section", {},
      h("h1", {}, name), head, buttons, body,
      h("h2", {}, "In it now"),
      table("Predictions in this queue", ["Id", "State", "Account", "Lane", "#Made", "#Attempt", "Director"], rows),
      rest),
  };
}

const numbers = (seen) => facts([
  ["Waiting", count(seen.waiting.high + seen.waiting.normal + seen.waiting.low)], ["Running", `${seen.claimed} of ${seen.slots} slots`],
  ["Delayed", count(seen.delayed)], ["Dead letters", count(seen.dead)], ["Oldest", seen.live ? seconds(seen.oldest_s) : "–"],
  ["A run takes", seconds(seen.run_s)], ["Directors", seen.directors], ["Breaker", seen.breaker], ["Mode", seen.max_queued ? `${seen.mode}, ${seen.max_queued} at most` : seen.mode],
]);

function lanes(seen) {
  const behind = (name, cells) => seen.waiting[name] - cells.reduce((sum, one) => sum + one, 0);
  return h("section", { "aria-label": "Lanes and streams" }, h("h2", {}, "Lanes and streams"),
    heat(Object.entries(seen.heat).map(([name, cells]) => ({ name: behind(name, cells) > 0 ? `${name} + ${count(behind(name, cells))}` : name, cells }))));
}

function history(seen) {
  const samples = filled(seen.history);
  if (samples.length < 2) return null;
  const curve = (label, of, shown) => {
    const drawn = sparkline(label, { width: 320, height: 60 });
    const values = samples.map(of);
    drawn.set(values, `${shown(values.at(-1))} at last, ${shown(Math.max(...values))} at most`);
    return h("figure", {}, h("figcaption", {}, `${label}: ${shown(values.at(-1))}, at most ${shown(Math.max(...values))}`), drawn.node);
  };
  return h("section", { "aria-label": "Lately" }, h("h2", {}, `The last ${seconds((samples.at(-1).at_ms - samples[0].at_ms) / 1000)}`),
    h("div", { class: "curves" },
      curve("Waiting", (one) => one.waiting.high + one.waiting.normal + one.waiting.low, count),
      curve("Oldest", (one) => one.oldest_ms / 1000, seconds),
      curve("Mean wait of what started", (one) => (one.started ? one.waited_ms / one.started / 1000 : 0), seconds),
      curve("Starts/min", (one) => one.started * (60_000 / SAMPLE_MS), (value) => count(Math.round(value)))));
}

/**
 * Samples for the times of which there are none, too. After an idle one the queue was idle; else no keeper was there, and
 * what the next one counted came all that time.
 */
export function filled(samples) {
  const found = samples.slice(0, 1);
  for (const [before, sample] of samples.slice(1).map((one, at) => [samples[at], one])) {
    const steps = Math.max(1, Math.round((sample.at_ms - before.at_ms) / SAMPLE_MS));
    const [missing, last] = isIdle(before) ? [IDLE, sample] : Array(2).fill({ ...sample, started: sample.started / steps, waited_ms: sample.waited_ms / steps });
    for (let step = 1; step < steps; step += 1) found.push({ ...missing, at_ms: before.at_ms + step * SAMPLE_MS });
    found.push(last);
  }
  return found;
}

const isIdle = (one) => ![one.claimed, one.delayed, one.started, one.ended, ...Object.values(one.waiting), ...Object.values(one.accepted)].some(Boolean);

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

/** Who has what of a queue. `act(account, "pause" | "resume")` returns what a button does. */
export function tenantTable(seen, act) {
  const tenants = seen.tenants ?? [];
  if (!tenants.length) return null;
  const whole = tenants.reduce((sum, one) => sum + one.running, 0);
  const rows = tenants.map((one) => h("tr", {},
    h("th", { scope: "row" }, one.account, one.suspended ? h("span", { class: "chip bad" }, "suspended") : null, one.paused ? h("span", { class: "chip warn" }, "paused") : null),
    h("td", { class: "num" }, count(one.waiting)), h("td", { class: "num" }, one.running), h("td", { class: "num" }, share(one.running, whole)), h("td", { class: "num" }, one.max_running ? `${one.weight}, ${one.max_running} at most` : one.weight),
    h("td", {}, one.paused ? action("Resume", act(one.account, "resume"), { of: one.account }) : action("Pause", act(one.account, "pause"), { of: one.account }))));
  return h("section", { "aria-label": "Tenants" }, h("h2", {}, "Tenants"),
    whole ? bar(tenants.filter((one) => one.running).map((one, at) => ({ label: `${one.account}: ${one.running} running`, value: one.running, kind: `tone${at % 5}` })), "Who has the slots") : null,
    table("Tenants of this queue", ["Account", "#Waiting", "#Running", "#Of what runs", "#Weight", ""], h("tbody", {}, rows)));
}

function live(first) {
  const state = h("td", {});
  const [made, attempt, director] = [h("td", { class: "num" }), h("td", { class: "num" }), h("td", {})];
  const node = h("tr", {}, h("td", {}, predictionLink(first.id)), state, h("td", {}, first.account), h("td", {}, first.lane), made, attempt, director);
  return {
    node,
    update(one) {
      if (state.textContent !== one.state) fill(state, chip(one.state));
      say(made, ago(one.created_at));
      say(attempt, one.attempt || "–");
      say(director, one.director ?? "–");
    },
  };
}
