const assert = require("node:assert/strict");
const { account, gate, models, openGate, play, replicate, terminal } = require("./given");
const [owner, name] = models.trainer.name.split("/");
const { version } = models.trainer;
const destination = `${account}/tuned`;

const ended = async (training) => {
  let seen = training;
  while (!terminal(seen)) seen = await replicate.trainings.get(training.id);
  return seen;
};

play(async () => {
  await replicate.models.create(account, "tuned", { visibility: "private", hardware: "cpu" });
  const input = { input_images: "https://my-domain/images.zip", token_string: "TOK", gate };
  const training = await replicate.trainings.create(owner, name, version, { destination, input });
  assert.deepEqual([training.status, training.destination], ["starting", destination]);
  assert.match(training.urls.get, new RegExp(`/v1/trainings/${training.id}$`));
  openGate();
  const done = await ended(training);
  assert.deepEqual([done.status, done.error], ["succeeded", null]);
  const made = await replicate.models.versions.list(account, "tuned");
  assert.deepEqual(made.results.map((one) => `${destination}:${one.id}`), [done.output.version]);
  assert.equal(await (await fetch(done.output.weights)).text(), "TOK");

  const stopped = await replicate.trainings.create(owner, name, version, { destination, input: { gate: `${gate}.never` } });
  await replicate.trainings.cancel(stopped.id);
  assert.equal((await ended(stopped)).status, "canceled");
  assert.deepEqual((await replicate.trainings.list()).results.map((one) => one.id), [stopped.id, training.id]);
  const astray = { destination: `${account}/missing`, input: {} };
  await assert.rejects(replicate.trainings.create(owner, name, version, astray), /destination does not exist/);
});
