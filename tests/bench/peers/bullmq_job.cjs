// The job under BullMQ, on Node; it keeps results by itself.

const http = require("node:http");
const { Queue, Worker } = require("bullmq");

const redis = new URL(process.env.BENCH_REDIS);
const connection = { host: redis.hostname, port: Number(redis.port), maxRetriesPerRequest: null };
const agent = new http.Agent({ keepAlive: true });

function run(job) {
  return new Promise((resolve, reject) => {
    const body = JSON.stringify({ input: job.data });
    const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
    const request = http.request(`${process.env.BENCH_MODEL}/run`, { method: "POST", agent, headers }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => resolve(JSON.parse(Buffer.concat(parts)).output));
    });
    request.on("error", reject);
    request.end(body);
  });
}

async function file(many) {
  const queue = new Queue("bench", { connection });
  for (let number = 0; number < many; number++) await queue.add("run", { text: "hello", n: 3 });
  await queue.close();
}

if (process.argv[2] === "work") new Worker("bench", run, { connection, concurrency: Number(process.env.BENCH_SLOTS) });
else file(Number(process.argv[2]));
