// The sections of the page: one row for each, from which sidebar, palette, keys and addresses are made.

import { session } from "./session.js";
import { account, accounts } from "./views/accounts.js";
import { audit } from "./views/audit.js";
import { batch, batches } from "./views/batches.js";
import { dead } from "./views/dead.js";
import { directors, fails } from "./views/directors.js";
import { overview } from "./views/overview.js";
import { own } from "./views/own.js";
import { prediction } from "./views/prediction.js";
import { predictions } from "./views/predictions.js";
import { queue } from "./views/queue.js";
import { queues } from "./views/queues.js";
import { loud } from "./views/findings.js";
import { model } from "./views/model.js";
import { models, moved } from "./views/models.js";
import { deployment, deployments } from "./views/rollout.js";
import { system } from "./views/system.js";
import { usage } from "./views/usage.js";
import { webhooks } from "./views/webhooks.js";

// what names may look like: whatever else an address has, a stranger may have written, and nothing is asked for there
const NAME = "[a-z0-9][a-z0-9._-]*";
export const MODEL = `${NAME}/${NAME}`;
const QUEUE = `${MODEL}:[0-9a-f]{12}(?:~[a-z]+)?`;

const dying = ({ queues: all }) => all.reduce((sum, one) => sum + one.dead, 0);
const failing = ({ directors: all }) => all.filter(fails).length;

// `key`: the letter after g. `only`: "all" for those who see all accounts, "own" for the others. `count(snapshot)`: what
// needs a person, with its words for one and for many. `views`: addresses, whose groups become the view's parameters
const ROWS = [
  { group: "Use", path: "/", name: "Home", icon: "home", key: "h", only: "own", views: [["/", own]] },
  { group: "Use", path: "/models", name: "Models", icon: "models", key: "m", views: [["/models", models], [`/models/(${NAME})/(${NAME})(?:/(api|examples|versions|runs))?`, model], [`/run(/${MODEL})?`, moved]] },
  { group: "Use", path: "/deployments", name: "Deployments", icon: "deployments", key: "v", views: [["/deployments", deployments], [`/deployments/(${MODEL})`, deployment]] },
  { group: "Use", path: "/predictions", name: "Predictions", icon: "predictions", key: "p", views: [["/predictions", predictions], ["/predictions/([a-z0-9]+)", prediction]] },
  { group: "Use", path: "/batches", name: "Batches", icon: "batches", key: "b", views: [["/batches", batches], ["/batches/(batch_[a-z0-9]{26})", batch]] },
  { group: "Operate", path: "/", name: "Home", icon: "home", key: "h", only: "all", count: ({ findings }) => loud(findings ?? []).length, words: ["finding", "findings"], views: [["/", overview]] },
  { group: "Operate", path: "/queues", name: "Queues", icon: "queues", key: "q", only: "all", views: [["/queues", queues], [`/queues/(${QUEUE})`, queue]] },
  { group: "Operate", path: "/dead", name: "Dead letters", icon: "dead", key: "d", only: "all", count: dying, words: ["dead letter", "dead letters"], views: [["/dead", dead]] },
  { group: "Operate", path: "/webhooks", name: "Webhooks", icon: "webhooks", key: "w", only: "all", count: ({ owed }) => owed.count, words: ["webhook owed", "webhooks owed"], views: [["/webhooks", webhooks]] },
  { group: "Operate", path: "/directors", name: "Directors", icon: "directors", key: "r", only: "all", count: failing, words: ["director fails", "directors fail"], views: [["/directors", directors]] },
  { group: "Manage", path: "/accounts", name: "Accounts", icon: "accounts", key: "a", only: "all", views: [["/accounts", accounts], [`/accounts/(${NAME})`, account]] },
  { group: "Manage", path: "/usage", name: "Usage", icon: "usage", key: "u", views: [["/usage", usage]] },
  { group: "Manage", path: "/audit", name: "Changes", icon: "changes", key: "c", only: "all", views: [["/audit", audit]] },
  { group: "Manage", path: "/system", name: "System", icon: "system", key: "s", only: "all", views: [["/system", system]] },
];
const SECTIONS = ROWS.map((row) => ({ ...row, views: row.views.map(([address, view]) => [new RegExp(`^${address}$`), view]) }));

const isFor = ({ only }) => !only || (only === "all") === session.seesAll;

/** The sections of the person who is logged in. */
export const sections = () => (session.who ? SECTIONS.filter(isFor) : []);

/** What an address shows: `{section, view, params}`, null if there is no such view, or "denied" if others have it. */
export function viewAt(address) {
  let found = null;
  for (const section of SECTIONS) {
    for (const [pattern, view] of section.views) {
      const params = pattern.exec(address)?.slice(1);
      if (!params) continue;
      if (isFor(section)) return { section, view, params };
      found = "denied";
    }
  }
  return found;
}
