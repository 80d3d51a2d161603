// The job under BullMQ with the settings that its guide recommends: a producer that fails fast, attempts with a backoff,
// a worker that closes on SIGTERM. lockDuration and stalledInterval (30 s) and maxStalledCount (1) are the defaults:
// "normally you should not need to modify" them, says docs.bullmq.io/guide/workers/stalled-jobs.

const readline = require("node:readline");
const { Queue, Worker } = require("bullmq");

const redis = new URL(process.env.BENCH_REDIS);
const connection = { host: redis.hostname, port: Number(redis.port) };

async function run(job) {
  const body = JSON.stringify({ input: job.data });
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${process.env.BENCH_MODEL}/run`, { method: "POST", headers, body });
  return (await answer.json()).output;
}

function work() {
  const worker = new Worker("deaths", run, { connection, concurrency: Number(process.env.BENCH_SLOTS) });
  worker.on("error", (error) => console.error("error", error.message));
  worker.on("failed", (job, error) => console.error("failed", job?.id, error.message));
  worker.on("stalled", (id) => console.error("stalled", id));
  // docs.bullmq.io/guide/going-to-production, "Gracefully shut-down workers"
  process.on("SIGTERM", async () => {
    await worker.close();
    process.exit(0);
  });
}

async function file() {
  // docs.bullmq.io/patterns/failing-fast-when-redis-is-down
  const queue = new Queue("deaths", { connection: { ...connection, enableOfflineQueue: false } });
  queue.on("error", (error) => console.error("error", error.message));
  await queue.waitUntilReady();
  // docs.bullmq.io/guide/retrying-failing-jobs; an id of its own makes a second `add` of a job change nothing
  const options = { attempts: 3, backoff: { type: "exponential", delay: 1000 } };
  readline.createInterface({ input: process.stdin }).on("line", async (job) => {
    try {
      await queue.add("run", { job }, { jobId: job, ...options });
      console.log(`accepted ${job}`);
    } catch (error) {
      console.log(`refused ${job} ${error.message.split("\n")[0]}`);
    }
  });
}

if (process.argv[2] === "work") work();
else file();
