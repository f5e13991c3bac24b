// All servers of the servers file, and what they are doing.
import { html, useState } from "./vendor/htm-preact.js";
import { act, onStack } from "./api.js";
import { ago, count, money, ms, quantile, since, some, sum } from "./format.js";
import { useClock, useData } from "./live.js";
import { Do, Elsewhere, Nothing, Problem, Server, State, Table, serverLink, stop } from "./parts.js";
import { Calls, Latency, Wakes } from "./plot.js";

const worst = { failed: 0, starting: 1, awake: 2, asleep: 3, remote: 3, "not served": 4, off: 5 };

const Tile = ({ name, value, bad, href }) => html`<div class="tile ${bad ? "bad" : ""}"><dt>${name}</dt><dd>${href ? html`<a href=${href}>${value}</a>` : value}</dd></div>`;

/** What a failed server wrote last. */
function LastLines({ server }) {
  const [text, setText] = useState();
  if (text !== undefined) return html`<pre class="last" tabindex="0" aria-label=${"Last lines of " + server}>${text || "It has written nothing."}</pre>`;
  return html`<${Do} kind="quiet small" to=${async () => setText(await lastLines(server))}>Last lines<//>`;
}

async function lastLines(server) {
  const response = await fetch(`api/v1/logs?of=${encodeURIComponent(server)}&lines=8`, { headers: { "X-Dormouse-Console": "1" }, cache: "no-store" });
  if (!response.ok) throw new Error("its output cannot be read");
  const all = (await response.text()).trim().split("\n").filter(Boolean).map((l) => JSON.parse(l));
  return all.length ? all[all.length - 1].text.trimEnd() : "";
}

function Why({ server, me }) {
  if (!server.why) return null;
  return html`<div class="why"><p>${server.why}</p>${server.state === "failed" && me.role === "operator" && html`<div class="row"><${LastLines} server=${server.name} /><a class="button quiet small" href=${serverLink(server.name, "log")}>Log</a></div>`}</div>`;
}

/** Reads the servers file at once, and says what has changed. */
function Reload({ done }) {
  const [said, say] = useState();
  const reload = async () => {
    say();
    const { changes, error } = await act("POST", "reload", {});
    if (error) throw new Error(error);
    say(changes || "The servers file is as it was.");
  };
  return html`<div class="row end">${said && html`<span class="hint" role="status">${said}</span>`}<${Do} kind="quiet small" to=${reload} done=${done}>Reload the servers file<//></div>`;
}

const sleeps = (s) => (s.state === "asleep" && s.last_message ? since(s.last_message) : s.state === "awake" && s.processes > 1 ? "×" + s.processes : "");

const history = ["series?since=24h&step=24h", "series?since=1h&sum=true", "bill?since=720h&by=server"];
const nothing = { buckets: [], shares: [], bounds_ms: [] };

// more marks a number of sessions that is a lower bound.
const more = (s) => (s?.more_sessions ? "+" : "");

export function Servers({ me }) {
  useClock();
  const stack = onStack(me);
  const { data, error, again } = useData("servers", ...(stack ? [] : history));
  if (!data) return html`<h1 class="unseen">Servers</h1>${error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`}`;
  const [{ servers }, ofDay = nothing, ofHour, bill = nothing] = data;
  const cost = new Map(bill.shares.map((s) => [s.server, s.usd]));
  const rows = servers.map((s) => {
    const day = sum(ofDay.buckets.filter((b) => b.server === s.name));
    return { ...s, p50: quantile(day.durations, ofDay.bounds_ms, 0.5), p95: quantile(day.durations, ofDay.bounds_ms, 0.95), usd: cost.get(s.name) };
  });
  const all = { sessions: 0, calls_24h: 0, failed_24h: 0 };
  for (const s of rows) for (const key in all) all[key] += s[key] ?? 0;
  const up = rows.filter((s) => s.state === "awake" || s.state === "starting").length;
  const columns = [
    { head: "Server", cell: (s) => (s.path ? html`<${Server} name=${s.name} />` : s.name), sort: (s) => s.name },
    { head: "State", cell: (s) => html`<${State} of=${s.state} more=${sleeps(s)} />`, sort: (s) => worst[s.state] },
    { head: "Sessions", num: true, wide: true, cell: (s) => (s.path ? count(s.sessions) + more(s) : ""), sort: (s) => s.sessions },
    ...(stack ? [{ head: "Last message", num: true, cell: (s) => (s.path ? ago(s.last_message) : ""), sort: (s) => s.last_message }] : [{ head: "Calls 24 h", num: true, cell: (s) => (s.path ? html`<a class="plain" href=${"#/activity?server=" + encodeURIComponent(s.name)}>${count(s.calls_24h)}</a>` : ""), sort: (s) => s.calls_24h },
    { head: "Failed", num: true, cell: (s) => (s.path ? html`<span class=${s.failed_24h ? "bad" : ""}>${count(s.failed_24h)}</span>` : ""), sort: (s) => s.failed_24h },
    { head: "p50", num: true, wide: true, cell: (s) => (s.path ? ms(s.p50) : ""), sort: (s) => s.p50 },
    { head: "p95", num: true, wide: true, cell: (s) => (s.path ? ms(s.p95) : ""), sort: (s) => s.p95 },
    { head: "30 days", num: true, wide: true, cell: (s) => (s.path ? money(s.usd ?? 0) : ""), sort: (s) => s.usd }]),
  ];
  if (me.role === "operator") columns.push({ head: "", label: "Actions", class: "actions wide", cell: (s) => (s.processes || (stack && s.boxes) ? html`<${Do} kind="quiet small" label=${"Stop " + s.name} to=${() => stop("servers/" + encodeURIComponent(s.name))} done=${again}>Stop<//>` : "") });
  return html`<h1 class="unseen">Servers</h1><${Problem} error=${error} />
    <div role="status"><dl class="tiles">
      <${Tile} name="Awake" value=${`${up} of ${rows.filter((s) => s.path).length}`} />
      <${Tile} name="Sessions" value=${count(all.sessions) + more(rows[0])} />
      ${!stack && html`<${Tile} name="Calls, 24 h" value=${count(all.calls_24h)} href="#/activity" />
      <${Tile} name="Failed, 24 h" value=${count(all.failed_24h)} bad=${all.failed_24h} href="#/activity?failed=true" />
      <${Tile} name="30 days on AWS" value=${money(bill.usd)} href="#/costs" />`}
    </dl></div>
    ${!stack && html`<div class="plots"><${Calls} series=${ofHour} seconds=${3600} each="a minute" /><${Latency} series=${ofHour} seconds=${3600} /><${Wakes} series=${ofHour} seconds=${3600} each="a minute" /></div>`}
    ${rows.length ? html`<${Table} caption=${some(rows.length, "server", "servers")} columns=${columns} rows=${rows} id=${(s) => s.name} below=${(s) => s.why && html`<${Why} server=${s} me=${me} />`} />`
      : html`<${Nothing}>The servers file has no server that you may see. Add one: <code>dormouse add NAME -- COMMAND</code><//>`}
    ${!stack && me.role === "operator" && html`<${Reload} done=${again} />`}
    ${stack && html`<${Elsewhere} me=${me} what="calls, times and costs" />`}`;
}
