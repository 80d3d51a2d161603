// The models there are, each with its state, what it does and how fast it is.

import { ask, page, pause, repeat } from "../api.js";
import { h, say } from "../dom.js";
import { count, day, seconds } from "../format.js";
import { inOrder } from "../schema_groups.js";
import { picture, stateChip } from "./model_parts.js";
import { endless } from "./parts.js";

const LOOK_MS = 5000;
const EMPTY = "No model is here yet. A director brings one: `director serve FOLDER --model owner/name`, or `director run`.";
const MOST_ASKED = 100; // names in one question
const SEEK_MS = 300; // without another letter, before the service is asked
const MOST_FOUND = 50;

export function models({ signal }) {
  const list = h("ul", { class: "models" });
  const cards = new Map();
  const found = h("p", { class: "hint", role: "status" });
  let isDue = false; // once for all cards of a page
  const search = h("input", { id: "search-models", type: "search", placeholder: "Search", autocomplete: "off", spellcheck: "false", on: { input: () => { narrow(); seek(); } } });
  let seeking = new AbortController();

  function card(model) {
    const known = cards.get(`${model.owner}/${model.name}`);
    if (known) return known.node; // a search had found it
    const made = cardOf(model);
    cards.set(made.name, made);
    if (!isDue) { isDue = true; setTimeout(() => { isDue = false; narrow(); look(); }); }
    return made.node;
  }

  function narrow() {
    const wanted = search.value.trim().toLowerCase();
    let shown = 0;
    for (const one of cards.values()) {
      one.node.hidden = wanted !== "" && !one.words.includes(wanted);
      shown += one.node.hidden ? 0 : 1;
    }
    say(found, wanted ? `${shown} found` : "");
    search.parentElement.hidden = cards.size < 2 && !wanted;
    if (cards.size) foot.querySelector(".empty")?.remove();
  }

  /** Ask the service, where the list has more models than are shown. */
  async function seek() {
    seeking.abort();
    seeking = new AbortController();
    const asked = AbortSignal.any([signal, seeking.signal]);
    const query = search.value.trim();
    if (!query || foot.querySelector("button").hidden) return;
    await pause(SEEK_MS, asked);
    if (asked.aborted) return;
    try {
      const { models: more } = await ask(`/v1/search?${new URLSearchParams({ query, limit: MOST_FOUND })}`, { signal: asked });
      list.append(...more.map(({ model }) => model).filter((model) => !cards.has(`${model.owner}/${model.name}`)).map(card));
    } catch { /* those that are shown stay */ }
  }

  async function look() {
    try {
      const names = [...cards.keys()];
      const asked = Array.from({ length: Math.ceil(names.length / MOST_ASKED) }, (_, at) => names.slice(at * MOST_ASKED, (at + 1) * MOST_ASKED));
      const [fresh, ...known] = await Promise.all([statesOf([], signal), ...asked.map((some) => statesOf(some, signal))]);
      for (const state of known.flat()) cards.get(state.model)?.update(state);
      for (const state of fresh) newcomer(state);
      for (const one of [...cards.values()]) if (one.isFresh && !fresh.some((state) => state.model === one.name)) await replace(one);
    } catch { /* the states stay as they were last seen */ }
  }

  /** A model that is being started and was never ready stands before all others. */
  function newcomer(state) {
    if (!cards.has(state.model)) {
      const [owner, name] = state.model.split("/");
      const made = cardOf({ owner, name, description: "", cover_image_url: null, latest_version: null, run_count: 0 }, { isFresh: true });
      cards.set(state.model, made);
      list.prepend(made.node);
      narrow();
    }
    cards.get(state.model).update(state);
  }

  /** One that was being started is ready now, or gone. */
  async function replace(one) {
    cards.delete(one.name);
    const ready = (await statesOf([one.name], signal)).some((state) => state.version);
    if (ready) one.node.replaceWith(card(await ask(`/v1/models/${one.name}`, { signal })));
    else one.node.remove();
    narrow();
  }

  const foot = endless(list, (next) => page("/v1/models", next, { signal }), card, { signal, empty: EMPTY });
  repeat(look, { every: LOOK_MS, signal });
  return {
    title: "Models",
    node: h("section", {},
      h("div", { class: "head" }, h("h1", {}, "Models"), h("div", { class: "seek" }, h("label", { class: "unseen", for: "search-models" }, "Search models"), search)),
      found, list, foot),
  };
}

/** The states of these models, or without names of those that were never ready. */
export const statesOf = async (names, signal) => (await ask(`/v1/models/states${names.length ? `?models=${names.map(encodeURIComponent).join(",")}` : ""}`, { signal })).results;

/** A model in a list, with its picture. `update(state)` shows how it is now. */
export function cardOf(model, { isFresh = false } = {}) {
  const name = `${model.owner}/${model.name}`;
  const state = h("span", { class: "state" });
  const facts = h("p", { class: "hint facts-of" });
  const version = model.latest_version;
  const node = h("li", { class: "card model-card" },
    h("a", { class: "whole-card", href: `#/models/${name}` },
      picture(model),
      h("span", { class: "words" }, h("span", { class: "name-of" }, h("span", { class: "owner" }, `${model.owner}/`), model.name), h("span", { class: "says" }, model.description || described(version)))),
    h("p", { class: "below" }, state, facts));
  const since = version ? `version of ${day(version.created_at)}` : "";
  const tell = ({ run_count: runs, run_p50_s: spent = null, waiting = 0 }) => say(facts, [
    spent === null ? "" : `${seconds(spent)} a run`,
    runs ? `${count(runs)} ${runs === 1 ? "run" : "runs"}` : version ? "no runs yet" : "",
    spent === null ? since : "",
    waiting ? `${count(waiting)} waiting` : "",
  ].filter(Boolean).join(" · "));
  tell(model);
  return {
    name, node, isFresh,
    words: `${name} ${model.description ?? ""}`.toLowerCase(),
    update(now) {
      const chip = stateChip(now);
      if (!state.firstChild?.isEqualNode(chip)) state.replaceChildren(chip);
      tell(now);
    },
  };
}

/** What a model takes and gives, in the words of its schema, for one without a description. */
function described(version) {
  const schemas = version?.openapi_schema?.components?.schemas;
  if (!version) return "It was never ready yet: its page says why.";
  const inputs = inOrder(schemas?.Input?.properties ?? {}).map(([name]) => name.replaceAll("_", " "));
  if (!inputs.length) return "Takes JSON, and shows no schema.";
  return `Takes ${inputs.slice(0, 4).join(", ")}${inputs.length > 4 ? ` and ${inputs.length - 4} more` : ""}.`;
}

/** The former addresses of these pages. */
export function moved({ params: [rest], query }) {
  location.replace(`#/models${rest ?? ""}${query.size ? `?${query}` : ""}`);
  return { title: "Models", node: h("section", {}, h("h1", {}, "Models")) };
}
