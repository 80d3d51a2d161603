// A form made from a model's own schema of its input. What the form cannot show is asked for as JSON.

import { h, reveal, say } from "./dom.js";
import { either, listOf, membersOf } from "./schema_groups.js";
import { choice, fault, file, laidOut, number, secret, tick, words } from "./schema_fields.js";

const DEEPEST = 4; // levels of objects and lists that are fields; below, JSON

/**
 * The fields of a model: `node`; `values()`, which uploads files and raises an error with `fields` for what is wrong;
 * `now()`, the same at once, for code to show; `take(input)` of a former run; and `blame(fields)` for what was refused,
 * which returns how many of them have a place here. `without`: names that another part of the page asks for.
 */
export function schemaForm(document, { without = [] } = {}) {
  const schemas = document?.components?.schemas ?? {};
  const input = schemas.Input && resolved(schemas.Input, schemas);
  if (!input?.properties) return jsonForm();
  const given = { ...input, properties: Object.fromEntries(Object.entries(input.properties).filter(([name]) => !without.includes(name))) };
  const members = membersOf(given, { path: [], depth: 0, schemas, make: field, isRequired: true });
  return {
    node: h("div", { class: "fields" }, members.isEmpty ? h("p", { class: "hint" }, "It takes no input.") : members.element),
    names: Object.keys(given.properties),
    async values() {
      const faults = members.faults();
      if (faults.length) throw refused(faults);
      return (await members.value()) ?? {};
    },
    now: () => members.now() ?? {},
    take: (values) => members.take(values),
    blame(fields) {
      members.blame([], "");
      return fields.filter((one) => members.blame(pathOf(one, given.properties), one.description)).length;
    },
  };
}

/** An error that names its fields, as the service does. */
function refused(faults) {
  const error = new Error(faults.map((one) => one.description).join(" "));
  error.fields = faults;
  return error;
}

/** Where a fault belongs: `input.size.0` is in the field size; what is missing is named in the words alone. */
function pathOf({ field: at, description }, properties) {
  const path = at.split(".").filter(Boolean);
  if (path[0] === "input") path.shift();
  const missing = /^(\S+) is required$/.exec(description)?.[1];
  if (missing && (path.length || missing in properties)) path.push(missing);
  return path;
}

/** The whole input as JSON, for a model that shows no schema: only its author knows what it takes. */
function jsonForm() {
  const one = field("input", { title: "Input, as JSON", default: {}, description: "This model shows no schema. It is not checked before it runs." }, { isRequired: true, path: ["input"], depth: DEEPEST, schemas: {} });
  const values = () => {
    const found = one.now();
    if (typeof found !== "object" || found === null || Array.isArray(found)) throw refused([{ field: "input", description: 'The input is an object, such as {"text": "hello"}.' }]);
    return found;
  };
  return {
    node: h("div", { class: "fields" }, one.node),
    names: [],
    async values() {
      const faults = one.faults();
      if (faults.length) throw refused(faults);
      return values();
    },
    now() { try { return values(); } catch { return {}; } },
    take: one.take,
    blame(fields) {
      one.blame([], fields.map(({ description }) => description).join(" "));
      return fields.length;
    },
  };
}

/** A schema with what it refers to, and the alternatives that are not null. */
export function resolved(given, schemas, depth = 0) {
  if (typeof given !== "object" || given === null) return {};
  const name = /^#\/components\/schemas\/([^/]+)$/.exec(given.$ref ?? "")?.[1];
  const found = name && depth < 8 ? resolved(schemas[name] ?? {}, schemas, depth + 1) : {};
  const parts = (given.allOf ?? []).map((one) => resolved(one, schemas, depth + 1));
  const several = (given.anyOf ?? given.oneOf ?? []).filter((one) => one?.type !== "null" && !("required" in one && Object.keys(one).length === 1));
  const options = depth < 8 ? several.map((one) => resolved(one, schemas, depth + 1)) : [];
  const whole = Object.assign({}, found, ...parts, options.length === 1 ? options[0] : {}, given);
  if (options.length > 1) whole.options = options;
  if (Array.isArray(whole.type)) whole.type = whole.type.find((one) => one !== "null");
  return whole;
}

/** One field with its label, its help and its errors, whatever it holds. */
function field(name, described, { isRequired, path, depth, schemas, label: given }) {
  const schema = resolved(described, schemas);
  const id = `in-${path.join("-")}`;
  const about = { isRequired, path, depth, schemas, label: given ?? titleOf(name, schema), id, make: field, resolved };
  const control = controlOf(schema, about);
  const heading = document.createTextNode(about.label);
  const error = h("span", { id: `${id}-error`, class: "trouble", role: "alert" });
  const help = h("span", { id: `${id}-hint`, class: "hint" }, helpOf(schema, control));
  const must = isRequired && control.kind !== "onoff" ? h("span", { class: "must" }, " (required)") : null;
  let node;
  if (control.isGroup) {
    node = h("fieldset", { class: `set ${control.kind}`, id, "aria-describedby": `${id}-hint ${id}-error` }, h("legend", {}, heading, must), help, control.node, error);
  } else {
    control.element.id = id;
    control.element.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
    if (isRequired && control.kind !== "onoff") control.element.required = true;
    node = h("div", { class: `field ${control.kind}` }, h("label", { for: id }, heading, must), control.node ?? control.element, help, error);
  }
  function mark(text) {
    say(error, text);
    if (!control.isGroup) control.element.setAttribute("aria-invalid", String(Boolean(text)));
    if (text) reveal(node);
  }
  return {
    ...control,
    name,
    node,
    initial: schema.default,
    faults() {
      if (control.isGroup) return control.faults();
      const why = fault(control, about.label);
      return why ? [{ field: ["input", ...path].join("."), description: why }] : [];
    },
    /** Give it another label, also in the names of the controls within. */
    rename(label) {
      for (const one of node.querySelectorAll("[aria-label]")) one.ariaLabel = one.ariaLabel.replace(about.label, () => label);
      about.label = heading.data = label;
      control.rename?.();
    },
    /** Show what is wrong at its place, and return true; without words, forget all that was shown. */
    blame(at, text) {
      if (!text) { control.blame?.([], ""); mark(""); return true; }
      if (at.length && control.blame?.(at, text)) return true;
      mark(error.textContent ? `${error.textContent} ${text}` : text);
      return true;
    },
  };
}

/** The title, unless it is only the name in other letters: then the name in words, all in one case. */
function titleOf(name, { title: given }) {
  const plain = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "");
  const title = given && plain(given) !== plain(String(name)) ? given : String(name).replace(/[_-]+/g, " ").trim();
  return title.charAt(0).toUpperCase() + title.slice(1);
}

/** What the model says of it, without what every enumeration says of itself, and its bounds. */
function helpOf(schema, control) {
  const description = schema.description === "An enumeration." ? "" : schema.description;
  const [least, most] = [schema.minimum, schema.maximum];
  const bounds = control.hasSlider ? "" : [least !== undefined ? `at least ${least}` : "", most !== undefined ? `at most ${most}` : ""].filter(Boolean).join(", ");
  return [description, bounds].filter(Boolean).join(" · ");
}

function controlOf(schema, about) {
  const { depth, isRequired } = about;
  if (schema.enum) return choice(schema, isRequired);
  if (schema.type === "boolean") return tick(schema);
  if (isSecret(schema)) return secret(schema);
  if (schema.options && depth < DEEPEST) return either(schema, about);
  if (schema.type === "integer" || schema.type === "number") return number(schema, about);
  if (schema.type === "string" && schema.format === "uri") return file(schema, about);
  if (schema.type === "string") return words(schema, isRequired);
  if (schema.type === "array" && knows(schema.items) && depth < DEEPEST) return listOf(schema, about);
  if (schema.properties && depth < DEEPEST) {
    const members = membersOf(schema, about);
    return { isGroup: true, kind: "object", node: members.element, ...members };
  }
  return laidOut(schema);
}

const knows = (items) => Boolean(items) && typeof items === "object" && Object.keys(items).length > 0;

const isSecret = (schema) => schema["x-cog-secret"] === true || schema.writeOnly === true || schema.format === "password" || Boolean(schema.items && isSecret(schema.items));
