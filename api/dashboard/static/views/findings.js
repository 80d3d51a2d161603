// What needs a person, one line each: where, since when, and the act that mends it where the service can do that.

import { ask } from "../api.js";
import { fill, h, keyed, refill, say } from "../dom.js";
import { now, seconds } from "../format.js";
import { copier, linked, predictionLink, queueLink, sure } from "./parts.js";

const FEW = 8; // lines, before the others are folded away
const MUTED = "director.muted";
const MUTE_MS = 3_600_000;
const ALLOWED = /^\/admin\/[\w./:~-]+$/; // an act is one of the operators' routes, and nothing else
const LEVELS = { bad: "Work stands still or fails", warn: "It may soon" };

// what a finding can be about, beside a queue: where the page shows it
const PLACES = {
  prediction: predictionLink,
  host: (name) => h("a", { href: `#/webhooks?host=${encodeURIComponent(name)}` }, name),
  account: (name) => h("a", { href: `#/accounts/${encodeURIComponent(name)}` }, name),
  device: (name) => h("a", { href: "#/directors" }, name),
};

const placeOf = (kind, name) => PLACES[kind]?.(name) ?? `${kind} ${name}`;

/** The same fault, seen again. One that gets worse is another, so it is shown though the first one is muted. */
const keyOf = (one) => [one.code, one.level, one.queue ?? "", ...Object.values(one.about ?? {})].join(" ");

/** What this browser does not want to see for an hour. Others, the command line and the alerts go on to name it. */
const muted = {
  all() {
    try {
      return Object.fromEntries(Object.entries(JSON.parse(localStorage.getItem(MUTED) ?? "{}")).filter(([, until]) => until > now()));
    } catch {
      return {};
    }
  },
  add: (key) => localStorage.setItem(MUTED, JSON.stringify({ ...muted.all(), [key]: now() + MUTE_MS })),
  clear: () => localStorage.removeItem(MUTED),
};

/** Do it on the service: as often as an answer says where to go on. Returns what to say; raises what was refused. */
async function perform(act) {
  if (!ALLOWED.test(act.path) || act.path.includes("..")) throw new Error("The page knows no such act.");
  let done = null;
  const refused = [];
  for (let cursor = ""; cursor !== null;) {
    const body = { ...act.body, ...(cursor ? { cursor } : {}) };
    const answer = await ask(`/v1${act.path}`, { method: "POST", ...(Object.keys(body).length ? { body } : {}) });
    if (answer?.done !== undefined) done = (done ?? 0) + answer.done;
    refused.push(...(answer?.refused ?? []).map((one) => (one.why ?? "its input is gone").replaceAll("_", " ")));
    cursor = answer?.next ?? null;
  }
  const why = refused.length ? ` ${refused.length} left alone: ${[...new Set(refused)].join(", ")}.` : "";
  if (done === 0) throw new Error(`Nothing was done.${why}`);
  return `${act.done}${why}`;
}

/**
 * The findings of the service, or of one queue. `draw(snapshot)` shows those of a snapshot, and with `isCalm` says that
 * there is nothing to do.
 */
export function findings({ session, queue = "" }) {
  const list = h("ul", { class: "findings acting" });
  const title = h("h2", { tabindex: "-1" }, "Needs attention");
  const rest = h("p", { class: "hint" });
  const more = h("button", { type: "button", class: "quiet", hidden: true, on: { click: () => { isWhole = true; draw(); } } });
  const section = h("section", { class: "attention", hidden: true }, title, list, more, rest);
  const calm = h("p", { class: "calm", hidden: true }, "Nothing needs attention.");
  const show = keyed(list, keyOf, (one) => row(one, { session, queue, onMute: (key) => { muted.add(key); draw(); title.focus(); } }));
  let isWhole = false;
  let last = [];

  function draw(snapshot, { isCalm = false } = {}) {
    if (snapshot) last = (snapshot.findings ?? []).filter((one) => !queue || one.queue === queue);
    const quiet = muted.all();
    const loud = last.filter((one) => !(keyOf(one) in quiet));
    const hadFocus = list.contains(document.activeElement);
    show(isWhole ? loud : loud.slice(0, FEW));
    if (hadFocus && !list.contains(document.activeElement)) title.focus({ preventScroll: true }); // its line has gone
    const left = isWhole ? 0 : loud.length - Math.min(FEW, loud.length);
    more.hidden = !left;
    say(more, `Show ${left} more`);
    const silent = last.length - loud.length;
    if (silent) fill(rest, `${silent} muted in this browser. `, h("button", { type: "button", class: "quiet", on: { click: () => { muted.clear(); draw(); } } }, "Show muted"));
    else fill(rest);
    say(title, heading(loud));
    section.hidden = !last.length;
    section.classList.toggle("quieted", !loud.length);
    calm.hidden = !isCalm || Boolean(last.length);
  }

  return { node: h("div", {}, section, calm), draw };
}

const heading = (loud) => (loud.length ? `Needs attention (${loud.length})` : "Needs attention: all muted");

let number = 0;

function row(first, { session, queue, onMute }) {
  const id = `finding-${(number += 1)}`;
  const may = (act) => session.who.scopes.some((scope) => scope === act.scope || scope === "admin");
  const mark = h("span", { class: "mark" });
  const unfold = h("button", { type: "button", class: "unfold", "aria-expanded": "false", "aria-controls": id, on: { click: () => open(!isOpen()) } });
  const where = h("span", { class: "where" });
  const since = h("span", { class: "since" });
  const acts = h("span", { class: "acts" });
  const said = h("p", { class: "said", role: "status" });
  const inside = h("div", { class: "more", id, hidden: true });
  const node = h("li", { "data-code": first.code }, h("div", { class: "line" }, mark, unfold, where, since, acts), said, inside);
  const isOpen = () => !inside.hidden;
  let latest = first;
  let offered = "";
  let isBusy = false;

  function open(wanted) {
    inside.hidden = !wanted;
    unfold.setAttribute("aria-expanded", String(wanted));
    if (wanted) tell();
  }

  function tell() {
    refill(inside, h("p", {}, linked(latest.detail)), latest.log ? h("pre", { class: "log", tabindex: "0" }, latest.log) : null,
      [...new Set([latest.ask, ...(latest.acts ?? []).map((act) => act.command)])].map((command) => h("p", { class: "command" }, h("code", {}, command), " ", copier("Copy", () => command))),
      latest.who ? h("p", { class: "hint" }, `Who acts: ${latest.who}`) : null);
  }

  function button(act) {
    const made = h("button", { type: "button", class: act.asks ? "danger" : "main", "aria-label": `${act.label}: ${latest.queue ?? Object.values(latest.about ?? {})[0] ?? latest.title}` }, act.label);
    made.addEventListener("click", async () => {
      if (isBusy || (act.asks && !(await sure(act.asks, act.label)))) return;
      isBusy = true; // the button stays as it is: one that is off would lose the focus
      told("…", "hint");
      try {
        told(await perform(act), "done");
      } catch (error) {
        told(error.message, "trouble");
      } finally {
        isBusy = false;
      }
    });
    return made;
  }

  function told(text, kind) {
    said.className = `said ${kind}`;
    say(said, text);
  }

  return {
    node,
    update(one) {
      latest = one;
      node.className = one.level;
      mark.title = LEVELS[one.level];
      if (!mark.firstChild) mark.append(h("span", { class: "unseen" }, `${one.level}: `));
      say(unfold, one.title);
      const about = Object.entries(one.about ?? {})[0];
      refill(where, one.queue && one.queue !== queue ? queueLink(one.queue) : null, about ? [one.queue && one.queue !== queue ? " · " : "", placeOf(...about)] : null);
      say(since, one.since ? seconds(Math.max(0, (now() - Date.parse(one.since)) / 1000)) : "");
      since.title = one.since ? `since ${new Date(one.since).toLocaleString()}` : "";
      const allowed = (one.acts ?? []).filter(may);
      if (offered !== JSON.stringify(allowed)) { // a button that has the focus keeps it
        offered = JSON.stringify(allowed);
        fill(acts, allowed.map(button), h("button", { type: "button", class: "quiet", title: "Hide it for an hour, in this browser only", "aria-label": `Mute 1 h: ${one.title} ${one.queue ?? ""}`, on: { click: () => onMute(keyOf(latest)) } }, "Mute 1 h"));
      }
      if (isOpen()) tell();
    },
  };
}
