// Follow one prediction to its end: its output piece by piece where it has a stream, and its record either way.

import { ask, follow, ours, pause, repeat } from "./api.js";
import { fill, h, say } from "./dom.js";
import { MOST, MOST_PIECES, output, piece } from "./output.js";
import { isTerminal } from "./views/parts.js";

const LOOK_MS = 1000;

/** Of a text that grows, its end. */
function lengthened(text, more) {
  text.appendData(more);
  if (text.length > 2 * MOST) text.deleteData(0, text.length - MOST);
}

/**
 * Where the error, the output and the logs of a prediction, which is at `path`, appear as they come: of very much the
 * newest. `onChange(prediction)` is called with the record as it is now, each second until the end, or as often as its
 * size lets.
 */
export function followed(first, { path, signal, onChange }) {
  const pieces = h("div", { class: "live", "aria-label": "Output", role: "region", tabindex: "0" });
  const logs = h("pre", { class: "logs", tabindex: "0", "aria-label": "Logs" });
  const error = h("p", { class: "fault", role: "alert" });
  const kept = h("section", { class: "kept", hidden: true }, h("h2", {}, "Logs"), logs);

  let isMoving = false; // once a frame, however much comes
  let isOver = false; // what the stream still tells then is in the record already

  function settle(prediction) {
    isOver = isTerminal(prediction.status);
    const isAtEnd = logs.scrollTop + logs.clientHeight >= logs.scrollHeight - 4;
    kept.hidden = !prediction.logs;
    say(logs, (prediction.logs ?? "").slice(-MOST));
    if (isAtEnd) logs.scrollTop = logs.scrollHeight; // a reader that scrolled back stays there
    say(error, [prediction.code, prediction.error].filter(Boolean).join(": "));
    if (isOver) fill(pieces, prediction.data_removed ? h("p", { class: "hint" }, "Its data was removed.") : output(prediction.output));
    else if (!prediction.urls.stream && prediction.output !== null) fill(pieces, output(prediction.output));
    onChange(prediction);
  }

  async function look() {
    settle(first);
    if (isOver) return;
    await pause(LOOK_MS, signal);
    await repeat(async () => {
      try {
        const seen = await ask(path, { signal });
        if (!signal.aborted) settle(seen);
      } catch { /* it is away for a while */ }
      return isOver;
    }, { every: LOOK_MS, signal });
  }

  async function read() {
    if (!first.urls.stream || isTerminal(first.status)) return;
    for await (const told of follow(ours(first.urls.stream), { signal })) {
      if (told.comment === "retried" || told.comment === "restarted") fill(pieces);
      if (told.event === "output" && !isOver) add(told.data);
    }
  }

  function add(data) {
    const last = pieces.lastChild;
    const isText = !/^(data:|https?:)/.test(data);
    if (isText && last?.tagName === "PRE") lengthened(last.firstChild, data);
    else pieces.append(isText ? h("pre", { class: "out" }, data) : piece(data));
    while (pieces.childElementCount > MOST_PIECES) pieces.firstChild.remove();
    if (isMoving) return;
    isMoving = true;
    requestAnimationFrame(() => { isMoving = false; pieces.scrollTop = pieces.scrollHeight; });
  }

  look();
  read().catch(() => {});
  return { error, output: pieces, logs: kept };
}
