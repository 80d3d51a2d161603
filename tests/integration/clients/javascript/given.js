// Give each script a client of the service, its account, and the names of the models.
const fs = require("node:fs");
const Replicate = require("replicate");

const { account, token, url, gate, models } = JSON.parse(process.env.GIVEN);

const client = (options = {}) => new Replicate({ auth: token, baseUrl: `${url}/v1`, ...options });

// A script that reached its end prints true: a promise that nothing awaits ends a process too.
const play = async (script) => {
  await script();
  console.log("true");
};

module.exports = {
  account,
  client,
  gate,
  models,
  openGate: () => fs.writeFileSync(gate, ""),
  play,
  replicate: client(),
  terminal: (prediction) => !["starting", "processing"].includes(prediction.status),
  url,
};
