// The other tabs of a model: how to call it, its examples, its versions, and my runs of it.

import { ask, page, placed } from "../api.js";
import { codeTabs } from "../code_tabs.js";
import { fill, h, table } from "../dom.js";
import { between, day, seconds } from "../format.js";
import { jsonView } from "../json_view.js";
import { resolved } from "../schema_form.js";
import { inOrder } from "../schema_groups.js";
import { glimpse } from "./model_parts.js";
import { chip, copier, endless, predictionLink, preview, untilAnswered, when } from "./parts.js";

/** How to call it, with the input that is in the form now. */
export function apiTab({ model, full, state, shared }) {
  const codes = codeTabs(full, { hasOpenAi: state?.has_openai, name: "Call it" });
  codes.follow(shared.input);
  shared.onInput.add(codes.follow);
  const schemas = model.latest_version.openapi_schema?.components?.schemas ?? {};
  return h("section", { class: "card tab" }, codes.node,
    h("p", { class: "hint" }, "Put a token of your account into DIRECTOR_TOKEN. The code has the input that is in the form of the playground. ", h("a", { href: placed("/docs"), target: "_blank", rel: "noopener" }, "All of the API")),
    h("h2", {}, "Input"), inputs(schemas),
    h("h2", {}, "Output"), outputs(schemas),
    h("h2", {}, "Schema"), jsonView(model.latest_version.openapi_schema, { isOpen: false, name: "OpenAPI" }));
}

function inputs(schemas) {
  const input = schemas.Input && resolved(schemas.Input, schemas);
  if (!input?.properties) return h("p", { class: "hint" }, "It shows no schema, so any JSON object goes.");
  const required = new Set(input.required ?? []);
  const rows = inOrder(input.properties).map(([name, one]) => [name, resolved(one, schemas)]);
  return table("Input", ["Name", "Type", "Default", "What it is"], h("tbody", {}, rows.map(([name, one]) => h("tr", {},
    h("th", { scope: "row", class: "mono" }, h("span", {}, name, required.has(name) ? h("span", { class: "must" }, " (required)") : null)),
    h("td", {}, typeOf(one)),
    h("td", { class: "mono" }, one.default === undefined ? "–" : preview(one.default) || JSON.stringify(one.default)),
    h("td", {}, [one.description === "An enumeration." ? "" : one.description, bounds(one)].filter(Boolean).join(" · "))))));
}

function typeOf(schema) {
  if (schema.enum) return schema.enum.map(String).slice(0, 8).join(" | ");
  if (schema.options) return schema.options.map(typeOf).join(" or ");
  if (schema.type === "array") return `list of ${schema.items?.format === "uri" ? "files" : schema.items?.type ?? "values"}`;
  return schema.format === "uri" ? "file" : schema.type ?? "any";
}

const bounds = ({ minimum, maximum }) => (minimum !== undefined && maximum !== undefined ? `${minimum} to ${maximum}` : minimum !== undefined ? `at least ${minimum}` : maximum !== undefined ? `at most ${maximum}` : "");

function outputs(schemas) {
  const output = schemas.Output && resolved(schemas.Output, schemas);
  if (!output) return h("p", { class: "hint" }, "It does not say what it puts out.");
  const isText = output["x-cog-array-display"] === "concatenate";
  return h("p", {}, isText ? "A text, which comes piece by piece: read the stream, or join the list." : `${typeOf(output)}${output["x-cog-array-type"] === "iterator" ? ", one after the other" : ""}`);
}

/** What operators show of it. */
export function examplesTab({ full, signal, session }) {
  const list = h("ul", { class: "examples" });
  const row = (example) => h("li", { class: "card" },
    h("a", { class: "shown", href: `#/models/${full}?example=${example.id}`, "aria-label": `Try the example of ${day(example.created_at)}` }, h("span", { class: "thumb" }, glimpse(example.output))),
    h("p", { class: "words" }, preview(example.input)),
    h("p", { class: "hint" }, when(example.created_at), ` · ran ${seconds(example.metrics?.predict_time ?? null)}`));
  return h("section", { class: "tab" }, list, endless(list, (next) => page(`/v1/models/${full}/examples`, next, { signal }), row, {
    signal, empty: session.operates ? "None yet. A good run of the playground becomes one with “Make it an example”." : "Its operator shows no example yet.",
  }));
}

/** Its versions, the newest first, with how the last setup of each went. */
export function versionsTab({ full, model, signal }) {
  const list = h("ul", { class: "versions" });
  const row = (version) => {
    const setup = h("div", { class: "setup" });
    const details = h("details", { on: { toggle: () => details.open && !setup.childElementCount && untilAnswered(look, setup, signal) } }, h("summary", {}, "Last setup and schema"), setup);
    async function look() {
      fill(setup, h("p", { class: "hint" }, "…"));
      const { setup_run: ran, openapi_schema: schema } = await ask(`/v1/models/${full}/versions/${version.id}`, { signal });
      fill(setup, ran
        ? [h("p", {}, chip(ran.status), " ", ran.completed_at ? [when(ran.completed_at), `, in ${seconds(between(ran.started_at, ran.completed_at))}`] : ""), ran.logs ? h("pre", { class: "log", tabindex: "0", role: "group", "aria-label": "Log of the setup" }, ran.logs) : null]
        : h("p", { class: "hint" }, "No server has reported a setup yet."), jsonView(schema, { isOpen: false, name: "OpenAPI" }));
    }
    const isNewest = version.id === model.latest_version.id;
    details.open = isNewest; // which asks for its setup
    return h("li", { class: "card" },
      h("p", { class: "head" }, h("code", { class: "broken" }, version.id.slice(0, 12)), isNewest ? h("span", { class: "chip good" }, "newest") : null, h("span", { class: "hint" }, when(version.created_at), ` · ${version.cog_version}`), copier("Copy id", () => version.id)),
      details);
  };
  return h("section", { class: "tab" }, list, endless(list, (next) => page(`/v1/models/${full}/versions`, next, { signal }), row, { signal, empty: "No version is registered." }));
}

/** My runs of it. */
export function runsTab({ full, session, signal }) {
  const body = h("tbody", {});
  const row = (run) => h("tr", {},
    h("td", {}, h("a", { class: "thumb small", href: `#/models/${full}?run=${run.id}`, title: `Show ${run.id}` }, run.status === "succeeded" ? glimpse(run.output) : "▷")),
    h("td", {}, predictionLink(run.id)), h("td", {}, chip(run.status)), h("td", { class: "error" }, preview(run.error || run.input)),
    h("td", { class: "num broad" }, when(run.created_at)), h("td", { class: "num" }, seconds(run.metrics?.predict_time ?? between(run.started_at, run.completed_at))));
  return h("section", { class: "tab" },
    h("p", { class: "hint" }, "Runs of your account. ", h("a", { href: `#/predictions?model=${encodeURIComponent(full)}` }, session.seesAll ? "Those of all accounts, with filters" : "With filters")),
    table("Runs of your account", [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Output")), "Id", "Status", "Input or error", "#Created", "#Ran"], body),
    endless(body, (next) => page(`/v1/predictions?model=${encodeURIComponent(full)}`, next, { signal }), row, { signal, empty: "You have not run it yet." }));
}
