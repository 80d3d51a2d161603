// The frame of the page: who is logged in, which view is shown, and the feed of what goes on.

import { forgetShown, isShown, keepAsked, read, setShown, takeAsked, viewNamed } from "./address.js";
import { ask, browser, onEnd, pause, token } from "./api.js";
import { announce, fill, h, say } from "./dom.js";
import * as drawer from "./drawer.js";
import { now, seconds } from "./format.js";
import { icon } from "./icons.js";
import { listenToKeys, showKeys } from "./keys.js";
import { Live } from "./live.js";
import { addAct, forgetRecent, openPalette, remember } from "./palette.js";
import { mark, peek } from "./panel.js";
import { sections, viewAt } from "./sections.js";
import { session } from "./session.js";
import { setTheme, startTheme, THEMES } from "./theme.js";
import { linked, login } from "./views/login.js";
import { copy, failure, notice } from "./views/parts.js";

const FEED = { live: "live", broken: "reconnecting…", away: "Redis is away", refused: "no feed" };
const LINK = /^\/login\/([a-z0-9_-]+\.[0-9a-f]+)$/;
const CHANGED = "director.session"; // a tab that logs in or out tells the others
const ID = /^\/(?:predictions|batches)\/([a-z0-9_]+)$/;
const AGAIN_MS = 5000;
const BROKEN_MS = 10_000; // until the page says so: most feeds are back by then
const OLD_MS = 20_000; // since the last snapshot, while the feed is live

const main = document.getElementById("main");
const feed = document.getElementById("feed");
let ending = null; // of what the last view has going on

/** Show the view of the address. Where only the panel changed, the view stays as it is. */
function show() {
  const { path, query, beside } = read();
  if (!isShown() && !draw(path, query)) return;
  peek(session.who ? beside : "");
}

/** End what the last view had going on, and make another. Returns whether it was made. */
function draw(wanted, query) {
  ending?.abort();
  ending = new AbortController();
  setShown();
  peek("");
  const link = LINK.exec(wanted)?.[1];
  if (link) return put(linked({ link, enter: entered, who: session.who, goOn }), "Log in");
  if (!session.who) return put(login({ enter: entered, isGuest: wanted !== "/" }), "Log in");
  const found = viewAt(wanted);
  if (found === "denied") return location.replace("#/");
  const { view, params } = found ?? { view: missing, params: [] };
  const made = view({ params, session, signal: ending.signal, refresh: again, query, retitle });
  put(made.node, made.title);
  const id = ID.exec(wanted)?.[1];
  if (id) remember(id);
  for (const one of document.querySelectorAll("#nav a")) {
    if (one.dataset.path === found?.section.path) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  return true;
}

/** Make the view again from its begin. */
function again() {
  forgetShown();
  show();
}

/** An address that no view has. */
const missing = () => ({
  title: "Not found",
  node: h("section", {}, h("h1", {}, "Not found"), h("p", {}, "The page has no such view. ", h("a", { href: "#/" }, "Go to Home"))),
});

const retitle = (title) => { document.title = `${title} · Director`; };

function put(node, title) {
  retitle(title);
  fill(main, node);
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
  announce(title);
  return true;
}

/** The view to go on to after a log-in: one of this page that the link names, or that was asked for before. */
function goal() {
  const asked = takeAsked();
  const path = viewNamed(read().query.get("to") ?? asked);
  return [path, `/models${path}`].find((one) => viewAt(read(`#${one}`).path)?.view) ?? "/";
}

/** Leave a link that logs in. It stands in no history. */
function goOn() {
  history.replaceState(null, "", `#${goal()}`);
  again();
}

/** A person has just logged in, and goes on to what was asked for. */
async function entered() {
  await enter({ isNew: true });
  if (!token.get()) tellTabs();
}

const tellTabs = () => localStorage.setItem(CHANGED, String(Date.now()));

/** Go on with the token of this tab, or the session of this browser. Raises Refused for a token that is no good. */
async function enter({ isNew = false } = {}) {
  const who = await ask("/v1/account");
  end();
  session.who = who;
  if (isNew) {
    const to = goal();
    if (LINK.test(read().path)) history.replaceState(null, "", `#${to}`);
  }
  if (session.seesAll) {
    session.live = new Live((state) => {
      feed.dataset.state = state;
      age();
    });
    session.live.hear(count);
    session.live.run();
  }
  frame();
  again();
}

/** Another tab logged in or out: this one does the same, unless it has a token of its own. */
async function follow() {
  if (token.get()) return;
  try {
    const who = await browser.who();
    if (!who) return session.who ? forget() : undefined;
    const isSame = session.who && who.username === session.who.username && String(who.scopes) === String(session.who.scopes);
    if (!isSame) await enter();
  } catch (error) {
    if (session.who) notice(error.message, "trouble");
  }
  return undefined;
}

/** Figures of a feed that is broken, or says nothing, are grey, with their age. */
function age() {
  if (!session.live) return;
  const { last, heardAt } = session.live;
  const silent = performance.now() - heardAt;
  const isOld = Boolean(last) && (feed.dataset.state !== "live" || silent > OLD_MS);
  document.documentElement.toggleAttribute("data-stale", isOld);
  const note = document.getElementById("age");
  note.hidden = !isOld || silent < BROKEN_MS;
  if (isOld) say(note, `Live updates stopped. The figures on this page are ${seconds(Math.max(1, Math.round((now() - Date.parse(last.at)) / 1000)))} old.`);
  say(feed, FEED[feed.dataset.state] ?? "");
}

/** Go on with what this browser has. A service that is away says nothing of it: it is asked again. */
async function resume() {
  for (let isTold = false; !session.who; isTold = true) {
    try {
      if (token.get() || (await browser.who())) return await enter();
      keepAsked();
      return show();
    } catch (error) {
      if (error.status === 401 || error.status === 403) return ended();
      if (!isTold) put(h("section", { class: "card narrow" }, h("h1", {}, "Not there now"), failure(error, true)), "Not there now");
      await pause(AGAIN_MS);
    }
  }
  return undefined;
}

/** The log-in ended by itself: after the next one, the person goes on to this view. */
function ended() {
  keepAsked();
  return forget();
}

async function leave() {
  if (!token.get()) {
    try { await browser.logOut(); } catch (error) { return notice(error.message, "trouble"); }
    tellTabs();
  }
  history.replaceState(null, "", "#/"); // the next person goes to no view of this one
  return forget();
}

/** End all that goes on for the person who is logged in here. */
function end() {
  session.live?.stop();
  Object.assign(session, { who: null, live: null });
  forgetRecent();
  for (const box of document.querySelectorAll("dialog[open]")) box.close();
}

/** Show nothing of the person who was logged in here. */
function forget() {
  token.drop();
  end();
  frame();
  again();
}

/** The frame for this person: sections, name, tools. */
function frame() {
  const all = sections();
  const groups = [...new Set(all.map(({ group }) => group))];
  drawer.slide(false);
  fill(document.getElementById("nav"), groups.map((group) => h("div", { class: "group", role: "group", "aria-label": group }, h("p", { "aria-hidden": "true" }, group),
    all.filter((one) => one.group === group).map((one) => h("a", { href: `#${one.path}`, "data-path": one.path, title: `Keys: g ${one.key}` }, icon(one.icon), h("span", { class: "name" }, one.name), one.count ? h("span", { class: "badge", hidden: true }) : null)))));
  document.body.classList.toggle("in", Boolean(session.who));
  for (const id of ["side", "menu", "find", "who", "leave"]) document.getElementById(id).hidden = !session.who;
  fill(document.getElementById("who"), session.who ? [session.who.username, h("span", { class: "hint" }, ` ${session.role}`)] : null);
  if (session.live) return;
  document.documentElement.removeAttribute("data-stale");
  document.getElementById("age").hidden = true;
  delete feed.dataset.state;
  say(feed, "");
}

/** How many of each section need a person, beside its name. */
function count(snapshot) {
  for (const one of sections()) {
    if (!one.count) continue;
    const link = document.querySelector(`#nav a[data-path="${one.path}"]`);
    const badge = link?.querySelector(".badge");
    if (!badge) continue;
    const number = one.count(snapshot);
    badge.hidden = !number;
    say(badge, number > 999 ? "999+" : number || "");
    link.title = `${number ? `${number} ${one.words[number === 1 ? 0 : 1]} · ` : ""}Keys: g ${one.key}`;
  }
}

function begin() {
  startTheme();
  for (const [id, name] of [["shut", "close"], ["menu", "menu"], ["find", "find"], ["leave", "leave"]]) document.getElementById(id).prepend(icon(name));
  document.getElementById("find").addEventListener("click", openPalette);
  document.getElementById("leave").addEventListener("click", leave);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // what stands behind # is the view
    main.focus();
  });
  for (const theme of THEMES) addAct({ name: `Theme: ${theme}`, icon: theme, words: "colours dark light", act: () => setTheme(theme) });
  addAct({ name: "Keys", words: "shortcuts help", act: showKeys });
  addAct({ name: "Copy the address of this view", words: "link share", act: async () => { await copy(location.href); notice("Copied."); } });
  addAct({ name: "Docs", icon: "docs", words: "help api reference", act: () => document.getElementById("docs").click() });
  addAct({ name: "Log out", icon: "leave", words: "leave sign", act: leave });
  listenToKeys();
  new MutationObserver(mark).observe(main, { childList: true, subtree: true });
  setInterval(age, 1000);
  window.addEventListener("hashchange", () => { drawer.slide(false); show(); });
  window.addEventListener("storage", (event) => { if (event.key === CHANGED) follow(); });
  onEnd(() => { if (session.who) ended(); });
  frame();
  resume();
}

begin();
