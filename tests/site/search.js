// Ask the search of the built site, in Node: `node search.js SITE < questions`. It runs the worker that the site's pages run,
// and prints for each line of its input a JSON list of the pages found, the best first.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
const SETUP = 0, READY = 1, QUERY = 2, RESULT = 3;

const listeners = [];
let answer = () => {};
const self = {
  addEventListener: (kind, listener) => listeners.push(listener),
  postMessage: (message) => answer(message),
  importScripts: () => {},
  location: { href: "http://localhost/" },
  console, setTimeout, clearTimeout, performance, structuredClone,
};
self.self = self.window = self.globalThis = self;
vm.createContext(self);
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), self);

const ask = (message, wanted) => new Promise((resolve) => {
  answer = (reply) => { if (reply.type === wanted) resolve(reply.data); };
  for (const listener of listeners) listener({ data: message });
});

(async () => {
  const options = { suggest: false };
  await ask({ type: SETUP, data: { ...index, options } }, READY);
  for (const question of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    const { items } = await ask({ type: QUERY, data: question }, RESULT);
    console.log(JSON.stringify(items.slice(0, 8).map((group) => group[0].location.split("#")[0])));
  }
})();
