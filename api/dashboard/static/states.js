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

/** `[words, kind]` of a queue; `pace`: how its predictions ended. One that nobody serves and nothing waits in is idle. */
export function stateOf(queue, pace) {
  if (queue.state === "no_director" && queue.live === 0) return ["idle", "calm"];
  if (queue.state === "serving" && pace?.failed && !pace.succeeded) return ["all fail", "bad"];
  return STATES[queue.state] ?? [queue.state, "warn"];
}

// why a prediction waits: reasons of the API, as a person says them
const REASONS = {
  waiting_its_turn: "others are before it",
  paused: "its queue is paused by an operator",
  tenant_paused: "its account is paused in this queue",
  account_suspended: "its account is suspended",
  breaker_open: "its servers failed in a row, and rest",
  no_director: "no director serves its queue",
  servers_starting: "its servers are starting",
  setup_failed: "the setup of its servers failed",
  server_auth: "its servers refuse their director's key",
  concurrency_limit: "its account runs as many as it may",
  retry_backoff: "it failed, and is tried again soon",
  leaving: "it moves to another Redis server",
};

export const reasonOf = (reason) => REASONS[reason] ?? String(reason).replaceAll("_", " ");
