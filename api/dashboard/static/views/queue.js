// One queue: its lanes and streams, who waits in it, its last hour, and an operator's hand on it.

import { ask, page, pause } from "../api.js";
import { bar, heat, sparkline } from "../chart.js";
import { fill, h, table } from "../dom.js";
import { ago, count, seconds, share } from "../format.js";
import { stateOf } from "../states.js";
import { action, chip, endless, facts, failure, predictionLink, queuePath } from "./parts.js";

const LOOK_MS = 3000;

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
      const seen = await ask(path, { signal });
      if (signal.aborted) return;
      const [words, kind] = stateOf(seen);
      stop.hidden = seen.paused;
      go.hidden = !seen.paused;
      fill(head, h("p", {}, h("span", { class: `chip ${kind}` }, words)), numbers(seen));
      fill(body, lanes(seen), history(seen), tenantTable(seen, (account, what) => tell(what, `${account}: done.`, { account })));
    } catch (error) {
      if (!signal.aborted) fill(body, failure(error));
    }
  }

  async function watch() {
    while (!signal.aborted) {
      await look();
      await pause(LOOK_MS, signal);
    }
  }

  const rows = h("tbody", {});
  const more = (next) => page(`${path}/predictions`, next);
  watch();
  return {
    title: name,
    node: h("section", {},
      h("h1", {}, name), head, buttons, body,
      h("h2", {}, "In it now"),
      table("Predictions in this queue", ["Id", "State", "Account", "Lane", "Made", "Attempt", "Director"], rows),
      endless(rows, more, live, { signal, empty: "Nothing waits or runs." })),
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
  const samples = seen.history ?? [];
  if (samples.length < 2) return null;
  const curve = (label, of, shown) => {
    const drawn = sparkline(label, { width: 320, height: 60 });
    const values = samples.map(of);
    drawn.set(values, `${shown(values.at(-1))} now, ${shown(Math.max(...values))} at most`);
    return h("figure", {}, h("figcaption", {}, `${label}: ${shown(values.at(-1))}`), drawn.node);
  };
  const rates = samples.map((one, at) => (at ? Math.max(0, one.started - samples[at - 1].started) / Math.max(1, (Date.parse(one.at) - Date.parse(samples[at - 1].at)) / 60_000) : 0));
  return h("section", { "aria-label": "The last hour" }, h("h2", {}, "The last hour"),
    h("div", { class: "curves" },
      curve("Waiting", (one) => one.waiting, count),
      curve("Oldest", (one) => one.oldest_s ?? 0, seconds),
      curve("Starts/min", (_, at) => rates[at], (value) => count(Math.round(value)))));
}

/** Who has what of a queue. `act(account, "pause" | "resume")` returns what a button does. */
export function tenantTable(seen, act) {
  const tenants = seen.tenants ?? [];
  if (!tenants.length) return null;
  const whole = tenants.reduce((sum, one) => sum + one.running, 0);
  const rows = tenants.map((one) => h("tr", {},
    h("th", { scope: "row" }, one.account, one.suspended ? h("span", { class: "chip bad" }, "suspended") : null, one.paused ? h("span", { class: "chip warn" }, "paused") : null),
    h("td", { class: "num" }, count(one.waiting)), h("td", { class: "num" }, one.running), h("td", { class: "num" }, share(one.running, whole)), h("td", { class: "num" }, one.max_running ? `${one.weight}, ${one.max_running} at most` : one.weight),
    h("td", {}, one.paused ? action("Resume", act(one.account, "resume")) : action("Pause", act(one.account, "pause")))));
  return h("section", { "aria-label": "Tenants" }, h("h2", {}, "Tenants"),
    whole ? bar(tenants.filter((one) => one.running).map((one, at) => ({ label: `${one.account}: ${one.running} running`, value: one.running, kind: `tone${at % 5}` })), "Who has the slots") : null,
    table("Tenants of this queue", ["Account", "Waiting", "Running", "Of what runs", "Weight", ""], h("tbody", {}, rows)));
}

const live = (one) => h("tr", {},
  h("td", {}, predictionLink(one.id)), h("td", {}, chip(one.state)), h("td", {}, one.account), h("td", {}, one.lane),
  h("td", { class: "num" }, ago(one.created_at)), h("td", { class: "num" }, one.attempt || "–"), h("td", {}, one.director ?? "–"));
