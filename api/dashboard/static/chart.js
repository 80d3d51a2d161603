// Charts over time, drawn by uPlot, and small pictures of numbers. Each has its numbers as text too.

import { fill, h, say } from "./dom.js";
import { moment } from "./format.js";

const HEIGHT = 160;
const TONES = { good: "--ran", bad: "--lost", calm: "--calm-bar", first: "--accent", second: "--warn", line: "--soft", team1: "--team-1", team2: "--team-2", team3: "--team-3", team4: "--team-4", team5: "--team-5" };
const probe = document.getElementById("announcer"); // a canvas takes no variable: an element has its colour of now
function tone(name) {
  probe.style.color = `var(${TONES[name]})`;
  return getComputedStyle(probe).color;
}

/**
 * A chart over time: `series` are `{name, tone, dash, fill, spans}`, where `spans` joins what a gap parts; `format` writes
 * a value. `isStacked`: bars, one on the other. `onPick(step, series)` is called for the step that is clicked, or that
 * Enter is pressed on.
 *
 * `set({times, step, columns, words, lines, marks})` draws: the begins of steps of so many seconds, in seconds since
 * 1970, and a list of values for each series, null where one is missing. `words` say the same in short, `lines(at)` what
 * the step `at` is about; `marks` are `{at, text}`: what happened then. `span(at)` names the step, if not by its times.
 *
 * The arrow keys move through the steps as the mouse does, and a screen reader hears what the pointer shows.
 */
export function chart({ title, series, format, least = 0, sync, signal, isStacked = false, onPick = null }) {
  const plot = h("div", { class: "plot", "aria-hidden": "true" });
  const tip = h("div", { class: "tip", hidden: true });
  const hold = h("div", { class: "hold", tabindex: "0", role: "slider", "aria-label": title, "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "Nothing is known yet." }, plot, tip);
  const summary = h("span", { class: "hint" });
  const keys = h("span", { class: "legend" }, series.map((one) => h("span", {}, h("span", { class: `swatch tone-${one.tone}` }), one.name)));
  const node = h("figure", { class: onPick ? "chart picks-one" : "chart" }, h("figcaption", {}, h("strong", {}, title), " ", summary, keys), hold);
  let drawn = null;
  let data = { times: [], step: 1, columns: series.map(() => []), marks: [], lines: () => [] };
  let isHere = false; // the pointer or the focus: synchronised charts move their line, and show no tip

  const stacked = () => series.map((_, top) => data.times.map((_, at) => data.columns.slice(0, top + 1).reduce((sum, column) => sum + (column[at] ?? 0), 0)));
  /** As uPlot has it: points in the middle of their step; of a stack the highest first, so that the others cover it. */
  const plotted = () => [data.times.map((time) => time + data.step / 2), ...(isStacked ? stacked().reverse() : data.columns)];

  function draw() {
    drawn?.destroy();
    drawn = null;
    const width = plot.clientWidth;
    if (!width || !data.times.length) return;
    const axis = { stroke: tone("line"), grid: { stroke: tone("line"), width: 0.25 }, ticks: { stroke: tone("line"), width: 0.25 }, font: "12px system-ui" };
    const bars = globalThis.uPlot.paths.bars({ size: [0.8, 40, 2] });
    const shown = isStacked ? [...series].reverse() : series;
    drawn = new globalThis.uPlot({
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: sync }, y: false, points: isStacked ? { show: false } : { size: 6 }, drag: { x: false, y: false } },
      scales: {
        x: { range: () => [data.times[0], data.times.at(-1) + data.step] },
        y: { range: (_, low, high) => [0, Math.max(high ?? 0, least) * 1.08 || 1] },
      },
      axes: [{ ...axis, space: 70, size: 32, values: (_, times) => once(times.map(timesOf(data.times))) }, { ...axis, size: 64, values: (_, values) => once(values.map(format)) }],
      series: [{}, ...shown.map((one) => ({
        label: one.name, stroke: tone(one.tone), spanGaps: Boolean(one.spans),
        ...(isStacked ? { fill: tone(one.tone), width: 0, paths: bars, points: { show: false } } : { width: 1.5, dash: one.dash, fill: one.fill ? tone(one.tone).replace(")", ", .13)") : undefined, points: { size: 4, show: (_, place) => plotted()[place].includes(null) } }),
      }))],
      hooks: { setCursor: [follow], draw: [flags] },
    }, plotted(), plot);
  }

  /** Vertical lines where something happened. */
  function flags(u) {
    const { ctx, bbox: { left, top, width, height } } = u;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = tone("second");
    ctx.setLineDash([3, 3]);
    for (const mark of data.marks) {
      const x = Math.round(u.valToPos(mark.at, "x", true));
      if (x < left || x > left + width) continue;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x - 5, top);
      ctx.lineTo(x + 5, top);
      ctx.lineTo(x, top + 7);
      ctx.fill();
    }
    ctx.restore();
  }

  function follow(u) {
    const at = u.cursor.idx;
    tip.hidden = !isHere || at === null || at === undefined || !data.times[at];
    if (tip.hidden) return;
    const found = marksOf(at);
    const rows = data.lines(at).map(({ tone: of, text }) => h("li", {}, of ? h("span", { class: `swatch tone-${of}` }) : null, text));
    fill(tip, h("strong", {}, span(at)), h("ul", {}, rows, found.map((mark) => h("li", { class: "flag" }, `▾ ${mark.text}`))), onPick ? h("span", { class: "hint" }, "Click: its predictions") : null);
    const left = u.valToPos(data.times[at] + data.step / 2, "x") + u.over.offsetLeft;
    const isRight = left > hold.clientWidth / 2;
    tip.style.left = isRight ? "" : `${left + 12}px`;
    tip.style.right = isRight ? `${hold.clientWidth - left + 12}px` : "";
    hold.setAttribute("aria-valuenow", String(at));
    hold.setAttribute("aria-valuetext", [span(at), ...data.lines(at).map((one) => one.text), ...found.map((mark) => mark.text)].join(", "));
  }

  const marksOf = (at) => data.marks.filter((mark) => mark.at >= data.times[at] && mark.at < data.times[at] + data.step);
  const span = (at) => data.span?.(at) ?? `${moment(data.times[at] * 1000)} – ${clock(data.times[at] + data.step)}`;

  function leave() {
    isHere = false;
    tip.hidden = true;
  }

  /** Which part of a stack the pointer is on. */
  function pointed(at) {
    const value = drawn.posToVal(drawn.cursor.top, "y");
    const tops = stacked().map((column) => column[at]);
    const place = isStacked ? tops.findIndex((top) => value <= top) : -1;
    return place < 0 ? null : series[place].name;
  }

  plot.addEventListener("mouseenter", () => { isHere = true; });
  plot.addEventListener("mouseleave", leave);
  plot.addEventListener("click", () => {
    const at = drawn?.cursor.idx;
    if (onPick && at !== null && at !== undefined) onPick(data.times[at], pointed(at));
  });
  hold.addEventListener("blur", leave);
  hold.addEventListener("keydown", (event) => {
    const last = data.times.length - 1;
    if (!drawn || last < 0) return;
    const at = drawn.cursor.idx ?? last + 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      isHere = true;
      const place = Math.max(0, Math.min(last, to));
      drawn.setCursor({ left: drawn.valToPos(data.times[place] + data.step / 2, "x"), top: 10 });
    } else if (event.key === "Enter" && onPick && isHere && data.times[at]) onPick(data.times[at], null);
    else if (event.key === "Escape") leave();
  });

  const resized = new ResizeObserver(() => { if (drawn?.width !== plot.clientWidth) draw(); });
  resized.observe(plot);
  const themed = new MutationObserver(draw);
  themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  const shade = matchMedia("(prefers-color-scheme: dark)");
  shade.addEventListener("change", draw);
  signal.addEventListener("abort", () => { resized.disconnect(); themed.disconnect(); shade.removeEventListener("change", draw); drawn?.destroy(); }, { once: true });
  return {
    node,
    set(given) {
      data = { marks: [], lines: () => [], ...given };
      say(summary, data.words ?? "");
      hold.setAttribute("aria-valuemax", String(Math.max(0, data.times.length - 1)));
      if (!isHere) hold.setAttribute("aria-valuetext", data.words || "Nothing in this time.");
      if (drawn) drawn.setData(plotted());
      else draw();
    },
  };
}

const clock = (at) => new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }).format(new Date(at * 1000));


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
