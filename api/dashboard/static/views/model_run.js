// The output of one run beside the form: as it comes, how long it takes and how fast, and what can be done with it.

import { ask } from "../api.js";
import { announce, fill, h, say } from "../dom.js";
import { followRun } from "../follow_run.js";
import { between, count, now, seconds } from "../format.js";
import { wantsPlain } from "../live_text.js";
import { OutputArea, textOf } from "../output.js";
import { session } from "../session.js";
import { madeFrom } from "./model_parts.js";
import { action, canceler, chip, copier, isTerminal, predictionLink, sharer, waits, when } from "./parts.js";

const TICK_MS = 200;
const FEW = 5; // pieces, and ms that they took: with less a rate says nothing
const SHORT_MS = 500;

/** How long a run took, and how fast its text came. */
class Meter {
  constructor() {
    this.node = h("span", { class: "meter" });
    this._first = 0;
    this._last = 0;
    this._pieces = 0;
  }

  /** A piece of text has come. `pieces`: how many of this attempt have come. */
  tick(pieces) {
    this._last = performance.now();
    if (pieces < this._pieces || !this._first) this._first = this._last;
    this._pieces = pieces;
  }

  show(prediction) {
    const isOver = isTerminal(prediction.status);
    const { metrics = {}, started_at: began } = prediction;
    const spent = isOver ? metrics.predict_time ?? between(began, prediction.completed_at) : began ? Math.max(0, (now() - Date.parse(began)) / 1000) : null;
    const isOfTokens = isOver && metrics.output_tokens && spent;
    const rate = isOfTokens ? metrics.output_tokens / spent : this._pieces >= FEW && this._last - this._first > SHORT_MS ? (1000 * (this._pieces - 1)) / (this._last - this._first) : null;
    say(this.node, [
      spent === null ? "" : isOver ? seconds(spent) : `${spent.toFixed(1)} s`,
      metrics.output_tokens ? `${count(metrics.output_tokens)} tokens` : "",
      rate === null ? "" : `${rate < 10 ? rate.toFixed(1) : Math.round(rate)} ${isOfTokens ? "tokens" : "pieces"}/s`,
    ].filter(Boolean).join(" · "));
  }
}

/**
 * Follow a run into `area`, as `followRun` does, with its `meter` and its `turn` in the line. `onChange(prediction)` is
 * called after these are up to date.
 */
export function meteredRun(first, { path, signal, area, onChange, onPiece = () => {} }) {
  const meter = new Meter();
  const turn = h("p", { class: "hint turn" });
  let last = first;
  const timer = setInterval(() => { if (!isTerminal(last.status)) meter.show(last); }, TICK_MS);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });

  function change(seen) {
    last = seen;
    const isOver = isTerminal(seen.status);
    if (isOver) clearInterval(timer);
    meter.show(seen);
    say(turn, seen.queue && !isOver ? waits(seen.queue) : "");
    area.node.classList.toggle("busy", !isOver && !area.pieces);
    onChange(seen);
  }

  function piece() {
    area.node.classList.remove("busy");
    if (area.live) meter.tick(area.pieces);
    onPiece();
  }

  return { ...followRun(first, { path, signal, onChange: change, onPiece: piece, area, isFolded: true }), meter: meter.node, turn };
}

/** `node`; `show(prediction)`, `example(prediction)` and `empty()` say what it shows; `shown` is the run that it does. */
export function runView({ full, properties, signal, readdress, onInput, onEnd }) {
  const node = h("section", { class: "card result", "aria-label": "Result" });
  const view = { node, shown: null, show, example, empty };
  let following = null;

  function begin() {
    following?.abort();
    following = new AbortController();
    return AbortSignal.any([signal, following.signal]);
  }

  /** Which input made it: the form may say another one by now. */
  function from({ input, data_removed: isGone }) {
    const words = isGone ? "" : madeFrom(input, properties);
    return words ? h("p", { class: "made" }, h("span", { class: "hint" }, "Made from "), words) : null;
  }

  function show(prediction, { isNew = false, isQuiet = false } = {}) {
    const ending = begin();
    const path = `/v1/predictions/${prediction.id}`;
    const status = h("span", {});
    const area = new OutputArea();
    const cancel = canceler(path);
    const acts = h("div", { class: "actions" });
    const since = h("p", { class: "hint id-of" }, predictionLink(prediction.id), " · run ", when(prediction.created_at));
    let wasOver = isTerminal(prediction.status);
    view.shown = prediction;
    if (!isQuiet) readdress(`#/models/${full}?run=${prediction.id}`);

    const onChange = (seen) => {
      view.shown = seen;
      if (status.textContent !== seen.status) { fill(status, chip(seen.status)); if (isNew) announce(`The prediction: ${seen.status}.`); }
      const isOver = isTerminal(seen.status);
      cancel.hidden = isOver;
      if (!isOver) return cancel.isConnected || fill(acts, cancel);
      fill(acts, ...tools(seen, area, { full, onInput }));
      if (!wasOver) { wasOver = true; onEnd(); }
      return undefined;
    };
    const { error, output, logs, meter, turn } = meteredRun(prediction, { path, signal: ending, area, onChange });
    fill(node, h("div", { class: "result-head" }, h("h2", {}, "Output"), status, meter), from(prediction), since, turn, error, output, logs, acts);
  }

  function example(prediction) {
    begin();
    view.shown = null;
    const area = new OutputArea();
    area.settle(prediction.output);
    const meter = new Meter();
    meter.show(prediction);
    fill(node, h("div", { class: "result-head" }, h("h2", {}, "Output"), h("span", { class: "chip" }, "an example"), meter.node),
      from(prediction), h("p", { class: "hint" }, "This is what it made of the input at the left. Change it and run it yourself."), area.node,
      h("div", { class: "actions" }, ...viewTools(area, prediction)));
  }

  function empty() {
    begin();
    view.shown = null;
    fill(node, h("div", { class: "result-head" }, h("h2", {}, "Output")),
      h("div", { class: "blank", role: "note" }, h("span", { class: "play-mark", "aria-hidden": "true" }, "▷"), h("p", {}, "Fill in the form and press Run."), h("p", { class: "hint" }, "The output comes here, as the model makes it.")));
  }

  return view;
}

function tools(seen, area, { full, onInput }) {
  const isGood = seen.status === "succeeded" && !seen.data_removed;
  return [
    ...viewTools(area, seen),
    sharer(seen.id),
    seen.data_removed ? null : h("button", { type: "button", class: "quiet", on: { click: () => { onInput(seen.input); announce("The form now has the input of this run."); } } }, "Use its input"),
    isGood && session.operates ? action("Make it an example", () => makeExample(full, seen.id), { kind: "quiet", needs: "operates" }) : null,
  ];
}

async function makeExample(full, id) {
  const { code, error } = await ask("/v1/admin/commands", { method: "POST", body: { line: ["model", "example", full, id, "--default"] } });
  if (code) throw new Error(error);
  return "It is the example of this model now.";
}

/** What can be done with an output that is text. */
function viewTools(area, { output }) {
  if (textOf(output) === null || !area.live) return [];
  const words = () => (wantsPlain() ? "As Markdown" : "As plain text");
  const toggle = h("button", { type: "button", class: "quiet", on: { click: () => { area.live.show(!wantsPlain()); say(toggle, words()); } } }, words());
  return [copier("Copy text", () => textOf(output)), toggle];
}
