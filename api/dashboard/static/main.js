// The frame of the page: who is logged in, which view is shown, the theme, and the feed of what goes on.

import { ask, browser, onEnd, pause, rights, token } from "./api.js";
import { announce, fill, h, say } from "./dom.js";
import { now, seconds } from "./format.js";
import { Live } from "./live.js";
import { account, accounts } from "./views/accounts.js";
import { audit } from "./views/audit.js";
import { batch, batches } from "./views/batches.js";
import { dead } from "./views/dead.js";
import { directors } from "./views/directors.js";
import { login, linked } from "./views/login.js";
import { failure, notice } from "./views/parts.js";
import { models, run } from "./views/run.js";
import { overview } from "./views/overview.js";
import { prediction } from "./views/prediction.js";
import { predictions } from "./views/predictions.js";
import { queue } from "./views/queue.js";
import { system } from "./views/system.js";
import { usage } from "./views/usage.js";
import { webhooks } from "./views/webhooks.js";

// what names may look like: whatever else an address has, a stranger may have written, and nothing is asked for there
const NAME = "[a-z0-9][a-z0-9._-]*";
const MODEL = `${NAME}/${NAME}`;
const QUEUE = `${MODEL}:[0-9a-f]{12}(?:~[a-z]+)?`;
const exactly = (text) => new RegExp(`^${text}$`);

// address -> view, and whether it takes the scope admin. The first that fits is shown; groups become its parameters
const VIEWS = [
  [exactly("/"), overview, true],
  [exactly(`/queues/(${QUEUE})`), queue, true],
  [exactly("/directors"), directors, true],
  [exactly("/accounts"), accounts, true],
  [exactly(`/accounts/(${NAME})`), account, true],
  [exactly("/webhooks"), webhooks, true],
  [exactly("/dead"), dead, true],
  [exactly("/audit"), audit, true],
  [exactly("/system"), system, true],
  [exactly("/predictions"), predictions, false],
  [exactly("/predictions/([a-z0-9]+)"), prediction, false],
  [exactly("/batches"), batches, false],
  [exactly("/batches/(batch_[a-z0-9]{26})"), batch, false],
  [exactly("/usage"), usage, false],
  [exactly("/run"), models, false],
  [exactly(`/run/(${NAME})/(${NAME})`), run, false],
];
const SECTIONS = [
  ["/", "Home", true],
  ["/predictions", "Predictions", false],
  ["/batches", "Batches", false],
  ["/run", "Models", false],
  ["/dead", "Dead letters", true],
  ["/webhooks", "Webhooks", true],
  ["/directors", "Directors", true],
  ["/accounts", "Accounts", true],
  ["/usage", "Usage", false],
  ["/audit", "Changes", true],
  ["/system", "System", true],
];
const FEED = { live: "live", broken: "reconnecting…", away: "Redis is away", refused: "no feed" };
const LINK = /^\/login\/([a-z0-9_-]+\.[0-9a-f]+)$/;
const LEFT = "director.left"; // a tab that logs out tells the others
const THEMES = ["auto", "light", "dark"];
const AGAIN_MS = 5000;
const OLD_MS = 20_000; // since the last snapshot, while the feed is live

const main = document.getElementById("main");
const session = { who: null, seesAll: false, live: null };
let shown = null;

/** Show the view of the address. What the last one had going on is ended first. */
function show() {
  shown?.abort();
  shown = new AbortController();
  const wanted = address();
  const link = LINK.exec(wanted)?.[1];
  if (link) return put(linked({ link, enter: entered, who: session.who }), "Log in");
  if (!session.who) return put(login({ enter: entered }), "Log in");
  const [pattern, view, wantsAll] = VIEWS.find(([one]) => one.test(wanted)) ?? [/^/, missing, false];
  if (wantsAll && !session.seesAll) return location.replace("#/predictions");
  const params = pattern.exec(wanted).slice(1);
  const made = view({ params, session, signal: shown.signal, refresh: show, query: query() });
  put(made.node, made.title);
  for (const link of document.querySelectorAll("#nav a")) {
    const isHere = link.dataset.path === "/" ? wanted === "/" || wanted.startsWith("/queues") : wanted.startsWith(link.dataset.path);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** An address that no view has. */
const missing = () => ({
  title: "Not found",
  node: h("section", {}, h("h1", {}, "Not found"), h("p", {}, "The page has no such view. ", h("a", { href: session.seesAll ? "#/" : "#/predictions" }, "Go back"))),
});

function put(node, title) {
  document.title = `${title} · Director`;
  fill(main, node);
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
  announce(title);
}

/** The path behind #, in plain letters; that of all queues if it is no path. */
function address() {
  try { return decodeURIComponent(location.hash.slice(1).split("?")[0]) || "/"; } catch { return "/"; }
}

const query = () => new URLSearchParams(location.hash.split("?")[1] ?? "");

/** Someone has just logged in. The link is used up, and stands in no history. */
async function entered() {
  if (LINK.test(address())) history.replaceState(null, "", "#/");
  await enter();
}

/** Go on with the token of this tab, or the session of this browser. Raises Refused for a token that is no good. */
async function enter() {
  session.who = await ask("/v1/account");
  const has = (...scopes) => scopes.some((scope) => session.who.scopes.includes(scope));
  session.seesAll = has("view", "operate", "admin");
  rights.acts = has("run", "operate", "admin");
  rights.administers = has("admin");
  if (session.seesAll) {
    session.live?.stop();
    session.live = new Live((state) => {
      document.getElementById("feed").dataset.state = state;
      age();
    });
    session.live.run();
  }
  frame();
  show();
}

/** Figures of a feed that is broken, or says nothing, are grey, with their age. */
function age() {
  const feed = document.getElementById("feed");
  if (!session.live) return;
  const { last, heardAt } = session.live;
  const silent = performance.now() - heardAt;
  const isOld = Boolean(last) && (feed.dataset.state !== "live" || silent > OLD_MS);
  document.documentElement.toggleAttribute("data-stale", isOld);
  const note = document.getElementById("age");
  note.hidden = !isOld;
  if (isOld) say(note, `The figures on this page are ${seconds(Math.max(1, Math.round((now() - Date.parse(last.at)) / 1000)))} old.`);
  say(feed, FEED[feed.dataset.state] ?? "");
}

/** Go on with what this browser has. A service that is away says nothing of it: it is asked again. */
async function resume() {
  for (let isTold = false; !session.who; isTold = true) {
    try {
      if (token.get() || (await browser.who())) return await enter();
      return show();
    } catch (error) {
      if (error.status === 401 || error.status === 403) return forget();
      if (!isTold) put(h("section", { class: "card narrow" }, h("h1", {}, "Not there now"), failure(error), h("p", { class: "hint" }, "It is asked again every few seconds.")), "Not there now");
      await pause(AGAIN_MS);
    }
  }
}

async function leave() {
  if (!token.get()) {
    try { await browser.logOut(); } catch (error) { return notice(error.message, "trouble"); }
    localStorage.setItem(LEFT, String(Date.now()));
  }
  return forget();
}

/** Show nothing of the one who was logged in here. */
function forget() {
  token.drop();
  session.live?.stop();
  Object.assign(session, { who: null, seesAll: false, live: null });
  frame();
  show();
}

function frame() {
  const sections = session.who ? SECTIONS.filter(([, , wantsAll]) => session.seesAll || !wantsAll) : [];
  fill(document.getElementById("nav"), sections.map(([path, name]) => h("a", { href: `#${path}`, "data-path": path }, name)));
  document.getElementById("leave").hidden = !session.who;
  document.getElementById("find").hidden = !session.who;
  document.getElementById("menu").hidden = !session.who;
  if (session.live) return;
  document.documentElement.removeAttribute("data-stale");
  document.getElementById("age").hidden = true;
  delete document.getElementById("feed").dataset.state;
  say(document.getElementById("feed"), "");
}

function themed(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("director.theme", name);
  const button = document.getElementById("theme");
  say(button, { auto: "◐", light: "☀", dark: "☾" }[name]);
  button.setAttribute("aria-label", `Theme: ${name}`);
  button.title = `Theme: ${name}`;
}

function begin() {
  themed(THEMES.includes(localStorage.getItem("director.theme")) ? localStorage.getItem("director.theme") : "auto");
  document.getElementById("theme").addEventListener("click", () => {
    themed(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  });
  const menu = document.getElementById("menu");
  const open = (isOpen) => { menu.setAttribute("aria-expanded", String(isOpen)); document.getElementById("nav").classList.toggle("open", isOpen); };
  menu.addEventListener("click", () => open(menu.getAttribute("aria-expanded") !== "true"));
  window.addEventListener("hashchange", () => open(false));
  setInterval(age, 1000);
  document.getElementById("leave").addEventListener("click", leave);
  document.getElementById("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = document.getElementById("find-id").value.trim().toLowerCase();
    if (/^batch_[a-z0-9]+$/.test(id)) location.hash = `#/batches/${id}`;
    else if (/^[a-z0-9]+$/.test(id)) location.hash = `#/predictions/${id}`;
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, textarea, select");
    if (event.key === "/" && !isTyping && session.who) {
      event.preventDefault();
      document.getElementById("find-id").focus();
    }
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // what stands behind # is the view
    main.focus();
  });
  window.addEventListener("hashchange", show);
  frame();
  onEnd(() => { if (session.who) forget(); });
  window.addEventListener("storage", (event) => { if (event.key === LEFT && session.who && !token.get()) forget(); });
  resume();
}

begin();
