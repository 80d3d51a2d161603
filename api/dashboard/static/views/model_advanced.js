// How a run is to be made, for those who want to say: its lane, by when it has to end, who is called then.

import { h, reveal, say } from "../dom.js";

const LANES = ["normal", "high", "low", "idle"];
const LEAD = { "X-Priority": "lane", "Cancel-After": "end", webhook: "webhook", "X-Start-After": "start" };

/** `node`, `headers()` and `body()` of the request, `reset()`, and `blame(text)`, which says whether the words are about one of them. */
export function advanced() {
  const field = (id, label, element, hint) => {
    const error = h("span", { class: "trouble", role: "alert" });
    element.id = `how-${id}`;
    element.setAttribute("aria-describedby", `how-${id}-hint`);
    return { element, error, node: h("div", { class: "field" }, h("label", { for: `how-${id}` }, label), element, h("span", { class: "hint", id: `how-${id}-hint` }, hint), error) };
  };
  const fields = {
    lane: field("lane", "Lane", h("select", {}, LANES.map((one) => h("option", { value: one }, one))), "High goes before normal, low after it; idle runs only while nothing else waits."),
    end: field("end", "Has to end within", h("input", { placeholder: "90s, 5m or 1h30m", spellcheck: "false" }), "If it has not ended by then, it is canceled."),
    start: field("start", "Not before", h("input", { placeholder: "8h, or a time", spellcheck: "false" }), "It waits until then."),
    webhook: field("webhook", "Webhook", h("input", { type: "url", placeholder: "https://…" }), "Gets the prediction when it has ended."),
  };
  const text = (name) => fields[name].element.value.trim();
  const node = h("details", { class: "advanced" }, h("summary", {}, "Advanced"), Object.values(fields).map((one) => one.node));
  return {
    node,
    headers: () => ({
      ...(text("lane") === "normal" ? {} : { "X-Priority": text("lane") }),
      ...(text("end") ? { "Cancel-After": text("end") } : {}),
      ...(text("start") ? { "X-Start-After": text("start") } : {}),
    }),
    body: () => (text("webhook") ? { webhook: text("webhook"), webhook_events_filter: ["completed"] } : {}),
    reset() { for (const { element } of Object.values(fields)) element.value = element.tagName === "SELECT" ? LANES[0] : ""; },
    blame(words) {
      for (const one of Object.values(fields)) say(one.error, "");
      const name = Object.keys(LEAD).find((lead) => words.includes(lead));
      if (!name) return false;
      say(fields[LEAD[name]].error, words);
      reveal(node);
      return true;
    },
  };
}
