// Ask the service. A log-in is a session, in a cookie that no script can read and that all tabs share. A token that
// is kept for one tab comes before it: that is in no cookie and no address, and gone when the tab is closed.

import { setClock } from "./format.js";

const KEPT = "director.token";
const ROOT = new URL("..", import.meta.url).pathname; // a proxy may have put the service below a path of its own
const SILENT_MS = 30_000; // a feed says something every ten seconds: after so long it is broken, though it has not ended

export const token = {
  get: () => sessionStorage.getItem(KEPT) ?? "",
  set: (value) => sessionStorage.setItem(KEPT, value),
  drop: () => sessionStorage.removeItem(KEPT),
};

/** The session of this browser: who is logged in, or null. */
export const browser = {
  who: () => ask("/session").catch((error) => { if (error.status === 404) return null; throw error; }),
  logIn: (body) => ask("/session", { method: "POST", body }),
  look: (link) => ask("/session/link", { method: "POST", body: { link } }), // which leaves it as it is
  logOut: () => ask("/session", { method: "DELETE" }),
};

const ended = new EventTarget();
/** Call `act` once the service knows neither token nor session any more. */
export const onEnd = (act) => ended.addEventListener("end", act);

/** What the service refused: its status, and its own words. */
export class Refused extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail ?? problem.error?.message ?? `The service answered ${status}.`);
    this.status = status;
    this.code = problem.code ?? problem.error?.code ?? "";
    this.fields = problem.invalid_fields ?? [];
    this.retryAfter = Number(retryAfter) || null;
  }
}

/** Ask for JSON. Raises Refused for what the service refuses, and a plain Error while it cannot be reached. */
export const ask = async (path, options) => (await askSites(path, options)).answer;

/** Ask for what all sites have: `{answer, away}`. `away` names the sites that did not answer, whose part is missing. */
export async function askSites(path, { method = "GET", body, signal, headers = {} } = {}) {
  const response = await call(path, { method, body, signal, headers: { Accept: "application/json", ...headers } });
  return { answer: response.status === 204 ? null : await response.json(), away: response.headers.get("X-Sites-Away") ?? "" };
}

/** Do what reaches a part of a set at a time, as often as an answer says where to go on: `{done, left, refused}`. */
export async function askForAll(path, body = {}) {
  const all = { done: null, left: 0, refused: [] }; // null: the route does not count
  for (let cursor = ""; cursor !== null;) {
    const asked = { ...body, ...(cursor ? { cursor } : {}) };
    const answer = await ask(path, { method: "POST", ...(Object.keys(asked).length ? { body: asked } : {}) });
    if (answer?.done !== undefined) all.done = (all.done ?? 0) + answer.done;
    all.left += answer?.left ?? 0;
    all.refused.push(...(answer?.refused ?? []).map((one) => (one.why ?? "its input is gone").replaceAll("_", " ")));
    cursor = answer?.next ?? null;
  }
  return all;
}

/** Why some were left alone, as a sentence. */
export const whyRefused = (refused) => (refused.length ? ` ${refused.length} left alone: ${[...new Set(refused)].join(", ")}.` : "");

/** Download a file under this name. The service gives it only to a request with the token, so no link can. */
export async function download(path, name) {
  const response = await call(path, { method: "GET", headers: { Accept: "*/*" } });
  saveAs(await response.blob(), name);
}

/** Save a blob as a file of this name. */
export function saveAs(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** The pages of a list, one by one: `{results, next, away}`; `next` is what to give for the following one. */
export async function page(path, next = null, { signal } = {}) {
  const { answer, away } = await askSites(next ?? path, { signal });
  return { results: answer.results, next: answer.next ? ours(answer.next) : null, away };
}

/** The same address at the service that this page came from, whatever its public name is. */
export function ours(url) {
  const { pathname, search } = new URL(url, location.origin);
  const at = pathname.lastIndexOf("/v1/");
  return (at < 0 ? pathname : pathname.slice(at)) + search;
}

/** Where a path of the service is for this browser. */
export const placed = (path) => ROOT + path.slice(1);

/** The address of the service, as clients take it. */
export const serviceAddress = () => (location.origin + ROOT).replace(/\/$/, "");

/**
 * Read server-sent events until the end, or until `signal` is aborted: `{event, data, id}`, and comments as `{comment}`.
 * Comes back with Last-Event-ID after a break; `onState` hears "live" and "broken". Raises Refused.
 */
export async function* follow(path, { signal, onState = () => {}, last = "" } = {}) {
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
      const response = await call(path, { method: "GET", signal, headers });
      if (response.status === 204) return;
      onState("live");
      for await (const event of frames(response.body)) {
        tries = 0;
        if (event.id) last = event.id;
        yield event;
        if (event.event === "done") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status < 500 && error.status !== 429) throw error;
    }
    onState("broken");
    await pause(Math.min(10_000, 500 * 2 ** Math.min(tries, 5)), signal);
  }
}

async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await heard(reader);
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield frame(block);
    }
  } finally {
    reader.cancel().catch(() => {}); // a reader that stops releases the connection
  }
}

/** The next piece. A connection that a network forgot stays open and silent: that is a break too. */
const heard = (reader) => new Promise((done, failed) => {
  const timer = setTimeout(() => failed(new Error("Nothing was heard for too long.")), SILENT_MS);
  reader.read().then(done, failed).finally(() => clearTimeout(timer));
});

function frame(block) {
  const fields = { event: "message", data: [], id: "", comment: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    const [name, text] = at < 0 ? [line, ""] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
    if (name === "") fields.comment = text;
    else if (name === "data") fields.data.push(text);
    else if (name === "event" || name === "id") fields[name] = text;
  }
  return { ...fields, data: fields.data.join("\n") };
}

async function call(path, { method, body, signal, headers }) {
  const form = body instanceof FormData;
  const response = await fetch(placed(path), {
    method,
    signal,
    cache: "no-store",
    credentials: "same-origin",
    headers: {
      "X-Director-Page": "1", // no form of another site can send it: without it no session counts
      ...headers,
      ...(token.get() ? { Authorization: `Bearer ${token.get()}` } : {}),
      ...(body === undefined || form ? {} : { "Content-Type": "application/json" }),
    },
    body: body === undefined || form ? body : JSON.stringify(body),
  }).catch((error) => { throw error instanceof TypeError ? new Error("The service cannot be reached.") : error; });
  setClock(response.headers.get("Date"));
  if (!response.ok) {
    const answer = await problem(response);
    // its words for 503 are of creates: an answer to a look was not accepted in part
    if (method === "GET" && response.status === 503 && answer.code === "unavailable") answer.detail = "The service cannot answer now.";
    if (response.status === 401 && path !== "/session") ended.dispatchEvent(new Event("end"));
    throw new Refused(response.status, answer, response.headers.get("Retry-After"));
  }
  return response;
}

const problem = (response) => response.json().catch(() => ({}));

/** True if the same may be asked again and answered: the service is away, or was asked too often. */
export const isPassing = ({ status }) => !(status < 500) || status === 429;

/** Wait, or until it is called off. */
export const pause = (ms, signal) => new Promise((done) => {
  const over = () => { clearTimeout(timer); signal?.removeEventListener("abort", over); done(); };
  const timer = setTimeout(over, ms);
  if (signal?.aborted) over();
  signal?.addEventListener("abort", over);
});

const REST = 10; // times as long as a look took: what is large, or slow just now, is asked for less often
const LONGEST_MS = 60_000; // between two looks

/** Repeat `look`, at most once in `every` ms, until the signal aborts or a look returns true. */
export async function repeat(look, { every, signal }) {
  while (!signal.aborted) {
    const began = performance.now();
    if (await look()) return;
    await pause(Math.min(LONGEST_MS, Math.max(every, REST * (performance.now() - began))), signal);
  }
}
