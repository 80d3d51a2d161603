// Why nothing of a queue starts, in words for a person, and how bad that is.

export const STATES = {
  serving: ["serving", "good"],
  paused: ["paused", "warn"],
  breaker_open: ["breaker open", "bad"],
  no_director: ["no director", "bad"],
  servers_starting: ["servers starting", "warn"],
  setup_failed: ["setup failed", "bad"],
  server_auth: ["servers refuse their key", "bad"],
};

/** `[words, kind]`; a queue that nobody serves and nothing waits in is only quiet. */
export function stateOf(queue) {
  if (queue.state === "no_director" && queue.live === 0) return ["idle", "calm"];
  return STATES[queue.state] ?? [queue.state, "warn"];
}
