// The service itself: releases of its processes, Redis, sites, and the settings in force.

import { ask } from "../api.js";
import { fill, h, refill, table } from "../dom.js";
import { ago, bytes, share } from "../format.js";
import { facts, loading, untilAnswered } from "./parts.js";

export function system({ session, signal }) {
  const body = h("div", {}, loading());
  const processes = h("div", {});

  async function look() {
    const seen = await ask("/v1/admin/system", { signal });
    if (signal.aborted) return;
    const stop = session.live.hear((snapshot) => refill(processes, releases(seen, snapshot)));
    signal.addEventListener("abort", stop, { once: true });
    fill(body, processes,
      h("h2", {}, "Redis"),
      facts([["Server", `${seen.redis.kind} ${seen.redis.version}`], ["Durability", seen.redis.durability], ["Memory", `${bytes(seen.redis.memory_bytes)}${seen.redis.memory_limit_bytes ? ` of ${bytes(seen.redis.memory_limit_bytes)}, ${share(seen.redis.memory_bytes, seen.redis.memory_limit_bytes)}` : ", no limit"}`], ["Started", ago(seen.redis.since)]]),
      seen.sites.length ? [h("h2", {}, "Sites"), table("Sites", ["Site", "State"], h("tbody", {}, seen.sites.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", {}, h("span", { class: `chip ${one.state === "ready" ? "good" : "bad"}` }, one.state))))))] : h("p", { class: "hint" }, "One site: this API serves one Redis."),
      h("h2", {}, "Settings of this API"),
      h("p", { class: "hint" }, "Those that differ from their defaults. Secrets are not shown."),
      settings(seen.settings.filter((one) => one.is_set), "Settings that differ"),
      h("details", {}, h("summary", {}, "Settings with their defaults"), settings(seen.settings.filter((one) => !one.is_set), "Settings with their defaults")));
  }

  untilAnswered(look, body, signal);
  return { title: "System", node: h("section", {}, h("h1", {}, "System"), body) };
}

const settings = (rows, name) => table(name, ["Setting", "Value", "Default"], h("tbody", {}, rows.map((one) => h("tr", {},
  h("th", { scope: "row", class: "mono" }, one.name), h("td", { class: "error" }, one.value || "–"), h("td", { class: "error" }, one.default || "–")))));

function releases(seen, snapshot) {
  const directors = snapshot.directors.filter((one) => one.alive).map((one) => ({ ...one, role: "director" }));
  const all = [...snapshot.processes, ...directors];
  return h("section", { "aria-label": "Processes" }, h("h2", {}, "Processes"),
    table("Releases of the processes", ["Process", "Name", "Release", "#Started"], h("tbody", {}, all.map(({ role, name, version, since }) => h("tr", {},
      h("td", {}, role), h("th", { scope: "row", class: "mono" }, name), h("td", {}, version ?? "an older release", version === seen.version ? null : [" ", h("span", { class: "chip warn" }, "differs")]),
      h("td", { class: "num" }, since ? ago(since) : "–"))))));
}
