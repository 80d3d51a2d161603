// How predictions ended over time, of one queue or in all, how full it was, and what happened meanwhile.

import { ask, pause } from "../api.js";
import { chart } from "../chart.js";
import { fill, h, refill, say, table } from "../dom.js";
import { ago, count, moment, now, seconds, share } from "../format.js";
import { picks } from "./parts.js";

const RANGES = [["15m", "15 min"], ["1h", "1 h"], ["24h", "24 h"], ["7d", "7 d"]];
const KEPT = "director.over";
const LOOK_MS = 10_000;
const STALE_MS = 60_000;
const MARKS_MS = 30_000;
const MOST_CHANGES = 200;
const LISTED = 6;
const LATE_S = 15; // from the end of a step until a keeper has recorded it
// changes that may explain a bend: of queues, models, releases and whole accounts
const TELLING = /^(queue_|model_configured|model_ordered|alias_|deployment|account_(suspended|resumed)|limits_set|letters_|predictions_)/;
const NONE = { waiting: 0, busy_s: 0, slots: null };

/** How large the failures are: nothing, some, or all of what ended. */
export const failing = (pace) => (!pace?.failed ? "none" : pace.succeeded ? "some" : "all");

/** The charts of one queue, or of all. `onPace(answer)` gets each answer. */
export function history({ queue = "", session = {}, signal, onPace = () => {} }) {
  let over = RANGES.some(([name]) => name === sessionStorage.getItem(KEPT)) ? sessionStorage.getItem(KEPT) : "15m";
  let wake = new AbortController();
  let last = null;
  let changes = [];
  let marksAt = 0;
  let rows = [];
  const sums = h("dl", { class: "tiles" });
  const note = h("p", { class: "hint", role: "status" }, "Loading…");
  const sync = `history:${queue}`;
  const pair = [{ name: "median", tone: "first" }, { name: "95 % at most", tone: "second", dash: [5, 3] }];
  const given = { sync, signal };
  const charts = {
    ended: chart({ ...given, title: "Ended", series: [{ name: "succeeded", tone: "good" }, { name: "failed", tone: "bad" }, { name: "canceled", tone: "calm" }], format: whole, isStacked: true, onPick: pick }),
    waiting: chart({ ...given, title: "Waiting", series: [{ name: "waiting, at most", tone: "first", fill: true }], format: whole, least: 1 }),
    slots: chart({ ...given, title: "Slots in use", series: [{ name: "in use", tone: "first", fill: true }, { name: "slots", tone: "line", dash: [5, 3], spans: true }], format: rate, least: 1 }),
    failed: chart({ ...given, title: "Failure rate", series: [{ name: "failed, of what ran to an end", tone: "bad" }], format: (value) => `${Math.round(value)} %`, least: 10, onPick: (at) => pick(at, "failed") }),
    wait: chart({ ...given, title: "Waiting time", series: pair, format: fine }),
    run: chart({ ...given, title: "Run time", series: pair, format: fine }),
  };
  const ranges = picks("Range", RANGES.map(([, words]) => words), (at) => choose(RANGES[at][0]));
  const happened = h("ul", { class: "happened", "aria-label": "What happened in this time" });
  const numbers = h("tbody", {});
  const asTable = h("details", { class: "numbers", on: { toggle: () => tabulate() } }, h("summary", {}, "The same as a table"),
    table("History in numbers", ["Begins", "#Succeeded", "#Failed", "#Canceled", "#Waiting", "#Slots in use", "#Slots", "#Wait, 95 %", "#Run, 95 %", "Happened"], numbers));
  const drawn = h("div", {}, sums, h("div", { class: "charts" }, Object.values(charts).map((one) => one.node)), happened, asTable);
  const node = h("section", { class: "history", "aria-label": "History" },
    h("div", { class: "head" }, h("h2", {}, "History"), ranges.node), note, drawn);

  function choose(name) {
    over = name;
    sessionStorage.setItem(KEPT, name);
    mark();
    wake.abort();
  }

  const mark = () => ranges.show(RANGES.findIndex(([name]) => name === over));

  /** Show the predictions of a step. It counts ends, and the list goes by creation: it reaches back as far as most waited and ran. */
  function pick(time, status) {
    const step = last.step_s;
    const point = last.points.find((one) => Date.parse(one.at) / 1000 === time);
    const before = Math.ceil((point?.wait_p95_s ?? 0) + (point?.run_p95_s ?? 0));
    const failed = point?.failed ? "failed" : ""; // what one looks for, unless another part of the bar was pointed at
    const wanted = { status: status ?? failed, model: queue.slice(0, queue.lastIndexOf(":")), since: iso(time - before), until: iso(time + step) };
    location.hash = `#/predictions?${new URLSearchParams(Object.entries(wanted).filter(([, value]) => value))}`;
  }

  async function look() {
    try {
      [last] = await Promise.all([ask(`/v1/admin/history?over=${over}${queue ? `&queue=${encodeURIComponent(queue)}` : ""}`, { signal }), lookAtChanges()]);
      if (signal.aborted) return;
      draw(last);
      onPace(last);
    } catch (error) {
      if (signal.aborted) return;
      drawn.hidden = last?.over !== over; // its charts are of another range, or empty
      if (drawn.hidden) return say(note, error.message);
    }
    const isOld = now() - Date.parse(last.until) > STALE_MS;
    node.classList.toggle("stale", isOld);
    if (isOld) say(note, `These figures are old: ${ago(last.until)}.`);
  }

  async function lookAtChanges() {
    if (performance.now() - marksAt < MARKS_MS && marksAt) return;
    const found = await ask(`/v1/admin/audit?order=desc&limit=${MOST_CHANGES}`, { signal }).catch(() => null);
    if (!found) return; // the charts are worth more than their marks
    marksAt = performance.now();
    const voided = new Set(found.changes.filter((one) => one.kind === "void").map((one) => one.id));
    changes = found.changes.filter((one) => TELLING.test(one.kind) && !voided.has(one.id) && (!queue || !one.queue || one.queue === queue));
  }

  /** What operators changed, and which directors started, in the range that is shown. */
  function marksOf(since) {
    const changed = changes.map((one) => ({ at: Date.parse(one.at) / 1000, text: `${one.kind.replaceAll("_", " ")}${subject(one, queue)}, by ${one.by}` }));
    const began = (session.live?.last?.directors ?? [])
      .filter((one) => one.alive && one.since && (!queue || one.queues.some((each) => each.queue === queue)))
      .map((one) => ({ at: Date.parse(one.since) / 1000, text: `director ${one.name} started${one.version ? ` (${one.version})` : ""}` }));
    return [...changed, ...began].filter((one) => one.at >= since).sort((a, b) => b.at - a.at);
  }

  function draw(found) {
    const { whole: all } = found;
    drawn.hidden = false;
    const ran = all.succeeded + all.failed;
    fill(sums, tile("Ended", count(ran + all.canceled)), tile("Succeeded", count(all.succeeded)),
      tile("Failed", `${count(all.failed)}${all.failed ? ` (${share(all.failed, ran)})` : ""}`, failing(all)), all.canceled ? tile("Canceled", count(all.canceled)) : null,
      tile("Wait, median · 95 %", `${seconds(all.wait_p50_s)} · ${seconds(all.wait_p95_s)}`), tile("Run, median · 95 %", `${seconds(all.run_p50_s)} · ${seconds(all.run_p95_s)}`));
    const { times, points, lasted } = stepped(found);
    const marks = marksOf(Date.parse(found.since) / 1000);
    const known = new Map((found.levels ?? []).map((one) => [Date.parse(one.at) / 1000, one]));
    const levels = times.map((time) => known.get(time) ?? (known.size || !found.points.length ? NONE : null)); // keepers of a former release record none
    say(note, points.some(Boolean) ? "" : "Nothing ended in this time.");
    const column = (of) => points.map((point) => (point ? of(point) : null));
    const inUse = levels.map((level, at) => (level ? level.busy_s / lasted[at] : null));
    const slots = levels.map((level) => level?.slots ?? null);
    const part = (point) => (point.succeeded + point.failed ? (100 * point.failed) / (point.succeeded + point.failed) : null);
    const most = Math.max(0, ...levels.map((level) => level?.waiting ?? 0));
    const busy = sum(inUse);
    const there = sum(slots.filter((value, at) => value !== null && inUse[at] !== null));
    const common = { times, step: found.step_s, marks };
    const ended = ["succeeded", "failed", "canceled"];
    const tones = ["good", "bad", "calm"];
    charts.ended.set({ ...common, columns: ended.map((name) => points.map((point) => point?.[name] ?? 0)), words: ran + all.canceled ? `each bar is ${seconds(found.step_s)}` : "",
      lines: (at) => ended.map((name, place) => ({ tone: tones[place], value: points[at]?.[name] ?? 0, text: `${whole(points[at]?.[name] ?? 0)} ${name}` })).filter((one) => one.value || one.tone !== "calm") });
    charts.waiting.set({ ...common, columns: [levels.map((level) => level?.waiting ?? null)], words: most ? `${whole(most)} at most` : "",
      lines: (at) => [{ tone: "first", text: levels[at] ? `${whole(levels[at].waiting)} waiting at most` : "not recorded" }] });
    charts.slots.set({ ...common, columns: [inUse, slots], words: there ? `${share(busy, there)} of the slots` : "",
      lines: (at) => [{ tone: "first", text: inUse[at] === null ? "not recorded" : slots[at] ? `${rate(inUse[at])} of ${rate(slots[at])} slots in use, ${share(inUse[at], slots[at])}` : "nothing ran" }] });
    charts.failed.set({ ...common, columns: [column(part)], words: ran ? `${share(all.failed, ran)} over the range` : "",
      lines: (at) => [{ tone: "bad", text: points[at] ? `${share(points[at].failed, points[at].succeeded + points[at].failed)} failed` : "nothing ended" }] });
    for (const name of ["wait", "run"]) {
      charts[name].set({ ...common, columns: [column((point) => point[`${name}_p50_s`]), column((point) => point[`${name}_p95_s`])], words: all[`${name}_p50_s`] === null ? "" : `median ${seconds(all[`${name}_p50_s`])}, 95 % ${seconds(all[`${name}_p95_s`])}`,
        lines: (at) => [{ tone: "first", text: `median ${seconds(points[at]?.[`${name}_p50_s`])}` }, { tone: "second", text: `95 % at most ${seconds(points[at]?.[`${name}_p95_s`])}` }] });
    }
    refill(happened, marks.slice(0, LISTED).map((one) => h("li", {}, h("span", { class: "flag", "aria-hidden": "true" }, "▾ "), h("time", {}, moment(one.at * 1000)), " ", one.text)),
      marks.length > LISTED ? h("li", {}, h("a", { href: "#/audit" }, `${marks.length - LISTED} more`)) : null);
    rows = times.map((time, at) => ({ time, point: points[at], level: levels[at], inUse: inUse[at], marks: marks.filter((one) => one.at >= time && one.at < time + found.step_s) })).reverse();
    tabulate();
  }

  function tabulate() {
    if (!asTable.open) return;
    const number = (text) => h("td", { class: "num" }, text);
    refill(numbers, rows.map(({ time, point, level, inUse, marks }) => h("tr", {}, h("th", { scope: "row" }, moment(time * 1000)),
      ["succeeded", "failed", "canceled"].map((name) => number(whole(point?.[name] ?? 0))), number(level ? whole(level.waiting) : "–"), number(inUse === null ? "–" : rate(inUse)), number(level?.slots ?? "–"),
      number(seconds(point?.wait_p95_s)), number(seconds(point?.run_p95_s)), h("td", {}, marks.map((one) => one.text).join("; ")))));
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
const iso = (at) => new Date(at * 1000).toISOString();
const sum = (values) => values.reduce((all, value) => all + (value ?? 0), 0);
const subject = (one, queue) => (one.queue && one.queue !== queue ? ` ${one.queue}` : one.account ? ` ${one.account}` : one.detail?.model ? ` ${one.detail.model}` : "");
const whole = (value) => (Number.isInteger(value) ? count(value) : ""); // a tick between two counts has no name
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
