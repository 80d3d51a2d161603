// Numbers and times as people read them.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];
const COUNT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TIME = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const CLOCK = new Intl.DateTimeFormat(undefined, TIME);
const DAYS = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
const HOUR = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const OLD = new Intl.DateTimeFormat(undefined, { ...TIME, year: "numeric" });

/** Seconds, in the unit that suits: 0.25 s, 12 s, 3.5 min, 2 d. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of UNITS) if (value >= size * 1.5) return `${trimmed(value / size)} ${unit}`;
  return value < 0.0995 ? `${Math.round(value * 1000)} ms` : `${trimmed(value)} s`;
}

const trimmed = (value) => (value < 10 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value).toString());

/** A count: 950, 1.2K, 3M. */
export const count = (value) => (value < 1000 ? String(value) : COUNT.format(value));

/** A moment: date and time of the reader's place; the year only where it is another one. */
export function moment(at) {
  if (!at) return "–";
  const date = new Date(at);
  return (date.getFullYear() === new Date().getFullYear() ? CLOCK : OLD).format(date);
}

/** A moment to come, or that it is now. */
export const due = (at) => (at && Date.parse(at) <= now() ? "due now" : moment(at));

let ahead = 0; // ms that the service's clock is ahead of the browser's, which may be anything

/** Now, by the clock of the service. */
export const now = () => Date.now() + ahead;

/** The service said that it is this late. It tells seconds, so less than some is no difference. */
export function setClock(date) {
  const found = Date.parse(date ?? "") - Date.now();
  ahead = Math.abs(found) > 5000 ? found : 0;
}

/** How long ago a moment was. */
export const ago = (iso) => (iso ? `${seconds(Math.max(1, (now() - Date.parse(iso)) / 1000))} ago` : "–");

const midnight = (date) => new Date(date).setHours(0, 0, 0, 0);

/** A moment of the past as people of the reader's place say it: today 14:05, yesterday 9:30, or its date. */
export function day(at) {
  const days = Math.round((midnight(at) - midnight(now())) / 86_400_000);
  return days === 0 || days === -1 ? `${DAYS.format(days, "day")} ${HOUR.format(new Date(at))}` : DATE.format(new Date(at));
}

/** What a time element has: the whole moment for those who point at it, and the language of its words. */
export const timed = (at) => ({ datetime: at, title: WHOLE.format(new Date(at)), lang: DATE.resolvedOptions().locale });

/** Seconds between two moments; null where one is not known. */
export const between = (from, to) => (from && to ? Math.max(0, (Date.parse(to) - Date.parse(from)) / 1000) : null);

/** A part of a whole, in per cent. */
export const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

/** JSON, laid out. */
export const json = (value) => JSON.stringify(value, null, 2);

/** Bytes, in the unit that suits: 512 B, 1.5 MB. */
export function bytes(value) {
  const at = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${trimmed(value / 1000 ** at)} ${["B", "kB", "MB", "GB", "TB"][at]}`;
}

/** The bytes of a file within a data URI. */
export const dataBytes = (uri) => Math.floor(((uri.length - uri.indexOf(",") - 1) * 3) / 4);
