// The playground of a model: its form at the left, and at the right an output from the first second on, which is that of
// the last good run or of an example until there is a new one.

import { ask, repeat } from "../api.js";
import { codeTabs } from "../code_tabs.js";
import { fill, h, keyed, refill, say } from "../dom.js";
import { ago } from "../format.js";
import { schemaForm } from "../schema_form.js";
import { session } from "../session.js";
import { advanced } from "./model_advanced.js";
import { glimpse, MAY_NOT_RUN, NARROW } from "./model_parts.js";
import { runView } from "./model_run.js";
import { failure, isTerminal } from "./parts.js";

const MOST_RUNS = 12;
const LOOK_MS = 5000;
const NOW = { starting: "waits", processing: "runs now" };

export function playground({ model, full, state, signal, query, shared }) {
  const fields = schemaForm(model.latest_version.openapi_schema);
  const more = advanced();
  const trouble = h("p", { class: "trouble", role: "alert" });
  const button = h("button", { type: "submit", class: "main", "data-denied": !session.acts }, "Run");
  const codes = codeTabs(full, { hasOpenAi: state?.has_openai, name: "The same in code" });
  const line = h("ol", {});
  const strip = h("section", { class: "runs-strip", "aria-label": "Runs of your account", hidden: true }, h("h2", {}, "Runs of your account"), line);
  const view = runView({ full, signal, onInput: take, onEnd: () => list().catch(() => {}) });
  let runs = []; // of mine, newest first
  let isTouched = false;
  let isSending = false;
  let picked = 0; // a number for each choice of a run: the last one counts

  const form = h("form", { class: "card ask", novalidate: true, "aria-label": "Input", on: { submit, keydown: runByKey, input: touch, change: touch } },
    fields.node, more.node, trouble,
    session.acts ? null : h("p", { class: "hint" }, MAY_NOT_RUN),
    h("div", { class: "go" }, button, h("span", { class: "hint keys" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")), h("button", { type: "button", class: "quiet", on: { click: reset } }, "Reset")));

  function touch() {
    isTouched = true;
    showCode();
  }

  /** Let the code follow the form. What cannot be read yet stays out until it can. */
  function showCode() {
    try { shared.input = fields.now(); } catch { return; }
    codes.follow(shared.input);
    for (const hear of shared.onInput) hear(shared.input);
  }

  function runByKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  }

  function reset() {
    forgive();
    more.reset();
    take({});
  }

  function forgive() {
    say(trouble, "");
    fields.blame([]);
    more.blame("");
  }

  /** Fill the form with the input of a run. */
  function take(input) {
    fields.take(input ?? {});
    isTouched = false;
    showCode();
  }

  async function submit(event) {
    event.preventDefault();
    if (isSending) return;
    forgive();
    if (!session.acts) { say(trouble, MAY_NOT_RUN); return; }
    isSending = true;
    button.setAttribute("aria-disabled", "true"); // it keeps the focus
    try {
      const made = await ask(`/v1/models/${full}/predictions`, { method: "POST", body: { input: await fields.values(), ...more.body() }, headers: more.headers() });
      if (signal.aborted) return; // it runs, and another view is shown
      picked += 1;
      isTouched = false;
      view.show(made, { isNew: true });
      runs = [made, ...runs.filter(({ id }) => id !== made.id)];
      draw();
      if (matchMedia(NARROW).matches) view.node.scrollIntoView();
    } catch (error) {
      blame(error);
    } finally {
      isSending = false;
      button.removeAttribute("aria-disabled");
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
    if (!signal.aborted) draw();
  }

  const drawRuns = keyed(line, ({ id }) => id, ({ id }) => {
    const thumb = h("span", { class: "thumb" });
    const below = h("span", { class: "below" });
    const link = h("a", { href: `#/models/${full}?run=${id}`, on: { click: (event) => { if (event.ctrlKey || event.metaKey || event.shiftKey) return; event.preventDefault(); pick(id); } } }, thumb, below);
    return {
      node: h("li", {}, link),
      update({ status, created_at: at, input, output }) {
        link.title = `${status}, ${ago(at)}`;
        if (view.shown?.id === id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
        refill(thumb, glimpse(status === "succeeded" ? output : input));
        refill(below, status === "succeeded" ? null : h("span", { class: `dot ${status}` }), status === "succeeded" ? ago(at) : NOW[status] ?? status);
      },
    };
  });

  function draw() {
    strip.hidden = !runs.length;
    drawRuns(runs.slice(0, MOST_RUNS));
  }

  /** Show one of my runs. Its input comes into the form unless that was changed. */
  async function pick(id) {
    const mine = (picked += 1);
    say(trouble, "");
    try {
      const found = await ask(`/v1/predictions/${id}`, { signal });
      if (signal.aborted || mine !== picked) return;
      view.show(found);
      if (!isTouched && !found.data_removed) take(found.input);
      draw();
    } catch (error) {
      if (!signal.aborted && mine === picked) say(trouble, error.message);
    }
  }

  /** The example that the address names, or the one that stands for the model. */
  async function exampleOf() {
    if (!query.has("example")) return model.default_example;
    const { results } = await ask(`/v1/models/${full}/examples`, { signal });
    return results.find((one) => one.id === query.get("example")) ?? model.default_example;
  }

  /** What to begin with: the run of the address, my last good one, or an example. */
  async function begin() {
    const wanted = query.get("run") ?? query.get("again");
    try {
      const [, chosen, example] = await Promise.all([list().catch(() => {}), wanted ? ask(`/v1/predictions/${encodeURIComponent(wanted)}`, { signal }) : null, exampleOf()]);
      if (signal.aborted) return;
      const good = runs.find((one) => one.status === "succeeded" && one.output !== null && !one.data_removed);
      const shown = chosen ?? (query.has("example") ? null : good);
      if (shown) view.show(shown, { isQuiet: !query.get("run") });
      else if (example) view.example(example);
      else view.empty();
      const input = shown?.data_removed ? null : (shown ?? example)?.input;
      if (input) take(input);
      draw();
    } catch (error) {
      if (signal.aborted) return;
      fill(view.node, failure(error));
    }
    showCode();
    fill(node, h("div", { class: "play" }, form, view.node), strip, codes.node); // not before: a form that is being filled in stays as it is
  }

  const node = h("div", { class: "playground", "aria-busy": "true" });
  begin().then(() => node.removeAttribute("aria-busy"));
  repeat(async () => { if (runs.some(({ status }) => !isTerminal(status))) await list().catch(() => {}); }, { every: LOOK_MS, signal });
  return node;
}
