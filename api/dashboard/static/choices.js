// Names to choose from: models and accounts that the service knows. They are asked for once a minute at most.

import { page } from "./api.js";
import { h } from "./dom.js";
import { session } from "./session.js";

const KEPT_MS = 60_000;
export const MOST_NAMES = 500;
const known = new Map();

async function allNames(path, name) {
  const found = [];
  let next = null;
  for (let isFirst = true; (isFirst || next) && found.length < MOST_NAMES; isFirst = false) {
    const one = await page(path, next);
    found.push(...one.results.map(name));
    next = one.next;
  }
  return found;
}

function kept(path, name) {
  const whose = session.who?.username;
  const old = known.get(path);
  if (old?.whose === whose && performance.now() - old.at < KEPT_MS) return old.names;
  const names = allNames(path, name).catch(() => { known.delete(path); return []; });
  known.set(path, { whose, at: performance.now(), names });
  return names;
}

/** `owner/name` of the models that this person may use. */
export const modelNames = () => kept("/v1/models", (one) => `${one.owner}/${one.name}`);

/** The accounts, for those who see all. */
export const accountNames = async () => (session.seesAll ? kept("/v1/admin/accounts", (one) => one.name) : []);

/** A field with names to choose from, once `names()` has them; any other text may be typed too. */
export function pick({ id, value, placeholder, names }) {
  const list = h("datalist", { id: `${id}-known` });
  names().then((all) => list.replaceChildren(...all.map((name) => h("option", { value: name }))));
  const field = h("input", { id, value, placeholder, list: list.id, autocomplete: "off", spellcheck: "false" });
  return { field, node: h("span", { class: "pick" }, field, list) };
}
