// Code that follows a form: the same request in several languages, one at a time.

import { serviceAddress } from "./api.js";
import { h, say } from "./dom.js";
import { languages } from "./snippets.js";
import { copier } from "./views/parts.js";

const KEPT = "director.language";

/** `node`, and `follow(input)` whenever the form has changed. */
export function codeTabs(model, { hasOpenAi = false, name = "Code" } = {}) {
  const base = serviceAddress();
  const known = languages({ hasOpenAi });
  const code = h("pre", { class: "code", tabindex: "0", role: "group", "aria-label": "Code" }, "");
  let chosen = known.find(([language]) => language === localStorage.getItem(KEPT)) ?? known[0];
  let input = {};
  const show = () => say(code, chosen[1]({ model, input }, base).trimEnd());
  const picks = known.map((one) => h("button", { type: "button", on: { click: () => choose(one) } }, one[0]));

  function choose(one) {
    chosen = one;
    localStorage.setItem(KEPT, one[0]);
    for (const pick of picks) pick.setAttribute("aria-pressed", String(pick.textContent === one[0]));
    show();
  }

  choose(chosen);
  return {
    node: h("section", { class: "codes", "aria-label": name },
      h("div", { class: "head" }, h("h2", {}, name), h("div", { class: "picks", role: "group", "aria-label": "Language" }, picks), copier("Copy code", () => code.textContent)), code),
    follow(now) { input = now; show(); },
  };
}
