// The playground of a model: its form at the left, and at the right an output from the first second on, which is that of
// the last good run or of an example until there is a new one.

import { ask } from "../api.js";
import { codeTabs } from "../code_tabs.js";
import { fill, h, say } from "../dom.js";
import { ago } from "../format.js";
import { schemaForm } from "../schema_form.js";
import { session } from "../session.js";
import { advanced } from "./model_advanced.js";
import { glimpse } from "./model_parts.js";
import { runView } from "./model_run.js";
import { failure, isTerminal } from "./parts.js";

const MOST_RUNS = 12;

export function playground({ model, full, state, signal, query, shared, only = null }) {
  const fields = schemaForm(model.latest_version.openapi_schema);
  const more = advanced();
  const trouble = h("p", { class: "trouble", role: "alert" });
  const button = h("button", { type: "submit", class: "main", "data-denied": !session.acts }, "Run");
  const codes = codeTabs(full, { hasOpenAi: state?.has_openai, name: "The same in code" });
  const strip = h("section", { class: "runs-strip", "aria-label": "Your runs", hidden: true });
  const view = runView({ full, signal, onInput: take, onEnd: () => list().catch(() => {}) });
  let runs = []; // of mine, newest first
  let isTouched = false;

  const form = h("form", { class: "card ask", novalidate: true, "aria-label": "Input", on: { submit, keydown: hasten, input: touch, change: touch } },
    fields.node, more.node, trouble,
    h("div", { class: "go" }, button, h("span", { class: "hint keys" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")), h("button", { type: "button", class: "quiet", on: { click: reset } }, "Reset")));

  function touch() {
    isTouched = true;
    told();
  }

  /** Let the code follow the form. What cannot be read yet stays out until it can. */
  function told() {
    try { shared.input = fields.now(); } catch { return; }
    codes.follow(shared.input);
    for (const hear of shared.onInput) hear(shared.input);
  }

  function hasten(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  }

  function reset() {
    const fresh = playground({ model, full, state, signal, query: new URLSearchParams(), shared, only: view.shown?.id ?? "" });
    node.replaceWith(fresh);
  }

  /** Fill the form with the input of a run. */
  function take(input) {
    fields.take(input ?? {});
    isTouched = false;
    told();
  }

  async function submit(event) {
    event.preventDefault();
    if (button.disabled) return;
    say(trouble, "");
    fields.blame([]);
    more.blame("");
    button.disabled = true;
    try {
      const made = await ask(`/v1/models/${full}/predictions`, { method: "POST", body: { input: await fields.values(), ...more.body() }, headers: more.headers() });
      isTouched = false;
      view.show(made, { isNew: true });
      runs = [made, ...runs];
      draw();
    } catch (error) {
      blame(error);
    } finally {
      button.disabled = false;
    }
  }

  function blame(error) {
    const given = error.fields ?? [];
    const placed = given.length ? fields.blame(given) : 0;
    const isMore = more.blame(error.message);
    say(trouble, placed && placed === given.length ? `${placed === 1 ? "One field needs" : `${placed} fields need`} another look.` : isMore ? "See Advanced." : error.message);
    node.querySelector('[aria-invalid="true"], fieldset:has(> .trouble:not(:empty)) :is(input, textarea, button)')?.focus();
  }

  async function list() {
    const found = await ask(`/v1/predictions?model=${encodeURIComponent(full)}&limit=${MOST_RUNS}`, { signal });
    runs = found.results;
    draw();
  }

  function draw() {
    strip.hidden = !runs.length;
    fill(strip, h("h2", {}, "Your runs"), h("ol", {}, runs.slice(0, MOST_RUNS).map((one) => h("li", {}, h("a", {
      href: `#/models/${full}?run=${one.id}`, "aria-current": view.shown?.id === one.id ? "true" : null, title: `${one.status}, ${ago(one.created_at)}`,
      on: { click: (event) => { if (event.ctrlKey || event.metaKey || event.shiftKey) return; event.preventDefault(); pick(one.id).catch(() => {}); } },
    }, h("span", { class: "thumb" }, one.status === "succeeded" ? glimpse(one.output) : glimpse(one.input)), h("span", { class: "below" }, isTerminal(one.status) && one.status === "succeeded" ? null : h("span", { class: `dot ${one.status}` }), isTerminal(one.status) ? (one.status === "succeeded" ? ago(one.created_at) : one.status) : "runs now"))))));
  }

  /** Show one of my runs. Its input comes into the form unless that was changed. */
  async function pick(id) {
    const found = await ask(`/v1/predictions/${id}`, { signal });
    view.show(found);
    if (!isTouched && !found.data_removed) take(found.input);
    draw();
  }

  /** The example that the address names, or the one that stands for the model. */
  async function exampleOf() {
    if (!query.has("example")) return model.default_example;
    const { results } = await ask(`/v1/models/${full}/examples`, { signal });
    return results.find((one) => one.id === query.get("example")) ?? model.default_example;
  }

  /** What to begin with: the run of the address, my last good one, or an example. */
  async function begin() {
    const wanted = query.get("run") ?? query.get("again") ?? only;
    try {
      const [, chosen, example] = await Promise.all([list().catch(() => {}), wanted ? ask(`/v1/predictions/${encodeURIComponent(wanted)}`, { signal }) : null, exampleOf()]);
      if (signal.aborted) return;
      const good = runs.find((one) => one.status === "succeeded" && one.output !== null && !one.data_removed);
      const shown = chosen ?? (only === null && !query.has("example") ? good : null);
      if (shown) view.show(shown, { isQuiet: !query.get("run") });
      else if (example) view.example(example);
      else view.empty();
      const input = only === null && !shown?.data_removed ? (shown ?? example)?.input : null;
      if (input) take(input);
      draw();
    } catch (error) {
      if (signal.aborted) return;
      fill(view.node, failure(error));
    }
    told();
    fill(node, h("div", { class: "play" }, form, view.node), strip, codes.node); // not before: a form that is being filled in stays as it is
  }

  const node = h("div", { class: "playground", "aria-busy": "true" });
  begin().then(() => node.removeAttribute("aria-busy"));
  return node;
}
