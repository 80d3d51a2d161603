// Try a model: a form made from its schema, and its output as it comes.

import { ask, page, rights } from "../api.js";
import { announce, fill, h, say } from "../dom.js";
import { ago, count } from "../format.js";
import { followed } from "../follow_run.js";
import { schemaForm } from "../schema_form.js";
import { action, chip, endless, failure, isTerminal, predictionLink, waits } from "./parts.js";

const LANES = ["normal", "high", "low"];

/** The models there are. */
export function models({ signal }) {
  const list = h("ul", { class: "models" });
  const row = (model) => h("li", { class: "card" },
    h("a", { href: `#/run/${model.owner}/${model.name}` }, `${model.owner}/${model.name}`),
    h("p", {}, model.description || h("span", { class: "hint" }, "No description.")),
    h("p", { class: "hint" }, model.latest_version ? `${count(model.run_count ?? 0)} runs · version ${model.latest_version.id.slice(0, 12)}, ${ago(model.latest_version.created_at)}` : "No version was registered yet."));
  return {
    title: "Try a model",
    node: h("section", {}, h("h1", {}, "Try a model"), list, endless(list, (next) => page("/v1/models", next), row, { signal, empty: "No director has registered a model yet." })),
  };
}

/** One model. */
export function run({ params: [owner, name], signal, query }) {
  const place = h("div", {});
  const result = h("section", { class: "result", "aria-label": "Result" });

  async function load() {
    try {
      const model = await ask(`/v1/models/${owner}/${name}`, { signal });
      if (!model.latest_version) return fill(place, h("p", { class: "hint" }, "No version of it was registered yet."));
      const former = query.get("again") ? await ask(`/v1/predictions/${encodeURIComponent(query.get("again"))}`, { signal }) : null;
      fill(place, model.description ? h("p", {}, model.description) : null, form(model, former));
    } catch (error) {
      if (!signal.aborted) fill(place, failure(error));
    }
  }

  function form(model, former) {
    const fields = schemaForm(model.latest_version.openapi_schema);
    if (former?.input) fields.take(former.input);
    const lane = h("select", { id: "lane" }, LANES.map((one) => h("option", { value: one }, one)));
    const trouble = h("p", { class: "trouble", role: "alert" });
    const button = h("button", { type: "submit", class: "main", "data-denied": !rights.acts }, "Run");

    async function submit(event) {
      event.preventDefault();
      say(trouble, "");
      fields.blame([]);
      button.disabled = true;
      try {
        const made = await ask(`/v1/models/${owner}/${name}/predictions`, {
          method: "POST", body: { input: await fields.values() },
          headers: lane.value === "normal" ? {} : { "X-Priority": lane.value },
        });
        show(made);
      } catch (error) {
        say(trouble, error.message);
        fields.blame(error.fields ?? []);
      } finally {
        button.disabled = false;
      }
    }

    return h("form", { class: "card", on: { submit } }, fields.node,
      h("div", { class: "field choice" }, h("label", { for: "lane" }, "Lane"), lane), trouble, button);
  }

  let following = null;
  function show(made) {
    following?.abort();
    following = new AbortController();
    signal.addEventListener("abort", () => following.abort(), { once: true });
    const state = h("span", {});
    const turn = h("p", { class: "hint" });
    const cancel = action("Cancel", async () => { await ask(`/v1/predictions/${made.id}/cancel`, { method: "POST" }); return "It is asked to stop."; }, { kind: "danger" });
    const onChange = (seen) => {
      if (state.textContent !== seen.status) { fill(state, chip(seen.status)); announce(`The prediction is ${seen.status}.`); }
      cancel.hidden = isTerminal(seen.status);
      say(turn, seen.queue ? waits(seen.queue) : "");
    };
    const { error, output, logs } = followed(made, { path: `/v1/predictions/${made.id}`, signal: following.signal, onChange });
    fill(result, h("div", { class: "summary" }, h("p", {}, state, " ", predictionLink(made.id)), turn, h("div", { class: "actions" }, cancel)), error, h("h2", {}, "Output"), output, logs);
  }

  load();
  return { title: `Try ${owner}/${name}`, node: h("section", {}, h("h1", {}, `${owner}/${name}`), h("div", { class: "two" }, place, result)) };
}
