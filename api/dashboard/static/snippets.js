// The same request for a shell and for Python, to copy.

import { json } from "./format.js";

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export const asCurl = (prediction, base) => [
  `curl -s -X POST ${quoted(`${base}/v1/models/${prediction.model}/predictions`)}`,
  `  -H "Authorization: Bearer $DIRECTOR_TOKEN" -H "Content-Type: application/json"`,
  `  -d ${quoted(JSON.stringify({ input: prediction.input }))}`,
].join(" \\\n");

export const asPython = (prediction, base) => `import os

import replicate

client = replicate.Client(api_token=os.environ["DIRECTOR_TOKEN"], base_url="${base}")
output = client.run(
    "${prediction.model}",
    input=${literal(prediction.input, "    ")},
)
print(output)
`;

/** JSON as Python writes it: outside of strings only true, false and null differ. */
const literal = (value, indent) => json(value).replace(/"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b/g, (word) => ({ true: "True", false: "False", null: "None" })[word] ?? word).replaceAll("\n", `\n${indent}`);
