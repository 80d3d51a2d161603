// One model: how it is, a playground, how to call it, its examples, its versions and the own runs.

import { readdress } from "../address.js";
import { ask, pause, repeat } from "../api.js";
import { announce, fill, h, isPlainClick, refill } from "../dom.js";
import { count, seconds } from "../format.js";
import { outward, webAddress } from "../markdown.js";
import { chat, takesMessages } from "./model_chat.js";
import { editor } from "./model_edit.js";
import { picture, stateChip } from "./model_parts.js";
import { playground } from "./model_playground.js";
import { apiTab, examplesTab, runsTab, versionsTab } from "./model_tabs.js";
import { statesOf } from "./models.js";
import { facts, failure, loading } from "./parts.js";

const LOOK_MS = 5000;
const TABS = [["", "Playground"], ["api", "API"], ["examples", "Examples"], ["versions", "Versions"], ["runs", "Runs"]];
const CALM = new Set(["serving", "at_rest"]);

export function model({ params: [owner, name, first], session, signal, query, refresh }) {
  const full = `${owner}/${name}`;
  const head = h("header", { class: "model-head" });
  const trouble = h("div", {});
  const newer = h("div", { role: "status" }); // that another version is there than the form is of
  const bar = h("nav", { class: "tabs", "aria-label": "Parts of this model", hidden: true });
  const body = h("div", {}, loading());
  const shared = { input: {}, onInput: new Set() }; // the form's input, for the tab with code
  let about = null; // the model, null until it has a record
  let state = null;
  let edits = null; // the form for its description, while it is open
  const panels = new Map();

  /** Ask until the service answers, and return true then. */
  async function load() {
    try {
      const [now] = await statesOf([full], signal);
      if (!now) throw Object.assign(new Error(), { status: 404 });
      if (now.created_at) about = await ask(`/v1/models/${full}`, { signal });
      if (signal.aborted) return false;
      settle(now);
      if (about?.latest_version) open(first ?? "");
      else fill(body, starting());
      return true;
    } catch (error) {
      if (!signal.aborted) refill(body, failure(error, true));
      return false;
    }
  }

  async function look() {
    try {
      const [now] = await statesOf([full], signal);
      if (signal.aborted || !now) return false;
      if (now.version && !about?.latest_version) { refresh(); return true; } // its first server is ready
      if (now.version && now.version !== about?.latest_version.id) refill(newer, newVersion(now.version));
      settle(now);
    } catch { /* it stays as it was last seen */ }
    return false;
  }

  /** The form stays as it is until its reader wants the other one. */
  const newVersion = (id) => h("p", { class: "card" }, "A newer version is there: ", h("code", {}, id.slice(0, 12)), ". ", h("button", { type: "button", on: { click: refresh } }, "Show it"));

  function settle(now) {
    if (state && now && state.words !== now.words) announce(`${full} is ${now.words}.`);
    state = now ?? state;
    refill(head, ...heading());
    if (!edits) refill(trouble, wrong());
  }

  function heading() {
    const shown = about ?? { owner, name, description: "", cover_image_url: null };
    const version = about?.latest_version;
    const links = [["Source", shown.github_url], ["Paper", shown.paper_url], ["License", shown.license_url]].map(([word, to]) => [word, to && webAddress(to)]).filter(([, url]) => url);
    const days = state && state.succeeded + state.failed;
    return [
      picture(shown),
      h("div", { class: "about" },
        h("h1", {}, h("span", { class: "owner" }, `${owner}/`), name, " ", state ? stateChip(state) : null),
        h("p", { class: "says" }, shown.description || (state?.may_change ? "Describe what this model does: choose “Edit”." : "Its owner has not described it yet.")),
        facts([
          ["A run takes", state?.run_p50_s === null || !state ? "" : `${seconds(state.run_p50_s)} (p50)`],
          ["Waits", state?.wait_p50_s === null || !state ? "" : `${seconds(state.wait_p50_s)} (p50)`],
          ["Slots", state?.slots || ""],
          ["Waiting now", state?.waiting ? count(state.waiting) : ""],
          ["Succeeded today", days ? `${Math.floor((100 * state.succeeded) / days)} %` : ""],
          ["Runs", state?.run_count ? count(state.run_count) : ""],
          ["Version", version ? h("a", { class: "mono", href: `#/models/${full}/versions`, on: { click: goes("versions") } }, version.id.slice(0, 12)) : ""],
          ["Links", links.length ? links.map(([word, url], at) => [at ? " · " : "", outward(url, word)]) : ""],
        ])),
      state?.may_change ? h("button", { type: "button", class: "edit", "aria-expanded": String(Boolean(edits)), on: { click: edit } }, "Edit") : null,
    ];
  }

  /** Why nothing starts, with the log of a setup that failed. */
  function wrong() {
    if (!state || CALM.has(state.state)) return null;
    const title = state.words === "idle" ? "Idle" : state.shade === "bad" ? `Nothing runs: ${state.words}` : `Not ready now: ${state.words}`;
    return h("section", { class: `why ${state.shade}`, "aria-label": "State" },
      h("h2", {}, title),
      h("p", {}, state.detail.replace(/[.\s]*$/, "."), " ", (about?.latest_version && HINTS[state.state]) || ""),
      state.log ? h("pre", { class: "log", tabindex: "0", role: "group", "aria-label": "Last lines of the log" }, state.log) : null,
      session.seesAll ? h("p", {}, h("a", { href: about?.latest_version ? `#/queues/${full}:${about.latest_version.id.slice(0, 12)}` : "#/directors" }, about?.latest_version ? "Its queue" : "Its directors")) : null);
  }

  function edit() {
    edits = edits ? null : editor(about, {
      onSaved(now) { about = now; close(); },
      onClose: close,
    });
    fill(trouble, edits ?? wrong());
    head.querySelector(".edit")?.setAttribute("aria-expanded", String(Boolean(edits)));
    edits?.querySelector("textarea")?.focus();
  }

  function close() {
    edits = null;
    settle(state);
    head.querySelector(".edit")?.focus();
  }

  const starting = () => h("section", { class: "card waits" },
    h("h2", {}, state?.state === "setup_failed" ? "Its setup failed" : "The model is starting"),
    h("p", {}, state?.state === "setup_failed" ? "Fix what the log says and start it again: this page shows the playground by itself then." : "The playground is here as soon as its first server is ready. This page notices by itself."));

  /** Show one tab. Each is made once and stays as it is: a form that was filled in is there again. */
  function open(tab) {
    const known = TABS.some(([path]) => path === tab) ? tab : "";
    bar.hidden = false;
    fill(bar, TABS.map(([path, word]) => h("a", {
      href: `#/models/${full}${path ? `/${path}` : ""}`, "aria-current": path === known ? "page" : null,
      on: { click: goes(path) },
    }, word)));
    const current = bar.querySelector("[aria-current]");
    bar.scrollLeft += Math.max(0, current.getBoundingClientRect().right - bar.getBoundingClientRect().right); // a narrow screen shows a part of the tabs
    for (const one of known === "api" ? ["", known] : [known]) if (!panels.has(one)) panels.set(one, make(one)); // the code is that of the form
    fill(body, panels.get(known));
  }

  const goes = (path) => (event) => { if (isPlainClick(event)) { event.preventDefault(); go(path); } };

  let at = location.hash;
  function go(path) {
    const before = panels.get("");
    if (before && body.firstChild === before) at = location.hash; // with its run
    readdress(path ? `#/models/${full}/${path}` : at.includes(`#/models/${full}?`) ? at : `#/models/${full}`);
    open(path);
    bar.querySelector("[aria-current]").focus();
  }

  /** The run of the playground: its answer may come while another tab is shown. */
  function ofPlayground(hash) {
    if (body.firstChild === panels.get("")) readdress(hash);
    else at = hash;
  }

  function make(tab) {
    const given = { model: about, full, state, session, signal, query, shared, readdress: ofPlayground, onEnd: look };
    if (tab === "api") return apiTab(given);
    if (tab === "examples") return examplesTab(given);
    if (tab === "versions") return versionsTab(given);
    if (tab === "runs") return runsTab(given);
    return takesMessages(about) ? chat(given) : playground(given);
  }

  fill(head, h("div", { class: "about" }, h("h1", {}, h("span", { class: "owner" }, `${owner}/`), name)));
  repeat(load, { every: LOOK_MS, signal }).then(() => pause(LOOK_MS, signal)).then(() => repeat(look, { every: LOOK_MS, signal }));
  return { title: full, node: h("article", { class: "model" }, head, trouble, newer, bar, body) };
}

const HINTS = {
  no_director: "What you run waits until one is there.",
  setup_failed: "What you run waits meanwhile.",
  server_auth: "What you run waits meanwhile.",
  servers_starting: "What you run waits until it is ready.",
  loading: "What you run starts when it is loaded.",
};
