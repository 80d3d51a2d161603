// Dead letters: what used up its attempts and waits until an operator revives or drops it.

import { ask, page } from "../api.js";
import { h, table } from "../dom.js";
import { ago } from "../format.js";
import { action, endless, predictionLink, queueLink } from "./parts.js";

export function dead({ signal, query, refresh }) {
  const queue = query.get("queue") ?? "";
  const chosen = new Set();
  const ticks = new Map();
  const body = h("tbody", {});
  const more = (next) => page(`/v1/admin/dead${queue ? `?queue=${encodeURIComponent(queue)}` : ""}`, next);

  const many = (what, said) => async () => {
    if (!chosen.size) return "None is chosen.";
    const { done, refused, secret = [] } = await ask(`/v1/admin/dead/${what}`, { method: "POST", body: { ids: [...chosen] } });
    refresh();
    return `${done} ${said}${refused.length ? ` ${refused.length} could not be${secret.length ? `: the secret inputs of ${secret.length} are gone, so their callers must make them again` : ""}.` : ""}`;
  };

  function choose(id, isChosen) {
    if (isChosen) chosen.add(id);
    else chosen.delete(id);
  }

  const all = h("button", { type: "button", on: { click: () => { const isFull = chosen.size === ticks.size; for (const [id, tick] of ticks) { tick.checked = !isFull; choose(id, !isFull); } } } }, "Choose all shown");

  function row(letter) {
    const tick = h("input", { type: "checkbox", "aria-label": `Choose ${letter.id}` });
    tick.addEventListener("change", () => choose(letter.id, tick.checked));
    ticks.set(letter.id, tick);
    const one = (what, said) => async () => {
      await ask(`/v1/admin/dead/${letter.id}/${what}`, { method: "POST" });
      line.remove();
      ticks.delete(letter.id);
      chosen.delete(letter.id);
      return said;
    };
    const line = h("tr", {},
      h("td", {}, tick), h("td", {}, predictionLink(letter.id)), h("td", {}, queueLink(letter.queue)), h("td", {}, letter.account),
      h("td", { class: "num" }, ago(letter.died_at)), h("td", { class: "num" }, letter.attempts.length), h("td", { class: "error" }, h("div", {}, h("strong", {}, letter.code), " ", letter.error)),
      h("td", {}, h("div", { class: "buttons" }, action("Revive", one("revive", "It is queued again.")), action("Drop", one("drop", "It is dropped."), { kind: "danger", confirm: `Drop ${letter.id} for good?` }))));
    return line;
  }

  return {
    title: "Dead letters",
    node: h("section", {},
      h("h1", {}, "Dead letters"),
      h("p", { class: "hint" }, "Predictions that used up their attempts. Repair the cause first, then revive them."),
      queue ? h("p", {}, "Of ", queueLink(queue), ". ", h("a", { href: "#/dead" }, "Show all")) : null,
      h("div", { class: "actions" }, all, action("Revive chosen", many("revive", "are queued again.")), action("Drop chosen", many("drop", "are dropped."), { kind: "danger", confirm: "Drop the chosen dead letters for good?" })),
      table("Dead letters", [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Chosen")), "Id", "Queue", "Account", "#Died", "#Attempts", "Error", h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions"))], body),
      endless(body, more, row, { signal, empty: "No dead letters." })),
  };
}
