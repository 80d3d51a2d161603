// Deployments: names for versions. One shows how its calls are split between two versions, how the runs of both end, and
// gives the version that is tried everything, or takes it back. `rollout` is that part alone, for other views.

import { ask, page, repeat } from "../api.js";
import { h, refill, table } from "../dom.js";
import { ago, count, seconds } from "../format.js";
import { action, copier, endless, failure } from "./parts.js";

const LOOK_MS = 3000;
const SHORT = 12; // digits of a version
const MAKE = "director deploy ACCOUNT/NAME --model OWNER/NAME --version ID";

const short = (version) => h("code", { title: version }, version.slice(0, SHORT));
const path = (name) => `/v1/deployments/${name}`;
const link = (name) => h("a", { href: `#/deployments/${name}` }, name);
const rate = (side) => (side.failure_rate === null ? "–" : `${(100 * side.failure_rate).toFixed(1)} %`);

/** All deployments of the account. */
export function deployments({ signal }) {
  const body = h("tbody", {});
  const row = (one) => h("tr", {},
    h("th", { scope: "row" }, link(`${one.owner}/${one.name}`)),
    h("td", {}, one.current_release.model),
    h("td", {}, short(one.current_release.version)),
    h("td", { class: "num" }, count(one.current_release.number)),
    h("td", {}, one.split ? tries(one.split) : "–"));
  const foot = endless(body, (next) => page("/v1/deployments", next, { signal }), row, { signal, empty: "No deployments yet." });
  return {
    title: "Deployments",
    node: h("section", {}, h("h1", {}, "Deployments"),
      h("p", { class: "hint" }, "A deployment is a name for a version. It can try another version with a share of its calls."),
      table("Deployments", ["Deployment", "Model", "Version", "#Release", "Tries"], body), foot,
      h("p", {}, "Make or change one: ", h("code", {}, MAKE), " ", copier("Copy", () => MAKE))),
  };
}

const tries = (split) => (split.stopped_why ? h("span", { class: "chip bad", title: split.stopped_why }, "stopped") : h("span", { class: "chip warn" }, `${split.version.slice(0, SHORT)}, ${split.share} %`));

/** One deployment. */
export function deployment({ params: [name], signal }) {
  return {
    title: name,
    node: h("section", {}, h("p", { class: "crumbs" }, h("a", { href: "#/deployments" }, "Deployments")), h("h1", {}, name), rollout(name, { signal })),
  };
}

/** How the calls of a deployment are split, which follows what happens until `signal`. */
export function rollout(name, { signal }) {
  const body = h("div", { class: "rollout", tabindex: "-1" });
  const trouble = h("div", {}, h("p", { class: "hint" }, "Loading…"));

  async function look() {
    const found = await ask(`${path(name)}/split`, { signal });
    if (signal.aborted) return;
    trouble.replaceChildren();
    draw(found);
  }

  // a button names its version: one that looks the same asks the same
  const verb = (words, route, version, question, message) => action(words, async () => {
    await ask(`${path(name)}/${route}`, { method: "POST" });
    const hadFocus = body.contains(document.activeElement);
    await look();
    if (hadFocus && !body.contains(document.activeElement)) body.focus(); // its button has gone
    return message;
  }, { kind: route === "promote" ? "main" : "danger", confirm: question, of: version.slice(0, SHORT) });

  function draw(found) {
    const { current, tried, split, former } = found;
    if (!tried) {
      const brings = former ? verb("Roll back", "rollback", current.version, `Release ${former.slice(0, SHORT)} again?`, "The version before is released.") : null;
      refill(body, h("p", {}, "All calls run ", h("a", { href: `#/models/${found.model}` }, found.model), " ", short(current.version), "."),
        former ? h("p", { class: "hint" }, "The version before was ", short(former), ".") : null,
        h("div", { class: "actions" }, brings), h("p", { class: "hint" }, "Try a version with a share of the calls: ", start(name), " ", copier("Copy", () => words(name))));
      return;
    }
    refill(body,
      split.stopped_why ? h("p", { class: "trouble", role: "status" }, `Stopped by ${split.by} ${ago(split.since)}: ${split.stopped_why}.`) : null,
      h("p", { class: "progress-row" }, h("progress", { max: "100", value: String(tried.share), "aria-label": `Share of ${tried.version.slice(0, SHORT)}` })),
      h("p", {}, `${tried.share} % of the calls run `, short(tried.version), `, ${current.share} % `, short(current.version), `, since ${ago(split.since)}.`),
      table(`Versions of ${name}`, ["Version", "State", "#Share", "#Ended", "#Failed", "#Failure rate", "#Run, median"], h("tbody", {}, line(current, "released"), line(tried, split.stopped_why ? "stopped" : "tried"))),
      h("div", { class: "actions" },
        verb("Promote", "promote", tried.version, `Give all calls to ${tried.version.slice(0, SHORT)}?`, "All calls run it now."),
        verb("Roll back", "rollback", tried.version, `Give all calls to ${current.version.slice(0, SHORT)}?`, "All calls run the version before.")),
      split.stopped_why ? null : h("p", { class: "hint" }, `A keeper stops it above ${split.margin} percentage points more failures, from ${count(split.least)} ended runs on.`));
  }

  repeat(async () => {
    try { await look(); } catch (error) {
      if (signal.aborted) return undefined;
      refill(trouble, failure(error, true));
      if (error.status === 404) { body.replaceChildren(); return true; }
    }
    return undefined;
  }, { every: LOOK_MS, signal });
  return h("div", {}, trouble, body);
}

const words = (name) => `director deploy ${name} --version ID --share 10`;
const start = (name) => h("code", {}, words(name));

function line(side, what) {
  const ended = side.succeeded + side.failed;
  return h("tr", {}, h("th", { scope: "row" }, short(side.version)), h("td", {}, what),
    h("td", { class: "num" }, `${side.share} %`), h("td", { class: "num" }, count(ended)),
    h("td", { class: side.failed ? "num bad" : "num" }, count(side.failed)), h("td", { class: "num" }, rate(side)),
    h("td", { class: "num" }, side.p50_s === null ? "–" : seconds(side.p50_s)));
}
