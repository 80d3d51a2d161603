// Charts over time, drawn by uPlot, and small pictures of numbers. Each has its numbers as text too.

import { h, say } from "./dom.js";
import { moment } from "./format.js";

const HEIGHT = 160;
const TONES = { good: "--good", bad: "--bad", calm: "--soft", first: "--accent", second: "--warn" };
const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(TONES[name]).trim();

/**
 * A chart of lines over time: `series` are `{name, tone}`, `format` writes a value. `set(times, columns, words)` draws:
 * seconds since 1970, and a list of values for each series, null where a value is missing. `words` say the same in short.
 */
export function chart({ title, series, format, most, sync, signal }) {
  const place = h("div", { class: "plot", "aria-hidden": "true" });
  const told = h("span", { class: "hint" });
  const node = h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, title), " ", told), place);
  let drawn = null;
  let data = [[], ...series.map(() => [])];

  function draw() {
    drawn?.destroy();
    drawn = null;
    const width = place.clientWidth;
    if (!width || !data[0].length) return;
    const axis = { stroke: tone("calm"), grid: { stroke: tone("calm"), width: 0.3 }, ticks: { stroke: tone("calm"), width: 0.3 }, font: "12px system-ui" };
    drawn = new globalThis.uPlot({
      width,
      height: HEIGHT,
      cursor: { sync: { key: sync }, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, most ?? 0) * 1.05 || 1] } },
      axes: [{ ...axis, space: 70, size: 32, values: (_, times) => once(times.map(timesOf(data[0]))) }, { ...axis, size: 62, values: (_, values) => once(values.map(format)) }],
      series: [{ label: "Time", value: (_, at) => (at ? moment(at * 1000) : "–") },
        ...series.map((one) => ({ label: one.name, stroke: tone(one.tone), width: 1.5, dash: one.dash, points: { size: 4, show: (_, place) => data[place].includes(null) }, value: (_, value) => (value === null || value === undefined ? "–" : format(value)) }))],
    }, data, place);
  }

  const resized = new ResizeObserver(() => { if (drawn?.width !== place.clientWidth) draw(); });
  resized.observe(place);
  const themed = new MutationObserver(draw);
  themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  const shade = matchMedia("(prefers-color-scheme: dark)");
  shade.addEventListener("change", draw);
  signal.addEventListener("abort", () => { resized.disconnect(); themed.disconnect(); shade.removeEventListener("change", draw); drawn?.destroy(); }, { once: true });
  return {
    node,
    set(times, columns, words) {
      data = [times, ...columns];
      say(told, words);
      if (drawn) drawn.setData(data);
      else draw();
    },
  };
}

/** Words of ticks, each once: small counts and long ranges round to the same ones. */
const once = (words) => words.map((word, at) => (at && word === words[at - 1] ? null : word));

/** How the times below a chart are written: hours, or days where it shows more than two. */
function timesOf(times) {
  const given = times.at(-1) - times[0] > 2 * 86_400 ? { weekday: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const format = new Intl.DateTimeFormat(undefined, given);
  return (at) => format.format(new Date(at * 1000));
}

/** Strips of cells, a row for each lane and a cell for each stream: the more it holds, the stronger its colour. */
export function heat(lanes) {
  const most = Math.max(1, ...lanes.flatMap((lane) => lane.cells));
  const rows = lanes.map((lane) => {
    const cells = lane.cells.map((value, number) => {
      const cell = h("span", { class: "cell", title: `${lane.name}, stream ${number}: ${value}` });
      cell.style.setProperty("--heat", value ? String(0.15 + 0.85 * Math.sqrt(value / most)) : "0");
      return cell;
    });
    return h("div", { class: "heat" }, h("span", { class: "lane" }, lane.name),
      h("div", { class: "strip", role: "img", "aria-label": `${lane.name}: ${lane.cells.join(", ")} waiting in its streams` }, cells));
  });
  return h("div", { class: "heats" }, rows);
}

/** Bars on a common line of time, one row each: `{name, from, until, kind, text}` in ms. */
export function gantt(rows, { from, until, label, ticks }) {
  const whole = Math.max(1, until - from);
  const at = (time) => `${(100 * (time - from)) / whole}%`;
  return h("div", { class: "gantt", role: "img", "aria-label": `${label}: ${rows.map((row) => `${row.name} ${row.text}`).join(", ")}` },
    rows.map((row) => {
      const bar = h("span", { class: `part ${row.kind}`, title: `${row.name}: ${row.text}` });
      bar.style.setProperty("margin-left", at(row.from));
      bar.style.setProperty("width", `${(100 * Math.max(0, row.until - row.from)) / whole}%`);
      return h("div", { class: "lane-of" }, h("span", { class: "name" }, row.name), h("span", { class: "track" }, bar), h("span", { class: "num" }, row.text));
    }),
    h("div", { class: "lane-of ticks" }, h("span", {}), h("span", { class: "track" }, ticks.map((text) => h("span", {}, text))), h("span", {})));
}

/** What the colours of bars mean. */
export const legend = (kinds) => h("p", { class: "legend" }, kinds.map(([kind, words]) => h("span", {}, h("span", { class: `swatch ${kind}` }), words)));
