const assert = require("node:assert/strict");
const { gate, models, openGate, play, replicate } = require("./given");
const { writer, captioner } = models;
const pieces = ["About ", "llamas", "."];

play(async () => {
  for (const wait of [undefined, { mode: "block", timeout: 5 }, { mode: "poll", interval: 50 }]) {
    for (const ref of [captioner.name, captioner.ref]) {
      assert.equal(await replicate.run(ref, { input: { prompt: "hi" }, wait }), "hi");
    }
    for (const ref of [writer.name, writer.ref]) {
      assert.deepEqual(await replicate.run(ref, { input: { prompt: "llamas" }, wait }), pieces);
    }
  }

  // a model that has shown two of three pieces by the time the wait is over gives no truncated output
  setTimeout(openGate, 1600);
  const input = { prompt: "llamas", gate };
  assert.deepEqual(await replicate.run(writer.name, { input, wait: { mode: "block", timeout: 1 } }), pieces);

  // progress
  const told = [];
  await replicate.run(writer.ref, { input: { prompt: "llamas" } }, (prediction) => told.push(prediction.status));
  assert.equal(told.at(-1), "succeeded");

  // an abort cancels what is polled
  const controller = new AbortController();
  let id;
  const onProgress = (prediction) => {
    id = prediction.id;
    controller.abort();
  };
  const options = { input: { gate: `${gate}.never` }, wait: { mode: "poll", interval: 50 }, signal: controller.signal };
  assert.equal(await replicate.run(captioner.name, options, onProgress), null);
  const canceled = await replicate.wait({ id, status: "starting" }, { interval: 50 });
  assert.equal(canceled.status, "canceled");
});
