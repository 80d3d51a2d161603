// Predictions, newest first, narrowed by what is known of them.

import { page } from "../api.js";
import { h, table } from "../dom.js";
import { ago, between, seconds } from "../format.js";
import { chip, endless, predictionLink } from "./parts.js";

const STATES = ["", "starting", "processing", "succeeded", "failed", "canceled", "aborted"];

export function predictions({ session, signal, query }) {
  const fields = {
    status: h("select", { id: "by-status" }, STATES.map((state) => h("option", { value: state, selected: state === query.get("status") }, state || "any"))),
    model: h("input", { id: "by-model", placeholder: "owner/name", value: query.get("model") ?? "" }),
    account: session.isAdmin ? h("input", { id: "by-account", placeholder: session.who.username, value: query.get("account") ?? "" }) : null,
  };
  const names = { status: "Status", model: "Model", account: "Account" };

  function submit(event) {
    event.preventDefault();
    const wanted = new URLSearchParams(Object.entries(fields).filter(([, field]) => field?.value.trim()).map(([name, field]) => [name, field.value.trim()]));
    location.hash = `#/predictions${wanted.size ? `?${wanted}` : ""}`;
  }

  const body = h("tbody", {});
  const kept = new URLSearchParams([...query].filter(([name]) => name in fields));
  const more = (next) => page(`/v1/predictions${kept.size ? `?${kept}` : ""}`, next);
  return {
    title: "Predictions",
    node: h("section", {},
      h("h1", {}, "Predictions"),
      h("form", { class: "filters", on: { submit } },
        Object.entries(fields).filter(([, field]) => field).map(([name, field]) => h("div", {}, h("label", { for: field.id }, names[name]), field)),
        h("button", { type: "submit" }, "Filter")),
      table("Predictions", ["Id", "Status", "Model", "#Made", "#Waited", "#Ran"], body),
      endless(body, more, line, { signal, empty: "None." })),
  };
}

const line = (one) => h("tr", {},
  h("td", {}, predictionLink(one.id)),
  h("td", {}, chip(one.status)),
  h("td", {}, one.model),
  h("td", { class: "num" }, ago(one.created_at)),
  h("td", { class: "num" }, seconds(between(one.created_at, one.started_at))),
  h("td", { class: "num" }, seconds(one.metrics?.predict_time ?? between(one.started_at, one.completed_at))));
