// Fields that hold other fields: the members of an object, the items of a list, and a value of one of several kinds.

import { h } from "./dom.js";
import { onDrop } from "./drop_zone.js";
import { picks } from "./views/parts.js";

const MOST_ITEMS = 100;
const changed = (node) => node.dispatchEvent(new Event("input", { bubbles: true }));

/** The members of an object by the order that its author gave. */
export const inOrder = (properties) => Object.entries(properties).sort(([, a], [, b]) => (a?.["x-order"] ?? 1e9) - (b?.["x-order"] ?? 1e9));

/** The members of an object, each a field. If it is not required and none of them was changed, nothing is sent. */
export function membersOf(schema, { path, depth, schemas, make, isRequired = false }) {
  const required = new Set(schema.required ?? []);
  const own = Object(schema.default); // the default of the whole comes before those of its members
  const fields = inOrder(schema.properties)
    .map(([name, member]) => make(name, name in own ? { ...member, default: own[name] } : member, { isRequired: required.has(name), path: [...path, name], depth: depth + 1, schemas }));
  const shown = (member) => { try { return JSON.stringify(member.now()); } catch (error) { return error.message; } };
  const begun = fields.map(shown);
  let isTaken = false; // from a run that had it
  const isGiven = () => isRequired || isTaken || fields.some((member, at) => shown(member) !== begun[at]);
  const whole = (pairs) => (isGiven() ? Object.fromEntries(pairs.filter(([, value]) => value !== undefined)) : undefined);
  return {
    element: h("div", { class: "members" }, fields.map((member) => member.node)),
    isEmpty: !fields.length,
    value: async () => whole(await Promise.all(fields.map(async (member) => [member.name, await member.value()]))),
    now: () => whole(fields.map((member) => [member.name, member.now()])),
    /** Show these values, and in all other fields what they begin with. */
    take(values) {
      isTaken = typeof values === "object" && values !== null && values !== schema.default;
      for (const member of fields) member.take(values && member.name in values ? values[member.name] : member.initial);
    },
    faults: () => (isGiven() ? fields.flatMap((member) => member.faults()) : []),
    blame(at, text) {
      if (!text) { for (const member of fields) member.blame([], ""); return true; }
      const found = fields.find((member) => member.name === at[0]);
      return Boolean(found) && found.blame(at.slice(1), text);
    },
  };
}

/** A list whose items can be added, taken away and, if they are files, dropped several at once. */
export function listOf(schema, about) {
  const { isRequired, path, depth, schemas, make, resolved } = about; // its label may change
  const of = resolved(schema.items, schemas);
  const most = Math.min(schema.maxItems ?? MOST_ITEMS, MOST_ITEMS);
  const rows = h("div", { class: "items" });
  const add = h("button", { type: "button", class: "add", "aria-label": `Add to ${about.label}`, on: { click: () => { put(); changed(rows); items.at(-1).node.querySelector("input, textarea, select")?.focus(); } } }, "+ Add");
  const node = h("div", { class: "list" }, rows, add);
  let items = [];
  let made = 0; // ids stay those of their item, whatever is taken away before it

  const nameAt = (at) => `${about.label} ${at + 1}`;

  function put(value) {
    if (items.length >= most) return;
    const item = make(String(made), of, { isRequired: true, path: [...path, String(made)], depth: depth + 1, schemas, label: nameAt(items.length) });
    made += 1;
    const away = h("button", { type: "button", class: "quiet away", "aria-label": `Remove ${nameAt(items.length)}`, on: { click: () => { drop(item); changed(rows); add.focus(); } } }, "✕");
    item.row = h("div", { class: "item" }, item.node, away);
    item.away = away;
    if (value !== undefined) item.take(value);
    items.push(item);
    rows.append(item.row);
    add.disabled = items.length >= most;
  }

  function drop(item) {
    item.row.remove();
    items = items.filter((other) => other !== item);
    add.disabled = false;
    renumber();
  }

  function renumber() {
    for (const [at, item] of items.entries()) {
      item.rename(nameAt(at));
      item.away.ariaLabel = `Remove ${nameAt(at)}`;
    }
  }

  function take(values) {
    rows.replaceChildren();
    items = [];
    made = 0;
    add.disabled = false;
    if (Array.isArray(values)) for (const value of values) put(value);
    else for (let n = 0; n < Math.min(schema.minItems ?? 0, isRequired ? 5 : 0); n += 1) put();
  }

  const whole = (found) => (found.length || isRequired || schema.default?.length ? found : undefined);
  const mine = ["input", ...path].join(".");
  const placed = (item, at) => item.faults().map((fault) => ({ ...fault, field: `${mine}.${at}${fault.field.slice(`${mine}.${item.name}`.length)}` })); // as the service counts them
  if (of.type === "string" && of.format === "uri") onDrop(node, (files) => { for (const file of files) { put(); items.at(-1)?.choose?.(file); } changed(rows); });
  take(schema.default?.length ? schema.default : undefined);
  return {
    kind: "items",
    isGroup: true,
    element: node,
    node,
    value: async () => whole((await Promise.all(items.map((item) => item.value()))).filter((value) => value !== undefined)),
    now: () => whole(items.map((item) => item.now()).filter((value) => value !== undefined)),
    take,
    faults: () => (isRequired && items.length < (schema.minItems ?? 0) ? [{ field: mine, description: `${about.label} needs at least ${schema.minItems}.` }] : items.flatMap(placed)),
    blame(at, text) {
      if (!text) { for (const item of items) item.blame([], ""); return true; }
      const found = items[Number(at[0])];
      return Boolean(found) && found.blame(at.slice(1), text);
    },
    rename: renumber,
  };
}

const KINDS = { string: "Text", integer: "Number", number: "Number", array: "List", object: "Object", boolean: "Yes or no" };
const typeOf = (value) => (Array.isArray(value) ? "array" : value === null ? "null" : typeof value === "number" ? "number" : typeof value);
const fits = (schema, value) => (schema.type === "integer" ? "number" : schema.type) === typeOf(value);

/** A value of one of several kinds: which one is chosen first. */
export function either(schema, about) {
  const { path, make } = about;
  const nameAs = (one) => `${about.label}, as ${nameOf(one).toLowerCase()}`;
  const options = schema.options.slice(0, 6);
  const made = options.map((one, at) => make(String(at), { ...one, default: fits(one, schema.default) ? schema.default : one.default }, { ...about, depth: about.depth + 1, label: nameAs(one), path: [...path, `kind${at}`] }));
  const usual = Math.max(0, options.findIndex((one) => fits(one, schema.default)));
  let chosen = usual;
  const kinds = picks(`Kind of ${about.label}`, options.map(nameOf), (at) => { show(at); changed(node); });
  const place = h("div", { class: "chosen" });
  const node = h("div", { class: "either" }, kinds.node, place);

  function show(at) {
    chosen = at;
    kinds.show(at);
    place.replaceChildren(made[at].node);
  }

  show(chosen);
  return {
    kind: "kinds",
    isGroup: true,
    element: node,
    node,
    value: () => made[chosen].value(),
    now: () => made[chosen].now(),
    take(value) {
      const at = options.findIndex((one) => fits(one, value));
      show(at < 0 ? usual : at);
      made[chosen].take(at < 0 ? made[chosen].initial : value);
    },
    faults: () => made[chosen].faults(),
    rename() { for (const [at, one] of made.entries()) one.rename(nameAs(options[at])); },
    blame: (at, text) => (text ? made[chosen].blame(at, text) : made.every((one) => one.blame([], ""))),
  };
}

const nameOf = (schema) => (schema.title && schema.properties ? schema.title : KINDS[schema.type] ?? "JSON");
