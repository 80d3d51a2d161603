// Fields of a form that hold one value. Each has `element`, `value()`, `now()` and `take(value)`; undefined is not sent.

import { dropZone } from "./drop_zone.js";
import { h } from "./dom.js";

const MOST_STEPS = 1000; // of a slider
const WIDEST = 1e6; // a wider range is no matter of more or less, such as a seed
const LONG = 60; // characters of a text that shows in several lines

/** What the browser or the field itself finds wrong, in words; "" without. */
export function fault(control, label) {
  if (!control.element.checkValidity()) return control.element.validity.valueMissing ? `${label} is needed.` : control.element.validationMessage;
  try { (control.check ?? control.now)(); } catch (error) { return error.message; }
  return "";
}

const plain = (element, value, more) => ({ element, now: value, value, take: (given) => { element.value = given === null || given === undefined ? "" : String(given); }, ...more });

export function choice(schema, isRequired) {
  const isOptional = !isRequired && schema.default === undefined;
  const element = h("select", {}, isOptional ? h("option", { value: "" }, "–") : null,
    schema.enum.map((value, at) => h("option", { value: String(at), selected: value === schema.default }, named(value, schema, at))));
  return plain(element, () => (element.value === "" ? undefined : schema.enum[Number(element.value)]), {
    kind: "choice",
    take(value) {
      const at = [value, schema.default].map((one) => schema.enum.indexOf(one)).find((one) => one >= 0);
      element.value = at !== undefined ? String(at) : isOptional ? "" : "0";
    },
  });
}

/** A choice by its name, where the schema gives names. */
const named = (value, schema, at) => schema["x-enum-varnames"]?.[at] ?? schema.enumNames?.[at] ?? (value === null ? "none" : String(value));

export function tick(schema) {
  const element = h("input", { type: "checkbox", checked: schema.default === true });
  return plain(element, () => element.checked, { kind: "onoff", take: (value) => { element.checked = value === true; } });
}

export function number(schema, about) {
  const isWhole = schema.type === "integer";
  const { minimum: least, maximum: most } = schema;
  const element = h("input", { type: "number", step: isWhole ? "1" : "any", min: least, max: most, value: schema.default ?? "", placeholder: schema.default === undefined ? "not set" : null, inputmode: isWhole ? "numeric" : "decimal" });
  const value = () => (element.value === "" ? undefined : exact(schema, element.value, about.label));
  const hasSlider = Number.isFinite(least) && Number.isFinite(most) && most > least && most - least <= WIDEST && !/seed/i.test(about.label);
  if (!hasSlider) return plain(element, value, { kind: "number" });
  const slider = h("input", { type: "range", min: least, max: most, step: stepOf(schema), "aria-label": `${about.label}, as a slider` });
  const follow = () => {
    slider.value = element.value === "" ? (least + most) / 2 : element.value;
    slider.classList.toggle("unset", element.value === "");
  };
  slider.addEventListener("input", () => { element.value = slider.value; slider.classList.remove("unset"); });
  element.addEventListener("input", follow);
  follow();
  return plain(element, value, {
    kind: "number",
    hasSlider,
    node: h("div", { class: "slid" }, slider, element),
    take: (given) => { element.value = given ?? ""; follow(); },
  });
}

/** A step that makes a slider useful: a whole number, or the hundredth part of the range, rounded to 1, 2 or 5. */
function stepOf({ type, minimum, maximum, multipleOf }) {
  const range = maximum - minimum;
  if (multipleOf > 0) return multipleOf;
  if (type === "integer") return Math.max(1, Math.floor(range / MOST_STEPS));
  const size = 10 ** Math.floor(Math.log10(range / 100));
  return Number([1, 2, 5, 10].map((part) => part * size).find((step) => range / step <= 100).toPrecision(3));
}

/** A number that would become another one on its way is refused. */
function exact(schema, text, label) {
  const value = Number(text);
  if (schema.type === "integer" && !Number.isSafeInteger(value)) throw new Error(`${label} has more digits than a browser can send.`);
  return value;
}

export function words(schema, isRequired) {
  const isShort = schema.maxLength !== undefined && schema.maxLength <= LONG;
  const element = isShort
    ? h("input", { type: "text", maxlength: schema.maxLength, minlength: schema.minLength, value: schema.default ?? "" })
    : h("textarea", { rows: (schema.default ?? "").length > LONG ? "4" : "2", maxlength: schema.maxLength, minlength: schema.minLength, value: schema.default ?? "" });
  return plain(element, () => (element.value === "" && !isRequired ? (schema.default === "" ? "" : undefined) : element.value), { kind: "words" });
}

/** What no view shows again. What is not text is given as JSON. */
export function secret(schema) {
  const isText = schema.type === "string";
  const element = h("input", { type: "password", autocomplete: "off", spellcheck: "false", maxlength: schema.maxLength, placeholder: isText ? "" : "JSON" });
  const value = () => (element.value === "" ? undefined : isText ? element.value : parsed(schema, element.value));
  return plain(element, value, { kind: "secret", take: (given) => { if (given === undefined) element.value = ""; }, check: value, now: () => (element.value === "" ? undefined : "<secret>") });
}

function parsed(schema, text) {
  try { return JSON.parse(text); } catch { throw new Error(`${schema.title ?? "This"} is no JSON.`); }
}

export function laidOut(schema) {
  const shown = (value) => (value === undefined || value === null ? "" : JSON.stringify(value, null, 2));
  const element = h("textarea", { rows: "4", class: "mono", placeholder: "JSON", spellcheck: "false", value: shown(schema.default) });
  return plain(element, () => (element.value.trim() === "" ? undefined : parsed(schema, element.value)), { kind: "json", take: (value) => { element.value = shown(value); } });
}

export const file = (schema, about) => dropZone(schema, about);
