// Code that follows a form: the same request in several languages, one at a time.

import { serviceAddress } from "./api.js";
import { h, say } from "./dom.js";
import { languages } from "./snippets.js";
import { copier, picks } from "./views/parts.js";

const KEPT = "director.language";

/** `node`, and `follow(input)` whenever the form has changed. */
export function codeTabs(model, { hasOpenAi = false, name = "Code" } = {}) {
  const base = serviceAddress();
  const known = languages({ hasOpenAi });
  const code = h("pre", { class: "code", tabindex: "0", role: "group", "aria-label": "Code" }, "");
  let chosen = Math.max(0, known.findIndex(([language]) => language === localStorage.getItem(KEPT)));
  let input = {};
  const show = () => say(code, known[chosen][1]({ model, input }, base).trimEnd());
  const tabs = picks("Language", known.map(([language]) => language), choose);

  function choose(at) {
    chosen = at;
    localStorage.setItem(KEPT, known[at][0]);
    tabs.show(at);
    show();
  }

  choose(chosen);
  return {
    node: h("section", { class: "codes", "aria-label": name },
      h("div", { class: "head" }, h("h2", {}, name), tabs.node, copier("Copy code", () => code.textContent)), code),
    follow(now) { input = now; show(); },
  };
}
