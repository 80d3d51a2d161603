const assert = require("node:assert/strict");
const { models, play, replicate } = require("./given");
const { writer, captioner, dreamer } = models;

const told = async (events) => {
  const said = [];
  for await (const { event, data } of events) if (event !== "logs") said.push([event, data]);
  return said;
};

play(async () => {
  const input = { prompt: "llamas" };
  const whole = [["output", "About "], ["output", "llamas"], ["output", "."], ["done", "{}"]];
  for (const ref of [writer.name, writer.ref]) {
    assert.deepEqual(await told(replicate.stream(ref, { input })), whole);
  }
  await assert.rejects(told(replicate.stream(captioner.name, { input })), { message: /does not support streaming/ });
  const failing = replicate.stream(writer.name, { input: { then: "raise" } });
  await assert.rejects(told(failing), { message: /^{"detail":".*ValueError: it went wrong"}$/ });

  const files = await told(replicate.stream(dreamer.name, { input: { prompts: "sunset" } }));
  assert.deepEqual(files.map(([event]) => event), ["output", "output", "done"]);
  assert.equal(await (await fetch(files[0][1])).text(), "sunset");
});
