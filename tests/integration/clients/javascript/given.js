// What each script is given: a client of the service, who it speaks for, and the models that there are.
const fs = require("node:fs");
const Replicate = require("replicate");

const { account, token, url, gate, models } = JSON.parse(process.env.GIVEN);

const client = (options = {}) => new Replicate({ auth: token, baseUrl: `${url}/v1`, ...options });

// Whoever reads what a script printed knows that it came to its end: a promise that nothing holds ends a process too.
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
