// The request of a run, which the playground and the conversation send: its fields, its code, and what was refused.

import { ask } from "../api.js";
import { codeTabs } from "../code_tabs.js";
import { h, say } from "../dom.js";
import { schemaForm } from "../schema_form.js";
import { advanced } from "./model_advanced.js";

const FAULTY = '[aria-invalid="true"], fieldset:has(> .trouble:not(:empty)) :is(input, textarea, button)';

/**
 * The parts of a request: the nodes of `fields`, `more`, `trouble` and `codes`. `without`: names that the view asks for.
 * `follow(makeInput)` lets the code follow; `send(makeInput)` creates the prediction; `blame(error, node)` shows at its
 * place what was refused, and `forgive()` takes that away.
 */
export function asker({ model, full, state, shared, without }) {
  const fields = schemaForm(model.latest_version.openapi_schema, { without });
  const more = advanced();
  const trouble = h("p", { class: "trouble", role: "alert" });
  const codes = codeTabs(full, { hasOpenAi: state?.has_openai, name: "The same in code" });

  return {
    fields,
    more,
    trouble,
    codes,
    /** What cannot be read yet stays out of the code until it can. */
    follow(makeInput) {
      try { shared.input = makeInput(); } catch { return; }
      codes.follow(shared.input);
      for (const hear of shared.onInput) hear(shared.input);
    },
    forgive() {
      say(trouble, "");
      fields.blame([]);
      more.blame("");
    },
    send: async (makeInput) => ask(`/v1/models/${full}/predictions`, { method: "POST", body: { input: await makeInput(), ...more.body() }, headers: more.headers() }),
    /** The first fault within `node` gets the focus. A fault without a field is shown as text. */
    blame(error, node) {
      const given = error.fields ?? [];
      const placed = given.length ? fields.blame(given) : 0;
      const isMore = more.blame(error.message);
      say(trouble, placed && placed === given.length ? `${placed === 1 ? "One field needs" : `${placed} fields need`} another look.` : isMore ? "See Advanced." : error.message);
      node.querySelector(FAULTY)?.focus();
    },
  };
}
