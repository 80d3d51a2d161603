// Try each feature that a client of OpenAI's API for Node has. Prints a JSON object: feature → how it went.
// `openai_node.cjs NAME`: openai or ai.
const assert = require("node:assert/strict");
const { createHash, randomUUID } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");

const given = JSON.parse(process.env.GIVEN);
const { real, embedder, scripted, queued } = given;
const IMAGE = `data:image/png;base64,${Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)).toString("base64")}`;
const DIGEST = createHash("sha256").update(IMAGE).digest("hex");
const PATIENCE_MS = 20_000;
const SHORT_MS = 2_000;
const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const DEGREES = { Paris: "21", Rome: "25" };
const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};
const WEATHER = { city: "Paris", degrees: 21 };

const control = async (what, mark = "", at = scripted) =>
  (await fetch(`${at.control}/control/${what}/${mark}`)).json();
const seen = (mark) => control("seen", mark);
const newMark = () => randomUUID().slice(-12);

async function until(isSo, what) {
  const ends = Date.now() + PATIENCE_MS;
  while (!(await isSo())) {
    assert.ok(Date.now() < ends, `never ${what}`);
    await sleep(20);
  }
}

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error("it raised nothing");
}

async function joined(pieces) {
  let text = "";
  for await (const piece of pieces) text += piece ?? "";
  return text;
}

// Node ends at a failure that nothing waits for yet
function started(call) {
  call.catch(() => {});
  return call;
}

// Have the server's only slot taken during an act
async function occupied(ask, act, server = scripted) {
  const mark = newMark();
  const held = started(ask(server, `hold:${mark}`, { repeats: 5 }));
  await until(async () => (await control("seen", mark, server)).open, "running");
  let acted;
  try {
    acted = await act();
  } finally {
    await control("release", mark, server);
    assert.equal(await held, "one two");
  }
  return acted;
}

// The features that both clients have, on top of three of their functions: `ask` returns the text of the answer, `stream`
// yields it in pieces, and `fault` returns the kind of an error, as the client tells it apart, with its words.
function common({ ask, stream, fault, kinds }) {
  const isFreeAfter = async (mark) => {
    await until(async () => !(await seen(mark)).open, "closed");
    assert.equal(await ask(scripted, "hi", { repeats: 5 }), "one two");
    assert.equal((await seen(mark)).calls, 1);
  };
  return {
    async chat() {
      assert.match(await ask(real, "hi", { most: 4 }), /^[abc ]+$/);
    },
    async streamed() {
      const pieces = [];
      for await (const piece of stream(real, "hi", { most: 4 })) if (piece) pieces.push(piece);
      assert.ok(pieces.length > 1, pieces);
      assert.match(pieces.join(""), /^[abc ]+$/);
    },
    async errors() {
      const told = async (call) => fault(await refused(call));
      assert.equal((await told(() => ask({ ...scripted, key: "wrong" }, "hi"))).kind, kinds[401]);
      assert.equal((await told(() => ask({ ...scripted, model: "acme/unknown" }, "hi"))).kind, kinds[404]);
      for (const call of [ask, (...asked) => joined(stream(...asked))]) {
        const { kind, said } = await told(() => call(scripted, `bad:${newMark()}`));
        assert.equal(kind, kinds[400]);
        for (const wanted of [/It is too warm for this model/, /too_warm/]) assert.match(said, wanted);
      }
      const { kind } = await occupied(ask, () => told(() => ask(scripted, "hi")));
      assert.equal(kind, kinds[429]);
    },
    async broken() {
      let text = "";
      const error = await refused(async () => {
        for await (const piece of stream(scripted, `break:${newMark()}`)) text += piece ?? "";
      });
      assert.match(fault(error).said, /It broke/);
      assert.equal(text, "one ");
    },
    async failed() {
      const mark = newMark();
      const { kind, said } = fault(await refused(() => ask(scripted, `fail:${mark}`, { repeats: 2 })));
      assert.match(said, /It went wrong/);
      assert.equal(kind, kinds[500]);
      assert.deepEqual(await seen(mark), { calls: 1, open: 0 });
    },
    async timeouts() {
      const mark = newMark();
      const error = await refused(() => ask(scripted, `hold:${mark}`, { timeout: SHORT_MS }));
      assert.equal(fault(error).kind, kinds.timeout);
      await isFreeAfter(mark);
    },
    async waiting() {
      const before = (await control("counts", "", queued)).heads;
      let asked;
      const act = async () => {
        asked = started(joined(stream(queued, "hi")));
        await until(async () => (await control("counts", "", queued)).heads > before, "begun");
      };
      await occupied(ask, act, queued);
      assert.equal(await asked, "one two");
    },
    async repeats() {
      let mark = newMark();
      const before = (await control("counts")).refused;
      let asked;
      await occupied(ask, async () => {
        asked = started(ask(scripted, `count:${mark}`, { repeats: 2 }));
        await until(async () => (await control("counts")).refused > before, "refused");
      });
      assert.equal(await asked, "one two");
      assert.deepEqual(await seen(mark), { calls: 1, open: 0 });
      if (!kinds.repeatsTimeouts) return;
      mark = newMark();
      asked = started(ask(scripted, `hold:${mark}`, { timeout: SHORT_MS, repeats: 1 }));
      await until(async () => (await seen(mark)).calls === 2, "repeated after its time-out");
      await control("release", mark);
      assert.equal(await asked, "one two");
      assert.deepEqual(await seen(mark), { calls: 2, open: 0 });
    },
    async asynchronous() {
      const mark = newMark();
      const leaving = new AbortController();
      const asked = refused(() => ask(scripted, `hold:${mark}`, { signal: leaving.signal }));
      await until(async () => (await seen(mark)).open, "running");
      leaving.abort();
      await asked;
      await isFreeAfter(mark);
    },
    async cancel() {
      const mark = newMark();
      for await (const piece of stream(scripted, `hold:${mark}`)) {
        if (!piece) continue;
        assert.equal(piece, "one ");
        break;
      }
      await isFreeAfter(mark);
    },
  };
}

function openai() {
  const OpenAI = require("openai");
  const clientOf = ({ base, key }, { timeout = 60_000, repeats = 0 } = {}) =>
    new OpenAI({ baseURL: base, apiKey: key, timeout, maxRetries: repeats });
  const create = (server, text, { most, timeout, repeats, signal, ...more } = {}) => {
    const messages = typeof text === "string" ? [{ role: "user", content: text }] : text;
    const body = { model: server.model, messages, ...(most && { max_tokens: most }), ...more };
    return clientOf(server, { timeout, repeats }).chat.completions.create(body, { signal });
  };
  const ask = async (...asked) => (await create(...asked)).choices[0].message.content;
  async function* stream(server, text, more) {
    for await (const chunk of await create(server, text, { ...more, stream: true })) yield chunk.choices[0].delta.content;
  }
  const tools = [{ type: "function", function: { name: "degrees", description: "Degrees of a city", parameters: CITY } }];
  const withTool = async (first) => {
    const messages = [{ role: "user", content: "How warm is it?" }];
    const { finish_reason, message } = await first(messages);
    assert.equal(finish_reason, "tool_calls");
    messages.push(message);
    for (const { id, function: called } of message.tool_calls) {
      assert.equal(called.name, "degrees");
      messages.push({ role: "tool", tool_call_id: id, content: DEGREES[JSON.parse(called.arguments).city] });
    }
    assert.equal(await ask(scripted, messages, { tools }), "21 25");
  };
  const all = async (server, text, more) => {
    const chunks = [];
    for await (const chunk of await create(server, text, { ...more, stream: true })) chunks.push(chunk);
    return chunks;
  };
  const kinds = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    timeout: "APIConnectionTimeoutError",
    repeatsTimeouts: true,
  };
  const fault = (error) => ({
    kind: error.constructor.name,
    said: `${error.message} ${error.code} ${JSON.stringify(error.error)}`,
  });
  const shared = common({ ask, stream, fault, kinds });
  return {
    ...shared,
    async streamed() {
      await shared.streamed();
      for (const wanted of [false, true]) {
        const options = wanted ? { stream_options: { include_usage: true } } : {};
        const chunks = await all(real, "hi", { most: 4, ...options });
        const counted = chunks.filter(({ usage }) => usage).map(({ usage }) => usage.completion_tokens);
        assert.deepEqual(counted, wanted ? [4] : []);
        assert.equal(chunks.filter(({ choices }) => !choices.length).length, wanted ? 1 : 0);
      }
    },
    async tools() {
      await withTool(async (messages) => (await create(scripted, messages, { tools })).choices[0]);
      const body = (messages) => ({ model: scripted.model, messages, tools });
      const streamed = (messages) => clientOf(scripted).chat.completions.stream(body(messages)).finalChatCompletion();
      await withTool(async (messages) => (await streamed(messages)).choices[0]);
    },
    async schema() {
      const response_format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema: SCHEMA } };
      assert.deepEqual(JSON.parse(await ask(scripted, "Weather?", { response_format })), WEATHER);
      assert.deepEqual(JSON.parse(await joined(stream(scripted, "Weather?", { response_format }))), WEATHER);
    },
    async logprobs() {
      const wanted = { most: 4, logprobs: true, top_logprobs: 2 };
      const [{ logprobs }] = (await create(real, "hi", wanted)).choices;
      assert.deepEqual(logprobs.content.map((each) => each.top_logprobs.length), [2, 2, 2, 2]);
      const found = (await all(real, "hi", wanted)).map(({ choices: [choice] }) => choice.logprobs?.content.length ?? 0);
      assert.equal(found.reduce((sum, each) => sum + each, 0), 4);
    },
    async choices() {
      assert.equal((await create(real, "hi", { most: 4, n: 2 })).choices.length, 2);
      const texts = ["", ""];
      for (const { choices: [{ index, delta }] } of await all(scripted, "hi", { n: 2 })) texts[index] += delta.content ?? "";
      assert.deepEqual(texts, ["one two", "one two"]);
    },
    async images() {
      const content = [{ type: "text", text: "What?" }, { type: "image_url", image_url: { url: IMAGE } }];
      assert.equal(await ask(scripted, [{ role: "user", content }]), DIGEST);
    },
    async parts() {
      const refusal = await create(scripted, `refuse:${newMark()}`);
      assert.equal(refusal.choices[0].message.refusal, "That I will not say");
      const thought = await create(scripted, `think:${newMark()}`);
      assert.equal(thought.choices[0].message.reasoning_content, "Let me see");
      assert.equal(thought.usage.prompt_tokens_details.cached_tokens, 8);
      const chunks = await all(scripted, `think:${newMark()}`);
      const said = chunks.map(({ choices: [{ delta }] }) => delta.reasoning_content ?? "").join("");
      assert.equal(said, "Let me see");
    },
    async embeddings() {
      const { model } = embedder;
      const create = async (more) => (await clientOf(embedder).embeddings.create({ model, ...more })).data;
      const packed = await create({ input: ["a", "b", "c"] }); // it asks for base64
      const floats = await create({ input: ["a", "b", "c"], encoding_format: "float" });
      assert.deepEqual([packed.length, floats.length], [3, 3]);
      packed[1].embedding.forEach((each, at) => assert.ok(Math.abs(each - floats[1].embedding[at]) < 1e-5));
      const [raw] = await create({ input: "b", encoding_format: "base64" });
      assert.equal(typeof raw.embedding, "string");
    },
    async models() {
      const client = clientOf(scripted);
      const names = [];
      for await (const { id } of client.models.list()) names.push(id);
      assert.ok(names.includes(scripted.model), names);
      assert.equal((await client.models.retrieve(scripted.model)).id, scripted.model);
    },
  };
}

function ai() {
  const { APICallError, embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } = require("ai");
  const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
  const providerOf = ({ base, key }) =>
    createOpenAICompatible({
      name: "director",
      baseURL: base,
      apiKey: key,
      includeUsage: true,
      supportsStructuredOutputs: true,
    });
  const about = (server, text, { most, timeout = 60_000, repeats = 0, signal, ...more } = {}) => ({
    model: providerOf(server)(server.model),
    ...(typeof text === "string" ? { prompt: text } : { messages: text }),
    maxOutputTokens: most,
    maxRetries: repeats,
    abortSignal: signal ?? AbortSignal.timeout(timeout),
    ...more,
  });
  const ask = async (...asked) => (await generateText(about(...asked))).text;
  // A loop that is left does not close the connection: the caller aborts it, as the SDK's pages say
  async function* stream(server, text, more) {
    const leaving = new AbortController();
    const asked = about(server, text, { ...more, signal: leaving.signal, onError() {} });
    try {
      for await (const part of streamText(asked).fullStream) {
        if (part.type === "error") throw part.error;
        if (part.type === "text-delta") yield part.text;
      }
    } finally {
      leaving.abort();
    }
  }
  const kinds = { 400: 400, 401: 401, 404: 404, 429: 429, 500: 500, timeout: "TimeoutError", repeatsTimeouts: false };
  const fault = (error) => ({
    kind: APICallError.isInstance(error) ? error.statusCode : error.name,
    said: `${error?.message ?? ""} ${error?.responseBody ?? ""} ${JSON.stringify(error)}`,
  });
  const degrees = tool({
    description: "Degrees of a city",
    inputSchema: jsonSchema(CITY),
    execute: async ({ city }) => DEGREES[city],
  });
  return {
    ...common({ ask, stream, fault, kinds }),
    async tools() {
      const asked = { tools: { degrees }, stopWhen: stepCountIs(3) };
      assert.equal(await ask(scripted, "How warm is it?", asked), "21 25");
      assert.equal(await joined(stream(scripted, "How warm is it?", asked)), "21 25");
    },
    async schema() {
      const output = Output.object({ schema: jsonSchema(SCHEMA) });
      assert.deepEqual((await generateText(about(scripted, "Weather?", { output }))).output, WEATHER);
    },
    async images() {
      const content = [{ type: "text", text: "What?" }, { type: "image", image: IMAGE }];
      assert.equal(await ask(scripted, [{ role: "user", content }]), DIGEST);
    },
    async parts() {
      const thought = await generateText(about(scripted, `think:${newMark()}`));
      assert.equal(thought.reasoningText, "Let me see");
      assert.equal(thought.usage.cachedInputTokens, 8);
      const streamed = streamText(about(scripted, `think:${newMark()}`));
      assert.equal(await joined(streamed.textStream), "one two");
      assert.equal((await streamed.reasoningText).trim(), "Let me see");
      assert.equal((await streamed.usage).cachedInputTokens, 8);
    },
    async embeddings() {
      const model = providerOf(embedder).embeddingModel(embedder.model);
      const { embeddings } = await embedMany({ model, values: ["a", "b", "c"], maxRetries: 0 });
      assert.equal(embeddings.length, 3);
      assert.ok(embeddings[0].length > 1);
    },
  };
}

(async () => {
  const features = { openai, ai }[process.argv[2]]();
  const told = {};
  for (const name of given.features) {
    try {
      await features[name]?.();
      told[name] = features[name] ? "yes" : "–";
    } catch (error) {
      told[name] = `${error.name}: ${error.message}`.slice(0, 300);
    }
  }
  console.log(JSON.stringify(told));
  process.exit(0);
})();
