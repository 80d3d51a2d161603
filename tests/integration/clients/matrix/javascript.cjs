// Try each feature that this version of the JavaScript client has. Prints a JSON object: feature → how it went.
const assert = require("node:assert/strict");
const Replicate = require("replicate");

const { account, token, url, gate, models } = JSON.parse(process.env.GIVEN);
const replicate = new Replicate({ auth: token, baseUrl: `${url}/v1`, fetch });
const { writer, captioner, painter, trainer } = models;
const pieces = ["About ", "llamas", "."];
const terminal = ({ status }) => !["starting", "processing"].includes(status);

const text = async (output) =>
  output.blob ? (await output.blob()).text() : (await fetch(output.toString())).text();

const features = {
  async run() {
    assert.deepEqual(await replicate.run(writer.ref, { input: { prompt: "llamas" } }), pieces);
    assert.equal(await replicate.run(captioner.ref, { input: { prompt: "hi" } }), "hi");
  },
  async predictions() {
    const made = await replicate.predictions.create({ version: writer.version, input: { prompt: "llamas" } });
    const done = await replicate.wait(made, { interval: 50 });
    assert.deepEqual([done.status, done.output], ["succeeded", pieces]);
    assert.equal((await replicate.predictions.get(made.id)).status, "succeeded");
    assert.ok((await replicate.predictions.list()).results.some(({ id }) => id === made.id));
  },
  async cancel() {
    const input = { gate: `${gate}.never` };
    const { id } = await replicate.predictions.create({ version: captioner.version, input });
    while ((await replicate.predictions.get(id)).status === "starting");
    await replicate.predictions.cancel(id);
    let seen;
    while (!terminal((seen = await replicate.predictions.get(id))));
    assert.equal(seen.status, "canceled");
  },
  async failure() {
    await assert.rejects(replicate.run(captioner.ref, { input: { then: "raise" } }), /it went wrong/);
  },
  async stream() {
    const said = [];
    for await (const { event, data } of replicate.stream(writer.ref, { input: { prompt: "llamas" } })) {
      if (event === "output") said.push(data);
    }
    assert.deepEqual(said, pieces);
  },
  async files() {
    const image = Buffer.from("a cat");
    assert.equal(await replicate.run(captioner.ref, { input: { image } }), "a cat");
    const [first, second] = await replicate.run(painter.ref, { input: { prompt: "a raccoon" } });
    assert.deepEqual([await text(first), await text(second)], ["a raccoon0", "a raccoon1"]);
  },
  async trainings() {
    const [owner, name] = trainer.name.split("/");
    const destination = `${account}/tuned`;
    const end = async ({ id }) => {
      let seen;
      while (!terminal((seen = await replicate.trainings.get(id))));
      return seen;
    };
    const create = (input) => replicate.trainings.create(owner, name, trainer.version, { destination, input });
    const done = await end(await create({ token_string: "TOK" }));
    assert.equal(await text(done.output.weights), "TOK");
    const stopped = await create({ gate: `${gate}.never` });
    await replicate.trainings.cancel(stopped.id);
    assert.equal((await end(stopped)).status, "canceled");
  },
  async models_and_versions() {
    const [owner, name] = writer.name.split("/");
    const { results } = await replicate.models.versions.list(owner, name);
    assert.deepEqual(results.map(({ id }) => id), [writer.version]);
  },
  async deployments() {
    const input = { prompt: "by a release" };
    const made = await replicate.deployments.predictions.create(account, "captions", { input });
    const done = await replicate.wait(made, { interval: 50 });
    assert.deepEqual([done.status, done.output], ["succeeded", "by a release"]);
  },
};
const PARTS = { stream: "stream", trainings: "trainings", deployments: "deployments" };

(async () => {
  const told = {};
  for (const [name, feature] of Object.entries(features)) {
    if (PARTS[name] && !replicate[PARTS[name]]) {
      told[name] = "–";
      continue;
    }
    try {
      await feature();
      told[name] = "yes";
    } catch (error) {
      told[name] = `${error.name}: ${error.message}`.slice(0, 300);
    }
  }
  console.log(JSON.stringify(told));
})();
