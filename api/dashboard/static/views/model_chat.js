// A conversation with a model that takes messages. All of it is one prediction for each answer: the messages so far are
// its input, so that the address of the last run has the whole conversation.

import { read } from "../address.js";
import { ask } from "../api.js";
import { announce, fill, h, say } from "../dom.js";
import { LiveText } from "../live_text.js";
import { OutputArea, textOf } from "../output.js";
import { resolved } from "../schema_form.js";
import { session } from "../session.js";
import { messagesOf } from "../snippets.js";
import { asker } from "./model_ask.js";
import { MAY_NOT_RUN, NARROW } from "./model_parts.js";
import { playground } from "./model_playground.js";
import { meteredRun } from "./model_run.js";
import { canceler, copier, isTerminal, picks, sharer, why } from "./parts.js";

const OWN = ["messages", "prompt", "system_prompt"]; // the conversation asks for these itself
const KEPT = "director.chat";
const WAYS = ["Chat", "Form"];
const STARTS = ["Explain what you can do, in three sentences.", "Write a haiku about queues.", "Make a table of three planets with their radius."];

/** Whether a model takes the messages of a conversation. */
export function takesMessages(model) {
  const schemas = model.latest_version?.openapi_schema?.components?.schemas ?? {};
  const messages = schemas.Input && resolved(schemas.Input, schemas).properties?.messages;
  return Boolean(messages) && resolved(messages, schemas).type === "array";
}

/** Both views of such a model, the conversation first. */
export function chat(given) {
  const place = h("div", {});
  const ways = picks("How to ask", WAYS, (at) => { localStorage.setItem(KEPT, WAYS[at]); show(WAYS[at]); });
  const made = new Map(); // of each view its node, and its address when it was left
  let shown = null;

  function show(word) {
    ways.show(WAYS.indexOf(word));
    if (shown) shown.hash = location.hash;
    shown = made.get(word);
    if (shown) given.readdress(shown.hash);
    else {
      const mine = shown = {};
      made.set(word, mine);
      const readdress = (hash) => { if (mine === shown) given.readdress(hash); else mine.hash = hash; };
      mine.node = (word === "Chat" ? conversation : playground)({ ...given, query: read().query, readdress }); // with the run of the other
    }
    fill(place, shown.node);
  }

  show(localStorage.getItem(KEPT) === "Form" || given.query.has("again") ? "Form" : "Chat");
  return h("div", { class: "ways-to-ask" }, ways.node, place);
}

function conversation({ model, full, state, signal, query, shared, readdress }) {
  const request = asker({ model, full, state, shared, without: OWN });
  const { fields, more, trouble, codes } = request;
  const role = h("textarea", { id: "chat-system", rows: "3", placeholder: "You are a helpful assistant." });
  const log = h("div", { class: "turns", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const words = h("textarea", { id: "chat-words", rows: "2", placeholder: "Ask something…", "aria-label": "Message", on: { keydown: sendByKey, input: grow } });
  const send = h("button", { type: "submit", class: "main", "data-denied": !session.acts }, "Send");
  const foot = h("div", { class: "actions" });
  let messages = []; // that were said and answered, without the role
  let running = null; // the run that answers now

  const before = () => [...(role.value.trim() ? [{ role: "system", content: role.value.trim() }] : []), ...messages];
  const withQuestion = (content, rest) => ({ messages: [...before(), { role: "user", content }], ...rest });
  const showCode = () => request.follow(() => withQuestion(words.value.trim() || messages.findLast((one) => one.role === "user")?.content || "Hello!", fields.now()));

  const settings = h("form", { class: "card ask", novalidate: true, "aria-label": "Settings", on: { submit: (event) => event.preventDefault(), input: showCode, change: showCode } },
    h("details", { open: !matchMedia(NARROW).matches }, h("summary", {}, "Settings"),
      h("div", { class: "field" }, h("label", { for: "chat-system" }, "System prompt"), role, h("span", { class: "hint" }, "How the model is to behave.")),
      fields.names.length ? h("details", { class: "advanced" }, h("summary", {}, "Sampling and limits"), fields.node) : null, more.node));
  const composer = h("form", { class: "composer", on: { submit } }, words, send);
  const card = h("section", { class: "card result chat", "aria-label": "Result" }, log, trouble, foot, composer);

  const fit = () => { words.rows = Math.min(10, Math.max(2, words.value.split("\n").length)); };

  function grow() {
    fit();
    showCode();
  }

  function sendByKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); composer.requestSubmit(); }
  }

  async function submit(event) {
    event.preventDefault();
    const text = words.value.trim();
    if (!text || running || send.disabled) return;
    request.forgive();
    if (!session.acts) { say(trouble, MAY_NOT_RUN); return; }
    send.disabled = true;
    try {
      const made = await request.send(async () => withQuestion(text, await fields.values()));
      if (signal.aborted) return; // it runs, and another view is shown
      words.value = "";
      grow();
      if (!messages.length) fill(log);
      messages.push({ role: "user", content: text });
      log.append(bubble("user", text));
      answer(made);
      words.focus();
    } catch (error) {
      if (signal.aborted) return;
      words.focus();
      request.blame(error, settings);
    } finally {
      send.disabled = false;
    }
  }

  function answer(made) {
    const area = new OutputArea({ name: `Answer ${messages.filter((one) => one.role === "user").length}` });
    const path = `/v1/predictions/${made.id}`;
    const stop = canceler(path, { name: "Stop" });
    running = new AbortController();
    const ending = AbortSignal.any([signal, running.signal]);
    readdress(`#/models/${full}?run=${made.id}`);
    const wasOver = isTerminal(made.status); // it is an old run
    let isOver = false;
    const onChange = (seen) => {
      if (!isTerminal(seen.status)) return stop.isConnected || fill(foot, stop);
      if (isOver) return undefined;
      isOver = true;
      const answered = textOf(seen.output) ?? area.live?.text ?? "";
      if (answered) messages.push({ role: "assistant", content: answered });
      else withdraw();
      running?.abort();
      running = null;
      if (!wasOver) announce(seen.status === "succeeded" ? "The answer is there." : `The answer: ${seen.status}.`);
      showCode();
      return ended(seen);
    };
    const { error, output, logs, meter, turn } = meteredRun(made, { path, signal: ending, area, onChange, onPiece: stay });
    log.append(h("div", { class: "bubble assistant" }, turn, error, logs, output, meter));
    log.scrollTop = log.scrollHeight;
  }

  /** A message without an answer is no part of what is said next. It can be sent again. */
  function withdraw() {
    if (messages.at(-1)?.role !== "user") return;
    const { content } = messages.pop();
    words.value ||= textOfMessage(content);
    fit();
  }

  let isMoving = false;
  /** Keep the end in view, unless the reader has scrolled back. */
  function stay() {
    if (isMoving || log.scrollTop + log.clientHeight < log.scrollHeight - 120) return;
    isMoving = true;
    requestAnimationFrame(() => { isMoving = false; log.scrollTop = log.scrollHeight; });
  }

  function ended(seen) {
    fill(foot, copier("Copy answer", () => textOf(seen.output) ?? ""), sharer(seen.id),
      h("a", { class: "button quiet", href: `#/predictions/${seen.id}` }, "Details"), h("button", { type: "button", class: "quiet", on: { click: fresh } }, "New conversation"));
  }

  function fresh() {
    messages = [];
    readdress(`#/models/${full}`);
    blank();
    fill(foot);
    showCode();
    words.focus();
  }

  function blank() {
    if (!session.acts) return fill(log, h("div", { class: "blank" }, h("p", {}, MAY_NOT_RUN)));
    return fill(log, h("div", { class: "blank" }, h("p", {}, "Ask something, or begin with one of these."),
      h("div", { class: "starts" }, STARTS.map((text) => h("button", { type: "button", on: { click: () => { words.value = text; grow(); composer.requestSubmit(); } } }, text)))));
  }

  /** The conversation of a run: what it was given, and what it answered. */
  function recall(run) {
    const input = run.input ?? {};
    const all = messagesOf(input).filter((one) => typeof one === "object" && one);
    role.value = all.find((one) => one.role === "system")?.content ?? "";
    messages = all.filter((one) => one.role !== "system");
    fields.take(input);
    fill(log, messages.map((one) => bubble(one.role, textOfMessage(one.content))));
    answer(run);
  }

  async function begin() {
    const wanted = query.get("run");
    const isLate = () => signal.aborted || send.disabled || messages.length; // a question was sent meanwhile
    try {
      const run = wanted ? await ask(`/v1/predictions/${encodeURIComponent(wanted)}`, { signal }) : null;
      if (isLate()) return;
      if (run && !run.data_removed) recall(run);
      else blank();
    } catch (error) {
      if (isLate()) return;
      blank();
      say(trouble, why(error));
    }
    showCode();
  }

  blank();
  begin();
  return h("div", { class: "playground" }, h("div", { class: "play talk" }, settings, card), codes.node);
}

/** The text of a message, which may have parts. */
const textOfMessage = (content) => (typeof content === "string" ? content : Array.isArray(content) ? content.map((part) => part.text ?? `[${part.type}]`).join("\n") : JSON.stringify(content));

function bubble(role, text) {
  if (role === "user") return h("div", { class: "bubble user" }, h("p", { class: "as-typed" }, text));
  const live = new LiveText();
  live.completes(text);
  return h("div", { class: "bubble assistant" }, live.node);
}
