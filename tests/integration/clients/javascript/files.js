const assert = require("node:assert/strict");
const { client, models, play, replicate } = require("./given");
const { captioner, painter } = models;

const text = async (output) => (await output.blob()).text();

play(async () => {
  // as inputs: uploaded, whatever they are made of
  for (const image of [Buffer.from("a cat"), new Blob(["a cat"]), new File(["a cat"], "cat.png", { type: "image/png" })]) {
    for (const fileEncodingStrategy of ["default", "upload"]) {
      assert.equal(await client({ fileEncodingStrategy }).run(captioner.name, { input: { image } }), "a cat");
    }
  }
  const uri = "data:text/plain;base64,YSBjYXQ=";
  assert.equal(await replicate.run(captioner.name, { input: { image: uri } }), "a cat");

  // as outputs
  const [first, second] = await replicate.run(painter.name, { input: { prompt: "a raccoon" } });
  assert.equal(await text(first), "a raccoon0");
  const chunks = [];
  for await (const chunk of second) chunks.push(chunk);
  assert.equal(Buffer.concat(chunks).toString(), "a raccoon1");
  assert.match(first.url().href, /^https:/);
  const [again] = await replicate.run(painter.ref, { input: { image: first.url().href } });
  assert.equal(await text(again), "a raccoon00");
  const [plain] = await client({ useFileOutput: false }).run(painter.name, { input: { prompt: "a raccoon" } });
  assert.equal(typeof plain, "string");

  // themselves
  for (const one of (await replicate.files.list()).results) await replicate.files.delete(one.id);
  const made = await replicate.files.create(new File(["a cat"], "cat.png", { type: "image/png" }), { k: 1 });
  assert.deepEqual([made.name, made.content_type, made.size, made.metadata], ["cat.png", "image/png", 5, { k: 1 }]);
  assert.deepEqual(await replicate.files.get(made.id), made);
  assert.deepEqual((await replicate.files.list()).results, [made]);
  assert.equal(await replicate.run(captioner.name, { input: { image: made.urls.get } }), "a cat");
  assert.equal(await replicate.files.delete(made.id), true);
  assert.deepEqual((await replicate.files.list()).results, []);
});
