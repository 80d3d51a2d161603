// The directors, their servers and versions, as their heartbeats tell.

import { h, keyed, refill, say, table } from "../dom.js";
import { ago, bytes, now, seconds } from "../format.js";
import { queueLink } from "./parts.js";

const MISSED_MS = 600_000; // so long is one that went without a word shown

/** Silent, though it never said that it would go. */
const isMissed = (one) => one.state !== "draining" && now() - Date.parse(one.seen_at) < MISSED_MS;

const FAILED = ["setup_failed", "server_auth"];
const words = (state) => state.replaceAll("_", " ");

/** It needs a person: it is silent, or none of its servers can run anything. */
export const fails = (one) => (one.alive ? FAILED.includes(one.state) : isMissed(one));

export function directors({ session, signal }) {
  const body = h("tbody", { class: "figures" });
  const none = h("p", { class: "hint", role: "status" }, "Loading…");
  const show = keyed(body, (one) => one.name, line);
  const shared = h("tbody", { class: "figures" });
  const devices = h("section", { hidden: true }, h("h2", {}, "Devices that models share"),
    table("Devices", ["Device", "Model", "State", "#Memory", "#Loads in 1 h", "#Lost in 1 h", "Why"], shared));
  const stop = session.live.hear((snapshot) => {
    devices.hidden = !snapshot.devices?.length;
    refill(shared, (snapshot.devices ?? []).flatMap(onDevice));
    show(snapshot.directors.filter((one) => one.alive || isMissed(one)));
    const alive = snapshot.directors.filter((one) => one.alive).length;
    const silent = snapshot.directors.filter((one) => !one.alive && isMissed(one)).length;
    none.className = "hint";
    refill(none, alive ? `${alive} alive` : ["No director is alive. Nothing runs until one is started beside a model server, by ", h("code", {}, "director serve"), " or ", h("code", {}, "director run")], silent ? `, ${silent} silent in the last 10 min.` : ".");
  }, none);
  signal.addEventListener("abort", stop, { once: true });
  return {
    title: "Directors",
    node: h("section", {}, h("h1", {}, "Directors"), none,
      table("Directors", ["Director", "State", "#Claims", "#Slots", "Queues", "Servers", "#Heartbeat", "#Started", "Version"], body), devices),
  };
}

const ON_DEVICE = { loaded: "good", absent: "calm" };

/** One row for the device, and one for each of its models. */
function onDevice(one) {
  const cells = (...values) => values.map((value) => h("td", { class: "num" }, value));
  return [
    h("tr", {}, h("th", { scope: "row", class: "mono name" }, `${one.name} on ${one.machine}`), h("td", {}, "all"), h("td", {}),
      cells(`${bytes(one.taken)} of ${bytes(one.bytes)}`, one.swaps, seconds(one.lost_s)), h("td", {})),
    ...one.models.map((model) => h("tr", {}, h("td", {}), h("td", {}, queueLink(model.queue)),
      h("td", {}, h("span", { class: `chip ${ON_DEVICE[model.state] ?? "warn"}` }, model.state), ` for ${ago(model.since).replace(" ago", "")}`),
      cells(bytes(model.bytes), model.loads, seconds(model.lost_s)), h("td", {}, [model.order, model.why].filter(Boolean).join(": ")))),
  ];
}

function onServer(server, isAlive) {
  const why = server.detail?.replace(`${server.state}: `, ""); // a Cog server says its state first
  return h("div", {}, h("span", { class: "mono" }, server.url), " ", `${isAlive ? "" : "was "}${words(server.state)}`, why ? ` (${why})` : "",
    isAlive && server.log ? h("pre", { class: "logs", tabindex: "0", "aria-label": `Log of the setup of ${server.url}` }, server.log) : null);
}

function line(first) {
  const state = h("span", {});
  const [queues, servers, version] = [0, 1, 2].map(() => h("td", {}));
  const [holds, slots, sign, since] = ["", "", "broad", "broad"].map((width) => h("td", { class: `num ${width}` }));
  const node = h("tr", {}, h("th", { scope: "row", class: "mono name" }, first.name), h("td", {}, state), holds, slots, queues, servers, sign, since, version);
  return {
    node,
    update(one) {
      say(state, one.alive ? words(one.state) : "silent");
      state.className = `chip ${fails(one) ? "bad" : one.state === "ready" ? "good" : "warn"}`;
      node.classList.toggle("gone", !one.alive);
      say(holds, one.held === null ? "–" : one.alive ? one.held : `had ${one.held}`);
      say(slots, one.alive ? one.slots : "–");
      refill(queues, h("div", {}, one.queues.map((beat) => h("div", {}, queueLink(beat.queue)))));
      refill(servers, !one.servers?.length ? "–" : h("div", {}, one.servers.map((server) => onServer(server, one.alive))));
      say(sign, ago(one.seen_at));
      say(since, one.since ? ago(one.since) : "–");
      say(version, one.version ?? "–");
    },
  };
}
