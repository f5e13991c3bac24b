// All servers of the servers file, and what they are doing.
import { html, useState } from "./vendor/htm-preact.js";
import { act, narrow, onStack } from "./api.js";
import { ago, count, ms, quantile, since, size, some, sum } from "./format.js";
import { useClock, useData } from "./live.js";
import { Do, Elsewhere, Nothing, Problem, Server, State, Table, serverLink, stateOf, stop } from "./parts.js";
import { Add } from "./edit.js";
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
  return html`<div class=${server.state === "off" ? "why calm" : "why"}><p>${server.why}</p>${server.state === "failed" && me.role === "operator" && html`<div class="row"><${LastLines} server=${server.name} /><a class="button quiet small" href=${serverLink(server.name, "log")}>Log</a></div>`}</div>`;
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

const history = ["series?since=24h&step=24h", "series?since=1h&sum=true", "processes"];
const nothing = { buckets: [], bounds_ms: [] };

/** How the machine is, in three tiles. */
function Machine() {
  const { data } = useData("machine");
  const v = data?.[0];
  if (!v) return null;
  const used = (all, free) => (all ? `${Math.round((100 * (all - free)) / all)} %` : "–");
  return html`<dl class="tiles three" aria-label="This machine">
    <${Tile} name=${`Memory, of ${size(v.memory_bytes)}${v.memory_boxes_bytes ? `; servers ${size(v.memory_boxes_bytes)}` : ""}`} value=${used(v.memory_bytes, v.memory_free_bytes)} bad=${v.memory_bytes && v.memory_free_bytes < v.memory_bytes / 20} />
    <${Tile} name=${`Load, of ${some(v.processors, "processor", "processors")}`} value=${v.load.toFixed(1)} bad=${v.load > 2 * v.processors} />
    <${Tile} name=${`Disk, of ${size(v.disk_bytes)}`} value=${used(v.disk_bytes, v.disk_free_bytes)} bad=${v.disk_bytes && v.disk_free_bytes < v.disk_bytes / 20} /></dl>`;
}

// more marks a number of sessions that is a lower bound.
const more = (s) => (s?.more_sessions ? "+" : "");

export function Servers({ me }) {
  useClock();
  const stack = onStack(me);
  const [adding, setAdding] = useState(false);
  const [said, say] = useState();
  const { data, error, again } = useData("servers", ...(stack ? [] : history));
  if (!data) return html`<h1 class="unseen">Servers</h1>${error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`}`;
  const [{ servers }, ofDay = nothing, ofHour, status] = data;
  const memory = new Map();
  for (const p of status?.processes ?? []) memory.set(p.server, (memory.get(p.server) ?? 0) + (p.memory_bytes ?? 0));

  const rows = servers.map((s) => {
    const day = sum(ofDay.buckets.filter((b) => b.server === s.name));
    return { ...s, p50: quantile(day.durations, ofDay.bounds_ms, 0.5), p95: quantile(day.durations, ofDay.bounds_ms, 0.95), memory: memory.get(s.name) };
  });
  const all = { sessions: 0, calls_24h: 0, failed_24h: 0 };
  for (const s of rows) for (const key in all) all[key] += s[key] ?? 0;
  const up = rows.filter((s) => s.state === "awake" || s.state === "starting").length;
  const columns = [
    { head: "Server", cell: (s) => (s.path ? html`<${Server} name=${s.name} />` : s.name), sort: (s) => s.name },
    { head: "State", cell: (s) => html`<${State} of=${stateOf(s)} more=${sleeps(s)} />`, sort: (s) => worst[s.state] },
    { head: "Sessions", num: true, wide: true, cell: (s) => (s.path ? count(s.sessions) + more(s) : ""), sort: (s) => s.sessions },
    ...(stack ? [{ head: "Last message", num: true, cell: (s) => (s.path ? ago(s.last_message) : ""), sort: (s) => s.last_message }] : [{ head: "Calls 24 h", num: true, cell: (s) => (s.path ? html`<a class="plain" href=${"#/activity?server=" + encodeURIComponent(s.name)}>${count(s.calls_24h)}</a>` : ""), sort: (s) => s.calls_24h },
    { head: "Failed", num: true, cell: (s) => (s.path ? html`<span class=${s.failed_24h ? "bad" : ""}>${count(s.failed_24h)}</span>` : ""), sort: (s) => s.failed_24h },
    { head: "p50", num: true, wide: true, cell: (s) => (s.path ? ms(s.p50) : ""), sort: (s) => s.p50 },
    { head: "p95", num: true, wide: true, cell: (s) => (s.path ? ms(s.p95) : ""), sort: (s) => s.p95 },
    { head: "Memory", num: true, wide: true, cell: (s) => (s.memory ? size(s.memory) : ""), sort: (s) => s.memory }]),
  ];
  if (me.role === "operator") columns.push({ head: "", label: "Actions", class: "actions wide", cell: (s) => (s.processes || (stack && s.boxes) ? html`<${Do} kind="quiet small" label=${"Stop " + s.name} to=${() => stop("servers/" + encodeURIComponent(s.name))} done=${again}>Stop<//>` : "") });
  return html`${me.edits ? html`<div class="title"><h1>Servers</h1><div class="row end">${said && html`<span class="hint" role="status">${said}</span>`}<button type="button" class="first" onClick=${() => setAdding(true)}>Add a server</button></div></div>` : html`<h1 class="unseen">Servers</h1>`}
    ${adding && html`<${Add} close=${() => setAdding(false)} done=${(answer) => (say(answer.said.split("\n").pop()), again())} />`}<${Problem} error=${error} />
    <div role="status"><dl class="tiles">
      <${Tile} name="Awake" value=${`${up} of ${rows.filter((s) => s.path).length}`} />
      <${Tile} name="Sessions" value=${count(all.sessions) + more(rows[0])} />
      ${!stack && html`<${Tile} name="Calls, 24 h" value=${count(all.calls_24h)} href="#/activity" />
      <${Tile} name="Failed, 24 h" value=${count(all.failed_24h)} bad=${all.failed_24h} href="#/activity?failed=true" />`}
    </dl></div>${!stack && (me.tenant ? me.tenant === "default" : !narrow()) && html`<${Machine} />`}
    ${!stack && html`<div class="plots"><${Calls} series=${ofHour} seconds=${3600} each="a minute" /><${Latency} series=${ofHour} seconds=${3600} /><${Wakes} series=${ofHour} seconds=${3600} each="a minute" /></div>`}
    ${rows.length ? html`<${Table} caption=${some(rows.length, "server", "servers")} columns=${columns} rows=${rows} id=${(s) => s.name} below=${(s) => s.why && html`<${Why} server=${s} me=${me} />`} />`
      : me.edits ? html`<div class="nothing stack"><p>There is no server yet. Add one here, or in a terminal:</p><pre>dormouse add everything -- npx -y @modelcontextprotocol/server-everything
dormouse connect claude-code</pre></div>` : html`<${Nothing}>There is no server that you may see.<//>`}
    ${!stack && me.role === "operator" && html`<${Reload} done=${again} />`}
    ${stack && html`<${Elsewhere} me=${me} what="calls, times and costs" />`}`;
}
