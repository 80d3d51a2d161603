// The person who is logged in, and what they may do. The service decides; the page shows no more than that.

const has = (...scopes) => scopes.some((scope) => session.who?.scopes.includes(scope));

export const session = {
  who: null, // the account of the API, or null without a log-in
  live: null, // the feed of an operator

  /** All accounts, queues and directors are visible. */
  get seesAll() { return has("view", "operate", "admin"); },
  /** Predictions may be made, canceled, retried. */
  get acts() { return has("run", "operate", "admin"); },
  /** Queues may be paused, dead letters revived. */
  get operates() { return has("operate", "admin"); },
  /** The right that an act on what this account made takes. "" is an account that is not shown: the own one. */
  rightOn(account) { return !account || account === session.who?.username ? "acts" : "operates"; },
  /** Accounts and tokens may be changed. */
  get administers() { return has("admin"); },
  /** The role in a word. */
  get role() { return ["admin", "operate", "view"].find((scope) => has(scope))?.replace("operate", "operator").replace("view", "viewer") ?? "user"; },
};
