// Try a model: a form made from its schema, and its output as it comes.

import { ask, page } from "../api.js";
import { announce, fill, h, say } from "../dom.js";
import { followed } from "../follow_run.js";
import { schemaForm } from "../schema_form.js";
import { action, chip, endless, failure, isTerminal, predictionLink } from "./parts.js";

const LANES = ["normal", "high", "low"];

/** The models there are. */
export function models({ signal }) {
  const list = h("ul", { class: "models" });
  const row = (model) => h("li", { class: "card" },
    h("a", { href: `#/run/${model.owner}/${model.name}` }, `${model.owner}/${model.name}`),
    h("p", { class: "hint" }, model.description ?? (model.latest_version ? "" : "No version was registered yet.")));
  return {
    title: "Try a model",
    node: h("section", {}, h("h1", {}, "Try a model"), list, endless(list, (next) => page("/v1/models", next), row, { signal, empty: "No director has registered a model yet." })),
  };
}

/** One model. */
export function run({ params: [owner, name], signal }) {
  const place = h("div", {});
  const result = h("section", { class: "result", "aria-label": "Result" });

  async function load() {
    try {
      const model = await ask(`/v1/models/${owner}/${name}`, { signal });
      if (!model.latest_version) return fill(place, h("p", { class: "hint" }, "No version of it was registered yet."));
      fill(place, h("p", { class: "hint" }, model.description), form(model));
    } catch (error) {
      if (!signal.aborted) fill(place, failure(error));
    }
  }

  function form(model) {
    const fields = schemaForm(model.latest_version.openapi_schema);
    const lane = h("select", { id: "lane" }, LANES.map((one) => h("option", { value: one }, one)));
    const trouble = h("p", { class: "trouble", role: "alert" });
    const button = h("button", { type: "submit", class: "main" }, "Run");

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
    const cancel = action("Cancel", async () => { await ask(`/v1/predictions/${made.id}/cancel`, { method: "POST" }); return "It is asked to stop."; }, { kind: "danger" });
    const onChange = (seen) => {
      if (state.textContent !== seen.status) { fill(state, chip(seen.status)); announce(`The prediction is ${seen.status}.`); }
      cancel.hidden = isTerminal(seen.status);
    };
    fill(result, h("div", { class: "summary" }, h("p", {}, state, " ", predictionLink(made.id)), h("div", { class: "actions" }, cancel)),
      followed(made, { path: `/v1/predictions/${made.id}`, signal: following.signal, onChange }));
  }

  load();
  return { title: `Try ${owner}/${name}`, node: h("section", {}, h("h1", {}, `${owner}/${name}`), h("div", { class: "two" }, place, result)) };
}
