// Fairness, seen by tenant: who waits, who runs, and by which weight, in the queue that is looked at.

import { ask, repeat } from "../api.js";
import { fill, h, refill } from "../dom.js";
import { waiting } from "../live.js";
import { failure, queuePath } from "./parts.js";
import { tenantTable } from "./queue.js";

const LOOK_MS = 3000;

export function tenants({ params: [given], session, signal }) {
  const pick = h("select", { id: "tenants-of" });
  const body = h("div", {});
  let name = given ?? "";

  pick.addEventListener("change", () => { location.hash = `#/tenants/${pick.value.split("/").map(encodeURIComponent).join("/")}`; });
  const stop = session.live.hear((snapshot) => {
    const queues = [...snapshot.queues].sort((a, b) => waiting(b) - waiting(a) || (a.name < b.name ? -1 : 1));
    const names = queues.map((queue) => queue.name);
    if (!name && names.length) { name = names[0]; look(); }
    if (pick.options.length !== names.length) fill(pick, [...names].sort().map((one) => h("option", { value: one, selected: one === name }, one)));
  });
  signal.addEventListener("abort", stop, { once: true });

  async function look() {
    if (!name) return;
    try {
      const seen = await ask(queuePath(name), { signal });
      const act = (account, what) => async () => { await ask(`${queuePath(name)}/${what}`, { method: "POST", body: { account } }); await look(); return `${account}: done.`; };
      if (!signal.aborted) refill(body, tenantTable(seen, act) ?? h("p", { class: "hint" }, "Nobody has anything in this queue."));
    } catch (error) {
      if (!signal.aborted) fill(body, failure(error));
    }
  }

  repeat(look, { every: LOOK_MS, signal });
  return {
    title: "Tenants",
    node: h("section", {}, h("h1", {}, "Tenants"), h("div", { class: "filters" }, h("div", {}, h("label", { for: "tenants-of" }, "Queue"), pick)), body),
  };
}
