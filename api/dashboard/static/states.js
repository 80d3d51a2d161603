// Why nothing of a queue starts, and how its runs end, in words for a person; and how bad that is.

export const STATES = {
  serving: ["serving", "good"],
  paused: ["paused", "warn"],
  breaker_open: ["breaker open", "bad"],
  no_director: ["no director", "bad"],
  loading: ["loading its model", "warn"],
  waiting_for_device: ["waiting for a device", "warn"],
  at_rest: ["at rest", "calm"],
  servers_starting: ["no server ready", "warn"],
  setup_failed: ["setup failed", "bad"],
  server_auth: ["servers refuse their key", "bad"],
};

/** What a finding says of a queue that seems to be served. */
const TROUBLES = new Map([["servers_unwell", "server unwell"], ["run_hangs", "a run hangs"], ["runs_time_out", "runs time out"], ["model_failing", "most runs fail"]]);

/** `[words, kind]` of a queue; `pace`: how its predictions ended. A queue without directors and without work is idle. */
export function stateOf(queue, pace, findings = []) {
  if (queue.state === "no_director" && queue.live === 0) return ["idle", "calm"];
  const found = findings.find((one) => one.queue === queue.name && TROUBLES.has(one.code));
  if (found && ["serving", "servers_starting"].includes(queue.state)) return [TROUBLES.get(found.code), found.level];
  if (queue.state === "serving" && pace?.failed && !pace.succeeded) return ["all fail", "bad"];
  return STATES[queue.state] ?? [queue.state, "warn"];
}
