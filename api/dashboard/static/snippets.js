// The same request for a shell, for Python, for Node and for clients of OpenAI's API, to copy.

import { json } from "./format.js";

/** A word for a shell. */
export const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

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

export const asNode = (prediction, base) => `import Replicate from "replicate";

const replicate = new Replicate({ auth: process.env.DIRECTOR_TOKEN, baseUrl: "${base}/v1" });
const output = await replicate.run("${prediction.model}", {
  input: ${json(prediction.input).replaceAll("\n", "\n  ")},
});
console.log(output);
`;

/** The messages of an input, which may have a prompt in their place. */
export const messagesOf = ({ messages, prompt, system_prompt: system }) => (Array.isArray(messages) ? messages : [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt ?? "" }]);

export const asOpenAi = (prediction, base) => {
  const all = messagesOf({ prompt: "Hello!", ...prediction.input });
  const more = Object.entries(prediction.input).filter(([name]) => SENT.has(name)).map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`).join("");
  return `import os

from openai import OpenAI

client = OpenAI(api_key=os.environ["DIRECTOR_TOKEN"], base_url="${base}/openai/v1")
stream = client.chat.completions.create(
    model="${prediction.model}",
    messages=${literal(all, "    ")},
${more}    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
};

const SENT = new Set(["max_tokens", "temperature", "top_p", "stop", "seed", "frequency_penalty", "presence_penalty"]);

/** JSON as Python writes it: outside of strings only true, false and null differ. */
const literal = (value, indent) => json(value).replace(/"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b/g, (word) => ({ true: "True", false: "False", null: "None" })[word] ?? word).replaceAll("\n", `\n${indent}`);

/** The languages that a model can be called in: `[name, make]`. */
export const languages = ({ hasOpenAi }) => [["curl", asCurl], ["Python", asPython], ["Node", asNode], ...(hasOpenAi ? [["OpenAI", asOpenAi]] : [])];
