// A service without a model: three ways to serve the first one, with the commands for this very service.

import { ask } from "../api.js";
import { announce, fill, h, refill, say } from "../dom.js";
import { session } from "../session.js";
import { quoted } from "../snippets.js";
import { stateOf } from "../states.js";
import { copier, untilAnswered } from "./parts.js";

const RUN = (model) => `#/models/${model}`;

/** The home of a `director up`, which has its Redis on a socket in it; "" where the service is started otherwise. */
const homeOf = (redis) => (/^unix:\/\/.+\/valkey\/valkey\.sock$/.test(redis) ? decodeURIComponent(redis.slice("unix://".length).replace(/\/valkey\/valkey\.sock$/, "")) : "");

/** `[model, title, what it takes, command of an up, command of a director anywhere]` */
const WAYS = [
  ["acme/painter", "A Cog folder", "A folder with a run.py or predict.py. Its Python needs Cog; Docker is not needed.",
    (home) => `director serve ./painter \\\n  --model acme/painter${home}`,
    () => "director run --model acme/painter \\\n  --server http://127.0.0.1:5000"],
  ["acme/llm", "vLLM and its like", "A server with OpenAI's API, which runs already: vLLM, TGI, SGLang, llama.cpp, Ollama.",
    (home) => `director serve --model acme/llm \\\n  --openai http://127.0.0.1:8000${home}`,
    () => "director run --model acme/llm \\\n  --server http://127.0.0.1:8000 --runner openai --slots 8"],
  ["acme/words", "Any HTTP server", "A server that takes an input by POST as JSON, and answers with the output.",
    (home) => `director serve --model acme/words \\\n  --http http://127.0.0.1:9001/run${home}`,
    () => "director run --model acme/words \\\n  --server http://127.0.0.1:9001 --runner http \\\n  --runner-config '{\"path\": \"/run\"}'"],
];

const isReady = (queue) => queue.state === "serving" || queue.state === "at_rest";

/** `leave()` goes on to Home as it is with models. */
export function firstRun({ signal, leave }) {
  const hint = h("div", { class: "hint" });
  const cards = WAYS.map((way) => card(way));
  const others = h("ul", { class: "others" });
  const on = h("p", { hidden: true }, h("button", { type: "button", on: { click: leave } }, "Go to Home"));
  const node = h("div", { class: "first-run" },
    h("p", { class: "lead" }, "No model is here yet. Take one of these ways in a terminal; this page notices it by itself."),
    h("ol", { class: "ways" }, cards.map((one) => one.node)), others, hint, on);

  function draw(snapshot) {
    const queues = snapshot.queues;
    const of = (model) => queues.filter((queue) => queue.model === model).sort((a, b) => isReady(b) - isReady(a))[0];
    for (const one of cards) one.update(of(one.model));
    const unnamed = [...new Set(queues.map((queue) => queue.model))].filter((model) => !cards.some((one) => one.model === model));
    refill(others, unnamed.map((model) => h("li", { class: "card" }, tick(of(model)), " ", h("strong", {}, model), " ", h("span", { class: "hint" }, of(model).words), " ", isReady(of(model)) ? run(model) : null)));
    on.hidden = !queues.length;
  }

  async function load() {
    const { settings } = await ask("/v1/admin/system", { signal });
    if (signal.aborted) return;
    const redis = settings.find((one) => one.name === "DIRECTOR_REDIS_URL")?.value ?? "";
    const home = homeOf(redis);
    for (const one of cards) one.command(home, redis);
    if (home) fill(hint, "On the machine of this service, in the environment of its ", h("code", {}, "director"), ". More: ", guide("own-model", "Cog"), ", ", guide("vllm", "vLLM"), ", ", guide("http-server", "HTTP"), ".");
    else fill(hint, "On the machine of the model server, in an environment with ", h("code", {}, "director"), ". Passwords are not shown here: put that of Redis into its address, as in ", h("code", {}, "redis://:PASSWORD@HOST:6379"), ".");
  }

  untilAnswered(load, hint, signal);
  return { title: "Serve your first model", node, draw };
}

const guide = (page, words) => h("span", {}, words, " in ", h("code", {}, `docs/how-to/${page}.md`));
const run = (model) => h("a", { class: "button main", href: RUN(model) }, session.acts ? "Run it" : "Open it");
const tick = (queue) => h("span", { class: `tick ${!queue ? "none" : isReady(queue) ? "done" : queue.shade === "bad" ? "bad" : "busy"}`, "aria-hidden": "true" }, queue && isReady(queue) ? "✓" : queue?.shade === "bad" ? "!" : "");

function card([model, title, what, serve, direct]) {
  const code = h("code", {}, "…");
  const state = h("p", { class: "state", role: "status" });
  const go = h("p", { class: "go" });
  let wasReady = false;
  const node = h("li", { class: "card", "data-model": model },
    h("h2", {}, title), h("p", { class: "hint" }, what),
    h("div", { class: "shell" }, h("pre", { tabindex: "0", "aria-label": `Command: ${title}` }, code), copier("Copy", () => code.textContent)),
    state, go);
  return {
    model,
    node,
    command(home, redis) {
      say(code, home ? serve(` \\\n  --home ${quoted(home)}`) : `export DIRECTOR_REDIS_URL=${quoted(redis)}\n${direct()}`);
    },
    update(queue) {
      const isHere = Boolean(queue) && isReady(queue);
      node.classList.toggle("ready", isHere);
      const words = !queue ? `Waiting for ${model}` : isHere ? `${model} is here` : `${model}: ${stateOf(queue)[0]}`;
      refill(state, tick(queue), " ", words, queue && !isHere && queue.shade === "bad" ? [". ", h("a", { href: "#/directors" }, "See why")] : null);
      refill(go, isHere ? run(model) : null);
      if (isHere && !wasReady) announce(`${model} is here. You can run it.`);
      wasReady = isHere;
    },
  };
}
