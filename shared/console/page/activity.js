// Who called what, and what failed.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { at, ms, some } from "./format.js";
import { useClock, useData } from "./live.js";
import { Choice, Do, Nothing, Problem, Server, State, Table } from "./parts.js";

const names = { who: "principal", server: "server", tool: "tool" };

function pathOf(query, limit) {
  const asked = new URLSearchParams({ limit, since: query.since ?? "24h" });
  for (const [ours, theirs] of Object.entries(names)) if (query[ours]) asked.set(theirs, query[ours]);
  if (query.failed) asked.set("failed", "true");
  return "calls?" + asked;
}

/** Begins no cell as a formula of a spreadsheet. */
const cell = (value) => `"${String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;

async function save(query) {
  const columns = ["time", "tenant", "principal", "server", "tool", "client", "duration_ms", "failed", "code", "reason", "session", "trace"];
  const rows = [columns.join(",")];
  for (let after = "", pages = 0; pages < 100; pages++) {
    const { calls, next } = await get(pathOf(query, 1000) + (after && "&after=" + after));
    rows.push(...calls.map((c) => columns.map((name) => (typeof c[name] === "number" ? c[name] : cell(c[name]))).join(",")));
    if (!(after = next)) break;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.join("\r\n") + "\r\n"], { type: "text/csv" }));
  link.download = "calls.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function Activity({ query, me }) {
  useClock();
  const path = pathOf(query, 100);
  const { data, error } = useData(path, "servers");
  const [older, setOlder] = useState([]);
  const [next, setNext] = useState();
  useEffect(() => (setOlder([]), setNext()), [path]);
  const go = (change) => (location.hash = "#/activity?" + new URLSearchParams(Object.entries({ ...query, ...change }).filter(([, v]) => v)));
  const typed = (name) => (e) => go({ [name]: e.target.value.trim() });
  // New calls move the first page on; an older page that was asked for stays.
  const seen = new Set(), calls = [];
  for (const c of [...(data?.[0].calls ?? []), ...older]) {
    const id = c.time + c.session + c.trace + c.tool;
    if (!seen.has(id)) seen.add(id), calls.push({ ...c, id });
  }
  const after = next ?? data?.[0].next;
  const more = async () => {
    const page = await get(path + "&after=" + after);
    setOlder([...older, ...(older.length ? [] : data[0].calls), ...page.calls]);
    setNext(page.next ?? "");
  };
  const tenants = !me.tenant && new Set(calls.map((c) => c.tenant)).size > 1;
  const columns = [
    { head: "Time", class: "light", cell: (c) => at(c.time) },
    { head: "Who", cell: (c) => html`<a href=${"#/activity?who=" + encodeURIComponent(c.principal)}>${c.principal}</a>` },
    ...(tenants ? [{ head: "Tenant", wide: true, cell: (c) => c.tenant }] : []),
    { head: "Server", cell: (c) => html`<${Server} name=${c.server} />` },
    { head: "Tool", cell: (c) => c.tool },
    { head: "Client", wide: true, cell: (c) => c.client || "–" },
    { head: "Took", num: true, wide: true, cell: (c) => ms(c.duration_ms), sort: (c) => c.duration_ms },
    { head: "Outcome", cell: (c) => html`<span class="outcome ${c.failed ? "bad" : "good"}">${c.failed ? "failed" : "done"}</span>`, sort: (c) => (c.failed ? 1 : 0) },
  ];
  return html`<div class="title"><h1>Activity</h1><div class="row end"><${Choice} label="Time" value=${query.since ?? "24h"} set=${(since) => go({ since })} options=${[["1h", "1 h"], ["24h", "24 h"], ["168h", "7 d"]]} />
      <${Do} to=${() => save(query)}>CSV<//></div></div>
    <form class="filters" role="search" aria-label="Calls" onSubmit=${(e) => e.preventDefault()}>
      <label>Who <input value=${query.who ?? ""} onChange=${typed("who")} autocomplete="off" /></label>
      <label>Server <select onChange=${typed("server")}><option value="">all</option>${(data?.[1].servers ?? []).filter((s) => s.path).map((s) => html`<option key=${s.name} selected=${s.name === query.server}>${s.name}</option>`)}</select></label>
      <label>Tool <input value=${query.tool ?? ""} onChange=${typed("tool")} autocomplete="off" /></label>
      <label class="check"><input type="checkbox" checked=${!!query.failed} onChange=${(e) => go({ failed: e.target.checked ? "true" : "" })} /> Failed only</label>
    </form>
    <${Problem} error=${error} />
    ${!data ? html`<div class="loading" />` : calls.length ? html`<${Table} caption=${some(calls.length, "call", "calls")} columns=${columns} rows=${calls} below=${(c) => c.reason && html`<p class="reason">${c.reason}</p>`} />
      ${after && html`<div class="row center"><${Do} to=${more}>Older<//></div>`}` : html`<${Nothing}>No calls in this time.<//>`}
    <p class="hint">Names, times and outcomes of tool calls. Arguments and results are kept nowhere.</p>`;
}
