// What goes on in the whole service, as the operators' feed tells it: one connection, however many parts of the page look.

import { follow } from "./api.js";

/** The feed of a session. `hear(act)` calls `act(snapshot)` for each one, the last known at once; returns how to stop. */
export class Live {
  constructor(onState) {
    this.last = null;
    this.heardAt = 0; // of performance.now(), which no change of a clock moves
    this.failed = null;
    this._ears = new Set();
    this._onState = onState;
    this._ending = new AbortController();
  }

  async run() {
    try {
      for await (const told of follow("/v1/admin/live", { signal: this._ending.signal, onState: this._onState })) {
        if (told.event === "snapshot") this._take(JSON.parse(told.data));
        else if (told.event === "away") this._lose(JSON.parse(told.data));
      }
    } catch (error) {
      this.failed = error;
      this._onState("refused");
    }
  }

  stop() {
    this._ending.abort();
    this._ears.clear();
  }

  hear(act) {
    this._ears.add(act);
    if (this.last) act(this.last);
    return () => this._ears.delete(act);
  }

  _take(snapshot) {
    this.last = snapshot;
    this.heardAt = performance.now();
    this._onState("live");
    for (const ear of this._ears) ear(snapshot);
  }

  /** What was seen last stays, but what needs a person is that nothing is seen. */
  _lose(away) {
    this._onState("away");
    if (!this.last) return;
    this.last = { ...this.last, findings: away.findings };
    for (const ear of this._ears) ear(this.last);
  }
}

/** All that waits in a queue, whatever its lane. */
export const waiting = (queue) => queue.waiting.high + queue.waiting.normal + queue.waiting.low;
