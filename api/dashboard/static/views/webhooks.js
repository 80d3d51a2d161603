// Webhooks that are owed: to which receivers, since when, and another attempt now.

import { ask, repeat } from "../api.js";
import { h, refill, table } from "../dom.js";
import { ago, count, due } from "../format.js";
import { session } from "../session.js";
import { action, facts, failure, loading, predictionLink, queueLink } from "./parts.js";

const LOOK_MS = 5000;

export function webhooks({ signal, query }) {
  const host = query.get("host") ?? "";
  const body = h("div", {}, loading());
  let shown = [];
  const again = (ids) => async () => {
    const answers = await Promise.allSettled(ids.map((id) => ask(`/v1/predictions/${id}/webhooks/redeliver`, { method: "POST" })));
    const refused = answers.filter((answer) => answer.status === "rejected");
    await look();
    return `${ids.length - refused.length} sent again.${refused.length ? ` ${refused.length} refused: ${refused[0].reason.message}` : ""}`;
  };

  const all = () => again(shown)(); // those shown when it is pressed: a refilled button stays the first one

  async function look() {
    try {
      const seen = await ask(`/v1/admin/owed${host ? `?host=${encodeURIComponent(host)}` : ""}`, { signal });
      if (signal.aborted) return;
      shown = seen.results.map((one) => one.id);
      refill(body,
        facts([["Owed", count(seen.count)], ["Due and not tried", count(seen.late)], ["Oldest", seen.oldest_at ? ago(seen.oldest_at) : "–"]]),
        seen.count ? [receivers(seen), owed(seen, again, all)] : h("p", { class: "empty" }, "No webhook is owed."));
    } catch (error) {
      if (!signal.aborted) refill(body, failure(error, true));
    }
  }

  repeat(look, { every: LOOK_MS, signal });
  return {
    title: "Webhooks",
    node: h("section", {}, h("h1", {}, "Webhooks owed"),
      h("p", { class: "lead" }, "A webhook is owed from the end of its prediction until its receiver answers 2xx. Keepers try again, at longer and longer intervals."),
      host ? h("p", {}, `Only to ${host}. `, h("a", { href: "#/webhooks" }, "Show all")) : null, body),
  };
}

const receivers = ({ hosts, looked_at: looked }) => h("section", {}, h("h2", {}, "Receivers"),
  table(`Receivers among the ${looked} that were looked at`, ["Host", "#Owed", "#Oldest", "Next attempt"], h("tbody", {}, hosts.map((one) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#/webhooks?host=${encodeURIComponent(one.host)}` }, one.host)),
    h("td", { class: "num" }, count(one.count)), h("td", { class: "num" }, ago(one.oldest_at)), h("td", {}, due(one.next_at)))))));

const owed = ({ results }, again, all) => h("section", {}, h("h2", {}, "Next attempts"),
  h("div", { class: "actions" }, action("Send all shown again", all, { needs: "operates" })),
  table("Owed webhooks", ["Prediction", "Queue", "Account", "Receiver", "#Owed since", "#Attempts", "Last", "Next attempt", h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions"))], h("tbody", {}, results.map((one) => h("tr", { class: "opens" },
    h("td", {}, predictionLink(one.id)), h("td", {}, queueLink(one.queue)), h("td", {}, one.account), h("td", {}, one.host), h("td", { class: "num broad" }, ago(one.owed_since)),
    h("td", { class: "num" }, one.attempts), h("td", {}, one.outcome ?? "–"), h("td", {}, due(one.next_at)), h("td", {}, action("Send again", again([one.id]), { of: one.id, needs: session.rightOn(one.account) })))))));
