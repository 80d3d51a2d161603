const assert = require("node:assert/strict");
const { client, models, play, replicate } = require("./given");
const { captioner } = models;

const refusal = async (promise) => {
  const error = await promise.then(() => assert.fail("it was not refused"), (raised) => raised);
  return [error.name, error.response.status, error.message];
};

play(async () => {
  const failed = { name: "Error", message: "Prediction failed: ValueError: it went wrong" };
  for (const wait of [{ mode: "block" }, { mode: "poll", interval: 50 }]) {
    await assert.rejects(replicate.run(captioner.name, { input: { then: "raise" }, wait }), failed);
  }

  const wrong = replicate.predictions.create({ version: captioner.version, input: { prompt: 7 } });
  let [name, status, message] = await refusal(wrong);
  assert.deepEqual([name, status], ["ApiError", 422]);
  assert.match(message, /Input validation failed/);
  assert.match(message, /input\.prompt: Invalid type/);

  [, status, message] = await refusal(replicate.run("other/nothing", { input: {} }));
  assert.deepEqual([status, /could not be found/.test(message)], [404, true]);
  [, status] = await refusal(replicate.predictions.create({ version: "f".repeat(64), input: {} }));
  assert.equal(status, 422);
  [, status, message] = await refusal(client({ auth: "r8_wrong" }).accounts.current());
  assert.deepEqual([status, /Unauthenticated/.test(message)], [401, true]);
});
