const assert = require("node:assert/strict");
const { account, models, play, replicate } = require("./given");
const { captioner } = models;

play(async () => {
  const wanted = { name: "captions", model: captioner.name, version: captioner.version };
  const size = { hardware: "cpu", min_instances: 0, max_instances: 1 };
  const made = await replicate.deployments.create({ ...wanted, ...size });
  assert.deepEqual([made.owner, made.name, made.current_release.number], [account, "captions", 1]);
  assert.deepEqual(made.current_release.configuration, size);
  const changed = await replicate.deployments.update(account, "captions", { max_instances: 2 });
  assert.deepEqual([changed.current_release.number, changed.current_release.configuration.max_instances], [2, 2]);
  assert.deepEqual(await replicate.deployments.get(account, "captions"), changed);
  assert.deepEqual((await replicate.deployments.list()).results, [changed]);

  const input = { prompt: "by a release" };
  const prediction = await replicate.deployments.predictions.create(account, "captions", { input });
  const done = await replicate.wait(prediction, { interval: 50 });
  assert.deepEqual([done.status, done.output, done.version], ["succeeded", "by a release", captioner.version]);
  assert.equal(done.deployment, `${account}/captions`);

  assert.equal(await replicate.deployments.delete(account, "captions"), true);
  await assert.rejects(replicate.deployments.get(account, "captions"), (error) => error.response.status === 404);
});
