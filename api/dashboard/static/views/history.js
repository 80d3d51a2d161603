// How predictions ended over time, of one queue or in all: figures, charts and the choice of a range.

import { ask, pause } from "../api.js";
import { chart } from "../chart.js";
import { fill, h, say } from "../dom.js";
import { ago, count, now, seconds, share } from "../format.js";

const RANGES = [["15m", "15 min"], ["1h", "1 h"], ["24h", "24 h"], ["7d", "7 d"]];
const KEPT = "director.over";
const LOOK_MS = 10_000;
const STALE_MS = 60_000;
const LATE_S = 15; // from the end of a step until a keeper has recorded it

/** How large the failures are: nothing, some, or all of what ended. */
export const failing = (pace) => (!pace?.failed ? "none" : pace.succeeded ? "some" : "all");

/** The charts of one queue, or of all. `onPace(answer)` gets each answer. */
export function history({ queue = "", signal, onPace = () => {} }) {
  let over = RANGES.some(([name]) => name === sessionStorage.getItem(KEPT)) ? sessionStorage.getItem(KEPT) : "15m";
  let wake = new AbortController();
  let last = null;
  const sums = h("dl", { class: "tiles" });
  const note = h("p", { class: "hint", role: "status" });
  const sync = `history:${queue}`;
  const charts = {
    ended: chart({ title: "Ended per minute", series: [{ name: "succeeded", tone: "good" }, { name: "failed", tone: "bad" }, { name: "canceled", tone: "calm" }], format: rate, sync, signal }),
    failed: chart({ title: "Failure rate", series: [{ name: "failed, of what ran to an end", tone: "bad" }], format: (value) => `${Math.round(value)} %`, most: 10, sync, signal }),
    wait: chart({ title: "Waiting time", series: [{ name: "median", tone: "first" }, { name: "95 % at most", tone: "second", dash: [5, 3] }], format: fine, sync, signal }),
    run: chart({ title: "Run time", series: [{ name: "median", tone: "first" }, { name: "95 % at most", tone: "second", dash: [5, 3] }], format: fine, sync, signal }),
  };
  const picks = RANGES.map(([name, words]) => h("button", { type: "button", "data-over": name, on: { click: () => pick(name) } }, words));
  const node = h("section", { class: "history", "aria-label": "History" },
    h("div", { class: "head" }, h("h2", {}, "History"), h("div", { class: "picks", role: "group", "aria-label": "Range" }, picks)),
    sums, note, h("div", { class: "charts" }, Object.values(charts).map((one) => one.node)));

  function pick(name) {
    over = name;
    sessionStorage.setItem(KEPT, name);
    mark();
    wake.abort();
  }

  function mark() {
    for (const button of picks) button.setAttribute("aria-pressed", String(button.dataset.over === over));
  }

  async function look() {
    try {
      last = await ask(`/v1/admin/history?over=${over}${queue ? `&queue=${encodeURIComponent(queue)}` : ""}`, { signal });
      if (signal.aborted) return;
      draw(last);
      onPace(last);
    } catch (error) {
      if (signal.aborted) return;
      if (last?.over !== over) return say(note, error.message);
    }
    const isOld = now() - Date.parse(last.until) > STALE_MS;
    node.classList.toggle("stale", isOld);
    if (isOld) say(note, `These figures are old: ${ago(last.until)}.`);
  }

  function draw(found) {
    const { whole } = found;
    const ran = whole.succeeded + whole.failed;
    fill(sums, tile("Ended", count(ran + whole.canceled)), tile("Succeeded", count(whole.succeeded)),
      tile("Failed", `${count(whole.failed)}${whole.failed ? ` (${share(whole.failed, ran)})` : ""}`, failing(whole)), tile("Canceled", count(whole.canceled)),
      tile("Wait, median · 95 %", `${seconds(whole.wait_p50_s)} · ${seconds(whole.wait_p95_s)}`), tile("Run, median · 95 %", `${seconds(whole.run_p50_s)} · ${seconds(whole.run_p95_s)}`));
    const { times, points, lasted } = stepped(found);
    say(note, points.some(Boolean) ? "" : "Nothing ended in this time.");
    const column = (of) => points.map((point) => (point ? of(point) : null));
    const perMinute = (name) => points.map((point, at) => ((point?.[name] ?? 0) * 60) / lasted[at]);
    const part = (point) => (point.succeeded + point.failed ? (100 * point.failed) / (point.succeeded + point.failed) : null);
    const ended = ["succeeded", "failed", "canceled"].map(perMinute);
    const most = Math.max(0, ...ended[0].map((_, at) => ended[0][at] + ended[1][at] + ended[2][at]));
    charts.ended.set(times, ended, most ? `at most ${rate(most)} a minute` : "");
    charts.failed.set(times, [column(part)], ran ? `${share(whole.failed, ran)} over the range` : "");
    for (const name of ["wait", "run"]) charts[name].set(times, [column((point) => point[`${name}_p50_s`]), column((point) => point[`${name}_p95_s`])], `median ${seconds(whole[`${name}_p50_s`])}, 95 % ${seconds(whole[`${name}_p95_s`])}`);
  }

  async function run() {
    mark();
    while (!signal.aborted) {
      const asked = over;
      await look();
      if (over !== asked) continue; // another range was picked meanwhile
      wake = new AbortController();
      await pause(last?.over === over ? restMs(last) : LOOK_MS, AbortSignal.any([signal, wake.signal]));
    }
  }

  run();
  return { node };
}

/** Long ranges are many lines, and their newest step changes little: they are asked for once a minute. */
const restMs = ({ step_s: step }) => Math.min(60_000, Math.max(LOOK_MS, (1000 * step) / 6));
const fine = (value) => (value === 0 ? "0" : value < 1 ? `${Math.round(value * 1000)} ms` : seconds(value));
const rate = (value) => count(value < 10 ? Math.round(value * 10) / 10 : Math.round(value));
const tile = (name, value, kind = "") => h("div", { class: kind === "all" ? "bad" : "" }, h("dt", {}, name), h("dd", {}, value));

/**
 * A point for each step of the range, null where the answer has none. The newest step is left out while it is young, or
 * not recorded yet; else `lasted` says how many of its seconds have passed.
 */
export function stepped({ points, since, until, step_s: step }) {
  const known = new Map(points.map((point) => [Date.parse(point.at) / 1000, point]));
  const end = Date.parse(until) / 1000;
  const times = [];
  for (let at = Date.parse(since) / 1000 + step; at <= end; at += step) times.push(at);
  while (times.length && (end - times.at(-1) < step / 4 || (!known.has(times.at(-1)) && end - times.at(-1) < step + LATE_S))) times.pop();
  return { times, points: times.map((at) => known.get(at) ?? null), lasted: times.map((at) => Math.min(step, end - at)) };
}
