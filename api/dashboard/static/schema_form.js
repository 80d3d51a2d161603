// A form made from a model's own schema of its input. What the form cannot show is asked for as JSON.

import { h, say } from "./dom.js";

const MOST_INLINE = 256 * 1024; // bytes of a file that are sent within the input

/** The fields of a model: `node`, `values()` (raises for invalid JSON), `take(input)` of a former run, and
 * `blame(fields)` for what was refused. */
export function schemaForm(document) {
  const schemas = document?.components?.schemas ?? {};
  const input = schemas.Input;
  if (!input?.properties) return jsonForm();
  const required = new Set(input.required ?? []);
  const order = ([, one]) => one["x-order"] ?? 1e9;
  const fields = Object.entries(input.properties ?? {}).sort((a, b) => order(a) - order(b))
    .map(([name, given]) => field(name, resolved(given, schemas), required.has(name)));
  return {
    node: h("div", { class: "fields" }, fields.length ? fields.map((one) => one.node) : h("p", { class: "hint" }, "It takes no input.")),
    async values() {
      const found = {};
      for (const one of fields) {
        const value = await one.value();
        if (value !== undefined) found[one.name] = value;
      }
      return found;
    },
    take(input) {
      for (const one of fields) if (one.name in input) one.take(input[one.name]);
    },
    blame(refused) {
      for (const one of fields) one.blame(refused.filter(({ field: at }) => at === `input.${one.name}` || at.startsWith(`input.${one.name}.`) || at === one.name).map(({ description }) => description).join(" "));
    },
  };
}

/** The whole input as JSON, for a model that shows no schema: only its author knows what it takes. */
function jsonForm() {
  const one = field("input", { title: "Input, as JSON", default: {}, description: "This model shows no schema. It is not checked before it runs." }, true);
  return {
    node: h("div", { class: "fields" }, one.node),
    async values() {
      const found = await one.value();
      if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error('The input is an object, such as {"text": "hello"}.');
      return found;
    },
    take: one.take,
    blame: (refused) => one.blame(refused.map(({ description }) => description).join(" ")),
  };
}

/** A schema with what it refers to. */
function resolved(given, schemas, depth = 0) {
  const parts = [given, ...(given.allOf ?? []), ...(given.anyOf ?? []).filter((one) => one.type !== "null").slice(0, 1)];
  return parts.reduce((whole, part) => {
    const name = /^#\/components\/schemas\/([^/]+)$/.exec(part.$ref ?? "")?.[1];
    const more = name && depth < 5 ? resolved(schemas[name] ?? {}, schemas, depth + 1) : part;
    return { ...more, ...whole };
  }, {});
}

function field(name, schema, isRequired) {
  const id = `in-${name}`;
  const control = control_of(schema, isRequired);
  control.element.id = id;
  control.element.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
  if (isRequired && control.element.type !== "checkbox") control.element.required = true;
  const error = h("span", { id: `${id}-error`, class: "trouble" });
  const bounds = [schema.minimum !== undefined ? `at least ${schema.minimum}` : "", schema.maximum !== undefined ? `at most ${schema.maximum}` : ""].filter(Boolean).join(", ");
  const hint = [schema.description, bounds].filter(Boolean).join(" · ");
  const label = h("label", { for: id }, schema.title ?? name, isRequired ? h("span", { class: "must" }, " (required)") : null);
  return {
    name,
    node: h("div", { class: `field ${control.kind}` }, label, control.element, control.beside ?? null, h("span", { id: `${id}-hint`, class: "hint" }, hint), error),
    value: control.value,
    take: control.take ?? ((value) => { control.element.value = value === null ? "" : String(value); }),
    blame: (text) => {
      say(error, text);
      control.element.setAttribute("aria-invalid", String(Boolean(text)));
    },
  };
}

function control_of(schema, isRequired) {
  if (schema.enum) return choice(schema, isRequired);
  if (schema.type === "boolean") return tick(schema);
  if (isSecret(schema)) return secret(schema);
  if (schema.type === "integer" || schema.type === "number") return number(schema);
  if (schema.type === "string" && schema.format === "uri") return file(schema);
  if (schema.type === "string") return words(schema, isRequired);
  return laidOut(schema);
}

function choice(schema, isRequired) {
  const options = schema.enum.map((value, at) => h("option", { value: String(at), selected: value === schema.default }, String(value)));
  const element = h("select", {}, isRequired || schema.default !== undefined ? options : [h("option", { value: "" }, "–"), ...options]);
  return { kind: "choice", element, value: () => (element.value === "" ? undefined : schema.enum[Number(element.value)]), take: (value) => { element.value = String(schema.enum.indexOf(value)); } };
}

function tick(schema) {
  const element = h("input", { type: "checkbox", checked: schema.default === true });
  return { kind: "tick", element, value: () => element.checked, take: (value) => { element.checked = value === true; } };
}

function number(schema) {
  const element = h("input", { type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum, value: schema.default ?? "" });
  return { kind: "number", element, value: () => (element.value === "" ? undefined : exact(schema, element.value)) };
}

/** A number that would become another one on its way is refused. */
function exact(schema, text) {
  const value = Number(text);
  if (schema.type === "integer" && !Number.isSafeInteger(value)) throw new Error(`${schema.title ?? "A number"} has more digits than a browser can send.`);
  return value;
}

function words(schema, isRequired) {
  const element = h("textarea", { rows: (schema.default ?? "").length > 80 ? "4" : "2", maxlength: schema.maxLength, value: schema.default ?? "" });
  return { kind: "words", element, value: () => (element.value === "" && !isRequired ? schema.default === "" ? "" : undefined : element.value) };
}

const isSecret = (schema) => schema["x-cog-secret"] === true || schema.writeOnly === true || schema.format === "password" || Boolean(schema.items && isSecret(schema.items));

/** What no view shows again. What is not text is given as JSON. */
function secret(schema) {
  const element = h("input", { type: "password", autocomplete: "off", spellcheck: "false", maxlength: schema.maxLength, placeholder: schema.type === "string" ? "" : "JSON" });
  return { kind: "secret", element, take: () => {}, value: () => (element.value === "" ? undefined : schema.type === "string" ? element.value : parsed(schema, element.value)) };
}

function parsed(schema, text) {
  try { return JSON.parse(text); } catch { throw new Error(`${schema.title ?? "A field"} is no JSON.`); }
}

function laidOut(schema) {
  const element = h("textarea", { rows: "4", class: "mono", placeholder: "JSON", value: schema.default === undefined || schema.default === null ? "" : JSON.stringify(schema.default) });
  return {
    kind: "json",
    element,
    value: () => {
      if (element.value.trim() === "") return undefined;
      return parsed(schema, element.value);
    },
    take: (value) => { element.value = JSON.stringify(value, null, 2); },
  };
}

function file(schema) {
  const element = h("input", { type: "url", placeholder: "https://…", value: schema.default ?? "" });
  const picked = h("input", { type: "file", "aria-label": `A file for ${schema.title ?? "it"}` });
  picked.addEventListener("change", () => { element.required = element.required && !picked.files.length; });
  return { kind: "file", element, beside: picked, value: async () => (picked.files.length ? sent(picked.files[0]) : element.value || undefined) };
}

async function sent(chosen) {
  if (chosen.size <= MOST_INLINE) return inline(chosen);
  const { ask } = await import("./api.js");
  const form = new FormData();
  form.append("content", chosen, chosen.name);
  return (await ask("/v1/files", { method: "POST", body: form })).urls.get;
}

const inline = (chosen) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(new Error("The file could not be read."));
  reader.readAsDataURL(chosen);
});
