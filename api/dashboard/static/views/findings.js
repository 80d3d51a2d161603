// What needs a person, one line each: where, since when, and the act that mends it where the service can do that.

import { askForAll, whyRefused } from "../api.js";
import { fill, h, keyed, refill, say } from "../dom.js";
import { now, seconds } from "../format.js";
import { copier, linked, notice, predictionLink, queueLink, sure } from "./parts.js";

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
const keyOf = (one) => [one.code, one.level, one.queue ?? "", one.subject ?? ""].join(" ");

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

/** Those that this browser wants to see. */
export const loud = (all) => {
  const quiet = muted.all();
  return all.filter((one) => !(keyOf(one) in quiet));
};

/** Do it on the service. Returns what to say; raises what was refused. */
async function perform(act) {
  if (!ALLOWED.test(act.path) || act.path.includes("..")) throw new Error("The page knows no such act.");
  const { done, left, refused } = await askForAll(`/v1${act.path}`, act.body);
  const why = `${whyRefused(refused)}${left ? ` ${left} left alone: their data is gone.` : ""}`;
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
    const seen = loud(last);
    const hadFocus = list.contains(document.activeElement);
    show(isWhole ? seen : seen.slice(0, FEW));
    if (hadFocus && !list.contains(document.activeElement)) title.focus({ preventScroll: true }); // its line has gone
    const left = isWhole ? 0 : seen.length - Math.min(FEW, seen.length);
    more.hidden = !left;
    say(more, `Show ${left} more`);
    const silent = last.length - seen.length;
    if (silent) fill(rest, `${silent} muted in this browser. `, h("button", { type: "button", class: "quiet", on: { click: () => { muted.clear(); draw(); } } }, "Show muted"));
    else fill(rest);
    say(title, seen.length ? `Needs attention (${seen.length})` : "Needs attention: all muted");
    section.hidden = !last.length;
    section.classList.toggle("quieted", !seen.length);
    calm.hidden = !isCalm || Boolean(last.length);
  }

  return { node: h("div", {}, section, calm), draw };
}

let number = 0;

function row(first, { session, queue, onMute }) {
  const id = `finding-${(number += 1)}`;
  const may = (act) => session.who.scopes.some((scope) => scope === act.scope || scope === "admin");
  const mark = h("span", { class: "mark" });
  const unfold = h("button", { type: "button", class: "unfold", "aria-expanded": "false", "aria-controls": id, on: { click: () => open(!isOpen()) } });
  const where = h("span", { class: "where" });
  const since = h("span", { class: "since" });
  const acts = h("span", { class: "acts" });
  const state = h("p", { class: "outcome", role: "status" });
  const inside = h("div", { class: "more", id, hidden: true });
  const node = h("li", { "data-code": first.code }, h("div", { class: "line" }, mark, unfold, where, since, acts), state, inside);
  const isOpen = () => !inside.hidden;
  let latest = first;
  let offered = "";
  let isBusy = false;

  function open(wanted) {
    inside.hidden = !wanted;
    unfold.setAttribute("aria-expanded", String(wanted));
    if (wanted) drawInside();
  }

  function drawInside() {
    refill(inside, h("p", {}, linked(latest.detail)), latest.log ? h("pre", { class: "log", tabindex: "0" }, latest.log) : null,
      [...new Set([latest.ask, ...(latest.acts ?? []).map((act) => act.command)])].map((command) => h("p", { class: "command" }, h("code", {}, command), " ", copier("Copy", () => command))),
      latest.who ? h("p", { class: "hint" }, `Who acts: ${latest.who}`) : null);
  }

  function button(act) {
    const made = h("button", { type: "button", class: act.asks ? "danger" : "main", "aria-label": `${act.label}: ${latest.queue ?? Object.values(latest.about ?? {})[0] ?? latest.title}` }, act.label);
    made.addEventListener("click", async () => {
      if (isBusy || (act.asks && !(await sure(act.asks, act.label)))) return;
      isBusy = true; // the button stays as it is: one that is off would lose the focus
      tell("…", "hint");
      try {
        notice(await perform(act)); // it outlives the line, which goes with its cause
        tell("");
      } catch (error) {
        tell(error.message, "trouble");
      } finally {
        isBusy = false;
      }
    });
    return made;
  }

  function tell(text, kind = "") {
    state.className = `outcome ${kind}`;
    say(state, text);
  }

  return {
    node,
    update(finding) {
      latest = finding;
      node.className = finding.level;
      mark.title = LEVELS[finding.level];
      if (!mark.firstChild) mark.append(h("span", { class: "unseen" }, `${finding.level}: `));
      say(unfold, finding.title);
      const about = Object.entries(finding.about ?? {})[0];
      refill(where, finding.queue && finding.queue !== queue ? queueLink(finding.queue) : null, about ? [finding.queue && finding.queue !== queue ? " · " : "", placeOf(...about)] : null);
      say(since, finding.since ? seconds(Math.max(0, (now() - Date.parse(finding.since)) / 1000)) : "");
      since.title = finding.since ? `since ${new Date(finding.since).toLocaleString()}` : "";
      const allowed = (finding.acts ?? []).filter(may);
      if (offered !== JSON.stringify(allowed)) { // a button that has the focus keeps it
        offered = JSON.stringify(allowed);
        fill(acts, allowed.map(button), h("button", { type: "button", class: "quiet", title: "Hide it for an hour, in this browser only", "aria-label": `Mute 1 h: ${finding.title} ${finding.queue ?? ""}`, on: { click: () => onMute(keyOf(latest)) } }, "Mute 1 h"));
      }
      if (isOpen()) drawInside();
    },
  };
}
