// Run a model with Replicate's own client for JavaScript. Needs Node 18 or later, and: npm install replicate
//
// node call.js [MODEL]
const Replicate = require("replicate");

const replicate = new Replicate({
  auth: process.env.REPLICATE_API_TOKEN,
  baseUrl: `${process.env.REPLICATE_BASE_URL ?? "http://127.0.0.1:8080"}/v1`, // this client wants the /v1
});

async function main(model = "example/hello") {
  const output = await replicate.run(model, { input: { text: "hello", n: 3 } });
  process.stdout.write(output.join(""));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
