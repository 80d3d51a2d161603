// What goes on in the whole service, as the operators' feed tells it: one connection, however many parts of the page look.

import { follow } from "./api.js";
import { say } from "./dom.js";

/** The feed of a session. `hear(act, wait)` calls `act(snapshot)` for each one, the last known at once; returns how to
 * stop. `wait`: a line that says why nothing can be seen, until the first one is there. */
export class Live {
  constructor(onState) {
    this.last = null;
    this.heardAt = 0; // of performance.now(), which no change of a clock moves
    this._why = ""; // nothing was seen yet
    this._ears = new Map();
    this._onState = onState;
    this._ending = new AbortController();
  }

  async run() {
    try {
      for await (const event of follow("/v1/admin/live", { signal: this._ending.signal, onState: (state) => this._turn(state) })) {
        if (event.event === "snapshot") this._take(JSON.parse(event.data));
        else if (event.event === "away") this._lose(JSON.parse(event.data));
      }
    } catch (error) {
      this._explain(error.message);
      this._onState("refused");
    }
  }

  /** A view that waits for its first snapshot says why none comes. */
  _turn(state) {
    this._onState(state);
    if (state === "broken" && !this.last && !this._why) this._explain("No answer came. It is asked again every few seconds.");
  }

  stop() {
    this._ending.abort();
    this._ears.clear();
  }

  hear(act, wait = null) {
    this._ears.set(act, wait);
    if (this.last) act(this.last);
    else if (this._why) this._explain(this._why);
    return () => this._ears.delete(act);
  }

  _take(snapshot) {
    this.last = snapshot;
    this.heardAt = performance.now();
    this._onState("live");
    for (const ear of this._ears.keys()) ear(snapshot);
  }

  /** What was seen last stays, but what needs a person is that nothing is seen. */
  _lose(away) {
    this._onState("away");
    if (!this.last) return this._explain(away.findings.map((one) => `${one.title}. ${one.detail}`).join(" "));
    this.last = { ...this.last, findings: away.findings };
    for (const ear of this._ears.keys()) ear(this.last);
    return undefined;
  }

  _explain(why) {
    this._why = why;
    for (const wait of this._ears.values()) {
      if (!wait || this.last) continue;
      say(wait, why);
      wait.className = "trouble";
    }
  }
}

/** All that waits in a queue, whatever its lane. */
export const waiting = (queue) => queue.waiting.high + queue.waiting.normal + queue.waiting.low;
