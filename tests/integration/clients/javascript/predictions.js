const assert = require("node:assert/strict");
const { gate, models, openGate, play, replicate, terminal } = require("./given");
const { writer, captioner } = models;

play(async () => {
  // create, get, wait
  let made = await replicate.predictions.create({ version: writer.version, input: { prompt: "llamas", gate } });
  assert.deepEqual([made.status, made.output, made.model], ["starting", null, writer.name]);
  assert.ok(made.urls.stream);
  let seen = made;
  while (!seen.output) seen = await replicate.predictions.get(made.id);
  assert.deepEqual([seen.status, seen.output[0]], ["processing", "About "]);
  openGate();
  const done = await replicate.wait(made, { interval: 50 });
  assert.deepEqual([done.status, done.output, done.error], ["succeeded", ["About ", "llamas", "."], null]);
  assert.ok(done.metrics.total_time >= done.metrics.predict_time);

  // held, and of a model's latest version
  const held = await replicate.predictions.create({ model: captioner.name, input: { prompt: "hi" }, wait: 30 });
  assert.deepEqual([held.status, held.output, held.version], ["succeeded", "hi", captioner.version]);
  assert.equal(held.urls.stream, undefined);

  // cancel what runs
  const running = await replicate.predictions.create({ model: captioner.name, input: { gate: `${gate}.never` } });
  while ((await replicate.predictions.get(running.id)).status === "starting");
  await replicate.predictions.cancel(running.id);
  const canceled = await replicate.wait(running, { interval: 50 });
  assert.deepEqual([canceled.status, canceled.output], ["canceled", null]);

  // list
  const page = await replicate.predictions.list();
  assert.deepEqual(page.results.map((one) => one.id), [running.id, held.id, made.id]);
  assert.ok(page.results.every(terminal));
});
