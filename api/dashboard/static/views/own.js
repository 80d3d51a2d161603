// The home of a person who sees one account: what it used, what it runs, and what there is to try.

import { ask, askSites, page, repeat, serviceAddress } from "../api.js";
import { fill, h, refill, table } from "../dom.js";
import { between, count, moment, now, seconds } from "../format.js";
import { LIMITS } from "./accounts.js";
import { pictured, thumb } from "./model_parts.js";
import { cardOf, statesOf } from "./models.js";
import { action, chip, copier, facts, failure, lack, loading, predictionLink, preview, untilAnswered, when } from "./parts.js";
import { figures } from "./usage.js";

const LOOK_MS = 5000;
const FEW = 8; // runs
const MOST_TOKENS = 50;
const MOST_MODELS = 6;

export function own({ session, signal }) {
  const { username } = session.who;
  const runs = h("div", {}, loading());
  const used = h("div", {}, loading());
  const models = h("div", {}, loading());
  const limits = h("div", {}, loading());
  const tokens = h("div", {}, loading());

  async function look() {
    try {
      const { results, away } = await page(`/v1/predictions?limit=${FEW}`, null, { signal });
      if (!signal.aborted) refill(runs, lack(away), results.length ? latest(results) : away ? null : none());
    } catch (error) {
      if (!signal.aborted) refill(runs, failure(error, true));
    }
  }

  const load = (place, make) => untilAnswered(async () => {
    const made = await make();
    if (!signal.aborted) fill(place, made);
  }, place, signal);

  repeat(look, { every: LOOK_MS, signal });
  load(used, async () => usage(await askSites("/v1/usage?by=model", { signal })));
  load(models, async () => choices((await page("/v1/models", null, { signal })).results, signal));
  load(limits, async () => bounds(await ask("/v1/account/limits", { signal })));
  load(tokens, async () => tokenTable((await page("/v1/account/tokens", null, { signal })).results));
  return {
    title: "Home",
    node: h("section", {}, h("h1", {}, "Home"),
      h("p", { class: "lead" }, "The account ", h("strong", {}, username), ": what it can run, what it ran, and what it used."),
      h("div", { class: "head" }, h("h2", {}, "Models"), h("a", { href: "#/models" }, "All models")), models,
      h("div", { class: "head" }, h("h2", {}, "Recent runs"), h("a", { href: "#/predictions" }, "All predictions")), runs,
      h("div", { class: "head" }, h("h2", {}, "Usage this month"), h("a", { href: "#/usage" }, "By model and month")), used, limits,
      h("h2", {}, "Tokens"), h("p", { class: "hint" }, "Programs send one. An administrator makes tokens and sets limits."), tokens,
      h("h2", {}, "Call it from code"), h("div", { class: "cards" }, access(), webhooks(session))),
  };
}

const none = () => h("div", { class: "empty" }, h("p", {}, h("strong", {}, "Nothing ran yet.")), h("p", {}, "Choose a model, fill in its form and press Run. ", h("a", { href: "#/models" }, "Models")));

function latest(results) {
  const row = (run) => h("tr", { class: "opens" },
    h("td", {}, predictionLink(run.id)), h("td", {}, chip(run.status)), h("td", { class: "whole" }, run.model),
    h("td", { class: "brief lesser" }, preview(run.input)), h("td", { class: "pic lesser" }, thumb(run.output)), h("td", { class: "brief" }, run.error ? h("span", { class: "bad" }, preview(run.error)) : preview(run.output)),
    h("td", { class: "num" }, seconds(run.metrics?.predict_time ?? between(run.started_at, run.completed_at))), h("td", { class: "num broad" }, when(run.created_at)));
  return table("Recent runs", ["Id", "Status", "Model", h("th", { scope: "col", class: "lesser" }, "Input"), pictured(), "Output", "#Ran", "#Created"], h("tbody", {}, results.map(row)));
}

function usage({ answer: { total, results }, away }) {
  const most = results.toSorted((a, b) => b.runs - a.runs).slice(0, 3).map((one) => `${one.model} (${count(one.runs)})`);
  return [
    lack(away),
    figures(total),
    most.length || !away ? h("p", { class: "hint" }, most.length ? `Most by ${most.join(", ")}. Days are those of UTC.` : `Nothing ran since ${new Date(now()).toISOString().slice(0, 8)}01.`) : null,
  ];
}

function choices(all, signal) {
  if (!all.length) return h("p", { class: "hint" }, "There is no model for this account yet. Ask the operator of this service.");
  const cards = new Map(all.slice(0, MOST_MODELS).map((model) => [`${model.owner}/${model.name}`, cardOf(model)]));
  repeat(async () => {
    for (const state of await statesOf([...cards.keys()], signal).catch(() => [])) cards.get(state.model).update(state);
  }, { every: LOOK_MS, signal });
  return h("ul", { class: "models" }, [...cards.values()].map(({ node }) => node));
}

/** The limits that are set, and how much of them is used where that is counted. */
function bounds({ limits, usage, suspension }) {
  const set = LIMITS.filter(([name]) => limits[name] !== null && name !== "weight");
  return [
    suspension ? h("p", { class: "callout" }, `The account is suspended since ${moment(suspension.since)}: nothing of it starts.`) : null,
    set.length ? facts(set.map(([name, words, shown, of]) => [words, `${of ? `${shown(of(usage))} of ` : "at most "}${shown(limits[name])}`])) : h("p", { class: "hint" }, "The account has no limits."),
  ];
}

function tokenTable(all) {
  if (!all.length) return h("p", { class: "hint" }, "The account has no token.");
  const row = (token) => h("tr", {}, h("th", { scope: "row" }, token.label || h("span", { class: "mono" }, token.id)), h("td", { class: "mono" }, `…${token.last4}`), h("td", {}, token.scopes.join(", ")), h("td", {}, token.lanes.join(", ")),
    h("td", { class: "num broad" }, when(token.created_at)), h("td", {}, token.expires_at ? moment(token.expires_at) : "never"));
  return table("Tokens", ["Label", "Ends in", "Scopes", "Lanes", "#Created", "Expires"], h("tbody", {}, all.slice(0, MOST_TOKENS).map(row)));
}

function access() {
  const base = serviceAddress();
  return h("section", { class: "card" }, h("h2", {}, "Address"), h("p", {}, h("code", { class: "broken" }, base), " ", copier("Copy address", () => base)),
    h("p", { class: "hint" }, "Replicate's clients take it as their base URL. ", h("a", { href: "docs", target: "_blank", rel: "noopener" }, "Docs")));
}

/** Who may run may also read the secret: it is shown when it is asked for. */
function webhooks({ acts }) {
  const place = h("p", {});
  const show = action("Show the secret", async () => {
    const { key } = await ask("/v1/webhooks/default/secret");
    fill(place, h("code", { class: "broken" }, key), " ", copier("Copy secret", () => key));
  });
  return h("section", { class: "card" }, h("h2", {}, "Webhooks"),
    h("p", {}, "Each webhook is signed. Its receiver checks the signature with the secret of the account."),
    h("p", { class: "hint" }, "A prediction's own view lists every attempt to deliver its webhook, and can send it again."),
    acts ? h("div", { class: "actions" }, show) : null, place);
}
