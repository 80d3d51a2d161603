// Batches: files of requests that run as predictions. All of them, newest first, and one with its rate, its end and its files.

import { ask, download, page, repeat } from "../api.js";
import { accountNames, pick } from "../choices.js";
import { h, keyed, refill, say, table } from "../dom.js";
import { count, moment, now, seconds } from "../format.js";
import { action, copier, failure, facts, loading, when } from "./parts.js";

const LOOK_MS = 3000;
const MOST_LIVE = 1000; // rows, beyond which the list no longer updates itself
const OPENAI = "/openai/v1/batches";
const ADMIN = "/v1/admin/batches";
const OVER = new Set(["completed", "failed", "expired", "cancelled"]);
const SHADES = { completed: "good", failed: "bad", expired: "bad", in_progress: "warn", validating: "warn", finalizing: "warn", cancelling: "warn" };
const MEANINGS = {
  validating: "Its lines are checked.",
  in_progress: "Its lines run.",
  finalizing: "Its files are made.",
  completed: "Each line was run.",
  failed: "It could not be run. Its errors say why.",
  expired: "Its time was over before all lines had run.",
  cancelling: "Its lines are being canceled.",
  cancelled: "It was canceled. Its files have what had ended.",
};
const SUBMIT = "director batches submit requests.jsonl";

const chip = (status) => h("span", { class: `chip ${SHADES[status] ?? ""}`, title: MEANINGS[status] ?? null }, status.replace("_", " "));
const done = ({ request_counts: counts }) => counts.completed + counts.failed;
const iso = (at) => (at ? new Date(at * 1000).toISOString() : null);
const named = (batch) => batch.metadata?.file ?? batch.endpoint;
const rate = ({ progress }) => (progress.lines_per_second === null ? "–" : progress.lines_per_second < 0.1 ? `${count(Math.round(progress.lines_per_second * 3600))}/h` : `${progress.lines_per_second}/s`);
const bar = (batch) => h("progress", { max: String(Math.max(1, batch.request_counts.total)), value: String(done(batch)), "aria-label": `Progress of ${batch.id}` });
const left = ({ progress }) => (progress.ends_at ? seconds(Math.max(1, progress.ends_at - now() / 1000)) : "–");

/** All batches of the account, or of all accounts for operators. */
export function batches({ session, signal, query }) {
  const account = session.seesAll ? query.get("account") ?? "" : "";
  const known = new Map();
  const body = h("tbody", {});
  const note = h("p", { class: "hint", role: "status" });
  const wait = loading();
  const more = h("button", { type: "button", hidden: true, on: { click: () => load(next).catch((error) => refill(trouble, failure(error))) } }, "Show more");
  const trouble = h("div", {});
  const show = keyed(body, (one) => one.id, (first) => line(first, session));
  const lesser = (words, kind = "") => h("th", { scope: "col", class: `lesser ${kind}` }, words);
  const heads = ["Batch", ...(session.seesAll ? ["Account"] : []), lesser("File or endpoint"), "Status", "Progress", "#Lines", ...["Failed", "Rate", "Ends in", "Created"].map((words) => lesser(words, "num"))];
  const list = h("div", { hidden: true }, table("Batches", heads, body));
  const first = h("div", { hidden: true }, start());
  let next = null;
  let isLooked = false;
  let newest = 0; // rows that are asked for again

  async function fetched(from) {
    if (session.seesAll) return page(`${ADMIN}${account ? `?account=${encodeURIComponent(account)}` : ""}`, from, { signal });
    const found = await ask(`${OPENAI}?limit=100${from ? `&after=${from}` : ""}`, { signal });
    return { results: found.data, next: found.has_more ? found.last_id : null };
  }

  async function load(from) {
    const found = await fetched(from);
    if (signal.aborted) return;
    for (const one of found.results) known.set(one.id, one);
    if (from || !isLooked) { next = found.next; more.hidden = !next; }
    isLooked = wait.hidden = true;
    if (!from) newest = found.results.length;
    trouble.replaceChildren();
    show([...known.values()].sort((a, b) => (a.id < b.id ? 1 : -1)));
    list.hidden = !known.size;
    first.hidden = known.size > 0;
    const live = [...known.values()].filter((one) => !OVER.has(one.status)).length;
    say(note, known.size ? `${known.size} shown, ${live} under way. ${updates()}` : "No batches.");
  }

  function updates() {
    if (known.size >= MOST_LIVE) return "The list is long, and no longer updates itself.";
    return known.size > newest ? `The newest ${newest} update themselves.` : "The list updates itself.";
  }

  repeat(async () => {
    if (known.size >= MOST_LIVE) return undefined;
    try { await load(null); } catch (error) {
      if (signal.aborted) return undefined;
      wait.hidden = true;
      if (error.status === 404) { trouble.replaceChildren(h("p", { class: "empty" }, "This service runs no batches. Its operator turns them on with ", h("code", {}, "DIRECTOR_OPENAI=true"), ".")); return true; }
      refill(trouble, failure(error, true));
    }
    return undefined;
  }, { every: LOOK_MS, signal });

  const whose = pick({ id: "by-account", value: account, placeholder: "any", names: accountNames });
  function submit(event) {
    event.preventDefault();
    const wanted = whose.field.value.trim();
    location.hash = `#/batches${wanted ? `?${new URLSearchParams({ account: wanted })}` : ""}`;
  }

  return {
    title: "Batches",
    node: h("section", {}, h("h1", {}, "Batches"),
      h("p", { class: "lead" }, "A batch is a file of requests. Each line runs as a prediction, in the low lane."),
      session.seesAll ? h("form", { class: "filters", on: { submit } }, h("div", {}, h("label", { for: "by-account" }, "Account"), whose.node), h("button", { type: "submit" }, "Filter"), account ? h("a", { class: "button quiet", href: "#/batches" }, "Clear") : null) : null,
      note, wait, trouble, first, list, h("p", { class: "foot" }, more)),
  };
}

const start = () => h("div", { class: "card" }, h("p", {}, "A batch starts from a file of requests, or from the rows of a table:"),
  [SUBMIT, "director predict acme/painter --batch texts.csv"].map((words) => h("p", {}, h("code", {}, words), " ", copier("Copy", () => words))));

function line(first, session) {
  const cells = { status: h("td", {}), progress: h("td", {}), lines: h("td", { class: "num" }), failed: h("td", { class: "num lesser" }), rate: h("td", { class: "num lesser" }), left: h("td", { class: "num lesser" }), created: h("td", { class: "num broad lesser" }) };
  const node = h("tr", { class: "opens" }, h("th", { scope: "row" }, h("a", { href: `#/batches/${first.id}`, class: "mono" }, first.id)),
    session.seesAll ? h("td", {}, h("a", { href: `#/accounts/${first.account}` }, first.account)) : null, h("td", { class: "broken lesser" }, named(first)), Object.values(cells));
  return {
    node,
    update(one) {
      refill(cells.status, chip(one.status));
      refill(cells.progress, one.request_counts.total ? bar(one) : "–");
      say(cells.lines, one.request_counts.total ? `${count(done(one))} of ${count(one.request_counts.total)}` : "–");
      say(cells.failed, count(one.request_counts.failed));
      cells.failed.classList.toggle("bad", one.request_counts.failed > 0);
      say(cells.rate, rate(one));
      say(cells.left, left(one));
      refill(cells.created, when(iso(one.created_at)));
    },
  };
}

/** One batch. */
export function batch({ params: [id], session, signal }) {
  const base = session.seesAll ? `${ADMIN}/${id}` : `${OPENAI}/${id}`;
  const body = h("div", {}, loading());
  const trouble = h("div", {});
  let last = null;

  const fetchFile = (kind) => async () => {
    const path = session.seesAll ? `${base}/${kind}` : `/openai/v1/files/${kind === "output" ? last.output_file_id : last.error_file_id}/content`;
    await download(path, `${id}.${kind}.jsonl`);
    return "It is downloaded.";
  };

  async function cancel() {
    last = await ask(`${session.operates ? base : `${OPENAI}/${id}`}/cancel`, { method: "POST" });
    draw();
    return OVER.has(last.status) ? "It had ended." : "It is being canceled.";
  }

  function draw() {
    const isOver = OVER.has(last.status);
    refill(body,
      h("p", { class: "figures" }, chip(last.status), " ", last.progress.opens_at ? `Its lines wait until ${moment(iso(last.progress.opens_at))}.` : MEANINGS[last.status]),
      last.progress.waits ? h("p", { class: "callout" }, `No line is accepted now: ${last.progress.waits.detail}`) : null,
      last.request_counts.total ? [h("p", { class: "progress-row" }, bar(last)), figures(last)] : null,
      h("div", { class: "actions" },
        last.output_file_id ? action("Download output", fetchFile("output"), { kind: "main" }) : null,
        last.error_file_id ? action("Download errors", fetchFile("errors")) : null,
        !isOver && last.status !== "cancelling" ? action("Cancel", cancel, { kind: "danger", needs: session.rightOn(last.account), confirm: "Cancel this batch? What has ended stays in its files." }) : null),
      isOver ? null : h("p", { class: "hint" }, "Its files come at its end. Lines are counted within five minutes of their end."),
      faults(last), causes(last, session), details(last, session));
  }

  repeat(async () => {
    try {
      last = await ask(base, { signal });
      trouble.replaceChildren();
      draw();
      return OVER.has(last.status);
    } catch (error) {
      if (signal.aborted) return true;
      refill(trouble, failure(error, true));
      if (!last) body.replaceChildren();
      return error.status === 404;
    }
  }, { every: LOOK_MS, signal });

  return {
    title: "Batch",
    node: h("section", {}, h("p", {}, h("a", { href: "#/batches" }, "All batches")), h("h1", { class: "mono" }, id, " ", copier("Copy", () => id)), trouble, body),
  };
}

function figures(batch) {
  const { request_counts: counts, progress } = batch;
  const isLate = progress.ends_at && progress.ends_at > batch.expires_at;
  return [
    h("dl", { class: "tiles" }, [
      ["Lines", count(counts.total)], ["Done", `${Math.floor((100 * done(batch)) / counts.total)} %`], ["Succeeded", count(counts.completed)],
      ["Failed", count(counts.failed), counts.failed > 0], ["Lines a second", progress.lines_per_second ?? "–"], ...(OVER.has(batch.status) ? [] : [["Ends in about", left(batch), isLate]]),
    ].map(([name, value, isBad]) => h("div", { class: isBad ? "bad" : null }, h("dt", {}, name), h("dd", {}, value)))),
    isLate ? h("p", { class: "trouble" }, `At this rate it does not end by ${moment(iso(batch.expires_at))}: the last lines would expire.`) : null,
  ];
}

/** What is wrong with the lines of a file that was refused. */
function faults({ errors }) {
  if (!errors?.data.length) return null;
  return h("section", {}, h("h2", {}, errors.data.length >= 100 ? "The first hundred errors" : "Errors"),
    table("Errors", ["#Line", "Code", "What is wrong"], h("tbody", {}, errors.data.map((one) => h("tr", {},
      h("td", { class: "num" }, one.line ?? "–"), h("td", {}, one.code), h("td", { class: "error" }, one.message))))));
}

/** Why lines failed, the most frequent cause first. An operator sees the predictions of one. */
function causes({ progress, account }, session) {
  if (!progress.causes.length) return null;
  const link = ({ code }) => (session.seesAll && !code.startsWith("batch_") ? h("a", { href: `#/predictions?${new URLSearchParams({ account, code })}` }, code) : code);
  return h("section", {}, h("h2", {}, "Failures by cause"),
    table("Failures by cause", ["Cause", "#Lines"], h("tbody", {}, progress.causes.map((one) => h("tr", {}, h("th", { scope: "row" }, link(one)), h("td", { class: "num" }, one.lines.toLocaleString("en")))))));
}

const details = (batch, session) => h("section", {}, h("h2", {}, "Details"), facts([
  ["Account", session.seesAll ? h("a", { href: `#/accounts/${batch.account}` }, batch.account) : null],
  ["Endpoint", batch.endpoint],
  ["Open hours", batch.progress.open_hours],
  ["Created", moment(iso(batch.created_at))],
  ["Started", batch.in_progress_at ? moment(iso(batch.in_progress_at)) : null],
  [OVER.has(batch.status) ? "Ended" : "Expires", moment(iso(OVER.has(batch.status) ? batch[`${batch.status}_at`] : batch.expires_at))],
  ...Object.entries(batch.metadata ?? {}),
]));
