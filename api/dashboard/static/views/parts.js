// Pieces that several views show.

import { ask, isPassing, pause, serviceAddress } from "../api.js";
import { announce, dialog, fill, h, refill, say } from "../dom.js";
import { ago, count, day, seconds, timed } from "../format.js";
import { session } from "../session.js";

const TERMINAL = new Set(["succeeded", "failed", "canceled", "aborted"]);

export const isTerminal = (status) => TERMINAL.has(status);

/** What a status means, for those who point at it. A prediction has the same word in every view. */
const MEANINGS = {
  starting: "Accepted: it waits for its turn, or its model is being prepared. Nothing of it has run yet.",
  delayed: "An attempt failed. The next one starts after a pause.",
  processing: "It runs.",
  succeeded: "It has ended, with an output.",
  failed: "It has ended, with an error.",
  canceled: "It was stopped, by its caller, an operator or its deadline.",
  aborted: "It was ended before it ran: its caller gave it a time to end by.",
};

/** The state of a prediction, in a word and a colour. */
export const chip = (status) => h("span", { class: `chip ${status}`, title: MEANINGS[status] ?? null }, status);

/** The statuses with their meanings, for a choice. */
export const STATUSES = ["starting", "processing", "succeeded", "failed", "canceled", "aborted"].map((status) => [status, MEANINGS[status]]);

/** A line while something is asked for. It appears after a moment, so what is quick does not flicker. */
export const loading = (words = "Loading…") => h("p", { class: "loading", role: "status" }, words);

const LONGEST = 120; // characters of a preview

/** A value in a short line of text: the words of a text, or the fields of an object. What is a file says so. */
export function preview(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value) && value.length && value.every((one) => typeof one === "string")) return preview(value.some(isLong) ? value.map(preview).join(", ") : value.slice(0, LONGEST).join(""));
  const whole = typeof value === "string" ? shortened(value) : Array.isArray(value) ? value.slice(0, 20).map(preview).join(", ") : typeof value === "object" ? Object.entries(value).slice(0, 20).map(([name, of]) => `${name}: ${typeof of === "object" ? preview(of) : shortened(String(of))}`).join(" · ") : String(value);
  const line = whole.slice(0, 4 * LONGEST).replace(/\s+/g, " ").trim();
  return line.length > LONGEST ? `${line.slice(0, LONGEST - 1)}…` : line;
}

const isLong = (text) => /^(data:|https?:\/\/)/.test(text);
const shortened = (text) => (text.startsWith("data:") ? `${/^data:([a-z0-9.+/-]{0,40})/i.exec(text)?.[1] || "data"} file` : isLong(text) ? text.split(/[?#]/)[0].split("/").at(-1) || "a link" : text.slice(0, 4 * LONGEST));

/** A link to a prediction. */
export const predictionLink = (id) => h("a", { href: `#/predictions/${id}`, class: "mono" }, id);

/** A link to a queue. A narrow column breaks it before the version. */
export const queueLink = (name) => {
  const at = name.lastIndexOf(":");
  if (at < 0) return h("a", { href: "#/directors" }, name); // a model without a queue yet
  return h("a", { href: `#/queues/${name.split("/").map(encodeURIComponent).join("/")}` }, name.slice(0, at), h("wbr"), name.slice(at));
};

/** Where a queue stands in the admin API: its name, with the version as a part of its own. */
export const queuePath = (name) => {
  const at = name.lastIndexOf(":");
  return `/v1/admin/queues/${name.slice(0, at)}/${encodeURIComponent(name.slice(at + 1))}`;
};

/** When something happened. */
export const when = (at) => (at ? h("time", timed(at), day(at)) : "–");

/** A button that does something on the service: it says how that went, and does it once at a time. `act` returns what to
 * say. It keeps the focus meanwhile, which a button that is off would lose.
 * `of`: what it is done to, for those who hear the button and do not see where it stands. `needs`: the right that it
 * takes; who lacks it does not see the button. */
export function action(name, act, { kind = "", confirm = "", of = "", needs = "acts" } = {}) {
  const isDenied = Boolean(needs) && !session[needs];
  const button = h("button", { type: "button", class: kind, "aria-label": of ? `${name} ${of}` : null, "data-denied": isDenied ? "" : null }, name);
  button.addEventListener("click", async () => {
    if (button.ariaBusy || (confirm && !(await sure(confirm, name)))) return;
    button.ariaBusy = "true";
    try {
      const message = await act();
      if (message) notice(message);
    } catch (error) {
      notice(error.message, "trouble");
    } finally {
      button.ariaBusy = null;
    }
  });
  return button;
}

/** A button that cancels the prediction at `path`. */
export const canceler = (path, { name = "Cancel", needs } = {}) => action(name, async () => {
  await ask(`${path}/cancel`, { method: "POST" });
  return "Cancellation was requested.";
}, { kind: "danger", needs });

/** A row of buttons, of which `show(at)` marks one as chosen. `onPick(at)` is called for the one that is clicked. */
export function picks(label, names, onPick) {
  const buttons = names.map((name, at) => h("button", { type: "button", "aria-pressed": "false", on: { click: () => onPick(at) } }, name));
  return {
    node: h("div", { class: "picks", role: "group", "aria-label": label }, buttons),
    show(chosen) { for (const [at, button] of buttons.entries()) button.setAttribute("aria-pressed", String(at === chosen)); },
  };
}

/** Ask whether it is meant. Escape and Back say no. */
export function sure(question, name) {
  return new Promise((done) => {
    dialog({ isLight: false, class: "card", "aria-label": name, on: { close: ({ target }) => done(target.returnValue === "yes") } }, h("p", {}, question),
      h("form", { method: "dialog", class: "actions" }, h("button", { value: "no" }, "Back"), h("button", { value: "yes", class: "main danger" }, name)));
  });
}

/** A button that copies a text. `make` returns the text. */
export const copier = (name, make, kind = "quiet") => action(name, async () => {
  await copy(await make());
  return "Copied.";
}, { kind, needs: "" });

/** A button that copies the address of a run for those who may see it. */
export const sharer = (id, kind) => copier("Copy link", () => `${serviceAddress()}/p/${id}`, kind);

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = h("textarea", { class: "unseen", value: text }); // the page is served without TLS
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  if (!isDone) throw new Error("The browser does not let the page copy.");
  return undefined;
}

let shown = null;

/** A line at the foot of the page that goes away by itself. */
export function notice(text, kind = "done") {
  shown?.remove();
  shown = h("div", { class: `notice ${kind}`, "aria-hidden": "true" }, text);
  document.body.append(shown);
  announce(text);
  const mine = shown;
  setTimeout(() => mine.remove(), 6000);
}

/** A list of names and values. Values that are not known are left out. */
export const facts = (pairs) => h("dl", { class: "facts" }, pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== "")
  .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** Why something is not shown, in words for a person. */
export const why = (error) => (error.status !== 404 ? error.message : session.seesAll ? "This does not exist, or was deleted. Check the address." :
  `This does not exist, or it belongs to another account than yours, which is ${session.who?.username}. Check the address, or ask the person who sent it for a log-in link to their account.`);

/** What went wrong with a view, in its place. `isAsked`: the view asks again while the service is away. */
export const failure = (error, isAsked = false) => [
  h("p", { class: error.status === 404 ? "empty" : "trouble", role: "alert" }, why(error)),
  isAsked && isPassing(error) ? h("p", { class: "hint" }, "It is asked again every few seconds.") : null];

const AGAIN_MS = 5000;

/** Call `look` until the service answers. A refusal ends it. `place` shows why nothing is there. */
export async function untilAnswered(look, place, signal) {
  while (!signal.aborted) {
    try {
      return await look();
    } catch (error) {
      if (error instanceof TypeError) throw error; // a fault of the page
      if (signal.aborted) return undefined;
      refill(place, failure(error, true));
      if (!isPassing(error)) return undefined;
    }
    await pause(AGAIN_MS, signal);
  }
  return undefined;
}

export const ranThere = (away) => `No answer came from ${away}. What ran there is missing.`;

/** Say what is missing from answers of all sites, if some were away from one. */
export function lack(...answers) {
  const away = new Set(answers.filter(Boolean).flatMap((names) => names.split(", ")));
  return away.size ? h("p", { class: "callout", role: "status" }, ranThere([...away].join(", "))) : null;
}

export const MOST_ROWS = 2000; // in one list: more is searched by filters, not read

/** A list that goes on as long as there is more: `more(next)` returns {results, next, away}. `row(item)` makes a line of it. */
export function endless(body, more, row, { signal, empty }) {
  const button = h("button", { type: "button", hidden: true }, "Show more");
  const note = h("span", { class: "hint" });
  const trouble = h("div", {}, loading());
  const away = []; // of each page
  async function load() {
    button.disabled = true;
    try {
      const found = await more(next);
      if (signal.aborted) return;
      away.push(found.away); // what a page lacks no later one brings
      fill(trouble, lack(...away));
      body.append(...found.results.map(row));
      next = found.next;
      const isFull = next && body.childElementCount >= MOST_ROWS;
      button.hidden = !next || isFull;
      say(button, "Show more");
      if (isFull) say(note, `${body.childElementCount} are shown. Narrow the list to see others.`);
      if (!body.childElementCount && !next) fill(trouble, lack(...away) ?? h("div", { class: "empty" }, h("p", {}, linked(empty))));
    } catch (error) {
      if (signal.aborted) return;
      fill(trouble, failure(error));
      say(button, "Try again");
      button.hidden = false;
    } finally {
      button.disabled = false;
    }
  }
  let next = null;
  button.addEventListener("click", load);
  load();
  return h("div", { class: "foot" }, trouble, button, note);
}

const ID = /([0-9a-hj-km-np-tv-z]{26})/; // Crockford's digits

/** A link, or its words alone on the page that it leads to. */
const elsewhere = (link) => (link.getAttribute("href") === location.hash ? link.textContent : link);

/** A text in which the id of a prediction is a link, and what stands between backticks is code. */
export const linked = (text) => text.split("`").map((words, at) => (at % 2 ? h("code", {}, words) : words.split(ID).map((part, of) => (of % 2 ? elsewhere(predictionLink(part)) : part))));

/** One thing that needs a person: what it is, where, who can act, and the command that shows or mends it. */
export function finding(one) {
  return h("li", { class: one.level, "data-code": one.code },
    h("strong", {}, one.title), one.queue ? [": ", elsewhere(queueLink(one.queue))] : null, one.detail ? h("p", {}, linked(one.detail)) : null, one.log ? h("pre", { class: "log" }, one.log) : null, one.ask ? h("code", {}, one.ask) : null, one.who ? h("span", { class: "hint" }, ` Who acts: ${one.who}`) : null);
}

/** Where a waiting prediction stands, in words. */
export function waits({ position, eta_s: eta, detail, reason, since }) {
  const soon = eta ? `It probably starts in ${span(eta.p50, eta.p90)}.` : "When it starts is not known.";
  const why = since ? `${detail.replace(/\.$/, "")} ${ago(since)}.` : detail || reason;
  return `Position ${count(position)} in line. ${why} ${soon}`;
}

const span = (soon, late) => (seconds(soon) === seconds(late) ? `about ${seconds(soon)}` : `${seconds(soon)} to ${seconds(late)}`);
