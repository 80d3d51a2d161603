// Why nothing of a queue starts, and how its runs end, in words for a person; and how bad that is.

export const STATES = {
  serving: ["serving", "good"],
  paused: ["paused", "warn"],
  breaker_open: ["breaker open", "bad"],
  no_director: ["no director", "bad"],
  servers_starting: ["servers starting", "warn"],
  setup_failed: ["setup failed", "bad"],
  server_auth: ["servers refuse their key", "bad"],
};

/** `[words, kind]` of a queue; `pace`: how its predictions ended. A queue without directors and without work is idle. */
export function stateOf(queue, pace) {
  if (queue.state === "no_director" && queue.live === 0) return ["idle", "calm"];
  if (queue.state === "serving" && pace?.failed && !pace.succeeded) return ["all fail", "bad"];
  return STATES[queue.state] ?? [queue.state, "warn"];
}
