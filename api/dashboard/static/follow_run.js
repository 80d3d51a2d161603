// Follow one prediction to its end: its output piece by piece where it has a stream, and its record either way.

import { ask, follow, ours, pause, repeat } from "./api.js";
import { h, say } from "./dom.js";
import { MOST } from "./live_text.js";
import { OutputArea } from "./output.js";
import { isTerminal } from "./views/parts.js";

const LOOK_MS = 1000;

/**
 * Where the error, the output and the logs of a prediction, which is at `path`, appear as they come: of very much the
 * newest. `onChange(prediction)` is called with the record as it is now, each second until the end, or as often as its
 * size lets. `onPiece(area)` is called for each piece of its output.
 */
export function followRun(first, { path, signal, onChange, onPiece = () => {}, area = new OutputArea(), isFolded = false }) {
  const logs = h("pre", { class: "logs", tabindex: "0", "aria-label": "Logs" });
  const error = h("p", { class: "fault", role: "alert" });
  const kept = isFolded
    ? h("details", { class: "kept", hidden: true }, h("summary", {}, "Logs"), logs)
    : h("section", { class: "kept", hidden: true }, h("h2", {}, "Logs"), logs);

  let isMoving = false; // once a frame, however much comes
  let isOver = false; // what the stream still tells then is in the record already

  function settle(prediction) {
    isOver = isTerminal(prediction.status);
    const isAtEnd = logs.scrollTop + logs.clientHeight >= logs.scrollHeight - 4;
    kept.hidden = !prediction.logs;
    say(logs, (prediction.logs ?? "").slice(-MOST));
    if (isAtEnd) logs.scrollTop = logs.scrollHeight; // a reader that scrolled back stays there
    say(error, [prediction.code, prediction.error].filter(Boolean).join(": "));
    if (isOver && prediction.data_removed) area.tell("Its data was removed.");
    else if (isOver && prediction.output === null && prediction.status !== "succeeded") area.pieces || area.tell("It has no output.");
    else if (isOver || (!prediction.urls.stream && prediction.output !== null)) area.settle(prediction.output);
    onChange(prediction);
  }

  async function look() {
    settle(first);
    if (isOver) return;
    await pause(LOOK_MS, signal);
    await repeat(async () => {
      const seen = await ask(path, { signal }).catch(() => null); // it is away for a while
      if (seen && !signal.aborted) settle(seen);
      return isOver;
    }, { every: LOOK_MS, signal });
  }

  async function read() {
    if (!first.urls.stream || isTerminal(first.status)) return;
    for await (const { event, comment, data } of follow(ours(first.urls.stream), { signal })) {
      if (comment === "retried" || comment === "restarted") area.clear();
      if (event === "output" && !isOver) add(data);
    }
  }

  function add(data) {
    const { node } = area;
    const isAtEnd = node.scrollTop + node.clientHeight >= node.scrollHeight - 40;
    area.add(data);
    onPiece(area);
    if (isMoving || !isAtEnd) return;
    isMoving = true;
    requestAnimationFrame(() => { isMoving = false; node.scrollTop = node.scrollHeight; });
  }

  look();
  read().catch(() => {});
  return { error, output: area.node, logs: kept };
}
