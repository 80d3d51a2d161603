const assert = require("node:assert/strict");
const { account, models, play, replicate } = require("./given");
const { writer } = models;
const [owner, name] = writer.name.split("/");

play(async () => {
  const me = await replicate.accounts.current();
  assert.deepEqual([me.type, me.username], ["organization", account]);

  const model = await replicate.models.get(owner, name);
  assert.deepEqual([model.owner, model.name, model.latest_version.id], [owner, name, writer.version]);
  const versions = await replicate.models.versions.list(owner, name);
  assert.deepEqual(versions.results.map((version) => version.id), [writer.version]);
  const version = await replicate.models.versions.get(owner, name, writer.version);
  assert.equal(version.openapi_schema.components.schemas.Output["x-cog-array-type"], "iterator");

  const options = { visibility: "private", hardware: "cpu", description: "It sculpts marble." };
  const made = await replicate.models.create(account, "sculptor", options);
  assert.deepEqual([made.owner, made.name, made.visibility, made.latest_version], [account, "sculptor", "private", null]);
  const listed = [];
  for await (const page of replicate.paginate(replicate.models.list)) listed.push(...page.map((one) => one.name));
  assert.deepEqual([listed.includes("sculptor"), listed.includes(name)], [true, true]);
  const found = await replicate.models.search("marble");
  assert.deepEqual(found.results.map((one) => one.name), ["sculptor"]);

  assert.ok((await replicate.hardware.list()).some((hardware) => hardware.sku === "cpu"));
  const [best] = (await replicate.collections.list()).results;
  assert.deepEqual([best.slug, best.name], ["best", "The best"]);
  assert.deepEqual((await replicate.collections.get("best")).models.map((one) => one.name), [name]);
});
