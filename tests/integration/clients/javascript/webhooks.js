const assert = require("node:assert/strict");
const http = require("node:http");
const { validateWebhook } = require("replicate");
const { models, play, replicate } = require("./given");

play(async () => {
  const received = new Promise((resolve) => {
    const server = http.createServer(async (request, response) => {
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      response.end();
      server.close();
      resolve({ url: request.url, headers: request.headers, body: Buffer.concat(chunks) });
    });
    server.listen(0, "127.0.0.1", async () => {
      await replicate.predictions.create({
        model: models.captioner.name,
        input: { prompt: "ünïcödé" },
        webhook: `http://127.0.0.1:${server.address().port}/hook?my=id`,
        webhook_events_filter: ["completed"],
      });
    });
  });
  const { url, headers, body } = await received;
  const { key } = await replicate.webhooks.default.secret.get();
  const request = () => new Request("https://my.app/hook", { method: "POST", headers, body });
  assert.equal(await validateWebhook(request(), key), true);
  const parts = {
    id: headers["webhook-id"],
    timestamp: headers["webhook-timestamp"],
    signature: headers["webhook-signature"],
    secret: key,
  };
  assert.equal(await validateWebhook({ ...parts, body: body.toString() }), true);
  assert.equal(await validateWebhook({ ...parts, body: `${body} ` }), false);
  assert.deepEqual([url, JSON.parse(body).output], ["/hook?my=id", "ünïcödé"]);
});
