// Accounts: their limits and what they use, which are suspended, and their tokens.

import { ask, page } from "../api.js";
import { fill, h, refill, say, table } from "../dom.js";
import { bytes, count, moment, seconds } from "../format.js";
import { session } from "../session.js";
import { action, copier, endless, facts, loading, notice, untilAnswered, when } from "./parts.js";

const compute = (value) => (value ? seconds(value) : "0 s");

// limit, what it is called, how a value reads, and which figure of the usage counts against it
export const LIMITS = [
  ["rate", "Creates a second", count], ["burst", "Creates at once", count], ["read_rate", "Other requests a second", count], ["read_burst", "Other requests at once", count],
  ["max_queued", "Waiting in one queue", count], ["max_running", "Running in one queue", count],
  ["compute_s_per_day", "Compute a day", compute, (usage) => usage.spent_s + usage.reserved_s], ["compute_s_total", "Compute in total", compute, (usage) => usage.total_spent_s + usage.total_reserved_s],
  ["compute_s_per_month", "Compute a month", compute], ["tokens_per_minute", "Tokens a minute", count], ["tokens_per_day", "Tokens a day", count], ["tokens_per_month", "Tokens a month", count],
  ["max_files_bytes", "Files", bytes, (usage) => usage.stored_bytes], ["max_data_bytes", "Data in Redis", bytes, (usage) => usage.data_bytes],
  ["data_ttl_s", "Data is kept for", seconds], ["weight", "Weight", String],
];
const SCOPES = ["read", "run", "view", "operate", "admin"];

const used = (account, name) => {
  const [, , shown, of] = LIMITS.find(([one]) => one === name);
  const limit = account.limits[name];
  const value = of(account.usage);
  return `${shown(value)}${limit === null ? "" : ` of ${shown(limit)}`}`;
};
const limitOf = (text) => (text === "" ? null : text === "default" ? text : Number(text));
const state = (account) => (account.suspension ? h("span", { class: "chip bad" }, `suspended (${account.suspension.policy})`) : h("span", { class: "chip good" }, "active"));
const refusals = (account) => Object.values(account.usage.bursts).reduce((sum, one) => sum + one, 0);

export function accounts({ signal }) {
  const body = h("tbody", {});
  const row = (one) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#/accounts/${one.name}` }, one.name)), h("td", {}, state(one)), h("td", {}, one.type),
    h("td", { class: "num" }, one.limits.max_running ?? "–"), h("td", { class: "num" }, one.limits.max_queued ?? "–"), h("td", { class: "num" }, one.limits.weight),
    h("td", { class: "num broad" }, used(one, "compute_s_per_day")), h("td", { class: "num broad" }, used(one, "max_files_bytes")), h("td", { class: "num broad" }, used(one, "max_data_bytes")), h("td", { class: "num" }, count(refusals(one))));
  const name = h("input", { id: "new-account", required: true, pattern: "[a-z0-9][a-z0-9._\\-]*", maxlength: "64" });
  async function create(event) {
    event.preventDefault();
    try {
      await ask("/v1/admin/accounts", { method: "POST", body: { name: name.value.trim() } });
      location.hash = `#/accounts/${name.value.trim()}`;
    } catch (error) { notice(error.message, "trouble"); }
  }
  return {
    title: "Accounts",
    node: h("section", {}, h("h1", {}, "Accounts"),
      h("form", { class: "filters", "data-denied": !session.administers, on: { submit: create } }, h("div", {}, h("label", { for: "new-account" }, "New account"), name), h("button", { type: "submit" }, "Create")),
      table("Accounts", ["Account", "State", "Type", "#Running, at most", "#Waiting, at most", "#Weight", "#Compute today", "#Files", "#Data in Redis", "#Refused bursts"], body),
      endless(body, (next) => page("/v1/admin/accounts", next, { signal }), row, { signal, empty: "None yet." })),
  };
}

export function account({ params: [name], signal, refresh }) {
  const path = `/v1/admin/accounts/${name}`;
  const head = h("div", {});
  const body = h("div", {}, loading());
  const list = h("div", {});
  const secret = h("div", {});

  function limits(seen) {
    const fields = LIMITS.map(([limit, words, shown, of]) => {
      const field = h("input", { id: `limit-${limit}`, inputmode: "decimal", placeholder: limit === "data_ttl_s" ? "as its models say" : "no limit", value: seen.limits[limit] ?? "" });
      return { limit, words, field, node: h("tr", {}, h("th", { scope: "row" }, h("label", { for: field.id }, words)), h("td", {}, of ? shown(of(seen.usage)) : "–"), h("td", {}, field, " ", h("span", { class: "hint" }, seen.limits[limit] === null || shown === count || shown === String ? "" : shown(seen.limits[limit])))) };
    });
    const trouble = h("p", { class: "trouble", role: "alert" });
    async function save(event) {
      event.preventDefault();
      say(trouble, "");
      const changed = fields.filter(({ limit, field }) => field.value.trim() !== String(seen.limits[limit] ?? ""));
      const wrong = changed.find(({ field }) => field.value.trim() !== "default" && Number.isNaN(Number(field.value)));
      if (wrong) return say(trouble, `${wrong.words}: "${wrong.field.value}" is not a number.`);
      if (!changed.length) return say(trouble, "Nothing was changed.");
      try {
        await ask(path, { method: "PATCH", body: { limits: Object.fromEntries(changed.map(({ limit, field }) => [limit, limitOf(field.value.trim())])) } });
        notice("The limits are saved.");
        refresh();
      } catch (error) { say(trouble, [error.message, ...(error.fields ?? []).map((one) => `${one.field}: ${one.description}`)].join(" ")); }
    }
    return h("form", { on: { submit: save } },
      h("p", { class: "hint" }, "An empty field is no limit; ", h("code", {}, "default"), " takes the service's setting. Seconds and bytes are plain numbers."),
      table("Limits", ["Limit", "Used", "At most"], h("tbody", {}, fields.map((one) => one.node))), trouble,
      h("div", { class: "actions" }, h("button", { type: "submit", class: "main", "data-denied": !session.administers }, "Save limits")));
  }

  async function tokens() {
    const { results } = await ask(`${path}/tokens`, { signal });
    const row = (one) => h("tr", {},
      h("th", { scope: "row", class: "mono" }, one.id), h("td", {}, one.label || "–"), h("td", {}, one.scopes.join(", ")), h("td", {}, one.lanes.join(", ")),
      h("td", { class: "num broad" }, when(one.created_at)), h("td", {}, one.expires_at ? moment(one.expires_at) : "never"),
      h("td", {}, action("Revoke", async () => { await ask(`${path}/tokens/${one.id}`, { method: "DELETE" }); await tokens(); return "It is revoked."; }, { kind: "danger", needs: "administers", confirm: `Revoke the token ${one.label || one.id}?`, of: one.label || one.id })));
    fill(list, table("Tokens", ["Id", "Label", "Scopes", "Lanes", "#Created", "Expires", h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions"))], h("tbody", {}, results.map(row))),
      results.length ? null : h("p", { class: "hint" }, "It has no token, so it can do nothing."));
  }

  function create() {
    const label = h("input", { id: "token-label", maxlength: "64" });
    const ticks = SCOPES.map((scope) => h("input", { type: "checkbox", id: `scope-${scope}`, value: scope, checked: scope === "read" || scope === "run" }));
    async function submit(event) {
      event.preventDefault();
      try {
        const made = await ask(`${path}/tokens`, { method: "POST", body: { label: label.value.trim(), scopes: ticks.filter((tick) => tick.checked).map((tick) => tick.value) } });
        fill(secret, h("p", { class: "callout", role: "status" }, "The new token, shown this once: ", h("code", {}, made.token), " ", copier("Copy token", () => made.token)));
        await tokens();
      } catch (error) { notice(error.message, "trouble"); }
    }
    return h("form", { class: "filters", "data-denied": !session.administers, on: { submit } },
      h("div", {}, h("label", { for: "token-label" }, "Label of a new token"), label),
      h("fieldset", {}, h("legend", {}, "Scopes"), ticks.map((tick) => h("label", { class: "inline" }, tick, " ", tick.value))),
      h("button", { type: "submit" }, "Create token"));
  }

  const suspend = (policy, message) => async () => { await ask(`${path}/suspend`, { method: "POST", body: { policy } }); refresh(); return message; };
  const resume = async () => { await ask(`${path}/resume`, { method: "POST" }); refresh(); return "It may run again."; };

  async function look() {
    const seen = await ask(path, { signal });
    if (signal.aborted) return;
    refill(head, h("p", {}, state(seen), ` ${seen.type}`, seen.suspension ? ` · since ${moment(seen.suspension.since)}, for ${seen.suspension.reason}` : "", " · ", h("a", { href: `#/predictions?account=${name}` }, "its predictions")),
      facts([["Refused bursts", Object.entries(seen.usage.bursts).map(([limit, number]) => `${limit} ${number}`).join(", ") || "none"]]));
    fill(body,
      h("div", { class: "actions" }, seen.suspension ? action("Resume", resume, { kind: "main", needs: "administers" }) : [
        action("Suspend, keep its work", suspend("hold", "It is suspended; what runs goes on."), { needs: "administers" }),
        action("Suspend and cancel", suspend("end", "It is suspended, and its work is canceled."), { kind: "danger", needs: "administers", confirm: `Suspend ${name} and cancel all that waits and runs?` })]),
      h("h2", {}, "Limits"), limits(seen), h("h2", {}, "Tokens"), create(), secret, list);
    untilAnswered(tokens, list, signal); // by itself: the forms stay as they are filled in
  }

  untilAnswered(look, body, signal);
  return { title: name, node: h("section", {}, h("h1", {}, name), head, body) };
}
