// The playground of a model: its form at the left, and at the right an output from the first second on, which is that of
// the last good run or of an example until there is a new one.

import { ask, repeat } from "../api.js";
import { fill, h, isPlainClick, keyed, refill, say } from "../dom.js";
import { day } from "../format.js";
import { session } from "../session.js";
import { asker } from "./model_ask.js";
import { glimpse, MAY_NOT_RUN, NARROW } from "./model_parts.js";
import { runView } from "./model_run.js";
import { failure, isTerminal, when, why } from "./parts.js";

const MOST_RUNS = 12;
const LOOK_MS = 5000;
const NOW = { starting: "waits", processing: "runs now" };

export function playground({ model, full, state, signal, query, shared, readdress, onEnd }) {
  const request = asker({ model, full, state, shared });
  const { fields, more, trouble, codes, forgive } = request;
  const button = h("button", { type: "submit", class: "main", "data-denied": !session.acts }, "Run");
  const line = h("ol", {});
  const strip = h("section", { class: "runs-strip", "aria-label": "Runs of your account", hidden: true }, h("h2", {}, "Runs of your account"), line);
  const view = runView({ full, properties: model.latest_version.openapi_schema?.components?.schemas?.Input?.properties, signal, readdress, onInput: take, onEnd: () => { onEnd(); list().catch(() => {}); } });
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

  const showCode = () => request.follow(fields.now);

  function runByKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  }

  function reset() {
    more.reset();
    take({});
  }

  /** Fill the form with the input of a run. Faults of the former input go. */
  function take(input) {
    forgive();
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
      const made = await request.send(fields.values);
      if (signal.aborted) return; // it runs, and another view is shown
      picked += 1;
      isTouched = false;
      view.show(made, { isNew: true });
      runs = [made, ...runs.filter(({ id }) => id !== made.id)];
      draw();
      if (matchMedia(NARROW).matches) view.node.scrollIntoView();
    } catch (error) {
      request.blame(error, form);
    } finally {
      isSending = false;
      button.removeAttribute("aria-disabled");
    }
  }

  async function list() {
    const found = await ask(`/v1/predictions?model=${encodeURIComponent(full)}&limit=${MOST_RUNS}`, { signal });
    runs = found.results;
    if (!signal.aborted) draw();
  }

  const drawRuns = keyed(line, ({ id }) => id, ({ id }) => {
    const thumb = h("span", { class: "thumb" });
    const below = h("span", { class: "below" });
    const link = h("a", { href: `#/models/${full}?run=${id}`, on: { click: (event) => { if (isPlainClick(event)) { event.preventDefault(); pick(id); } } } }, thumb, below);
    return {
      node: h("li", {}, link),
      update({ status, created_at: at, input, output }) {
        link.title = `${status}, ${day(at)}`;
        if (view.shown?.id === id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
        refill(thumb, glimpse(status === "succeeded" ? output : input));
        refill(below, status === "succeeded" ? null : h("span", { class: `dot ${status}` }), status === "succeeded" ? when(at) : NOW[status] ?? status);
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
      if (!signal.aborted && mine === picked) say(trouble, why(error));
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
