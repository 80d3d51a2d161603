// Does what OpenAI's guide to its Batch API does: upload, create, poll, download, list, cancel. Prints what came.
import fs from "fs";
import { createRequire } from "module";
const OpenAI = createRequire(process.env.NODE_PATH + "/")("openai");

const openai = new OpenAI();
const file = await openai.files.create({ file: fs.createReadStream("batchinput.jsonl"), purpose: "batch" });
let batch = await openai.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
  metadata: { description: "nightly eval job" },
});
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  batch = await openai.batches.retrieve(batch.id);
}
const fileResponse = await openai.files.content(batch.output_file_id);
const lines = (await fileResponse.text()).trim().split("\n").map((line) => JSON.parse(line));
const canceled = await openai.batches.cancel(batch.id);
await openai.files.delete(file.id);
const ids = [];
for await (const each of openai.batches.list({ limit: 10 })) ids.push(each.id);
const purposes = [];
for await (const each of openai.files.list()) purposes.push(each.purpose);
const counts = batch.request_counts;
console.log(
  JSON.stringify({
    status: batch.status,
    counts: [counts.total, counts.completed, counts.failed],
    metadata: batch.metadata,
    lines: lines.map((line) => line.custom_id).sort(),
    listed: ids.includes(batch.id),
    canceled: canceled.status,
    files: purposes.sort(),
  }),
);
