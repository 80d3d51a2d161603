// Dead letters: what failed for good and waits for a person, who revives or drops them.

import { ask, page } from "../api.js";
import { h, table } from "../dom.js";
import { ago } from "../format.js";
import { action, endless, predictionLink, queueLink } from "./parts.js";

export function dead({ signal, query, refresh }) {
  const queue = query.get("queue") ?? "";
  const chosen = new Set();
  const body = h("tbody", {});
  const more = (next) => page(`/v1/admin/dead${queue ? `?queue=${encodeURIComponent(queue)}` : ""}`, next);

  const many = (what, said) => async () => {
    if (!chosen.size) return "None is chosen.";
    const { done, refused, secret = [] } = await ask(`/v1/admin/dead/${what}`, { method: "POST", body: { ids: [...chosen] } });
    refresh();
    return `${done} ${said}${refused.length ? ` ${refused.length} could not be${secret.length ? `: the secret inputs of ${secret.length} are gone, so their callers must make them again` : ""}.` : ""}`;
  };

  function row(letter) {
    const tick = h("input", { type: "checkbox", "aria-label": `Choose ${letter.id}` });
    tick.addEventListener("change", () => (tick.checked ? chosen.add(letter.id) : chosen.delete(letter.id)));
    const one = (what, said) => async () => { await ask(`/v1/admin/dead/${letter.id}/${what}`, { method: "POST" }); line.remove(); chosen.delete(letter.id); return said; };
    const line = h("tr", {},
      h("td", {}, tick), h("td", {}, predictionLink(letter.id)), h("td", {}, queueLink(letter.queue)), h("td", {}, letter.account),
      h("td", { class: "num" }, ago(letter.died_at)), h("td", {}, letter.code), h("td", { class: "error" }, letter.error), h("td", { class: "num" }, letter.attempts.length),
      h("td", { class: "actions" }, action("Revive", one("revive", "It is queued again.")), action("Drop", one("drop", "It is let go of."), { kind: "danger", confirm: "Let go of this dead letter for good?" })));
    return line;
  }

  return {
    title: "Dead letters",
    node: h("section", {},
      h("h1", {}, "Dead letters"),
      queue ? h("p", {}, "Of ", queueLink(queue), ". ", h("a", { href: "#/dead" }, "Show all")) : null,
      h("div", { class: "actions" }, action("Revive chosen", many("revive", "are queued again.")), action("Drop chosen", many("drop", "are let go of."), { kind: "danger", confirm: "Let go of the chosen dead letters for good?" })),
      table("Dead letters", [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Chosen")), "Id", "Queue", "Account", "#Died", "Code", "Error", "#Attempts", h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions"))], body),
      endless(body, more, row, { signal, empty: "None: nothing failed for good." })),
  };
}
