const assert = require("node:assert/strict");
const { models, play, replicate } = require("./given");

play(async () => {
  const create = () => replicate.predictions.create({ version: models.captioner.version, input: { prompt: "hi" } });
  const made = [];
  for (let n = 0; n < 105; n += 15) made.push(...(await Promise.all(Array.from({ length: 15 }, create))));
  const pages = [];
  for await (const page of replicate.paginate(replicate.predictions.list)) pages.push(page.map((one) => one.id));
  assert.deepEqual(pages.map((page) => page.length), [100, 5]);
  assert.deepEqual(pages.flat().sort(), made.map((one) => one.id).sort());
});
