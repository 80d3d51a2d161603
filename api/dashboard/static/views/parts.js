// Pieces that several views show.

import { rights } from "../api.js";
import { announce, h } from "../dom.js";
import { ago, count, seconds } from "../format.js";

const TERMINAL = new Set(["succeeded", "failed", "canceled", "aborted"]);

export const isTerminal = (status) => TERMINAL.has(status);

/** What a status means, for those who point at it. */
const MEANINGS = {
  starting: "Accepted: it waits, or its model is being prepared. Nothing of it has run yet.",
  processing: "It runs.",
  succeeded: "It has ended, with an output.",
  failed: "It has ended, with an error.",
  canceled: "It was stopped, by its caller, an operator or its deadline.",
  aborted: "It was ended before it ran: its caller gave it a time to end by.",
};

/** The state of a prediction, in a word and a colour. */
export const chip = (status) => h("span", { class: `chip ${status}`, title: MEANINGS[status] ?? null }, status);

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

/** A button that does something on the service: it says how that went, and is off meanwhile. `act` returns what to say.
 * `of`: what it is done to, for those who hear the button and do not see where it stands. `needs`: the right that it
 * takes; who lacks it does not see the button. */
export function action(name, act, { kind = "", confirm = "", of = "", needs = "acts" } = {}) {
  const isDenied = Boolean(needs) && !rights[needs];
  const button = h("button", { type: "button", class: kind, "aria-label": of ? `${name} ${of}` : null, "data-denied": isDenied ? "" : null }, name);
  button.addEventListener("click", async () => {
    if (confirm && !(await sure(confirm, name))) return;
    button.disabled = true;
    try {
      const said = await act();
      if (said) notice(said);
    } catch (error) {
      notice(error.message, "trouble");
    } finally {
      button.disabled = false;
    }
  });
  return button;
}

/** Ask whether it is meant. Escape and Back say no. */
function sure(question, name) {
  return new Promise((done) => {
    const box = h("dialog", { class: "card", "aria-label": name }, h("p", {}, question),
      h("form", { method: "dialog", class: "actions" }, h("button", { value: "no" }, "Back"), h("button", { value: "yes", class: "main danger" }, name)));
    box.addEventListener("close", () => { done(box.returnValue === "yes"); box.remove(); }, { once: true });
    document.body.append(box);
    box.showModal();
  });
}

/** A button that copies a text. `make` returns the text. */
export const copier = (name, make) => action(name, async () => {
  await copy(await make());
  return "Copied.";
}, { kind: "quiet", needs: "" });

async function copy(text) {
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
  shown = h("div", { class: `notice ${kind}` }, text);
  document.body.append(shown);
  announce(text);
  const mine = shown;
  setTimeout(() => mine.remove(), 6000);
}

/** A list of names and values. Values that are not known are left out. */
export const facts = (pairs) => h("dl", { class: "facts" }, pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== "")
  .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** What went wrong with a view, in its place. */
export const failure = (error) => h("p", { class: "trouble", role: "alert" }, error.message);

/** A list that goes on as long as there is more: `more(next)` returns {results, next}. `row(item)` makes a line of it. */
export function endless(body, more, row, { signal, empty }) {
  const button = h("button", { type: "button", hidden: true }, "Show more");
  const foot = h("p", { class: "foot" }, button);
  let next = null;
  let any = false;
  async function load() {
    button.disabled = true;
    try {
      const found = await more(next);
      if (signal.aborted) return;
      any ||= found.results.length > 0;
      body.append(...found.results.map(row));
      next = found.next;
      button.hidden = !next;
      if (!any && !next) foot.replaceChildren(h("span", { class: "hint" }, empty));
    } catch (error) {
      if (!signal.aborted) foot.replaceChildren(failure(error));
    } finally {
      button.disabled = false;
    }
  }
  button.addEventListener("click", load);
  load();
  return foot;
}

const ID = /([0-9a-hj-km-np-tv-z]{26})/; // Crockford's digits

/** A link, or its words alone on the page that it leads to. */
const elsewhere = (link) => (link.getAttribute("href") === location.hash ? link.textContent : link);

/** A text in which the id of a prediction is a link, and what stands between backticks is code. */
const linked = (text) => text.split("`").map((words, at) => (at % 2 ? h("code", {}, words) : words.split(ID).map((part, of) => (of % 2 ? elsewhere(predictionLink(part)) : part))));

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
