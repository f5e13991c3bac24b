// Numbers and times in words.

const day = 86400;

export function span(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < day) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / day)} d`;
}
export const since = (time) => span((Date.now() - new Date(time)) / 1000);
export const ago = (time) => (time ? since(time) + " ago" : "never");

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const date = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const year = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
export function at(time) {
  const t = new Date(time);
  return Date.now() - t < day * 1000 && t.getDate() === new Date().getDate() ? clock.format(t) : `${date.format(t)}, ${clock.format(t)}`;
}
export const onDay = (time) => (time ? year.format(new Date(time)) : "never");

/** When something ends: soon things by how long they last. */
export function ends(time) {
  const left = (new Date(time) - Date.now()) / 1000;
  return time && left < day ? `in ${span(left)}` : onDay(time);
}

const whole = new Intl.NumberFormat();
export const count = (n) => (n === undefined || n === null ? "–" : whole.format(n));

export function ms(n) {
  if (n === undefined || n === null || Number.isNaN(n)) return "–";
  if (n < 1000) return `${n < 10 ? Math.round(n * 10) / 10 : Math.round(n)} ms`;
  if (n < 60000) return `${(n / 1000).toFixed(n < 10000 ? 1 : 0)} s`;
  return span(n / 1000);
}

export function money(usd) {
  if (usd === undefined) return "–";
  if (!usd) return "$0";
  if (usd < 0.0001) return "<$0.0001";
  return "$" + usd.toFixed(usd < 0.1 ? 4 : 2);
}

export function size(bytes) {
  if (bytes >= 1e10) return `${Math.round(bytes / 1e9)} GB`;
  return bytes ? `${Math.round(bytes / 1e6)} MB` : "–";
}

export const short = (id) => id.slice(0, 8);
export const some = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;

/** Returns the duration, in ms, that a part of the calls stays below. */
export function quantile(durations, bounds, part) {
  const all = durations.reduce((a, b) => a + b, 0);
  let want = all * part;
  for (let i = 0; i < durations.length; i++) {
    if (durations[i] && want <= durations[i]) {
      const low = i ? bounds[i - 1] : 0;
      return low + ((bounds[i] ?? low) - low) * (want / durations[i]);
    }
    want -= durations[i];
  }
  return undefined;
}

/** Adds up buckets of a series. */
export function sum(buckets) {
  const to = { calls: 0, failed: 0, refused: 0, wakes: 0, durations: [] };
  for (const b of buckets) {
    to.calls += b.calls;
    to.failed += b.failed;
    to.refused += b.refused;
    to.wakes += b.wakes;
    b.durations.forEach((n, i) => (to.durations[i] = (to.durations[i] ?? 0) + n));
  }
  return to;
}
