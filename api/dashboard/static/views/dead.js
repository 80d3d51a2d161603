// Dead letters: what used up its attempts and waits until an operator revives or drops it.

import { ask, page } from "../api.js";
import { fill, h, table } from "../dom.js";
import { action, endless, predictionLink, queueLink, when } from "./parts.js";

export function dead({ session, signal, query, refresh }) {
  const queue = query.get("queue") ?? "";
  const chosen = new Set();
  const ticks = new Map();
  const body = h("tbody", {});
  const more = (next) => page(`/v1/admin/dead${queue ? `?queue=${encodeURIComponent(queue)}` : ""}`, next, { signal });

  const many = (what, message) => async () => {
    const { done, refused, secret = [] } = await ask(`/v1/admin/dead/${what}`, { method: "POST", body: { ids: [...chosen] } });
    refresh();
    return `${done} ${message}${refused.length ? ` ${refused.length} could not be${secret.length ? `: the secret inputs of ${secret.length} are gone, so their callers must make them again` : ""}.` : ""}`;
  };

  function choose(id, isChosen) {
    if (isChosen) chosen.add(id);
    else chosen.delete(id);
    show();
  }

  function show() {
    bulk.hidden = !ticks.size;
    for (const button of ofSome) button.disabled = !chosen.size;
  }

  const choice = h("select", { id: "by-queue", on: { change: () => { location.hash = `#/dead${choice.value ? `?${new URLSearchParams({ queue: choice.value })}` : ""}`; } } });
  const option = (name, words) => h("option", { value: name, selected: name === queue }, words);
  let offered = "";
  const offer = (snapshot) => {
    const dying = snapshot.queues.filter((one) => one.dead || one.name === queue);
    const names = dying.map((one) => one.name).join(" ");
    if (names === offered || choice === document.activeElement) return; // nothing moves under the hand
    offered = names;
    fill(choice, option("", "all"), queue && !dying.some((one) => one.name === queue) ? option(queue, queue) : null, dying.map((one) => option(one.name, `${one.name} (${one.dead})`)));
  };
  fill(choice, option("", "all"), queue ? option(queue, queue) : null);
  const stop = session.live.hear(offer);
  signal.addEventListener("abort", stop, { once: true });

  const all = h("button", { type: "button", "data-denied": session.operates ? null : "", on: { click: () => { const isFull = chosen.size === ticks.size; for (const [id, tick] of ticks) { tick.checked = !isFull; choose(id, !isFull); } } } }, "Choose all shown");

  const ofSome = [
    action("Revive chosen", many("revive", "are queued again."), { needs: "operates" }),
    action("Drop chosen", many("drop", "are dropped."), { kind: "danger", needs: "operates", confirm: "Drop the chosen dead letters for good?" })];
  const bulk = h("div", { class: "actions bulk", hidden: true }, all, ofSome);

  function row(letter) {
    const tick = h("input", { type: "checkbox", "aria-label": `Choose ${letter.id}` });
    tick.addEventListener("change", () => choose(letter.id, tick.checked));
    ticks.set(letter.id, tick);
    show();
    const one = (what, message) => async () => {
      await ask(`/v1/admin/dead/${letter.id}/${what}`, { method: "POST" });
      line.remove();
      ticks.delete(letter.id);
      choose(letter.id, false);
      return message;
    };
    const line = h("tr", { class: "opens" },
      session.operates ? h("td", {}, tick) : null, h("td", {}, predictionLink(letter.id)), h("td", {}, queueLink(letter.queue)), h("td", {}, letter.account),
      h("td", { class: "num" }, when(letter.died_at)), h("td", { class: "num" }, letter.attempts.length), h("td", { class: "error" }, h("div", {}, h("strong", {}, letter.code), " ", letter.error)),
      h("td", {}, h("div", { class: "buttons" }, action("Revive", one("revive", "It is queued again."), { needs: "operates" }), action("Drop", one("drop", "It is dropped."), { kind: "danger", needs: "operates", confirm: `Drop ${letter.id} for good?` }))));
    return line;
  }

  return {
    title: "Dead letters",
    node: h("section", {},
      h("h1", {}, "Dead letters"),
      h("p", { class: "lead" }, "Predictions that used up their attempts. Repair the cause first, then revive them."),
      h("div", { class: "filters" }, h("div", {}, h("label", { for: "by-queue" }, "Queue"), choice), queue ? h("a", { class: "button quiet", href: "#/dead" }, "Clear") : null),
      bulk,
      table("Dead letters", [...(session.operates ? [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Chosen"))] : []), "Id", "Queue", "Account", "#Died", "#Attempts", "Error", h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions"))], body),
      endless(body, more, row, { signal, empty: "No dead letters. A prediction whose attempts are used up is listed here, until it is revived or dropped." })),
  };
}
